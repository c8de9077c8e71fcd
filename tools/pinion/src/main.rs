//! The server binary.

use std::process::ExitCode;

use pinion_node::options::{Asked, parse};
use pinion_node::{machine, start};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// mongod's exit status for bad options.
const BAD_OPTIONS: u8 = 2;

fn main() -> ExitCode {
    match parse(std::env::args_os(), machine::usable_memory_bytes()) {
        Ok(Asked::Print(text)) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Ok(Asked::Run(options)) => match start::run(*options) {
            Ok(()) => ExitCode::SUCCESS,
            Err(stop) => {
                eprintln!("{}", stop.line);
                ExitCode::from(stop.status)
            }
        },
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(BAD_OPTIONS)
        }
    }
}
