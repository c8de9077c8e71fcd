//! The binary of a router.

use std::io::Write;
use std::process::ExitCode;

use pinion_process::alloc::{self, Allocator};
use pinion_process::{BAD_OPTIONS, fork};
use pinion_router::options::{StartAction, parse};
use pinion_router::start;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    alloc::keep_freed_memory();
    match parse(std::env::args_os()) {
        Ok(StartAction::Print(text)) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Ok(StartAction::Run(options)) if options.fork && !fork::is_forked() => {
            fork::start_another()
        }
        Ok(StartAction::Run(options)) => match start::run(*options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(stop) => {
                // It may have no reader.
                let _ = writeln!(std::io::stderr(), "{}", stop.line);
                ExitCode::from(stop.status)
            }
        },
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(BAD_OPTIONS)
        }
    }
}
