//! The server binary.

use std::io::Write;
use std::process::ExitCode;

use pinion_node::options::{StartAction, parse};
use pinion_node::start;
use pinion_process::alloc::{self, Allocator};
use pinion_process::{BAD_OPTIONS, fork, machine};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

fn main() -> ExitCode {
    alloc::keep_freed_memory();
    alloc::look_through_pages_rarely();
    #[cfg(feature = "planted")]
    if let Ok(name) = std::env::var("PINION_PLANTED")
        && !pinion_bson::planted::plant(&name)
    {
        eprintln!("PINION_PLANTED: there is no error named {name}");
        return ExitCode::from(BAD_OPTIONS);
    }
    match parse(std::env::args_os(), machine::usable_memory_bytes()) {
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
