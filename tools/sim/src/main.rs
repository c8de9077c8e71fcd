//! Runs seeds of the simulated node and tells what they went through.

#![allow(clippy::disallowed_methods)] // The command around the simulation: it measures its own time and starts processes.

mod client;
mod oracle;
mod seed;
mod workload;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Arg, ArgMatches, Command};
use pinion_storage::PlantedFault;

use seed::{Outcome, run_seed};

/// What every campaign of at least this many seeds must have met.
const FULL_CAMPAIGN: u64 = 200;
const MUST_HAPPEN: &[&str] = &[
    "power cuts",
    "kills",
    "torn blocks",
    "lost blocks",
    "journaled writes acknowledged",
    "duplicates refused",
    "reads checked",
    "snapshots checked",
    "bits flipped",
    "damage refused",
    "event flush",
    "event checkpoint end",
    "event superblock",
    "event segment",
    "event unit placed",
    "event recovery entries",
    "event recovery hole",
    "event recovery torn frame",
    "crash at flush",
    "crash at checkpoint begin",
    "crash at checkpoint install",
    "crash at superblock",
    "crash at segment",
    "crash at unit placed",
    "crash at recovery begin",
    "crash at recovery cut",
    "crash at recovery replay",
    "crash at ddl",
    "crash at index build",
];

fn command() -> Command {
    let number = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).default_value(default).help(help)
    };
    let plant = Arg::new("plant")
        .long("plant")
        .help("Plant a fault, which the campaign must then find");
    Command::new("pinion-sim")
        .about("Runs the whole node in the deterministic simulation and checks what it promised")
        .subcommand_required(true)
        .subcommand(
            Command::new("campaign")
                .about("Runs many seeds")
                .arg(number("seeds", "200", "how many"))
                .arg(number("first", "1", "the first one"))
                .arg(plant.clone()),
        )
        .subcommand(
            Command::new("seed")
                .about("Runs one seed and prints its trace hash")
                .arg(number("number", "1", "which"))
                .arg(plant)
                .arg(
                    Arg::new("trace")
                        .long("trace")
                        .num_args(0)
                        .action(clap::ArgAction::SetTrue)
                        .help("print every step"),
                ),
        )
        .subcommand(
            Command::new("faults")
                .about("Plants every fault in turn and fails unless each is found")
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

fn fault(matches: &ArgMatches) -> Result<PlantedFault, String> {
    let Some(name) = matches.get_one::<String>("plant") else {
        return Ok(PlantedFault::None);
    };
    let found = PlantedFault::ALL
        .into_iter()
        .find(|fault| format!("{fault:?}") == *name);
    found.ok_or_else(|| format!("--plant knows {:?}", PlantedFault::ALL))
}

fn main() -> ExitCode {
    let matches = command().get_matches();
    let outcome = match matches.subcommand() {
        Some(("campaign", matches)) => campaign(matches),
        Some(("seed", matches)) => one(matches),
        Some(("faults", matches)) => faults(matches),
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

fn one(matches: &ArgMatches) -> Result<(), String> {
    let number = number(matches, "number")?;
    let outcome = run_seed(number, fault(matches)?, matches.get_flag("trace"));
    for (name, count) in &outcome.counts {
        println!("{name}: {count}");
    }
    println!("trace hash {:016x}", outcome.trace_hash);
    outcome
        .problem
        .map_or(Ok(()), |problem| Err(format!("seed {number}: {problem}")))
}

fn campaign(matches: &ArgMatches) -> Result<(), String> {
    let (first, seeds) = (number(matches, "first")?, number(matches, "seeds")?.max(1));
    let planted = fault(matches)?;
    let began = Instant::now();
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    let mut failed = 0;
    for seed in first..first + seeds {
        let Outcome {
            problem, counts, ..
        } = guarded(seed, planted);
        for (name, count) in counts {
            *totals.entry(name).or_default() += count;
        }
        if let Some(problem) = problem {
            failed += 1;
            println!("seed {seed}: {problem}");
        }
    }
    for (name, count) in &totals {
        println!("{name}: {count}");
    }
    println!("{:.1} s", began.elapsed().as_secs_f64());
    let absent: Vec<&&str> = MUST_HAPPEN
        .iter()
        .filter(|name| totals.get(**name).is_none_or(|count| *count == 0))
        .collect();
    if seeds >= FULL_CAMPAIGN && planted == PlantedFault::None && !absent.is_empty() {
        println!("never happened: {absent:?}");
        failed += 1;
    }
    println!("{} passed, {failed} failed", seeds.saturating_sub(failed));
    if failed == 0 {
        Ok(())
    } else {
        Err("run one with: pinion-sim seed --number N".into())
    }
}

/// A panic is a failure of its seed, and the others still run.
fn guarded(seed: u64, planted: PlantedFault) -> Outcome {
    std::panic::catch_unwind(|| run_seed(seed, planted, false)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
        Outcome {
            problem: Some(format!("panic: {}", text.unwrap_or_default())),
            ..Outcome::default()
        }
    })
}

fn faults(matches: &ArgMatches) -> Result<(), String> {
    let seeds = number(matches, "seeds")?;
    let mut missed = Vec::new();
    for planted in PlantedFault::ALL {
        let found = (1..=seeds).find_map(|seed| {
            guarded(seed, planted)
                .problem
                .map(|problem| (seed, problem))
        });
        match found {
            Some((seed, problem)) => println!("{planted:?}: found by seed {seed}: {problem}"),
            None => {
                println!("{planted:?}: NOT found in {seeds} seeds");
                missed.push(planted);
            }
        }
    }
    println!(
        "{} passed, {} failed",
        PlantedFault::ALL.len() - missed.len(),
        missed.len()
    );
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("missed: {missed:?}"))
    }
}
