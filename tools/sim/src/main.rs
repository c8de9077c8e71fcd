//! Runs seeds of the simulated node and reports what they went through.

mod agreement;
mod campaign;
mod check;
mod client;
mod clusters;
mod fault;
mod log;
mod members;
mod oracle;
mod seed;
mod sets;
mod workload;

use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command};
use pinion_process::alloc::Allocator;

use campaign::Kind;
use fault::Fault;

/// The node's own, which is much faster here too.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).default_value(default).help(help)
    };
    let plant = Arg::new("plant")
        .long("plant")
        .help("Plant a fault, which the campaign must then find");
    let sets = Arg::new("sets")
        .long("sets")
        .num_args(0)
        .action(ArgAction::SetTrue)
        .help("of replica sets instead of one node");
    let clusters = Arg::new("clusters")
        .long("clusters")
        .num_args(0)
        .action(ArgAction::SetTrue)
        .conflicts_with("sets")
        .help("of clusters with shards instead of one node");
    let log = Arg::new("log")
        .long("log")
        .num_args(0)
        .action(ArgAction::SetTrue)
        .help("print what the nodes log");
    let trace = Arg::new("trace")
        .long("trace")
        .num_args(0)
        .action(ArgAction::SetTrue)
        .help("print every step");
    Command::new("pinion-sim")
        .about("Runs the whole node in the deterministic simulation and checks what it promised")
        .subcommand_required(true)
        .subcommand(
            Command::new("campaign")
                .about("Runs many seeds")
                .arg(number("seeds", "200", "how many"))
                .arg(number("first", "1", "the first one"))
                .args([sets.clone(), clusters.clone()])
                .arg(plant.clone()),
        )
        .subcommand(
            Command::new("seed")
                .about("Runs one seed and prints its trace hash")
                .arg(number("number", "1", "which"))
                .args([sets.clone(), clusters.clone()])
                .arg(plant)
                .arg(log)
                .arg(trace),
        )
        .subcommand(
            Command::new("faults")
                .about("Plants every fault in turn and fails unless each is found")
                .args([sets, clusters])
                .arg(number("seeds", "200", "how many seeds each may take")),
        )
}

fn number(matches: &ArgMatches, name: &str) -> Result<u64, String> {
    let text = matches
        .get_one::<String>(name)
        .map(String::as_str)
        .unwrap_or_default();
    text.parse()
        .map_err(|_| format!("--{name} takes a whole number, not '{text}'"))
}

fn kind(matches: &ArgMatches) -> Kind {
    match (matches.get_flag("sets"), matches.get_flag("clusters")) {
        (true, _) => Kind::Set,
        (_, true) => Kind::Cluster,
        (false, false) => Kind::Node,
    }
}

fn fault(matches: &ArgMatches) -> Result<Fault, String> {
    let Some(name) = matches.get_one::<String>("plant") else {
        return Ok(Fault::NONE);
    };
    let names = || Fault::every().map(Fault::name).collect::<Vec<_>>();
    Fault::named(name).ok_or_else(|| format!("--plant knows {}", names().join(", ")))
}

fn main() -> ExitCode {
    let matches = command().get_matches();
    let prints = matches.subcommand();
    let prints = prints.is_some_and(|(name, matches)| name == "seed" && matches.get_flag("log"));
    log::install(prints);
    let outcome = match matches.subcommand() {
        Some(("campaign", matches)) => campaign(matches),
        Some(("seed", matches)) => one(matches),
        Some(("faults", matches)) => {
            number(matches, "seeds").and_then(|seeds| campaign::faults(kind(matches), seeds))
        }
        _ => Err("a subcommand is needed".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

fn campaign(matches: &ArgMatches) -> Result<(), String> {
    let (first, seeds) = (number(matches, "first")?, number(matches, "seeds")?.max(1));
    campaign::campaign(kind(matches), first, seeds, fault(matches)?)
}

fn one(matches: &ArgMatches) -> Result<(), String> {
    let number = number(matches, "number")?;
    let outcome = kind(matches).run(number, fault(matches)?, matches.get_flag("trace"));
    for (name, count) in &outcome.counts {
        println!("{name}: {count}");
    }
    println!("trace hash {:016x}", outcome.trace_hash);
    outcome
        .problem
        .map_or(Ok(()), |problem| Err(format!("seed {number}: {problem}")))
}
