//! The comparison: every engine through the same phases, in turns.

use std::time::Instant;

use serde_json::{Value, json};

use crate::child::{Engine, dir};
use crate::engines::find;
use crate::machine;
use crate::options::Options;
use crate::plan::{Kind, Plan};
use crate::session::{Durability, Outcome, text};
use crate::table;

/// The first field of the result, by which `pinion-bench report` knows it.
const FORMAT: &str = "pinion-bench-engine-1";

/// Part of `seconds` for which an engine runs before it is measured again, after another had the
/// processor.
const WARM_UP: f64 = 0.2;

/// The measurements of one phase: of each engine one for each round.
pub struct Phase {
    pub name: &'static str,
    pub rounds: Vec<(&'static str, Vec<Value>)>,
}

struct Comparison<'a> {
    options: &'a Options,
    engines: Vec<Engine>,
    phases: Vec<Phase>,
    /// Records that every engine has.
    records: u64,
    begin: Instant,
}

/// Runs everything; false if an engine that was asked for is not in this program.
pub fn command(options: &Options) -> Outcome<bool> {
    let (present, missing): (Vec<_>, Vec<_>) = options
        .engines
        .iter()
        .map(|name| find(name))
        .collect::<Outcome<Vec<_>>>()?
        .into_iter()
        .partition(|engine| engine.serve.is_some());
    for engine in &missing {
        println!("{}: not measured: {}", engine.name, engine.missing);
    }
    if present.is_empty() {
        return Err("there is no engine to measure".into());
    }
    let machine = machine::facts();
    println!("# machine: {machine}");
    table::print_options(options);
    std::fs::create_dir_all(&options.dir).map_err(text)?;
    let mut comparison = Comparison {
        options,
        engines: Vec::new(),
        phases: Vec::new(),
        records: 0,
        begin: Instant::now(),
    };
    let names: Vec<&'static str> = present.iter().map(|engine| engine.name).collect();
    let result = comparison.run(&names);
    comparison.engines.clear();
    if !options.keep {
        for name in &names {
            let _ = std::fs::remove_dir_all(dir(options, name));
        }
    }
    let opened = result?;
    if let Some(path) = &options.json {
        let phases: Vec<Value> = comparison
            .phases
            .iter()
            .map(|phase| table::to_json(phase, options))
            .collect();
        let missing: Vec<Value> = missing
            .iter()
            .map(|engine| json!({"engine": engine.name, "why": engine.missing}))
            .collect();
        let result = json!({
            "format": FORMAT,
            "command": std::env::args().collect::<Vec<_>>(),
            "machine": machine,
            "load_average_after": machine::facts()["load_average"],
            "engines": opened,
            "not_measured": missing,
            "phases": phases,
        });
        std::fs::write(path, format!("{result:#}\n")).map_err(text)?;
    }
    Ok(missing.is_empty())
}

impl Comparison<'_> {
    fn opened(&self) -> Vec<Value> {
        let about = |engine: &Engine| {
            let mut about = engine.opened.clone();
            about["engine"] = engine.name.into();
            about
        };
        self.engines.iter().map(about).collect()
    }

    fn plan(&self, kind: Kind) -> Plan {
        let options = self.options;
        Plan {
            kind,
            records: self.records,
            count: None,
            seconds: options.seconds,
            settle: false,
            clients: options.clients,
            value_bytes: options.value_bytes,
            batch: options.batch,
            scan_len: options.scan_len,
            write_rate: options.write_rate,
            snapshot_ops: options.snapshot_ops,
            seed: options.seed,
        }
    }

    fn say(&self, what: &str) {
        eprintln!("[{:6.1} s] {what}", self.begin.elapsed().as_secs_f64());
    }

    /// What the engines said of themselves each time that they were opened.
    fn run(&mut self, names: &[&'static str]) -> Outcome<Vec<Value>> {
        self.load(names)?;
        let mut about = Vec::new();
        if READS.iter().any(|phase| self.options.has(phase)) {
            // Changes must stay where they are while reads are measured.
            self.open(names, Durability::Interval, false)?;
            about = self.opened();
            table::print_about(&about);
            self.reads()?;
            self.close()?;
        }
        if self.options.has("update") || self.options.has("insert") {
            self.open(names, Durability::Interval, true)?;
            about.extend(self.opened());
            table::print_about(&self.opened());
            self.writes("update", Kind::Update, self.options.writes)?;
            self.writes("insert", Kind::Insert, self.options.writes)?;
            self.close()?;
        }
        if self.options.has("update-sync") || self.options.has("insert-sync") {
            self.open(names, Durability::Commit, true)?;
            table::print_about(&self.opened());
            about.extend(self.opened());
            self.writes("update-sync", Kind::Update, self.options.sync_writes)?;
            self.writes("insert-sync", Kind::Insert, self.options.sync_writes)?;
            self.close()?;
        }
        Ok(about)
    }

    /// Each engine gets an empty directory and all records, is flushed and closed.
    fn load(&mut self, names: &[&'static str]) -> Outcome<()> {
        let mut rounds = Vec::new();
        for name in names {
            let dir = dir(self.options, name);
            if dir.exists() {
                std::fs::remove_dir_all(&dir).map_err(text)?;
            }
            self.say(&format!("{name}: load"));
            let mut engine = Engine::open(self.options, name, Durability::Interval, true)?;
            let done = engine.run(Plan {
                count: Some(self.options.records),
                settle: true,
                ..self.plan(Kind::Load)
            })?;
            engine.close()?;
            rounds.push((*name, vec![done]));
        }
        self.records = self.options.records;
        self.finish(Phase {
            name: "load",
            rounds,
        })
    }

    /// Opens all engines, and warms each: every record once in order, then at random.
    fn open(
        &mut self,
        names: &[&'static str],
        durability: Durability,
        checkpoints: bool,
    ) -> Outcome<()> {
        for name in names {
            self.say(&format!("{name}: open and warm"));
            let mut engine = Engine::open(self.options, name, durability, checkpoints)?;
            if self.options.cpus.len() == 1 {
                engine.run(self.plan(Kind::ScanAll))?;
            }
            engine.run(self.plan(Kind::Read))?;
            self.engines.push(engine);
        }
        Ok(())
    }

    fn close(&mut self) -> Outcome<()> {
        for engine in self.engines.drain(..) {
            engine.close()?;
        }
        Ok(())
    }

    fn reads(&mut self) -> Outcome<()> {
        self.timed("read", Kind::Read)?;
        self.timed("scan", Kind::Scan)?;
        self.timed("scan-all", Kind::ScanAll)?;
        if self.options.has("read-changed") {
            self.say("a tenth of the records is changed");
            let plan = self.plan(Kind::UpdateTenth);
            for engine in &mut self.engines {
                engine.run(plan)?;
            }
        }
        self.timed("read-changed", Kind::Read)?;
        self.timed("read-while-write", Kind::ReadWhileWriting)?;
        for engine in &mut self.engines {
            engine.settle()?;
        }
        Ok(())
    }

    /// One measurement of every engine in turns; each round begins with another engine.
    fn rounds(
        &mut self,
        phase: &'static str,
        mut measure: impl FnMut(&mut Engine, usize) -> Outcome<Value>,
        mut after_round: impl FnMut(),
    ) -> Outcome<()> {
        let count = self.engines.len();
        let mut rounds: Vec<(&'static str, Vec<Value>)> = self
            .engines
            .iter()
            .map(|engine| (engine.name, Vec::new()))
            .collect();
        for round in 0..self.options.rounds {
            self.say(&format!(
                "{phase}: round {} of {}",
                round + 1,
                self.options.rounds
            ));
            for turn in 0..count {
                let at = (round + turn) % count;
                let done = measure(&mut self.engines[at], round)?;
                rounds[at].1.push(done);
            }
            after_round();
        }
        self.finish(Phase {
            name: phase,
            rounds,
        })
    }

    fn timed(&mut self, phase: &'static str, kind: Kind) -> Outcome<()> {
        if !self.options.has(phase) {
            return Ok(());
        }
        if matches!(kind, Kind::Scan | Kind::ScanAll) && self.options.cpus.len() > 1 {
            println!(
                "\n## {phase}: not measured: one processor only, for merging partitions is not storage's part"
            );
            return Ok(());
        }
        let plan = self.plan(kind);
        let warm_up = Plan {
            kind: if kind == Kind::ReadWhileWriting {
                Kind::Read
            } else {
                kind
            },
            seconds: plan.seconds * WARM_UP,
            ..plan
        };
        self.rounds(
            phase,
            |engine, round| {
                if kind != Kind::ScanAll {
                    engine.run(warm_up)?;
                }
                engine.run(Plan {
                    seed: plan.seed + 1 + round as u64,
                    ..plan
                })
            },
            || {},
        )
    }

    fn writes(&mut self, phase: &'static str, kind: Kind, count: u64) -> Outcome<()> {
        if !self.options.has(phase) {
            return Ok(());
        }
        let plan = Plan {
            count: Some(count),
            settle: true,
            ..self.plan(kind)
        };
        let mut records = self.records;
        let grows = kind == Kind::Insert;
        self.rounds(
            phase,
            |engine, round| {
                engine.run(Plan {
                    records: plan.records + if grows { round as u64 * count } else { 0 },
                    seed: plan.seed + 1 + round as u64,
                    ..plan
                })
            },
            || records += if grows { count } else { 0 },
        )?;
        self.records = records;
        Ok(())
    }

    /// A pass over all records must give the same sum with every engine.
    fn finish(&mut self, phase: Phase) -> Outcome<()> {
        if phase.name == "scan-all" {
            let mut sums: Vec<&Value> = phase
                .rounds
                .iter()
                .flat_map(|(_, rounds)| rounds.iter().map(|round| &round["sum_of_values"]))
                .collect();
            sums.dedup();
            if sums.len() != 1 {
                return Err(format!("the engines do not hold the same values: {sums:?}"));
            }
        }
        table::print_phase(&phase, self.options);
        self.phases.push(phase);
        Ok(())
    }
}

const READS: [&str; 5] = [
    "read",
    "scan",
    "scan-all",
    "read-changed",
    "read-while-write",
];
