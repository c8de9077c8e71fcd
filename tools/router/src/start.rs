//! From options to a running router: log, configuration, cores.

// The main thread, before and after the cores run, and the log.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pinion_process::options::nested;
use pinion_process::{
    BAD_OPTIONS, Early, NET_ERROR, Stop, UNCAUGHT, alloc, cpus, descriptors, fork, log, machine,
    stop, write_pid,
};
use pinion_runtime::real::{self, RealOptions};
use pinion_server::ServerOptions;
use pinion_service::options::{HostInfo, ProcessOptions};
use pinion_sharding_router::RouterProcess;

use crate::options::Options;
use crate::router::{RouterConfig, RouterError, run_core};

/// Runs a router until it is asked to stop.
///
/// # Errors
/// It cannot start, or a core has failed.
pub fn run(options: Options) -> Result<(), Stop> {
    let cpus = cpus(options.cpus).map_err(stop(BAD_OPTIONS))?;
    // A router keeps nothing on disk: its rings are tried out in the directory of temporary files.
    let report = real::preflight(cpus.len(), &std::env::temp_dir())
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
    if !options.bind.iter().all(std::net::IpAddr::is_loopback) {
        warnings.push("The server listens beyond localhost and has no authentication: anyone who reaches it can read and write all data".into());
    }
    if options.member_auth.is_none() {
        warnings.push("The nodes of the cluster do not authenticate to each other, since there is no --keyFile: whoever reaches them can take part in the cluster".into());
    }
    for text in &warnings {
        tracing::warn!(target: "CONTROL", id = 22_120u64, ctx = "mongosMain", tags = log::STARTUP_WARNINGS, "{text}");
    }
    tracing::info!(target: "CONTROL", id = 23_403u64, ctx = "mongosMain", version = env!("CARGO_PKG_VERSION"), pid = u64::from(std::process::id()), configdb = %options.config_servers, cores = cpus.len(), "Pinion router starting");
    let connections =
        descriptors::max_connections(options.max_connections, report.open_files, cpus.len());
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
        on_quiet: Some(alloc::give_back_freed_memory),
        on_large: None,
        on_idle: Some(alloc::collect_freed_by_others),
    };
    let outcome = real::run(real_options, move |core| run_core(core, config.clone()));
    if let Err(stop) = outcome_of(outcome) {
        // Also in the log: standard error may have no reader.
        tracing::error!(target: "CONTROL", id = 20_557u64, ctx = "mongosMain", error = stop.line, "Exiting with an error");
        return Err(stop);
    }
    tracing::info!(target: "CONTROL", id = 20_565u64, ctx = "mongosMain", "Now exiting");
    Ok(())
}

fn outcome_of(outcome: Result<Vec<Result<(), RouterError>>, real::StartError>) -> Result<(), Stop> {
    let results = outcome.map_err(|error| stop(UNCAUGHT)(error.to_string()))?;
    for result in results {
        result.map_err(|error| {
            let status = match error {
                RouterError::Listen(..) => NET_ERROR,
                RouterError::Parameter(_) => UNCAUGHT,
            };
            stop(status)(error.to_string())
        })?;
    }
    Ok(())
}

fn config(
    options: &Options,
    cores: usize,
    max_connections: usize,
    startup_warnings: Vec<String>,
) -> RouterConfig {
    let host_info = machine::host_info();
    let addresses = options.bind.iter();
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
    RouterConfig {
        router: RouterProcess {
            process,
            config_servers: options.config_servers.clone(),
            planted_fault: Default::default(),
        },
        server: ServerOptions {
            max_connections,
            quiet: options.quiet,
            slow_ms: options.slow_ms,
        },
        listen: addresses
            .map(|address| SocketAddr::new(*address, options.port))
            .collect(),
        set_parameters: options.set_parameters.clone(),
        log_control: Some(pinion_process::log_control),
        process: Some(machine::process_usage),
        on_serving: fork::is_forked().then_some(fork::report_serving),
        startup_warnings,
    }
}
