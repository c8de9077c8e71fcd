//! The server binary.

use std::process::ExitCode;

use pinion_node::options::{Asked, parse};
use pinion_node::{machine, start};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The allocator's option for how long it keeps freed memory, by its place in mimalloc 3's `mi_option_e`, and that time in
/// milliseconds. Memory that comes back from the system must be cleared first: measured, a command over 16 MiB of constants
/// then holds its core for 50 ms instead of 5.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
const PURGE_DELAY_MS: std::ffi::c_long = 10_000;

/// mongod's exit status for bad options.
const BAD_OPTIONS: u8 = 2;

fn main() -> ExitCode {
    // SAFETY: sets one number of the allocator, which it reads atomically; MIMALLOC_PURGE_DELAY still counts before it.
    unsafe { libmimalloc_sys::mi_option_set_default(PURGE_DELAY, PURGE_DELAY_MS) };
    #[cfg(feature = "planted")]
    if let Ok(name) = std::env::var("PINION_PLANTED")
        && !pinion_bson::planted::plant(&name)
    {
        eprintln!("PINION_PLANTED: there is no error named {name}");
        return ExitCode::from(BAD_OPTIONS);
    }
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_option_of_the_allocator_is_the_delay_of_purging() {
        // SAFETY: reads a number. 1000 is the default of this option alone.
        let default = unsafe { libmimalloc_sys::mi_option_get(super::PURGE_DELAY) };
        assert_eq!(default, 1000);
    }
}
