//! `pinion-bench-engine`: the storage engine in process beside RocksDB, WiredTiger, LMDB, redb and
//! fjall.
//!
//! `run` starts a process for each engine and drives them in turns, so that every engine's CPU
//! time, memory and traffic to the device are its process's.

mod child;
mod compare;
mod data;
mod drive;
mod engines;
#[path = "../../load/src/machine.rs"]
mod machine;
mod measure;
mod options;
mod peers;
mod pinion;
mod plan;
mod serve;
mod session;
mod table;

use std::process::ExitCode;

/// Rust, C and C++ alike: all engines have the same allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An engine that was asked for is not in this program.
const INCOMPLETE: u8 = 2;

fn serve(matches: &clap::ArgMatches) -> session::Outcome<bool> {
    let (engine, settings, cpus) = options::child(matches)?;
    child::confine(&cpus)?;
    let engine = engines::find(&engine)?;
    let serve = engine.serve.ok_or(engine.missing)?;
    serve(settings).map(|()| true)
}

fn main() -> ExitCode {
    let matches = options::command().get_matches();
    let outcome = match matches.subcommand() {
        Some(("run", matches)) => {
            options::Options::from(matches).and_then(|options| compare::command(&options))
        }
        Some(("serve", matches)) => serve(matches),
        _ => Err("no such subcommand".into()),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(INCOMPLETE),
        Err(why) => {
            eprintln!("pinion-bench engine: {why}");
            ExitCode::FAILURE
        }
    }
}
