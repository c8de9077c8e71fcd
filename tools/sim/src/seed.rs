//! One seed: a node with its clients, crashes wherever the seed says, and a check after each.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_node::node::{NodeConfig, run_core};
use pinion_runtime::sim::{Death, NodeId, Sim, SimOptions};
use pinion_runtime::{Duration, Rng, sleep};
use pinion_storage::{PlantedFault, StorageOptions};

use crate::client::{Client, error_code};
use crate::oracle::Oracle;
use crate::workload::{Shared, change_indexes, durable_log, read_all, watch, work};

const PORT: u16 = 27_017;
const DATA: &str = "/data";
const MIN_CRASHES: u64 = 3;
const MIN_JOURNALED: u64 = 500;
/// A life that is not interrupted ends after so much virtual time.
const LIFE: Duration = Duration::from_millis(1_500);
/// Virtual time after which a node that neither serves nor refuses is stuck.
const OPEN_LIMIT: Duration = Duration::from_secs(600);
/// Lives of one seed at most; a seed that has not done its work by then fails.
const MAX_LIVES: u64 = 40;

/// Events of the node at which crashes are placed, with how many occurrences may pass before.
const CRASH_EVENTS: &[(&str, u64)] = &[
    ("flush", 200),
    ("checkpoint begin", 3),
    ("checkpoint install", 3),
    ("superblock", 6),
    ("checkpoint end", 3),
    ("segment", 12),
    ("ddl", 6),
    ("index build", 3),
    ("unit placed", 60),
];
/// Events of an opening node.
const OPEN_EVENTS: &[(&str, u64)] = &[
    ("recovery begin", 1),
    ("recovery cut", 1),
    ("recovery replay", 1),
    ("recovery end", 1),
    ("superblock", 2),
];

/// What happened in one seed.
#[derive(Default)]
pub struct Outcome {
    /// Why the seed failed.
    pub problem: Option<String>,
    pub trace_hash: u64,
    pub counts: BTreeMap<String, u64>,
}

impl Outcome {
    fn count(&mut self, name: &str, number: u64) {
        *self.counts.entry(name.to_string()).or_default() += number;
    }
}

/// A running seed.
struct Run {
    sim: Sim,
    node: NodeId,
    shared: Rc<Shared>,
    refused: Rc<RefCell<Option<String>>>,
    checks: Rc<Checks>,
    rng: Rng,
    outcome: Outcome,
    crashes: u64,
}

/// The checker's orders and answers.
#[derive(Default)]
struct Checks {
    wanted: Cell<u64>,
    done: Cell<u64>,
    set_up: Cell<bool>,
}

/// Runs one seed.
pub fn run_seed(seed: u64, fault: PlantedFault, print_trace: bool) -> Outcome {
    let mut options = SimOptions::random(seed);
    options.print_trace = print_trace;
    let sim = Sim::new(seed, options);
    let mut rng = sim.random_stream("campaign");
    let partitions = rng.between(1, 8) as u16;
    let workers = rng.between(3, 6) as usize;
    let refused: Rc<RefCell<Option<String>>> = Rc::default();
    let config = Arc::new(config(partitions, fault));
    let node = {
        let refused = refused.clone();
        let cores = rng.between(1, 4) as usize;
        sim.add_node("node", cores, move |core| {
            let (config, refused) = (config.clone(), refused.clone());
            async move {
                if let Err(why) = run_core(core, config).await {
                    refused.borrow_mut().get_or_insert(why.to_string());
                }
            }
        })
    };
    let shared = Rc::new(Shared {
        address: Cell::new(SocketAddr::new(sim.node_ip(node), PORT)),
        oracle: RefCell::new(Oracle::new(workers)),
        paused: Cell::new(true),
        active: Cell::new(0),
        stopped: Cell::new(false),
        with_ddl: rng.chance(0.5),
    });
    let checks: Rc<Checks> = Rc::default();
    add_clients(&sim, &shared, &checks, workers);
    let mut run = Run {
        sim,
        node,
        shared,
        refused,
        checks,
        rng,
        outcome: Outcome::default(),
        crashes: 0,
    };
    let result = run.lives();
    let Run {
        sim,
        shared,
        mut outcome,
        ..
    } = run;
    shared.stopped.set(true);
    outcome.problem = result
        .err()
        .or_else(|| shared.oracle.borrow().problem().map(String::from));
    outcome.trace_hash = sim.trace_hash();
    totals(&sim, node, &shared.oracle.borrow(), &mut outcome);
    outcome
}

fn config(partitions: u16, fault: PlantedFault) -> NodeConfig {
    let mut storage = StorageOptions::hostile(DATA);
    storage.partitions = Some(partitions);
    storage.planted_fault = fault;
    NodeConfig::for_simulation(storage, PORT)
}

fn add_clients(sim: &Sim, shared: &Rc<Shared>, checks: &Rc<Checks>, workers: usize) {
    for number in 0..workers {
        let (shared, rng) = (
            shared.clone(),
            sim.random_stream(&format!("worker {number}")),
        );
        sim.add_node(&format!("worker-{number}"), 1, move |_| {
            work(shared.clone(), number, rng.clone())
        });
    }
    let (own, rng) = (shared.clone(), sim.random_stream("watcher"));
    sim.add_node("watcher", 1, move |_| watch(own.clone(), rng.clone()));
    if shared.with_ddl {
        let (own, rng) = (shared.clone(), sim.random_stream("ddl"));
        sim.add_node("ddl", 1, move |_| change_indexes(own.clone(), rng.clone()));
    }
    let (own, checks) = (shared.clone(), checks.clone());
    sim.add_node("checker", 1, move |_| check(own.clone(), checks.clone()));
}

/// The checker waits for an order, then compares everything there is with the oracle.
async fn check(shared: Rc<Shared>, checks: Rc<Checks>) {
    let mut client = Client::new(shared.address.get());
    while !shared.stopped.get() {
        sleep(Duration::from_millis(5)).await;
        if checks.wanted.get() == checks.done.get() {
            continue;
        }
        if !checks.set_up.get() {
            if !set_up(&mut client).await {
                continue;
            }
            checks.set_up.set(true);
        }
        let Some(scan) = read_all(&mut client, "docs", None, 100).await else {
            continue;
        };
        let Some(numbers) = read_all(
            &mut client,
            "docs",
            Some(("n_1", rawdoc! { "n": { "$gte": 0_i32 } })),
            100,
        )
        .await
        else {
            continue;
        };
        let Some(unique) = read_all(
            &mut client,
            "docs",
            Some(("u_1", rawdoc! { "u": { "$exists": true } })),
            100,
        )
        .await
        else {
            continue;
        };
        let Some(log) = read_all(&mut client, "log", None, 1_000).await else {
            continue;
        };
        let at_least = durable_log(&shared);
        let mut oracle = shared.oracle.borrow_mut();
        oracle.check_documents(&scan, &[("n_1", numbers), ("u_1", unique)]);
        oracle.check_log(&log, &at_least, true);
        checks.done.set(checks.wanted.get());
    }
}

async fn set_up(client: &mut Client) -> bool {
    let commands: [RawDocumentBuf; 3] = [
        rawdoc! { "createIndexes": "docs", "indexes": [{ "key": { "n": 1_i32 }, "name": "n_1" }], "$db": "sim" },
        rawdoc! { "createIndexes": "docs", "indexes": [{ "key": { "u": 1_i32 }, "name": "u_1", "unique": true }], "$db": "sim" },
        rawdoc! { "create": "log", "$db": "sim" },
    ];
    for command in &commands {
        let Ok(reply) = client.command(command).await else {
            return false;
        };
        // The collection is there already when a crash fell into an earlier set-up.
        if !matches!(error_code(&reply), 0 | 48) {
            return false;
        }
    }
    // What was set up must not be lost, or the oracle would wait for indexes that are gone.
    let fsync = rawdoc! { "fsync": 1_i32, "$db": "admin" };
    matches!(client.command(&fsync).await, Ok(reply) if error_code(&reply) == 0)
}

impl Run {
    fn lives(&mut self) -> Result<(), String> {
        if !self.open()? {
            return Err(format!(
                "an undamaged directory was refused: {:?}",
                self.refused.borrow()
            ));
        }
        for life in 0..MAX_LIVES {
            self.live();
            self.stop_clients()?;
            let damaged = life >= MIN_CRASHES && self.rng.chance(0.15) && self.damage();
            let cores = self.rng.between(1, 4) as usize;
            if self.rng.chance(0.3) {
                let (event, most) = OPEN_EVENTS[self.rng.below(OPEN_EVENTS.len() as u64) as usize];
                let nth = self.rng.between(1, most);
                let death = self.death();
                self.sim.crash_at(self.node, event, nth, death);
            }
            self.sim.restart(self.node, cores);
            if !self.open()? {
                return self.refusal(damaged);
            }
            if damaged {
                self.outcome.count("damage harmless", 1);
            }
            if let Some(problem) = self.shared.oracle.borrow().problem() {
                return Err(problem.to_string());
            }
            let journaled = self.shared.oracle.borrow().journaled;
            if self.crashes >= MIN_CRASHES && journaled >= MIN_JOURNALED {
                return Ok(());
            }
        }
        Err(format!(
            "{MAX_LIVES} lives were not enough: {} crashes, {} journaled writes",
            self.crashes,
            self.shared.oracle.borrow().journaled
        ))
    }

    /// Waits until the checker has found everything right, restarting the node where a crash falls into its opening.
    /// False when the node refuses its directory.
    fn open(&mut self) -> Result<bool, String> {
        self.checks.wanted.set(self.checks.wanted.get() + 1);
        let deadline = self.sim.now() + OPEN_LIMIT;
        loop {
            let (sim, checks, refused, shared) =
                (&self.sim, &self.checks, &self.refused, &self.shared);
            let stuck = sim.run_until(|| {
                checks.done.get() == checks.wanted.get()
                    || refused.borrow().is_some()
                    || !sim.is_running(self.node)
                    || shared.oracle.borrow().problem().is_some()
                    || sim.now() >= deadline
            });
            stuck.map_err(|stuck| format!("the simulation is stuck: {stuck:?}"))?;
            if let Some(problem) = shared.oracle.borrow().problem() {
                return Err(problem.to_string());
            }
            if refused.borrow().is_some() {
                return Ok(false);
            }
            if checks.done.get() == checks.wanted.get() {
                self.sim.cancel_crashes(self.node);
                return Ok(true);
            }
            if sim.now() >= deadline {
                return Err("the node neither serves nor refuses".into());
            }
            self.crashes += 1;
            let cores = self.rng.between(1, 4) as usize;
            self.sim.restart(self.node, cores);
        }
    }

    /// Lets the clients work until the crash.
    fn live(&mut self) {
        self.sim.cancel_crashes(self.node);
        let death = self.death();
        let mut lasts = LIFE;
        if self.rng.chance(0.75) {
            let (event, most) = CRASH_EVENTS[self.rng.below(CRASH_EVENTS.len() as u64) as usize];
            let nth = self.rng.between(1, most);
            self.sim.crash_at(self.node, event, nth, death);
        } else {
            lasts = Duration::from_millis(self.rng.between(1, LIFE.as_millis() as u64));
        }
        self.shared.paused.set(false);
        let end = self.sim.now() + lasts;
        let (sim, node, shared) = (&self.sim, self.node, &self.shared);
        let _ = sim.run_until(|| {
            !sim.is_running(node) || sim.now() >= end || shared.oracle.borrow().problem().is_some()
        });
        if sim.is_running(node) {
            sim.crash(node, death);
        }
        self.crashes += 1;
    }

    fn death(&mut self) -> Death {
        if self.rng.chance(0.8) {
            Death::PowerCut
        } else {
            Death::Kill
        }
    }

    fn stop_clients(&mut self) -> Result<(), String> {
        self.shared.paused.set(true);
        let (sim, shared) = (&self.sim, &self.shared);
        sim.run_until(|| shared.active.get() == 0)
            .map_err(|stuck| format!("clients do not end: {stuck:?}"))
    }

    fn damage(&mut self) -> bool {
        let place = ["partition", "ring", "superblock", "manifest"][self.rng.below(4) as usize];
        let flipped = self.sim.flip_random_bit(self.node, place);
        self.outcome
            .count("bits flipped", u64::from(flipped.is_some()));
        flipped.is_some()
    }

    /// A refusal is right only after damage, and must name a file.
    fn refusal(&mut self, damaged: bool) -> Result<(), String> {
        let why = self.refused.borrow().clone().unwrap_or_default();
        if !damaged {
            return Err(format!("an undamaged directory was refused: {why}"));
        }
        if !why.contains(DATA)
            && !["ring", "partition", "superblock", "manifest"]
                .iter()
                .any(|file| why.contains(file))
        {
            return Err(format!("the refusal names no file: {why}"));
        }
        self.outcome.count("damage refused", 1);
        Ok(())
    }
}

fn totals(sim: &Sim, node: NodeId, oracle: &Oracle, outcome: &mut Outcome) {
    let stats = sim.stats();
    for (event, number) in &stats.crashes_by_event {
        outcome.count(&format!("crash at {event}"), *number);
    }
    for (event, number) in sim.event_counts(node) {
        outcome.count(&format!("event {event}"), number);
    }
    for (name, number) in [
        ("power cuts", stats.power_cuts),
        ("kills", stats.kills),
        ("torn blocks", stats.torn_blocks),
        ("lost blocks", stats.lost_blocks),
        ("journaled writes acknowledged", oracle.journaled),
        ("writes acknowledged", oracle.acknowledged),
        ("unknown outcomes", oracle.unknown_outcomes),
        ("duplicates refused", oracle.duplicates_refused),
        ("reads checked", oracle.reads_checked),
        ("snapshots checked", oracle.snapshots_checked),
    ] {
        outcome.count(name, number);
    }
}
