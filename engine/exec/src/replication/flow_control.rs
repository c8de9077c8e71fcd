//! The tickets of flow control: while the majority of the set lags behind this primary, every write
//! of a client takes one before it passes a gate, and there are as many each second as the driver
//! of the member says.
//!
//! Where nothing is throttled a write looks at one word of its own core. The tickets themselves are
//! a word that all cores share, touched only while writes are throttled.
//!
//! Source: execution document, "Flow Control".

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use pinion_bson::DocBuilder;
use pinion_catalog::{core_catalog, is_replicated};
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, on_all_cores, submit_to};
use pinion_service::interrupt::interruptible;
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::parameters::replication_parameters;

/// What is left of the tickets of this second; below zero where more were asked for.
#[derive(Clone, Default)]
pub struct NodeTickets(Arc<AtomicI64>);

impl NodeTickets {
    fn take(&self) -> bool {
        self.0.fetch_sub(1, Ordering::Relaxed) > 0
    }
}

/// This node's.
pub(crate) fn tickets() -> Rc<NodeTickets> {
    pinion_runtime::core_local()
}

/// One core's part.
#[derive(Default)]
pub struct FlowControl {
    throttles: Cell<bool>,
    /// There are new tickets, or none are needed any more.
    refreshed: Notify,
    waited_us: Cell<u64>,
    /// What was decided last; core 0 has it.
    status: Cell<FlowControlStatus>,
}

/// This core's part of flow control.
pub(crate) fn flow_control() -> Rc<FlowControl> {
    pinion_runtime::core_local()
}

/// What the driver reports of its decisions, for `serverStatus`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowControlStatus {
    /// Tickets of a second.
    pub target_rate: u32,
    pub locks_per_op: f64,
    /// Operations that a majority took over in the last second.
    pub sustainer_rate: u64,
    pub is_lagged: bool,
    pub lagged_count: u64,
    pub lagged_us: u64,
}

/// What this node has written since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowSample {
    /// Entries of the oplog.
    pub operations: u64,
    /// Gates that were passed to write.
    pub locks: u64,
}

/// Sums up what all cores have written.
pub fn flow_sample() -> LocalBoxFuture<'static, FlowSample> {
    Box::pin(async move {
        let parts = on_all_cores(|_| async {
            FlowSample {
                operations: storage().stats().ring_entries,
                locks: core_catalog().gates().counts().writes.count,
            }
        });
        let mut sum = FlowSample::default();
        for part in parts.await {
            sum.operations += part.operations;
            sum.locks += part.locks;
        }
        sum
    })
}

/// Gives writes this number of tickets for the next second; `None` where they need none. Called on
/// core 0, by one task.
pub fn set_tickets(tickets: Option<u32>, status: FlowControlStatus) -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        flow_control().status.set(status);
        let throttled = flow_control().throttles.get();
        if let Some(given) = tickets {
            let left = self::tickets();
            left.0.store(i64::from(given), Ordering::Relaxed);
        } else if !throttled {
            return;
        }
        let throttles = tickets.is_some();
        on_all_cores(move |_| async move {
            flow_control().throttles.set(throttles);
            flow_control().refreshed.notify_all();
        })
        .await;
    })
}

/// Whether the tickets of the last second did not suffice.
pub fn tickets_ran_out() -> bool {
    tickets().0.load(Ordering::Relaxed) <= 0
}

/// Waits for a ticket, where an operation needs one to write to a namespace.
///
/// # Errors
/// The operation is interrupted.
pub async fn take_ticket(ctx: &OpContext, ns: &Namespace) -> Result<()> {
    let control = &flow_control();
    if !control.throttles.get() || ctx.client.is_internal() || !is_replicated(ns) {
        return Ok(());
    }
    let tickets = &tickets();
    if tickets.take() {
        ctx.work().took_ticket(None);
        return Ok(());
    }
    let mut wait = Wait::begin(ctx, control);
    loop {
        let refreshed = control.refreshed.notified();
        if !control.throttles.get() {
            return Ok(());
        }
        if tickets.take() {
            wait.took = true;
            return Ok(());
        }
        interruptible(ctx, refreshed).await?;
    }
}

/// A wait for a ticket, counted however it ends.
struct Wait<'a> {
    ctx: &'a OpContext,
    control: &'a FlowControl,
    began: pinion_runtime::Instant,
    took: bool,
}

impl<'a> Wait<'a> {
    fn begin(ctx: &'a OpContext, control: &'a FlowControl) -> Wait<'a> {
        ctx.work().set_awaits_ticket(true);
        Wait {
            ctx,
            control,
            began: pinion_runtime::now(),
            took: false,
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let us = self.began.elapsed().as_micros() as u64;
        let waited = &self.control.waited_us;
        waited.set(waited.get() + us);
        let work = self.ctx.work();
        work.set_awaits_ticket(false);
        match self.took {
            true => work.took_ticket(Some(us)),
            false => work.waited_for_ticket(Some(us)),
        }
    }
}

/// Appends `flowControl`, which a standalone does not have.
pub async fn append_status(out: &mut DocBuilder) {
    let status = submit_to(CoreId(0), Queue::Foreground, || async {
        flow_control().status.get()
    })
    .await;
    let waited = on_all_cores(|_| async { flow_control().waited_us.get() }).await;
    out.start_document("flowControl")
        .append("enabled", replication_parameters().flow_control)
        .append("targetRateLimit", status.target_rate as i32)
        .append(
            "timeAcquiringMicros",
            waited.into_iter().sum::<u64>() as i64,
        )
        .append("locksPerKiloOp", status.locks_per_op * 1000.0)
        .append(
            "sustainerRate",
            status.sustainer_rate.min(i32::MAX as u64) as i32,
        )
        .append("isLagged", status.is_lagged)
        .append("isLaggedCount", status.lagged_count as i32)
        .append("isLaggedTimeMicros", status.lagged_us as i64)
        .end();
}
