//! From options to a running process: preflight, log, configuration, cores.

// The main thread, before and after the cores run, and the log.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pinion_bson::{Bson, Document, RawDocumentBuf};
use pinion_exec::NodeOptions;
use pinion_runtime::real::{self, OnLarge, RealOptions};
use pinion_server::ServerOptions;
use pinion_service::options::{HostInfo, ProcessOptions};
use pinion_storage::StorageOptions;

use crate::node::{NodeConfig, NodeError, run_core};
use crate::options::{DEFAULT_MAX_CONNECTIONS, OptionValue, Options};
use crate::{alloc, descriptors, directory, fork, log, machine, system, verbosity};

/// What ends a start: one line for standard error, and the process's exit status as mongod gives
/// it.
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
    directory::check(dbpath, &options.named_files()).map_err(stop(UNCAUGHT))?;
    std::fs::create_dir_all(dbpath).map_err(|error| {
        stop(UNCAUGHT)(format!(
            "the data directory {} cannot be made: {error}",
            dbpath.display()
        ))
    })?;
    let report = real::preflight(cpus.len(), dbpath)
        .map_err(|problem| stop(UNCAUGHT)(problem.to_string()))?;
    real::load_code();
    if let Some(path) = &options.pid_file {
        write_pid(path).map_err(stop(UNCAUGHT))?;
    }
    let early = Arc::new(Early::default());
    let sink: log::Sink = {
        let early = early.clone();
        Box::new(move |line, is_startup_warning| early.line(line, is_startup_warning))
    };
    let _writer = log::install(
        options.log_path.as_deref(),
        options.log_append,
        options.log_rotate,
        options.verbosity,
        sink,
    )
    .map_err(|error| {
        let path = options.log_path.as_deref().unwrap_or(Path::new(""));
        stop(UNCAUGHT)(format!(
            "the log {} cannot be opened: {error}",
            path.display()
        ))
    })?;
    let mut warnings = report.warnings;
    if !options.loopback_only() {
        warnings.push("The server listens beyond localhost and has no authentication: anyone who reaches it can read and write all data".into());
    }
    warnings.extend(member_warning(&options).map(Into::into));
    let asked = options.max_connections;
    let connections = descriptors::max_connections(asked, report.open_files, cpus.len());
    if connections < asked && asked != DEFAULT_MAX_CONNECTIONS {
        tracing::warn!(target: "NETWORK", id = 22_941u64, ctx = "initandlisten", asked, limit = connections, "--maxConns too high");
    }
    for text in &warnings {
        tracing::warn!(target: "CONTROL", id = 22_120u64, ctx = "initandlisten", tags = log::STARTUP_WARNINGS, "{text}");
    }
    tracing::info!(target: "CONTROL", id = 23_403u64, ctx = "initandlisten", version = env!("CARGO_PKG_VERSION"), pid = u64::from(std::process::id()), dbpath = %dbpath.display(), cores = cpus.len(), "Pinion starting");
    if options.lock_memory {
        lock_memory(options.cache_bytes, cpus.len()).map_err(stop(UNCAUGHT))?;
    }
    let config = Arc::new(config(
        &options,
        cpus.len(),
        connections,
        early.startup_warnings(),
    ));
    let real_options = RealOptions {
        cpus,
        spin: Duration::from_micros(options.spin_micros),
        handle_signals: true,
        on_usr1: Some(log::rotate_on_signal),
        on_quiet: (!options.lock_memory).then_some(alloc::give_back_freed_memory),
        on_large: (!options.lock_memory).then(|| OnLarge {
            size: || machine::process_memory().0,
            limit: resident_limit(options.cache_bytes),
            act: alloc::give_back_freed_memory,
        }),
        on_idle: Some(alloc::collect_freed_by_others),
    };
    let outcome = real::run(real_options, move |core| run_core(core, config.clone()));
    if let Err(stop) = outcome_of(outcome) {
        // Also in the log: standard error may have no reader.
        tracing::error!(target: "CONTROL", id = 20_557u64, ctx = "initandlisten", error = stop.line, "Exiting with an error");
        return Err(stop);
    }
    tracing::info!(target: "CONTROL", id = 20_565u64, ctx = "initandlisten", "Now exiting");
    Ok(())
}

/// What a member is open to, with a key of the set or without.
fn member_warning(options: &Options) -> Option<&'static str> {
    options.replication.as_ref()?;
    Some(match &options.member_auth {
        None => {
            "The members of the replica set do not authenticate to each other, since there is no --keyFile: whoever reaches them can take part in the set"
        }
        Some(auth) if auth.is_transition => {
            "--transitionToAuth lets members of the replica set in that have no key of its key file"
        }
        Some(_) => {
            "--keyFile is for the members of the replica set alone. There are no users: no client has to authenticate, and every client can read and write all data"
        }
    })
}

fn outcome_of(outcome: Result<Vec<Result<(), NodeError>>, real::StartError>) -> Result<(), Stop> {
    let results = outcome.map_err(|error| stop(UNCAUGHT)(error.to_string()))?;
    for result in results {
        result.map_err(|error| {
            let status = match error {
                NodeError::Listen(..) => NET_ERROR,
                _ => UNCAUGHT,
            };
            stop(status)(error.to_string())
        })?;
    }
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

/// Above this many resident bytes freed memory is not kept, however busy the node is: the budget, a
/// fifth more for memory that pages have given up and changes could not use, and room for what is
/// in no budget, such as code, connections and what queries hold.
fn resident_limit(cache_bytes: u64) -> u64 {
    const BESIDE_THE_BUDGET: u64 = 128 << 20;
    cache_bytes + cache_bytes / 5 + BESIDE_THE_BUDGET
}

/// Locks that much memory for the allocator: what it has reserved already, and a region beside it
/// for the rest.
fn lock_memory(bytes: u64, threads: usize) -> Result<(), String> {
    let began = Instant::now();
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    alloc::keep_freed_memory_forever();
    let anywhere = Box::new(0u64);
    let locked = real::lock_around((&raw const *anywhere).addr(), bytes, threads)
        .map_err(|problem| problem.to_string())?;
    if locked < bytes {
        let region = real::map_locked(alloc::region_bytes(bytes - locked), threads)
            .map_err(|problem| problem.to_string())?;
        // SAFETY: mapped for this alone, zeroed, and never unmapped.
        if !unsafe { alloc::take_locked_region(region) } {
            return Err("the allocator does not take the memory that was locked for it".into());
        }
    }
    tracing::info!(target: "CONTROL", id = 7_200_005u64, ctx = "initandlisten", bytes, millis = began.elapsed().as_millis() as u64, "Memory locked");
    Ok(())
}

fn write_pid(path: &Path) -> Result<(), String> {
    std::fs::write(path, format!("{}\n", std::process::id()))
        .map_err(|error| format!("the pid file {} cannot be written: {error}", path.display()))
}

/// Lines kept for getLog until a core takes them.
const EARLY_LINES: usize = 256;

/// getLog's memory belongs to the cores. Lines of threads that are no core (before the cores run,
/// the watchdog) wait here for the next line of a core.
#[derive(Default)]
struct Early(Mutex<EarlyLines>);

#[derive(Default)]
struct EarlyLines {
    waiting: VecDeque<String>,
    startup_warnings: Vec<String>,
}

impl Early {
    fn line(&self, line: &str, is_startup_warning: bool) {
        let Ok(mut early) = self.0.lock() else {
            return;
        };
        if is_startup_warning {
            early.startup_warnings.push(line.to_owned());
        }
        if !pinion_runtime::is_core() {
            if early.waiting.len() == EARLY_LINES {
                early.waiting.pop_front();
            }
            early.waiting.push_back(line.to_owned());
            return;
        }
        let waiting = std::mem::take(&mut early.waiting);
        drop(early);
        for line in &waiting {
            pinion_service::logbuf::push(line);
        }
        pinion_service::logbuf::push(line);
    }

    fn startup_warnings(&self) -> Vec<String> {
        self.0
            .lock()
            .map(|early| early.startup_warnings.clone())
            .unwrap_or_default()
    }
}

fn config(
    options: &Options,
    cores: usize,
    max_connections: usize,
    startup_warnings: Vec<String>,
) -> NodeConfig {
    let mut storage = StorageOptions::new(&options.dbpath);
    storage.partitions = options.partitions;
    if let Some(member) = &options.replication {
        storage.is_member = true;
        storage.log_retention = Some(member.first_retention());
    }
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
    let process = ProcessOptions {
        version: env!("CARGO_PKG_VERSION").into(),
        git_version: option_env!("PINION_GIT_VERSION").unwrap_or_default().into(),
        host: format!("{}:{}", host_info.hostname, options.port),
        port: options.port,
        pid: std::process::id(),
        argv: options.argv.clone(),
        parsed: parsed(options),
        host_info: HostInfo {
            cpus: cores as i32,
            ..host_info
        },
        member_auth: options.member_auth.clone(),
    };
    let node = NodeOptions {
        process,
        storage,
        db_path: options.dbpath.clone(),
        planted_fault: Default::default(),
    };
    NodeConfig {
        node,
        server: ServerOptions {
            max_connections,
            quiet: options.quiet,
            slow_ms: options.slow_ms,
        },
        listen,
        member: options.replication.clone(),
        set_parameters: options.set_parameters.clone(),
        profile: (options.profile_level, options.profile_sample_rate),
        process: Some(machine::process_usage),
        system: Some(system::system_metrics),
        log_control: Some(|| pinion_service::parameters::LogControl {
            components: &verbosity::COMPONENTS,
            get: verbosity::get,
            set: verbosity::set,
            rotate: log::rotate,
        }),
        on_serving: fork::is_forked().then_some(fork::report_serving),
        startup_warnings,
    }
}

/// The options as nested documents, in the configuration file's shape.
fn parsed(options: &Options) -> RawDocumentBuf {
    let mut root = Document::new();
    for (path, given) in &options.parsed {
        let value = match given {
            OptionValue::Switch(value) => Bson::Boolean(*value),
            OptionValue::Int(value) => {
                i32::try_from(*value).map_or(Bson::Int64(*value), Bson::Int32)
            }
            OptionValue::Double(value) => Bson::Double(*value),
            OptionValue::Text(value) => Bson::String(value.clone()),
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
