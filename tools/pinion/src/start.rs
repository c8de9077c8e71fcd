//! From options to a running process: preflight, log, configuration, cores.

// The main thread, before and after the cores run, and the log.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pinion_exec::NodeOptions;
use pinion_process::options::{DEFAULT_MAX_CONNECTIONS, nested};
use pinion_process::{
    BAD_OPTIONS, Early, NET_ERROR, Stop, UNCAUGHT, alloc, cpus, descriptors, fork, log, machine,
    stop, write_pid,
};
use pinion_runtime::real::{self, OnLarge, RealOptions};
use pinion_server::ServerOptions;
use pinion_service::options::{HostInfo, ProcessOptions};
use pinion_storage::StorageOptions;

use crate::node::{NodeConfig, NodeError, run_core};
use crate::options::Options;
use crate::{directory, system};

/// Runs a node until it is asked to stop.
pub fn run(options: Options) -> Result<(), Stop> {
    let cpus = cpus(options.cpus).map_err(stop(BAD_OPTIONS))?;
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
            "--keyFile is for the members of the replica set alone. Access control is not enabled: users can log in, but no client has to, and every client can read and write all data"
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
        parsed: nested(&options.parsed),
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
        cluster_role: options.cluster_role,
        cluster_version: options.cluster_version,
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
        log_control: Some(pinion_process::log_control),
        on_serving: fork::is_forked().then_some(fork::report_serving),
        startup_warnings,
        planted_cluster_fault: Default::default(),
    }
}
