//! From options to a running process: preflight, log, configuration, cores.

#![allow(clippy::disallowed_methods)] // The main thread, before and after the cores run.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pinion_bson::{Bson, Document, RawDocumentBuf};
use pinion_exec::NodeOptions;
use pinion_runtime::real::{self, RealOptions};
use pinion_server::ServerOptions;
use pinion_storage::StorageOptions;

use crate::log;
use crate::machine;
use crate::node::{NodeConfig, run_core};
use crate::options::{Given, Options};

/// What ends a start: one line for standard error, and the process's exit status as mongod gives it.
#[derive(Debug)]
pub struct Stop {
    pub line: String,
    pub status: u8,
}

/// mongod's exit statuses.
const BAD_OPTIONS: u8 = 2;
const NET_ERROR: u8 = 48;
const UNCAUGHT: u8 = 100;

fn stop(status: u8) -> impl Fn(String) -> Stop {
    move |line| Stop { line, status }
}

/// Runs a node until it is asked to stop.
pub fn run(options: Options) -> Result<(), Stop> {
    let cpus = cpus(&options).map_err(stop(BAD_OPTIONS))?;
    let dbpath = &options.dbpath;
    std::fs::create_dir_all(dbpath).map_err(|error| {
        stop(UNCAUGHT)(format!(
            "the data directory {} cannot be made: {error}",
            dbpath.display()
        ))
    })?;
    let report = real::preflight(cpus.len(), dbpath)
        .map_err(|problem| stop(UNCAUGHT)(problem.to_string()))?;
    if let Some(path) = &options.pid_file {
        write_pid(path).map_err(stop(UNCAUGHT))?;
    }
    let serving = Arc::new(AtomicBool::new(false));
    let in_core = serving.clone();
    let sink: log::Sink = Box::new(move |line, _| {
        // Lines of threads that are no core (the watchdog) are in the log, but not in getLog.
        if in_core.load(Ordering::Relaxed) && pinion_runtime::is_core() {
            pinion_exec::logbuf::push(line);
        }
    });
    let _writer = log::install(
        options.log_path.as_deref(),
        options.log_append,
        options.verbosity,
        sink,
    )
    .map_err(|error| stop(UNCAUGHT)(format!("the log cannot be opened: {error}")))?;
    let mut warnings = report.warnings;
    if !options.loopback_only() {
        warnings.push("The server listens beyond localhost and has no authentication: anyone who reaches it can read and write all data".into());
    }
    let startup_warnings = warnings.iter().map(|text| startup_warning(text)).collect();
    tracing::info!(target: "CONTROL", id = 23_403u64, ctx = "initandlisten", version = env!("CARGO_PKG_VERSION"), pid = u64::from(std::process::id()), dbpath = %dbpath.display(), cores = cpus.len(), "Pinion starting");
    let config = Arc::new(config(&options, cpus.len(), startup_warnings));
    serving.store(true, Ordering::Relaxed);
    let real_options = RealOptions {
        cpus,
        spin: Duration::from_micros(options.spin_micros),
        handle_signals: true,
    };
    let outcome = real::run(real_options, move |core| run_core(core, config.clone()));
    serving.store(false, Ordering::Relaxed);
    let results = outcome.map_err(|error| stop(UNCAUGHT)(error.to_string()))?;
    for result in results {
        result.map_err(|error| {
            let status = if matches!(error, crate::node::NodeError::Listen(..)) {
                NET_ERROR
            } else {
                UNCAUGHT
            };
            stop(status)(error.to_string())
        })?;
    }
    tracing::info!(target: "CONTROL", id = 20_565u64, ctx = "initandlisten", "Now exiting");
    Ok(())
}

fn cpus(options: &Options) -> Result<Vec<usize>, String> {
    let mut cpus = real::available_cpus()
        .map_err(|error| format!("the CPU affinity mask cannot be read: {error}"))?;
    if let Some(wanted) = options.cpus {
        if wanted > cpus.len() {
            return Err(format!(
                "--cpus {wanted} is more than the {} CPUs of the process's affinity mask",
                cpus.len()
            ));
        }
        cpus.truncate(wanted);
    }
    Ok(cpus)
}

fn write_pid(path: &Path) -> Result<(), String> {
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|error| format!("the pid file {} cannot be written: {error}", path.display()))
}

/// Logs a warning of the start and gives its line for getLog.
fn startup_warning(text: &str) -> String {
    tracing::warn!(target: "CONTROL", id = 22_120u64, ctx = "initandlisten", tags = "startupWarnings", "{text}");
    log::line("W", "CONTROL", 22_120, "initandlisten", text)
}

fn config(options: &Options, cores: usize, startup_warnings: Vec<String>) -> NodeConfig {
    let mut storage = StorageOptions::new(&options.dbpath);
    storage.partitions = options.partitions;
    storage.cache_bytes = options.cache_bytes;
    storage.journal_commit_interval = Duration::from_millis(options.journal_commit_interval_ms);
    storage.checkpoint_interval = match options.sync_delay_secs {
        0 => Duration::MAX,
        secs => Duration::from_secs(secs),
    };
    let host_info = machine::host_info();
    let listen = options
        .bind
        .iter()
        .map(|address| SocketAddr::new(*address, options.port))
        .collect();
    let node = NodeOptions {
        storage,
        version: env!("CARGO_PKG_VERSION").into(),
        git_version: option_env!("PINION_GIT_VERSION").unwrap_or_default().into(),
        host: format!("{}:{}", host_info.hostname, options.port),
        port: options.port,
        pid: std::process::id(),
        argv: options.argv.clone(),
        parsed: parsed(options),
        db_path: options.dbpath.clone(),
        host_info: pinion_exec::HostInfo {
            cpus: cores as i32,
            ..host_info
        },
        forget_index_entries: false,
    };
    NodeConfig {
        node,
        server: ServerOptions {
            max_connections: options.max_connections,
            quiet: options.quiet,
        },
        listen,
        set_parameters: options.set_parameters.clone(),
        memory: Some(machine::process_memory),
        startup_warnings,
    }
}

/// The options as nested documents, in the configuration file's shape.
fn parsed(options: &Options) -> RawDocumentBuf {
    let mut root = Document::new();
    for (path, given) in &options.parsed {
        let value = match given {
            Given::Switch(value) => Bson::Boolean(*value),
            Given::Int(value) => i32::try_from(*value).map_or(Bson::Int64(*value), Bson::Int32),
            Given::Double(value) => Bson::Double(*value),
            Given::Text(value) => Bson::String(value.clone()),
        };
        insert(&mut root, path, value);
    }
    RawDocumentBuf::try_from(&root).unwrap_or_default()
}

fn insert(into: &mut Document, path: &str, value: Bson) {
    let Some((first, rest)) = path.split_once('.') else {
        into.insert(path, value);
        return;
    };
    if !matches!(into.get(first), Some(Bson::Document(_))) {
        into.insert(first, Document::new());
    }
    if let Some(Bson::Document(inner)) = into.get_mut(first) {
        insert(inner, rest, value);
    }
}
