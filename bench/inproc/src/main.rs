//! Measures a node in its own process, without sockets: the bytes of OP_MSG are handed to the
//! connection layer of each core.
//!
//! On the real backend it compares one core with several. On the simulated one it does a number of
//! operations for callgrind, which counts the instructions of everything but the network and the
//! ring.

#![allow(
    clippy::disallowed_methods,
    reason = "the main thread, before and after the cores run"
)]

mod line;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::{Arg, ArgMatches, Command, value_parser};
use pinion_node::node::{NodeConfig, close, open};
use pinion_process::alloc::{Allocator, keep_freed_memory};
use pinion_runtime::real::{RealOptions, available_cpus};
use pinion_runtime::sim::{Sim, SimOptions};
use pinion_storage::StorageOptions;

use workload::{Kind, Measured, Until};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() {
    keep_freed_memory();
    let options = command().get_matches();
    match options.get_one::<String>("simulated") {
        Some(kind) => simulated(
            &options,
            if kind == "read" {
                Kind::Read
            } else {
                Kind::Insert
            },
        ),
        None => compare_cores(&options),
    }
}

fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("N")
            .value_parser(value_parser!(u64))
            .default_value(default)
            .help(help)
    };
    Command::new("pinion-bench-inproc")
        .about("Measures a node in its own process, without sockets")
        .arg(number(
            "records",
            "200000",
            "Documents of 1 KB that are loaded",
        ))
        .arg(number("seconds", "5", "How long each measurement takes"))
        .arg(number(
            "rounds",
            "5",
            "How often one core and all cores are measured in turns",
        ))
        .arg(number("tasks", "64", "Connections of each core"))
        .arg(number(
            "cores",
            "2",
            "The number of cores that is compared with one",
        ))
        .arg(number(
            "cache-mib",
            "4096",
            "The node's budget for pages and changes",
        ))
        .arg(number("operations", "10000", "With --simulated: how many"))
        .arg(
            Arg::new("dbpath")
                .long("dbpath")
                .value_name("DIR")
                .default_value("target/bench-inproc")
                .help("An empty directory, which is removed at the end"),
        )
        .arg(
            Arg::new("simulated")
                .long("simulated")
                .value_name("KIND")
                .value_parser(["read", "insert"])
                .help("Runs on the simulated backend, for callgrind"),
        )
}

fn number(options: &ArgMatches, name: &str) -> u64 {
    *options.get_one::<u64>(name).expect("it has a default")
}

fn config(options: &ArgMatches, directory: &Path, partitions: u16) -> Arc<NodeConfig> {
    let mut storage = StorageOptions::new(directory);
    storage.partitions = Some(partitions);
    storage.cache_bytes = number(options, "cache-mib") << 20;
    let mut config = NodeConfig::for_simulation(storage, 0, Default::default());
    config.listen.clear();
    Arc::new(config)
}

/// What one opening of the node measured.
#[derive(Clone, Copy, Default)]
struct Round {
    read: Measured,
    insert: Measured,
    /// Round trip of a cache line between two cores, the mean of before and after the reads, in
    /// nanoseconds.
    line_ns: f64,
}

fn compare_cores(options: &ArgMatches) {
    let directory = PathBuf::from(options.get_one::<String>("dbpath").expect("a default"));
    std::fs::create_dir_all(&directory).expect("the directory can be made");
    let mut entries = std::fs::read_dir(&directory).expect("the directory can be read");
    if entries.next().is_some() {
        eprintln!("{} is not empty", directory.display());
        std::process::exit(2);
    }
    let cores = number(options, "cores") as usize;
    let records = number(options, "records");
    let tasks = number(options, "tasks") as usize;
    let until = Until::Elapsed(Duration::from_secs(number(options, "seconds")));
    let config = config(options, &directory, cores as u16);
    let (mut count, mut next_id) = (records, records);
    on_cores(cores, {
        let config = config.clone();
        move || {
            let config = config.clone();
            async move {
                opened(&config).await;
                workload::load(records).await;
                close().await.expect("the node closes");
                Round::default()
            }
        }
    });
    let mut rounds: Vec<[Round; 2]> = Vec::new();
    for round in 1..=number(options, "rounds") {
        let both = [1, cores].map(|cores| {
            let config = config.clone();
            let (first, before) = (next_id, count);
            let round = on_cores(cores, move || {
                let config = config.clone();
                async move {
                    opened(&config).await;
                    workload::warm(tasks, records).await;
                    let line_before = line_ns(cores).await;
                    let read = workload::run(Kind::Read, until, tasks, records, first).await;
                    let line_ns = f64::midpoint(line_before, line_ns(cores).await);
                    let insert = workload::run(Kind::Insert, until, tasks, records, first).await;
                    assert_eq!(workload::count().await, before + insert.operations);
                    workload::checkpoint().await;
                    close().await.expect("the node closes");
                    Round {
                        read,
                        insert,
                        line_ns,
                    }
                }
            });
            count += round.insert.operations;
            next_id = round.insert.next_id;
            round
        });
        for (name, of) in [
            ("read", Round::read as fn(&Round) -> Measured),
            ("insert", Round::insert),
        ] {
            let [one, all] = both.each_ref().map(of);
            println!(
                "round {round} {name:7} 1 core {:>9.0}/s {:>5.2} us   {cores} cores {:>9.0}/s {:>5.2} us   ratio {:.2}   hops {:.0} %   line {:.0} ns",
                one.per_second(),
                one.cpu_us(),
                all.per_second(),
                all.cpu_us(),
                all.per_second() / one.per_second(),
                all.hops as f64 * 100.0 / all.operations as f64,
                both[1].line_ns
            );
        }
        rounds.push(both);
    }
    for (name, of) in [
        ("read", Round::read as fn(&Round) -> Measured),
        ("insert", Round::insert),
    ] {
        let mut ratios: Vec<f64> = rounds
            .iter()
            .map(|[one, all]| of(all).per_second() / of(one).per_second())
            .collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "{name:7} {cores} cores over 1: median {:.2} ({:.2}-{:.2})",
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1]
        );
    }
    std::fs::remove_dir_all(&directory).expect("the directory can be removed");
}

impl Round {
    fn read(&self) -> Measured {
        self.read
    }

    fn insert(&self) -> Measured {
        self.insert
    }
}

async fn line_ns(cores: usize) -> f64 {
    if cores < 2 {
        return 0.0;
    }
    line::round_trip_ns().await
}

async fn opened(config: &NodeConfig) {
    open(config, 0).await.expect("the node opens");
    pinion_server::install(config.server.clone()).await;
}

/// Runs `main` on core 0 of a node of `cores`.
fn on_cores<F, Fut>(cores: usize, main: F) -> Round
where
    F: Fn() -> Fut + Send + Sync + Clone + 'static,
    Fut: Future<Output = Round> + 'static,
{
    let mut cpus = available_cpus().expect("the affinity mask can be read");
    assert!(cpus.len() >= cores, "there are {} CPUs", cpus.len());
    cpus.truncate(cores);
    let options = RealOptions {
        cpus,
        handle_signals: false,
        ..RealOptions::default()
    };
    let results = pinion_runtime::real::run(options, move |core| {
        let main = main.clone();
        async move {
            match core.0 {
                0 => Some(main().await),
                _ => None,
            }
        }
    });
    results
        .expect("the runtime starts")
        .into_iter()
        .flatten()
        .next()
        .expect("core 0 has a result")
}

fn simulated(options: &ArgMatches, kind: Kind) {
    let records = number(options, "records");
    let operations = number(options, "operations");
    let sim = Sim::new(1, SimOptions::default());
    let config = config(options, Path::new("/data"), 1);
    let node = sim.add_node("node", 1, move |_| {
        let config = config.clone();
        async move {
            opened(&config).await;
            workload::load(records).await;
            let until = Until::Operations(operations);
            let measured = workload::run(kind, until, 1, records, records).await;
            println!("{kind:?}: {} operations", measured.operations);
            close().await.expect("the node closes");
        }
    });
    sim.run_until_down(node).expect("the node ends");
}
