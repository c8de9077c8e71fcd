//! `hello` and `isMaster` of a router, and how it sends its clients away when it ends.
//!
//! Source: sharding document, "Quiesce mode on shutdown", "helloOk Protocol Negotation".

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::rawdoc;
use pinion_runtime::sync::Notify;
use pinion_runtime::{Instant, now, on_all_cores, sleep, timeout};
use pinion_service::hello::{Greeting, append_topology_version};
use pinion_service::interrupt::interruptible;
use pinion_service::metrics::Gauge;
use pinion_service::ops::{client_operations, is_of_client};
use pinion_wire::{ClientInfo, Error, ErrorCode, Invocation, Reply, Result};

use crate::limits::{QUIESCE_POLL, QUIESCE_TIME};

/// What a router says of itself changes once: when it ends.
#[derive(Default)]
pub(crate) struct Topology {
    quiesces_until: Cell<Option<Instant>>,
    changed: Notify,
}

pub(crate) fn topology() -> Rc<Topology> {
    pinion_runtime::core_local()
}

impl Topology {
    pub(crate) fn is_quiescing(&self) -> bool {
        self.quiesces_until.get().is_some()
    }

    /// `topologyVersion.counter`.
    pub(crate) fn counter(&self) -> i64 {
        i64::from(self.is_quiescing())
    }

    /// # Errors
    /// `ShutdownInProgress`, with the time that is left.
    fn check_stays(&self, client: &ClientInfo) -> Result<()> {
        let Some(until) = self.quiesces_until.get().filter(|_| is_of_client(client)) else {
            return Ok(());
        };
        let left_ms = until.saturating_since(now()).as_millis() as i64;
        let error = Error::new(
            ErrorCode::SHUTDOWN_IN_PROGRESS,
            "Mongos is in quiesce mode and will shut down",
        );
        Err(error.with_extra(rawdoc! { "remainingQuiesceTimeMillis": left_ms }))
    }
}

/// `hello`.
pub(crate) async fn hello(cmd: Invocation) -> Result<Reply> {
    answer(&cmd, "isWritablePrimary").await
}

/// `isMaster` and `ismaster`.
pub(crate) async fn is_master(cmd: Invocation) -> Result<Reply> {
    answer(&cmd, "ismaster").await
}

async fn answer(cmd: &Invocation, role: &str) -> Result<Reply> {
    let greeting = Greeting::read(cmd)?;
    let topology = topology();
    let known = topology.counter();
    if let Some(limit) = greeting.wait_for_change(known)? {
        let _waiting = Gauge::up(|counters| &counters.awaiting_topology);
        let changed = timeout(limit, topology.changed.notified());
        interruptible(&cmd.ctx, changed).await.map(drop)?;
    }
    topology.check_stays(&cmd.ctx.client)?;
    let mut out = Reply::new();
    greeting.append_beginning(&mut out);
    out.append(role, true).append("msg", "isdbgrid");
    append_topology_version(topology.counter(), &mut out);
    greeting
        .append_end(cmd, topology.counter(), &mut out)
        .await?;
    Ok(out)
}

/// Sends clients to other routers, and waits for what they still run here, for a limited time.
pub async fn quiesce() {
    let until = now() + QUIESCE_TIME;
    on_all_cores(move |_| async move {
        topology().quiesces_until.set(Some(until));
        topology().changed.notify_all();
    })
    .await;
    while now() < until && client_operations().await > 0 {
        sleep(QUIESCE_POLL).await;
    }
}
