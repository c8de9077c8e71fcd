//! `--fork`: the process that was started has another one run the server, and ends when that serves
//! clients, as mongod's does.
//!
//! The other process is this program started again, not a copy of this one, so nothing that this
//! one has set up is in it. It says on its standard output that it serves; what it has to say
//! before that about a start that fails goes to its standard error, which this process passes on.

// The process that starts another one runs no core.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

/// Set in the process that runs the server.
const FORKED: &str = "PINION_FORKED";
const SERVES: &str = "serves";
/// Where nothing else says it.
const FAILED: u8 = 1;

/// Whether this process is the one that runs the server.
pub fn is_forked() -> bool {
    std::env::var_os(FORKED).is_some()
}

/// Says that clients are served.
pub fn report_serving() {
    let mut out = std::io::stdout();
    // The reader may be gone.
    let _ = writeln!(out, "{SERVES}").and_then(|()| out.flush());
}

/// Starts the process that runs the server, and waits until it serves or has ended.
pub fn start_another() -> ExitCode {
    println!("about to fork child process, waiting until server is ready for connections.");
    match spawn() {
        Ok(child) => {
            println!("forked process: {}", child.id());
            wait(child)
        }
        Err(error) => {
            eprintln!("the process could not be forked: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn spawn() -> std::io::Result<Child> {
    Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(FORKED, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // What a terminal sends to the processes of its foreground does not reach it.
        .process_group(0)
        .spawn()
}

fn wait(mut child: Child) -> ExitCode {
    let out = child.stdout.take().expect("it is piped");
    let mut lines = BufReader::new(out).lines().map_while(Result::ok);
    if lines.any(|line| line == SERVES) {
        println!("child process started successfully, parent exiting");
        return ExitCode::SUCCESS;
    }
    let mut why = String::new();
    if let Some(mut errors) = child.stderr.take() {
        // What cannot be read is not passed on.
        let _ = errors.read_to_string(&mut why);
    }
    eprint!("{why}");
    let status = child.wait().ok().and_then(|status| status.code());
    let status = status.and_then(|status| u8::try_from(status).ok());
    let status = status.filter(|status| *status != 0).unwrap_or(FAILED);
    println!("ERROR: child process failed, exited with {status}");
    println!("To see additional information in this output, start without the \"--fork\" option.");
    ExitCode::from(status)
}
