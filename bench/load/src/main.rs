//! `pinion-bench`: drives database servers over the wire, storage engines in process, and shows
//! what was measured.

// A client outside of a node: its clocks, threads, files and sockets are real, and its threads may
// wait for each other.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod cpu;
mod echo;
mod engine;
mod machine;
mod options;
mod peers;
mod protocol;
mod report;
mod run;
mod soak;
mod streams;
mod timer;
mod workload;

use std::process::ExitCode;

/// The run was made and its figures must not be used: errors, misses, wrong replies or a late
/// generator.
const INVALID: u8 = 2;

fn main() -> ExitCode {
    let matches = options::command().get_matches();
    let outcome = match matches.subcommand() {
        Some(("run", matches)) => {
            options::Settings::from(matches).and_then(|settings| run::command(&settings))
        }
        Some(("engine", matches)) => match engine::command(matches) {
            Ok(status) => return status,
            Err(why) => Err(why),
        },
        Some(("report", matches)) => report::command(matches).map(|()| true),
        Some(("peers", matches)) => peers::command(matches),
        Some(("soak", matches)) => soak::command(matches),
        Some(("streams", matches)) => streams::command(matches),
        Some(("echo", matches)) => echo::command(matches).map(|()| true),
        _ => Err("no such subcommand".into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(INVALID),
        Err(why) => {
            eprintln!("pinion-bench: {why}");
            ExitCode::FAILURE
        }
    }
}
