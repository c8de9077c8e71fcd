//! A closed-loop load generator on one thread: many connections, one request in flight on each, CPU counted on both sides.

#![allow(clippy::disallowed_methods)] // A client outside the node: it has real clocks and sockets.

mod connection;
mod cpu;
mod requests;
mod run;

use std::process::ExitCode;

use clap::{Arg, Command};

use requests::Operation;
use run::Settings;

fn command() -> Command {
    let value = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name).long(name).default_value(default).help(help)
    };
    Command::new("pinion-bench-node")
        .about("Drives a MongoDB-compatible server with one kind of operation, closed loop, from one thread")
        .arg(value("address", "127.0.0.1:27017", "host:port of the server"))
        .arg(value("operation", "find", "load, find, update, insert or insert-journaled"))
        .arg(value("connections", "64", "connections, each with one request in flight"))
        .arg(value("keys", "100000", "documents that load writes and find and update choose from"))
        .arg(value("value-bytes", "1000", "size of the random text in each document"))
        .arg(value("seconds", "10", "how long to measure, after one second of warm-up"))
        .arg(value("collection", "c", "collection in the database `bench`"))
        .arg(value("pid", "0", "process id of the server, to count its CPU time"))
}

fn settings() -> Result<Settings, String> {
    let matches = command().get_matches();
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let number = |name: &str| {
        text(name)
            .parse::<u64>()
            .map_err(|_| format!("--{name} takes a whole number, not '{}'", text(name)))
    };
    let operation = Operation::from_name(&text("operation"))
        .ok_or_else(|| format!("--operation does not know '{}'", text("operation")))?;
    Ok(Settings {
        address: text("address")
            .parse()
            .map_err(|_| format!("--address takes ip:port, not '{}'", text("address")))?,
        operation,
        connections: number("connections")?.clamp(1, 60_000) as usize,
        keys: number("keys")?.max(1),
        value_bytes: number("value-bytes")?.min(1 << 20) as usize,
        seconds: number("seconds")?.max(1),
        collection: text("collection"),
        pid: number("pid")? as u32,
    })
}

fn main() -> ExitCode {
    let outcome =
        settings().and_then(|settings| run::run(&settings).map_err(|error| error.to_string()));
    match outcome {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
