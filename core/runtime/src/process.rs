//! The process: shutdown requests and run-time counters.

use std::cell::Cell;

use crate::context::{self, Backend};
use crate::sync::Notify;

/// One core's view of the node's shutdown request.
#[derive(Default)]
pub(crate) struct ShutdownFlag {
    requested: Cell<bool>,
    changed: Notify,
}

impl ShutdownFlag {
    /// Called by the backend on every core once shutdown was requested.
    pub(crate) fn trigger(&self) {
        self.requested.set(true);
        self.changed.notify_all();
    }
}

/// Completes once shutdown was requested: by SIGTERM, SIGINT or SIGHUP, or by [`request_shutdown`]
/// on any core.
pub async fn shutdown_requested() {
    let context = context::current();
    while !context.shutdown.requested.get() {
        context.shutdown.changed.notified().await;
    }
}

/// True once shutdown was requested and this core has heard of it.
pub fn is_shutdown_requested() -> bool {
    context::with(|context| context.shutdown.requested.get())
}

/// Asks all cores of this node to shut down.
pub fn request_shutdown() {
    let context = context::current();
    match &context.backend {
        Backend::Real(core) => core.request_shutdown(),
        Backend::Sim(core) => core.request_shutdown(),
    }
}

/// Counters of one core since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeStats {
    /// Device flushes (`datasync`) that completed successfully.
    pub device_flushes: u64,
    /// File reads completed, and their bytes.
    pub file_reads: u64,
    pub file_read_bytes: u64,
    /// File writes completed, and their bytes.
    pub file_writes: u64,
    pub file_write_bytes: u64,
    /// Bytes received from and sent to connections.
    pub network_in_bytes: u64,
    pub network_out_bytes: u64,
    /// Receives that brought bytes, and batches of sends handed to the system.
    pub network_receives: u64,
    pub network_sends: u64,
    /// Connections accepted or opened and not yet closed.
    pub connections_open: u64,
    /// Messages sent to other cores, replies included.
    pub mesh_messages: u64,
    /// Times a task held the core for longer than 10 ms.
    pub stalls: u64,
    /// Nanoseconds in which the core ran tasks, and in which it waited.
    pub busy_ns: u64,
    pub idle_ns: u64,
    /// Tasks started.
    pub tasks_spawned: u64,
}

/// The counters of this core.
pub fn stats() -> RuntimeStats {
    context::with(|context| match &context.backend {
        Backend::Real(core) => core.stats(),
        Backend::Sim(core) => core.stats(),
    })
}
