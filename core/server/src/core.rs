//! What the connection layer keeps on each core.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use pinion_runtime::sync::Gate;
use pinion_runtime::{
    Incoming, Queue, core_count, core_id, core_local, set_core_local, spawn, timeout,
    try_core_local,
};
use pinion_wire::{ClientInfo, CompressionState, ErrorCode, Registry, ServerCounters};

use crate::connection::{self, Live};
use crate::limits::{DEFAULT_MAX_CONNECTIONS, DRAIN_TIMEOUT, LAST_FLUSH_TIMEOUT};

/// How a server is set up.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// `net.maxIncomingConnections`: the most connections at one time.
    pub max_connections: usize,
    /// Leaves the lines about single connections out of the log.
    pub quiet: bool,
    /// `operationProfiling.slowOpThresholdMs`: commands that take at least so long are logged.
    pub slow_ms: Option<u64>,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            max_connections: DEFAULT_MAX_CONNECTIONS,
            quiet: false,
            slow_ms: None,
        }
    }
}

/// What all cores share: published metrics and the numbering of connections.
pub(crate) struct ServerShared {
    pub options: ServerOptions,
    open: AtomicUsize,
    next_connection: AtomicI32,
}

impl ServerShared {
    pub(crate) fn new(options: ServerOptions) -> ServerShared {
        ServerShared {
            options,
            open: AtomicUsize::new(0),
            next_connection: AtomicI32::new(1),
        }
    }

    /// Takes a place for one more connection; `None` when all are taken.
    pub(crate) fn admit(self: &Arc<ServerShared>) -> Option<ConnectionPermit> {
        if self.open.fetch_add(1, Ordering::Relaxed) < self.options.max_connections {
            return Some(ConnectionPermit(self.clone()));
        }
        self.open.fetch_sub(1, Ordering::Relaxed);
        None
    }

    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn next_connection_id(&self) -> i32 {
        self.next_connection.fetch_add(1, Ordering::Relaxed)
    }
}

/// The right to hold one connection; dropping it gives it back.
pub(crate) struct ConnectionPermit(Arc<ServerShared>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The connection layer of one core.
pub(crate) struct ServerCore {
    pub registry: Rc<Registry>,
    pub counters: Rc<ServerCounters>,
    pub compression: RefCell<CompressionState>,
    shared: Arc<ServerShared>,
    live: RefCell<BTreeMap<i32, Rc<Live>>>,
    gate: Gate,
    draining: Cell<bool>,
    ops: Cell<u32>,
    replies: Cell<i32>,
}

impl ServerCore {
    /// Sets up this core, whose registry the executor has set before.
    pub(crate) fn install(shared: Arc<ServerShared>) {
        let counters = try_core_local().unwrap_or_else(|| Rc::new(ServerCounters::new()));
        counters
            .max_connections
            .set(shared.options.max_connections as u64);
        // A parameter of the start may have set it already.
        if let Some(slow_ms) = shared.options.slow_ms {
            counters.slow_ms.set(slow_ms);
        }
        if shared.options.quiet {
            counters.quiet.set(true);
        }
        set_core_local(counters.clone());
        set_core_local(Rc::new(ServerCore {
            registry: core_local::<Registry>(),
            counters,
            compression: RefCell::default(),
            shared,
            live: RefCell::default(),
            gate: Gate::new(),
            draining: Cell::new(false),
            ops: Cell::new(0),
            replies: Cell::new(0),
        }));
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// An operation's number, different on every core, positive, and not reused for a long time.
    pub(crate) fn next_op_id(&self) -> i32 {
        let n = self.ops.get();
        self.ops.set(n.wrapping_add(1));
        let id = u64::from(n) * core_count() as u64 + u64::from(core_id().0) + 1;
        (id % i32::MAX as u64) as i32 + 1
    }

    pub(crate) fn next_request_id(&self) -> i32 {
        let id = self.replies.get().wrapping_add(1);
        self.replies.set(id);
        id
    }

    /// Makes this core serve a connection.
    pub(crate) fn take(
        self: Rc<ServerCore>,
        incoming: Incoming,
        place: ConnectionPermit,
        connection_id: i32,
    ) {
        let Ok(guard) = self.gate.enter() else { return };
        let (remote, local) = (incoming.peer_addr(), incoming.local_addr());
        let connection = match incoming.attach() {
            Ok(connection) => connection,
            Err(error) => {
                tracing::warn!(target: "NETWORK", id = 22_990u64, error = %error, remote = %remote, "Connection could not be taken over");
                return;
            }
        };
        let client = Arc::new(ClientInfo::new(connection_id, remote, local));
        let live = Rc::new(Live::new(client.clone(), connection));
        self.live.borrow_mut().insert(connection_id, live.clone());
        self.counters.opened(client.clone());
        let quiet = self.counters.quiet.get();
        if !quiet {
            tracing::info!(target: "NETWORK", id = 22_943u64, ctx = "listener", remote = %remote, connectionId = connection_id, connectionCount = self.shared.open(), "Connection accepted");
        }
        drop(spawn(Queue::Foreground, async move {
            connection::serve(self.clone(), live).await;
            self.live.borrow_mut().remove(&connection_id);
            self.counters.closed(&client);
            drop(place);
            if !quiet {
                tracing::info!(target: "NETWORK", id = 22_944u64, ctx = format!("conn{connection_id}"), remote = %remote, connectionId = connection_id, connectionCount = self.shared.open(), "Connection ended");
            }
            drop(guard);
        }));
    }

    /// Ends all connections: idle ones at once, others after the command they are running, which is
    /// interrupted. Those that take too long are cut.
    pub(crate) async fn drain(&self) {
        self.draining.set(true);
        for live in self.snapshot() {
            if !live.idle.get() {
                live.interrupt(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
                continue;
            }
            // Its last reply may not have left yet.
            drop(spawn(Queue::Foreground, async move {
                let _ = timeout(LAST_FLUSH_TIMEOUT, live.connection.flush()).await;
                live.connection.close();
            }));
        }
        if timeout(DRAIN_TIMEOUT, self.gate.close()).await.is_err() {
            let left = self.snapshot();
            tracing::warn!(target: "NETWORK", id = 7_100_002u64, connections = left.len(), "Connections were cut because their commands did not end in time");
            left.iter().for_each(|live| live.connection.close());
        }
    }

    fn snapshot(&self) -> Vec<Rc<Live>> {
        self.live.borrow().values().cloned().collect()
    }
}
