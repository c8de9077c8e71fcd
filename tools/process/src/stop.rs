//! How a process ends that cannot start, and what it leaves beside it.

#![allow(clippy::disallowed_methods)] // On the main thread, before there are cores.

use std::path::Path;

use pinion_service::parameters::LogControl;

use crate::{log, verbosity};

/// What ends a start: one line for standard error, and the process's exit status as mongod gives
/// it.
#[derive(Debug)]
pub struct Stop {
    pub line: String,
    pub status: u8,
}

/// mongod's exit statuses.
pub const BAD_OPTIONS: u8 = 2;
pub const NET_ERROR: u8 = 48;
pub const UNCAUGHT: u8 = 100;

/// Makes an error the end of a start.
pub fn stop(status: u8) -> impl Fn(String) -> Stop {
    move |line| Stop { line, status }
}

/// Writes the file that has the number of the process.
///
/// # Errors
/// One line that names the file.
pub fn write_pid(path: &Path) -> Result<(), String> {
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|error| format!("the pid file {} cannot be written: {error}", path.display()))
}

/// How commands reach the log.
pub fn log_control() -> LogControl {
    LogControl {
        components: &verbosity::COMPONENTS,
        get: verbosity::get,
        set: verbosity::set,
        rotate: log::rotate,
    }
}
