//! The router: opens what it keeps on every core, serves clients, and ends in order.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinion_runtime::{CoreId, Duration, Listener, now, on_all_cores, set_core_local, sleep};
use pinion_server::ServerOptions;
use pinion_service::options::ProcessUsage;
use pinion_service::parameter_commands::set_start_parameters;
use pinion_service::parameters::{LogControl, test_commands_enabled};
use pinion_service::process_usage::ProcessSource;
use pinion_sharding_router::{RouterProcess, register_commands, register_test_commands};
use pinion_wire::Registry;

/// Everything a router is built from. The binary reads it from its options, the simulator draws it
/// from a seed.
#[derive(Clone, Debug)]
pub struct RouterConfig {
    pub router: RouterProcess,
    pub server: ServerOptions,
    /// Addresses to listen on; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// `--setParameter`, in order.
    pub set_parameters: Vec<(String, String)>,
    /// How commands reach the log's verbosity.
    pub log_control: Option<fn() -> LogControl>,
    /// The use of the machine, where the router is a process.
    pub process: Option<fn() -> ProcessUsage>,
    /// Called when clients are served.
    pub on_serving: Option<fn()>,
    /// Lines for getLog: "startupWarnings" that were found before the router started.
    pub startup_warnings: Vec<String>,
}

/// Why a router did not start. Each is one line.
#[derive(Debug)]
pub enum RouterError {
    /// An address cannot be listened on.
    Listen(SocketAddr, std::io::Error),
    /// A parameter given at start is unknown or has a wrong value.
    Parameter(String),
}

impl fmt::Display for RouterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Parameter(why) => f.write_str(why),
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
        }
    }
}

impl std::error::Error for RouterError {}

/// How long an address that is in use is tried again, and the pause between two tries.
const BIND_PATIENCE: Duration = Duration::from_millis(1000);
const BIND_PAUSE: Duration = Duration::from_millis(50);

/// A core's life in the router. Core 0 opens, serves and closes; the other cores do what it and
/// each other's messages ask for, for as long as core 0 runs.
///
/// # Errors
/// The router cannot start.
pub async fn run_core(core: CoreId, config: Arc<RouterConfig>) -> Result<(), RouterError> {
    if core != CoreId(0) {
        return Ok(());
    }
    for line in &config.startup_warnings {
        pinion_service::logbuf::push_startup_warning(line);
    }
    let mut listeners: Vec<Listener> = Vec::new();
    for address in &config.listen {
        let mut address = *address;
        // One free port serves all addresses.
        if let (0, Some(first)) = (address.port(), listeners.first()) {
            address.set_port(first.local_addr().port());
        }
        listeners.push(bind(address).await?);
    }
    let asked = config.router.process.port;
    let port = listeners
        .first()
        .map_or(asked, |first| first.local_addr().port());
    open(&config, port).await?;
    tracing::info!(target: "NETWORK", id = 23_016u64, ctx = "mongosMain", port = u64::from(port), ssl = "off", "Waiting for connections");
    config.on_serving.inspect(|serves| serves());
    let farewell = pinion_sharding_router::quiesce();
    pinion_server::serve(listeners, config.server.clone(), farewell).await;
    pinion_sharding_router::close().await;
    Ok(())
}

async fn open(config: &RouterConfig, port: u16) -> Result<(), RouterError> {
    let mut router = config.router.clone();
    router.process.port = port;
    if let Some((host, _)) = config.router.process.host.rsplit_once(':') {
        router.process.host = format!("{host}:{port}");
    }
    pinion_sharding_router::open(router).await;
    let parameters = Arc::new(config.set_parameters.clone());
    let (process, log_control) = (config.process, config.log_control);
    let results = on_all_cores(move |_| {
        let parameters = parameters.clone();
        async move {
            if let Some(log_control) = log_control {
                set_core_local(Rc::new(log_control()));
            }
            if let Some(process) = process {
                set_core_local(Rc::new(ProcessSource(Box::new(process))));
            }
            let set = set_start_parameters(&parameters);
            set_core_local(Rc::new(registry(test_commands_enabled())));
            set
        }
    })
    .await;
    for result in results {
        result.map_err(RouterError::Parameter)?;
    }
    Ok(())
}

/// The commands of a core with their handlers.
fn registry(has_test_commands: bool) -> Registry {
    let mut registry = Registry::new();
    register_commands(&mut registry);
    if has_test_commands {
        register_test_commands(&mut registry);
    }
    registry
}

/// Binds an address. The kernel may hold the sockets of a process that was killed for a moment
/// longer than the process.
async fn bind(address: SocketAddr) -> Result<Listener, RouterError> {
    let patience = now() + BIND_PATIENCE;
    loop {
        match Listener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && now() < patience => {
                sleep(BIND_PAUSE).await;
            }
            Err(error) => return Err(RouterError::Listen(address, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use pinion_runtime::sim::{Sim, SimOptions};
    use pinion_wire::CommandRouting;

    use super::*;

    /// Each row says whether a router has the command, and the router has what its row says.
    #[test]
    fn rows_have_handlers() {
        let sim = Sim::new(1, SimOptions::default());
        let ended = Rc::new(Cell::new(false));
        let end = ended.clone();
        sim.add_node("router", 1, move |_| {
            let end = end.clone();
            Box::pin(async move {
                let registry = registry(true);
                let found: BTreeSet<&str> =
                    registry.iter().map(|command| command.spec.name).collect();
                let rows = pinion_command::ROWS.into_iter().flatten();
                let expected: BTreeSet<&str> = rows
                    .filter(|row| row.routing != CommandRouting::Node)
                    .map(|row| row.name)
                    .collect();
                let missing: Vec<_> = expected.difference(&found).collect();
                assert!(missing.is_empty(), "rows without a handler: {missing:?}");
                let tests = |name: &str| name.starts_with("test");
                let more: Vec<_> = found
                    .difference(&expected)
                    .filter(|name| !tests(name))
                    .collect();
                assert!(more.is_empty(), "handlers of nodes' commands: {more:?}");
                end.set(true);
            })
        });
        assert!(sim.run_until(move || ended.get()).is_ok());
    }
}
