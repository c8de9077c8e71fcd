//! `pinion-bench soak`: hours of mixed load on a server that is ended and started again, every
//! document held against what must be, and memory, descriptors, space and latency held against what
//! they were.

mod model;
mod plant;
mod watch;
mod worker;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use clap::builder::PossibleValuesParser;
use clap::{ArgMatches, Command};
use hdrhistogram::Histogram;
use serde_json::json;

use crate::machine;
use crate::options::{number, required, secs, value};
use crate::peers::{Common, Kind, Server, find_program, plain_session};
use crate::protocol::{Mongo, Protocol, bson};
use model::End;
use plant::{Plant, Planted};
use watch::Sample;
use worker::{COLLECTION, DATABASE, Shared, Worker};

/// How long the workers may take to read everything behind a restart.
const VERIFY_TIMEOUT: Duration = Duration::from_secs(300);

pub fn options() -> Command {
    Command::new("soak")
        .about("Loads a server for hours through restarts; exit status 2 if it loses a write, answers wrongly or drifts")
        .arg(value("server", "PATH", "the binary of the node, found beside this program; a mongod too"))
        .arg(value("duration", "SECS", "how long").default_value("3600"))
        .arg(value("restarts", "N", "evenly over that time, by SIGKILL and SIGTERM in turns").default_value("5"))
        .arg(value("rate", "OPS", "operations a second in all").default_value("1000"))
        .arg(value("connections", "N", "each with keys of its own").default_value("16"))
        .arg(value("keys", "N", "of each connection").default_value("2000"))
        .arg(value("sample", "SECS", "between two looks at the server").default_value("2"))
        .arg(value("syncdelay", "SECS", "between the server's checkpoints").default_value("10"))
        .arg(value("cache-gb", "GB", "the server's cache budget").default_value("1"))
        .arg(value("server-cpu", "N", "the server's processor").default_value("0"))
        .arg(value("directory", "DIR", "where the server's data and log go; made and removed").default_value("pinion-bench-soak"))
        .arg(value("json", "FILE", "writes the result"))
        // Shows that a fault is found; it is not for users.
        .arg(
            value("plant", "FAULT", "a fault that must be found")
                .value_parser(PossibleValuesParser::new(Plant::NAMES))
                .hide(true),
        )
}

struct Options {
    duration: Duration,
    restarts: usize,
    period: Duration,
    connections: usize,
    keys: u64,
    sample: Duration,
    plant: Option<Plant>,
    json: Option<PathBuf>,
}

/// Runs and reports. False if something is wrong with the server.
pub fn command(matches: &ArgMatches) -> Result<bool, String> {
    let connections: usize = required(matches, "connections")?;
    let rate: f64 = required(matches, "rate")?;
    if connections == 0 || rate.is_nan() || rate <= 0.0 {
        return Err("--connections and --rate are above 0".into());
    }
    let options = Options {
        duration: secs(matches, "duration")?.unwrap_or_default(),
        restarts: required(matches, "restarts")?,
        period: Duration::from_secs_f64(connections as f64 / rate),
        connections,
        keys: required::<u64>(matches, "keys")?.max(1),
        sample: secs(matches, "sample")?
            .unwrap_or_default()
            .max(Duration::from_millis(50)),
        plant: matches
            .get_one::<String>("plant")
            .and_then(|name| Plant::named(name)),
        json: number(matches, "json")?,
    };
    let given = matches.get_one::<String>("server").cloned();
    let beside = std::env::current_exe()
        .ok()
        .map(|own| own.with_file_name("pinion").display().to_string());
    let program = given.or(beside).unwrap_or_else(|| "pinion".into());
    let program =
        find_program(&[&program]).ok_or_else(|| format!("there is no server {program}"))?;
    let directory: PathBuf = required(matches, "directory")?;
    if directory.exists() {
        return Err(format!(
            "{} is there already: this program makes and removes it",
            directory.display()
        ));
    }
    std::fs::create_dir_all(&directory)
        .map_err(|error| format!("{}: {error}", directory.display()))?;
    let directory = directory
        .canonicalize()
        .map_err(|error| error.to_string())?;
    let mongod = program.file_name().is_some_and(|name| name == "mongod");
    let server = Server::own(
        if mongod { Kind::MongoDb } else { Kind::Pinion },
        program,
        Common {
            server_cpu: required(matches, "server-cpu")?,
            cache_gb: required(matches, "cache-gb")?,
            checkpoint_secs: required(matches, "syncdelay")?,
            directory: directory.clone(),
            words: Vec::new(),
        },
    )?;
    let right = Soak::new(server, options).and_then(Soak::run);
    // What a server has done wrong is to be looked at.
    if right == Ok(true) {
        std::fs::remove_dir_all(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
    } else {
        eprintln!(
            "pinion-bench: data and log are left in {}",
            directory.display()
        );
    }
    right
}

struct Soak {
    server: Server,
    options: Options,
    shared: Arc<Shared>,
    samples: Vec<Sample>,
    began: Instant,
    restarts: Vec<(f64, End, f64)>,
    planted: Option<Planted>,
}

impl Soak {
    fn new(mut server: Server, options: Options) -> Result<Self, String> {
        server.start()?;
        let session = plain_session(&server.uri)?;
        let (mut mongo, mut transport) = Mongo::open(&session)?;
        mongo.command(&mut transport, DATABASE, |out| {
            bson::string(out, "createIndexes", COLLECTION);
            bson::array(out, "indexes", |out| {
                bson::nested(out, "0", |out| {
                    bson::nested(out, "key", |out| bson::int32(out, "tag", 1));
                    bson::string(out, "name", "tag_1");
                });
            });
        })?;
        let shared = Shared {
            session,
            phase: AtomicUsize::new(0),
            how: Mutex::new(End::Asked),
            verified: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            latencies: Mutex::new(histogram()),
            operations: AtomicU64::new(0),
            checked: AtomicU64::new(0),
            failures: Mutex::new(Vec::new()),
            lose_one: AtomicBool::new(options.plant == Some(Plant::LostWrite)),
        };
        Ok(Self {
            planted: options.plant.map(|plant| Planted::new(plant, &server.uri)),
            server,
            options,
            shared: Arc::new(shared),
            samples: Vec::new(),
            began: Instant::now(),
            restarts: Vec::new(),
        })
    }

    fn run(mut self) -> Result<bool, String> {
        let workers: Vec<JoinHandle<()>> = (0..self.options.connections)
            .map(|number| {
                let worker = Worker::new(
                    Arc::clone(&self.shared),
                    number as u64,
                    self.options.keys,
                    self.options.period,
                );
                std::thread::spawn(move || worker.run())
            })
            .collect();
        let watched = self.everybody_is_there().and_then(|()| {
            self.began = Instant::now();
            self.watch()
        });
        self.shared.stop.store(true, Ordering::Relaxed);
        for worker in workers {
            if worker.join().is_err() {
                self.shared.fail("a worker panicked".into());
            }
        }
        watched?;
        self.report()
    }

    /// Looks and restarts until the time is over or something is wrong.
    fn watch(&mut self) -> Result<(), String> {
        let lives = self.options.restarts + 1;
        let life = self.options.duration / lives as u32;
        for number in 0..lives {
            let until = self.began + life * (number as u32 + 1);
            while Instant::now() < until && self.failures().is_empty() {
                let wait = until.saturating_duration_since(Instant::now());
                std::thread::sleep(wait.min(self.options.sample));
                self.sample(number)?;
                if let Some(planted) = &mut self.planted {
                    planted.grow()?;
                }
            }
            if number + 1 < lives && self.failures().is_empty() {
                let end = if number % 2 == 0 {
                    End::Killed
                } else {
                    End::Asked
                };
                self.restart(end)?;
            }
        }
        Ok(())
    }

    fn failures(&self) -> Vec<String> {
        self.shared
            .failures
            .lock()
            .expect("no holder panics")
            .clone()
    }

    fn sample(&mut self, life: usize) -> Result<(), String> {
        let pid = self.server.pid().ok_or("the server does not run")?;
        let (resident_bytes, descriptors, space_bytes) = watch::look(pid, &self.server.data())?;
        let latencies = std::mem::replace(
            &mut *self.shared.latencies.lock().expect("no holder panics"),
            histogram(),
        );
        let at_secs = self.began.elapsed().as_secs_f64();
        let sample = Sample {
            at_secs,
            life,
            resident_bytes,
            descriptors,
            space_bytes,
            per_sec: latencies.len() as f64 / self.options.sample.as_secs_f64(),
            p999_us: latencies.value_at_quantile(0.999) as f64 / 1e3,
        };
        // A line a minute is enough to follow.
        let minute = |secs: f64| (secs / 60.0) as u64;
        let last = self.samples.last().map_or(-60.0, |last| last.at_secs);
        if last < 0.0 || minute(last) != minute(at_secs) {
            eprintln!(
                "{at_secs:6.0} s  life {}  {:6.0}/s  p99.9 {:7.1} ms  resident {:5.0} MiB  {:3} files  space {:6.0} MiB  checked {}",
                life + 1,
                sample.per_sec,
                sample.p999_us / 1e3,
                resident_bytes / 1_048_576.0,
                descriptors,
                space_bytes / 1_048_576.0,
                self.shared.checked.load(Ordering::Relaxed)
            );
        }
        self.samples.push(sample);
        Ok(())
    }

    /// Ends the server under load, starts it again and has every document verified.
    fn restart(&mut self, end: End) -> Result<(), String> {
        *self.shared.how.lock().expect("no holder panics") = end;
        self.shared.verified.store(0, Ordering::Release);
        self.shared.phase.fetch_add(1, Ordering::AcqRel);
        let at_secs = self.began.elapsed().as_secs_f64();
        match end {
            End::Killed => self.server.kill(),
            End::Asked => self.server.stop(),
        }?;
        let began = Instant::now();
        self.server.start()?;
        let took = began.elapsed().as_secs_f64();
        self.shared.phase.fetch_add(1, Ordering::AcqRel);
        let began = Instant::now();
        self.everybody_is_there()?;
        eprintln!(
            "{at_secs:6.0} s  ended ({}), serves again after {took:.2} s, everything verified in {:.2} s",
            how(end),
            began.elapsed().as_secs_f64()
        );
        self.restarts.push((at_secs, end, took));
        if let Some(planted) = &mut self.planted {
            planted.server_is_new();
        }
        Ok(())
    }

    /// Waits until all workers have written or verified their documents.
    fn everybody_is_there(&self) -> Result<(), String> {
        let began = Instant::now();
        while self.shared.verified.load(Ordering::Acquire) < self.options.connections {
            if began.elapsed() > VERIFY_TIMEOUT {
                return Err("the workers did not get through all their documents".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn report(mut self) -> Result<bool, String> {
        let mut wrong = self.failures();
        if wrong.is_empty() && self.restarts.len() < self.options.restarts {
            wrong.push("there were fewer restarts than asked for".into());
        }
        if !watch::can_show_drift(&self.samples) {
            wrong.push("every life was too short to tell a drift: a longer --duration, a shorter --sample or fewer --restarts".into());
        }
        wrong.extend(watch::drift(&self.samples));
        let operations = self.shared.operations.load(Ordering::Relaxed);
        let checked = self.shared.checked.load(Ordering::Relaxed);
        if operations == 0 || checked == 0 {
            wrong.push("nothing was done or nothing was checked".into());
        }
        let secs = self.began.elapsed().as_secs_f64();
        println!(
            "soak of {secs:.0} s: {operations} operations, {checked} documents held against what must be, {} restarts",
            self.restarts.len()
        );
        for life in self.samples.chunk_by(|a, b| a.life == b.life) {
            let (first, last) = (&life[life.len() / 4], &life[life.len() - 1]);
            println!(
                "life {}: resident {:.0} -> {:.0} MiB, files {} -> {}, space {:.0} -> {:.0} MiB, p99.9 {:.1} -> {:.1} ms",
                first.life + 1,
                first.resident_bytes / 1_048_576.0,
                last.resident_bytes / 1_048_576.0,
                first.descriptors,
                last.descriptors,
                first.space_bytes / 1_048_576.0,
                last.space_bytes / 1_048_576.0,
                first.p999_us / 1e3,
                last.p999_us / 1e3
            );
        }
        for why in &wrong {
            println!("FAILED: {why}");
        }
        if wrong.is_empty() {
            println!("nothing was lost, nothing was wrong, nothing drifts");
        }
        if let Some(file) = &self.options.json {
            let restarts: Vec<_> = self
                .restarts
                .iter()
                .map(|(at_secs, end, took)| json!({"at_secs": at_secs, "end": how(*end), "start_secs": took}))
                .collect();
            let value = json!({
                "format": "pinion-bench-soak-1",
                "command": std::env::args().collect::<Vec<_>>().join(" "),
                "machine": machine::facts(),
                "server": self.server.command,
                "secs": secs,
                "operations": operations,
                "checked": checked,
                "restarts": restarts,
                "failed": wrong,
                "samples": watch::json(&self.samples),
            });
            let text = serde_json::to_string_pretty(&value).map_err(|error| error.to_string())?;
            std::fs::write(file, text + "\n")
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        self.server.stop()?;
        Ok(wrong.is_empty())
    }
}

fn how(end: End) -> &'static str {
    match end {
        End::Killed => "SIGKILL",
        End::Asked => "SIGTERM",
    }
}

fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 600_000_000_000, 3)
        .expect("the bounds of the histogram are valid")
}
