//! Inspects a data directory that no node has open: superblocks, rings, trees, every checksum. It
//! never writes.

mod options;
mod output;
mod ring;
mod superblock;
mod tree;
mod verify;

use std::process::ExitCode;
use std::time::Duration;

use pinion_runtime::real::{self, RealOptions};
use pinion_storage::{InspectError, Inspector};

use options::{Command, Options, parse};
use output::Output;

/// Exit statuses. 2, for bad options, is clap's.
const SOUND: u8 = 0;
const DAMAGED: u8 = 1;
const FAILED: u8 = 3;

/// Why a command did not come to its end.
enum Failure {
    /// The output is not read any more.
    Closed,
    /// One line for standard error.
    Line(String),
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Failure {
        Failure::Line(error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::Line(error.to_string()),
        }
    }
}

fn main() -> ExitCode {
    let options = match parse(std::env::args_os()) {
        Ok(options) => options,
        Err(error) => error.exit(),
    };
    let cpu = match real::available_cpus() {
        Ok(cpus) => cpus.into_iter().take(1).collect(),
        Err(error) => return fail(&format!("the CPU affinity mask cannot be read: {error}")),
    };
    let runtime = RealOptions {
        cpus: cpu,
        spin: Duration::ZERO,
        handle_signals: false,
        on_usr1: None,
        on_quiet: None,
        on_large: None,
        on_idle: None,
    };
    let outcome = real::run(runtime, move |_| {
        let options = options.clone();
        async move { run(&options).await }
    });
    match outcome.map(|mut outcomes| outcomes.pop()) {
        Ok(Some(Ok(true))) => ExitCode::from(SOUND),
        Ok(Some(Ok(false))) => ExitCode::from(DAMAGED),
        Ok(Some(Err(Failure::Line(line)))) => fail(&line),
        Ok(Some(Err(Failure::Closed)) | None) => ExitCode::from(FAILED),
        Err(error) => fail(&error.to_string()),
    }
}

fn fail(line: &str) -> ExitCode {
    eprintln!("{line}");
    ExitCode::from(FAILED)
}

/// Runs one command; true when it met no damage.
async fn run(options: &Options) -> Result<bool, Failure> {
    let inspector = Inspector::open(&options.dbpath).await?;
    let mut out = Output::new(options.json);
    let sound = match &options.command {
        Command::Superblock => superblock::print(&inspector, &mut out),
        Command::Ring(filter) => ring::print(&inspector, filter, &mut out).await,
        Command::Tree { partition } => tree::print(&inspector, *partition, &mut out).await,
        Command::Verify { extents } => verify::print(&inspector, *extents, &mut out).await,
    }?;
    out.flush()?;
    Ok(sound)
}
