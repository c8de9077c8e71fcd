//! The node: opens storage and catalog on every core, serves clients, and closes in order.

use std::fmt;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use pinion_administration::SystemSource;
use pinion_bson::RawDocumentBuf;
use pinion_exec::{NodeOptions, PlantedFault};
use pinion_replication_node::MemberOptions;
use pinion_runtime::{
    CoreId, Duration, Listener, Queue, now, on_all_cores, request_shutdown, set_core_local, sleep,
    spawn,
};
use pinion_server::ServerOptions;
use pinion_service::options::{HostInfo, ProcessOptions, ProcessUsage};
use pinion_service::parameters::LogControl;
use pinion_service::process_usage::ProcessSource;
use pinion_storage::{StorageOptions, storage};
use pinion_wire::Registry;

/// Everything a node is built from. The binary reads it from its options, the simulator draws it
/// from a seed.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub node: NodeOptions,
    pub server: ServerOptions,
    /// Addresses to listen on; port 0 takes a free one.
    pub listen: Vec<SocketAddr>,
    /// The set that the node is to be a member of.
    pub member: Option<MemberOptions>,
    /// `--setParameter`, in order.
    pub set_parameters: Vec<(String, String)>,
    /// `--profile` and `--slowOpSampleRate`.
    pub profile: (i64, f64),
    /// What the process has used of the machine; a simulated node has none of its own.
    pub process: Option<fn() -> ProcessUsage>,
    /// What the whole machine does, likewise.
    pub system: Option<fn() -> RawDocumentBuf>,
    /// How commands reach the log's verbosity.
    pub log_control: Option<fn() -> LogControl>,
    /// Called when clients are served.
    pub on_serving: Option<fn()>,
    /// Lines for getLog: "startupWarnings" that were found before the node started.
    pub startup_warnings: Vec<String>,
    #[doc(hidden)]
    pub planted_cluster_fault: pinion_sharding_node::PlantedFault,
}

/// Why a node did not start, or stopped. Each is one line.
#[derive(Debug)]
pub enum NodeError {
    /// The data directory cannot be opened: it is locked, damaged, or the disk failed.
    Open(String),
    /// An address cannot be listened on.
    Listen(SocketAddr, std::io::Error),
    /// A parameter given at start is unknown or has a wrong value.
    Parameter(String),
    /// The member cannot stay in its set: it would have to roll back too much, or has no source to
    /// copy from.
    Member(String),
    /// A write or a flush failed, or a page that a checkpoint needs is damaged: the node stops
    /// rather than guess.
    Storage(String),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(why) | Self::Parameter(why) => f.write_str(why),
            Self::Member(why) => write!(f, "the member has given up: {why}"),
            Self::Storage(why) => write!(f, "storage has stopped: {why}"),
            Self::Listen(address, error) if error.kind() == std::io::ErrorKind::AddrInUse => {
                write!(f, "cannot listen on {address}: the address is in use")
            }
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
        }
    }
}

impl std::error::Error for NodeError {}

impl NodeConfig {
    /// The node of a simulation, or of a measurement: the same parts, facts about the machine left
    /// out.
    pub fn for_simulation(storage: StorageOptions, port: u16, planted_fault: PlantedFault) -> Self {
        let any = SocketAddr::from(([0, 0, 0, 0], port));
        let process = ProcessOptions {
            version: env!("CARGO_PKG_VERSION").into(),
            git_version: String::new(),
            host: format!("node:{port}"),
            port,
            pid: 1,
            argv: vec!["pinion".into()],
            parsed: pinion_bson::RawDocumentBuf::new(),
            host_info: HostInfo::default(),
            member_auth: None,
        };
        let node = NodeOptions {
            process,
            db_path: storage.dir.clone(),
            storage,
            cluster_role: Default::default(),
            cluster_version: Default::default(),
            planted_fault,
        };
        Self {
            node,
            server: ServerOptions::default(),
            listen: vec![any],
            member: None,
            set_parameters: Vec::new(),
            profile: (0, 1.0),
            process: None,
            system: None,
            log_control: None,
            on_serving: None,
            startup_warnings: Vec::new(),
            planted_cluster_fault: Default::default(),
        }
    }
}

/// How long an address that is in use is tried again, and the pause between two tries.
const BIND_PATIENCE: Duration = Duration::from_millis(1000);
const BIND_PAUSE: Duration = Duration::from_millis(50);

/// A core's life in the node. Core 0 opens, serves and closes; the other cores do what it and each
/// other's messages ask for, for as long as core 0 runs.
pub async fn run_core(core: CoreId, config: Arc<NodeConfig>) -> Result<(), NodeError> {
    if core != CoreId(0) {
        return Ok(());
    }
    for line in &config.startup_warnings {
        pinion_service::logbuf::push_startup_warning(line);
    }
    let listeners = listen(&config.listen).await?;
    let port = listeners
        .first()
        .map_or(config.node.process.port, |listener| {
            listener.local_addr().port()
        });
    open(&config, port).await?;
    if config.member.is_none()
        && let Err(error) = pinion_exec::keep_version().await
    {
        tracing::warn!(target: "STORAGE", id = 7_100_030u64, error = error.message, "The version of the data files could not be stored");
    }
    if let Err(error) = pinion_instance::log_startup().await {
        tracing::warn!(target: "CONTROL", id = 7_100_031u64, error = error.message, "This start could not be put into local.startup_log");
    }
    spawn(Queue::Foreground, async {
        storage().failed().await;
        request_shutdown();
    });
    if let Some(member) = config.member.clone() {
        spawn(Queue::Foreground, drive_member(member));
    }
    tracing::info!(target: "NETWORK", id = 23_016u64, ctx = "listener", port = u64::from(port), ssl = "off", "Waiting for connections");
    config.on_serving.inspect(|serves| serves());
    // What a member does before its clients are sent away.
    let farewell = async {
        if config.member.is_some() {
            pinion_replication_node::leave().await;
        }
    };
    pinion_server::serve(listeners, config.server.clone(), farewell).await;
    close().await?;
    match pinion_replication_node::gave_up() {
        Some(why) => Err(NodeError::Member(why)),
        None => Ok(()),
    }
}

/// Drives the member that the node is, or stops the node.
async fn drive_member(member: MemberOptions) {
    if let Err(error) = pinion_replication_node::start(member).await {
        pinion_replication_node::give_up(
            "what the node keeps of its replica set cannot be read",
            &error,
        );
    }
}

/// Opens the node that `config` describes and registers its commands on every core. Called on core
/// 0.
pub async fn open(config: &NodeConfig, port: u16) -> Result<(), NodeError> {
    let mut options = config.node.clone();
    options.process.port = port;
    if let Some((host, _)) = config.node.process.host.rsplit_once(':') {
        options.process.host = format!("{host}:{port}");
    }
    let recovered = pinion_instance::open_node(options)
        .await
        .map_err(|error| NodeError::Open(error.to_string()))?;
    tracing::info!(
        target: "RECOVERY", id = 7_000_002u64, ctx = "initandlisten", checkpoint = %recovered.base, last = %recovered.cut,
        epoch = recovered.epoch, entriesReplayed = recovered.entries_replayed, bytesReplayed = recovered.bytes_replayed,
        entriesDiscarded = recovered.entries_cut, tornFrames = recovered.torn_frames,
        durationMillis = recovered.took.as_millis() as u64, "Recovery complete"
    );
    if !storage().was_closed() {
        tracing::warn!(target: "STORAGE", id = 22_271u64, ctx = "initandlisten", "Detected unclean shutdown");
    }
    if let Some(member) = &config.member {
        let joined = pinion_replication_node::join(member).await;
        joined.map_err(|error| NodeError::Open(error.message))?;
    }
    pinion_sharding_node::start(config.planted_cluster_fault)
        .await
        .map_err(|error| NodeError::Open(error.message))?;
    let is_member = config.member.is_some();
    let parameters = Arc::new(config.set_parameters.clone());
    let (process, system, log_control) = (config.process, config.system, config.log_control);
    let (profile_level, profile_sample_rate) = config.profile;
    let results = on_all_cores(move |_| {
        let parameters = parameters.clone();
        async move {
            if let Some(log_control) = log_control {
                set_core_local(Rc::new(log_control()));
            }
            if let Some(process) = process {
                set_core_local(Rc::new(ProcessSource(Box::new(process))));
            }
            if let Some(system) = system {
                set_core_local(Rc::new(SystemSource(Box::new(system))));
            }
            pinion_service::profile_settings::set_profile_defaults(
                profile_level,
                profile_sample_rate,
            );
            let set = pinion_service::parameter_commands::set_start_parameters(&parameters);
            let registry = registry(
                is_member,
                pinion_service::parameters::test_commands_enabled(),
            );
            set_core_local(Rc::new(registry));
            set
        }
    })
    .await;
    for result in results {
        result.map_err(NodeError::Parameter)?;
    }
    if !is_member {
        let outcome = pinion_instance::begin_standalone_builds().await;
        outcome.map_err(|error| NodeError::Open(error.message))?;
    }
    Ok(())
}

/// The commands of a core with their handlers.
fn registry(is_member: bool, has_test_commands: bool) -> Registry {
    let mut registry = Registry::new();
    pinion_instance::register_commands(&mut registry);
    pinion_sharding_node::register_commands(&mut registry);
    match is_member {
        true => pinion_replication_node::register_commands(&mut registry),
        false => pinion_administration::register_unreplicated(&mut registry),
    }
    if has_test_commands {
        pinion_administration::register_test_commands(&mut registry);
    }
    registry
}

/// Closes the node. Called on core 0 when no command runs any more.
pub async fn close() -> Result<(), NodeError> {
    pinion_sharding_node::stop().await;
    pinion_instance::close_node().await;
    match storage().fatal() {
        Some(fatal) => Err(NodeError::Storage(fatal.to_string())),
        None => Ok(()),
    }
}

/// Binds an address. The kernel may hold the sockets of a process that was killed for a moment
/// longer than the process.
async fn bind(address: SocketAddr) -> Result<Listener, NodeError> {
    let patience = now() + BIND_PATIENCE;
    loop {
        match Listener::bind(address).await {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && now() < patience => {
                sleep(BIND_PAUSE).await
            }
            Err(error) => return Err(NodeError::Listen(address, error)),
        }
    }
}

async fn listen(addresses: &[SocketAddr]) -> Result<Vec<Listener>, NodeError> {
    let mut listeners: Vec<Listener> = Vec::new();
    for address in addresses {
        let mut address = *address;
        // One free port serves all addresses.
        if let (0, Some(first)) = (address.port(), listeners.first()) {
            address.set_port(first.local_addr().port());
        }
        listeners.push(bind(address).await?);
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pinion_runtime::sim::{Sim, SimOptions};

    use super::*;

    /// The names of the commands that a node of this kind has.
    fn names(is_member: bool, has_test_commands: bool) -> BTreeSet<&'static str> {
        let registry = registry(is_member, has_test_commands);
        registry.iter().map(|command| command.spec.name).collect()
    }

    /// Checks that a node has all commands but these, and those of routers.
    #[track_caller]
    fn check(is_member: bool, has_test_commands: bool, lacking: &[&str]) {
        let all = pinion_command::ROWS.into_iter().flatten();
        let all: BTreeSet<&str> = all.map(|row| row.name).collect();
        let found = names(is_member, has_test_commands);
        let missing: BTreeSet<&str> = all.difference(&found).copied().collect();
        let lacking = lacking.iter().chain(OF_ROUTERS);
        assert_eq!(missing, lacking.copied().collect());
    }

    #[test]
    fn rows_have_handlers() {
        let sim = Sim::new(1, SimOptions::default());
        let ended = Rc::new(std::cell::Cell::new(false));
        let end = ended.clone();
        sim.add_node("node", 1, move |_| {
            let end = end.clone();
            Box::pin(async move {
                check(true, true, &[]);
                check(true, false, OF_TESTS);
                check(false, true, OF_MEMBERS);
                let both = [OF_MEMBERS, OF_TESTS].concat();
                check(false, false, &both);
                end.set(true);
            })
        });
        assert!(sim.run_until(move || ended.get()).is_ok());
    }

    const OF_ROUTERS: &[&str] = &[
        "addShard",
        "addShardToZone",
        "balancerCollectionStatus",
        "balancerStart",
        "balancerStatus",
        "balancerStop",
        "checkMetadataConsistency",
        "clearJumboFlag",
        "configureCollectionBalancing",
        "enableSharding",
        "flushRouterConfig",
        "getShardMap",
        "isdbgrid",
        "listShards",
        "mergeAllChunksOnShard",
        "mergeChunks",
        "movePrimary",
        "refineCollectionShardKey",
        "removeShardFromZone",
        "setAllowMigrations",
        "shardCollection",
        "split",
        "updateZoneKeyRange",
    ];

    const OF_TESTS: &[&str] = &[
        "configureFailPoint",
        "reapLogicalSessionCacheNow",
        "refreshLogicalSessionCacheNow",
        "testDeprecation",
        "testDeprecationInVersion2",
        "testVersion2",
        "testVersions1And2",
        "waitForFailPoint",
    ];

    const OF_MEMBERS: &[&str] = &[
        "_isSelf",
        "_replFreezeCheckpoint",
        "_replReadCheckpoint",
        "_replReleaseCheckpoint",
        "replSetHeartbeat",
        "replSetRequestVotes",
        "replSetResizeOplog",
        "replSetUpdatePosition",
    ];
}
