//! A router as a process: what it keeps on each core, how it comes to its cluster, and its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::ObjectId;
use pinion_clock::VectorClock;
use pinion_runtime::{Queue, is_shutdown_requested, now, on_all_cores, sleep, spawn};
use pinion_server::{Introduction, PoolLimits};
use pinion_service::cluster_parameters::ClusterParameters;
use pinion_service::cursors::{CursorTable, cursors};
use pinion_service::fail_points::FailPoints;
use pinion_service::generate::Generators;
use pinion_service::hello::MAX_WIRE_VERSION;
use pinion_service::limits::SESSION_TIMEOUT;
use pinion_service::login::{AuthenticationCounts, Conversations};
use pinion_service::members::MemberAccess;
use pinion_service::metrics::{Metrics, metrics};
use pinion_service::node_info::{ClusterRole, NodeInfo};
use pinion_service::operator_counts::OperatorCounts;
use pinion_service::ops::OpTable;
use pinion_service::options::ProcessOptions;
use pinion_service::parameters::{
    ParameterChanges, ParameterRegistry, Parameters, parameters, rows,
};
use pinion_service::session_table::{self, SessionTable};
use pinion_service::settable::Settable;
use pinion_service::spill::NodeMemory;
use pinion_sharding_protocol::ConnectionString;

use crate::clock::RouterClock;
use crate::cluster::{Cluster, ClusterOptions};
use crate::cluster_parameters::keep_parameters;
use crate::concerns::{Defaults, keep_defaults};
use crate::cursor::ClosingCursors;
use crate::hello::Topology;
use crate::hosts::{self, Hosts, HostsOptions};
use crate::keys::{Keys, keep_keys};
use crate::limits::{
    MERGE_CACHE_BYTES, REAP_INTERVAL, ROUTER_CONNECTIONS, ROUTER_IDLE_CONNECTIONS,
    SERVER_SELECTION_TIMEOUT,
};
use crate::planted::PlantedFault;
use crate::presence::keep_presence;
use crate::sessions::{SessionRefresh, keep_sessions};
use crate::shards::{keep_shards, keep_strings};
use crate::transactions::{RouterTransactions, transactions};

/// What a router is started with.
#[derive(Clone, Debug)]
pub struct RouterProcess {
    pub process: ProcessOptions,
    /// `--configdb`.
    pub config_servers: ConnectionString,
    #[doc(hidden)]
    pub planted_fault: PlantedFault,
}

/// Sets what the modules keep on each core. The last is dropped first: what others count in, and
/// are listed in, comes before them.
fn set_core_locals(
    info: NodeInfo,
    access: Option<MemberAccess>,
    cluster: &ClusterOptions,
    shared: (Arc<VectorClock>, NodeMemory),
) {
    fn set<T: 'static>(value: T) {
        pinion_runtime::set_core_local(Rc::new(value));
    }
    let (words, memory) = shared;
    let auth = info.options.member_auth.clone();
    set(info);
    if let Some(access) = access {
        set(access);
    }
    set(Generators::default());
    set(Metrics::default());
    set(OperatorCounts::default());
    set(AuthenticationCounts::default());
    set(RefCell::<Parameters>::default());
    set(ParameterRegistry::of(rows()));
    set(ParameterChanges::default());
    set(OpTable::default());
    set(memory);
    set(FailPoints::default());
    set(Conversations::default());
    set(SessionTable::default());
    set(Topology::default());
    set(Keys::default());
    set(Defaults::default());
    set(Settable::<ClusterParameters>::default());
    set(SessionRefresh::default());
    Cluster::install(cluster, Rc::new(RouterClock::new(words)));
    hosts::install(HostsOptions {
        introduction: Introduction {
            name: "NetworkInterfacePinion-router",
            version: env!("CARGO_PKG_VERSION"),
            max_wire_version: MAX_WIRE_VERSION,
        },
        auth,
        limits: PoolLimits {
            connections: ROUTER_CONNECTIONS,
            idle: ROUTER_IDLE_CONNECTIONS,
            ..PoolLimits::default()
        },
        server_selection_timeout: SERVER_SELECTION_TIMEOUT,
    });
    set(ClosingCursors::default());
    set(RouterTransactions::default());
    set(CursorTable::default());
}

/// Opens a router. Called once, on core 0; afterwards every core can serve. Whether the config
/// servers answer yet does not count: commands wait for them.
pub async fn open(options: RouterProcess) {
    let mut process_id = [0; 12];
    pinion_runtime::random_stream("process").fill_bytes(&mut process_id);
    let access = options.process.member_auth.as_ref().map(MemberAccess::new);
    let info = NodeInfo {
        options: options.process,
        cluster_role: ClusterRole::None,
        cluster_version: Default::default(),
        process_id: ObjectId::from_bytes(process_id),
        started: now(),
        started_wall_ms: pinion_runtime::wall_ms(),
    };
    let cluster = ClusterOptions {
        config_servers: options.config_servers,
        planted_fault: options.planted_fault,
    };
    let words: Arc<VectorClock> = Arc::default();
    let memory = NodeMemory::new(MERGE_CACHE_BYTES);
    let config_servers = cluster.config_servers.clone();
    on_all_cores(move |_| {
        let (info, access) = (info.clone(), access.clone());
        let (cluster, shared) = (cluster.clone(), (words.clone(), memory.clone()));
        async move { set_core_locals(info, access, &cluster, shared) }
    })
    .await;
    Hosts::here().watch(&config_servers).await;
    keep_shards();
    keep_strings();
    keep_keys();
    keep_defaults();
    keep_parameters();
    keep_sessions();
    keep_presence();
    on_all_cores(|_| async {
        spawn(Queue::Background, reap_idle());
    })
    .await;
}

/// Ends what runs in the background. Called on core 0 when no command runs any more.
pub async fn close() {
    on_all_cores(|_| async {
        cursors().kill_all();
        Hosts::here().stop();
    })
    .await;
}

/// Kills cursors and forgets sessions that no client uses.
async fn reap_idle() {
    while !is_shutdown_requested() {
        sleep(REAP_INTERVAL).await;
        let timeout = parameters().borrow().cursor_timeout;
        let killed = cursors().reap(now() - timeout);
        metrics().counters.cursors_timed_out.add(killed);
        transactions().reap(now() - SESSION_TIMEOUT);
        for lsid in session_table::reap_unused(now() - SESSION_TIMEOUT).await {
            cursors().kill_session(&lsid);
        }
    }
}
