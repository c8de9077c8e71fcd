//! When documents are expired: passes, sub-passes, and the pauses between them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_catalog::core_catalog;
use pinion_exec::acquire::{AcquisitionRequest, acquire_owned};
use pinion_exec::topology::is_writable;
use pinion_exec::user_write_block::is_blocked;
use pinion_exec::write::{DeletionTargets, delete_by_plan};
use pinion_runtime::{CoreId, JoinHandle, Queue, now, sim, spawn, timeout_at};
use pinion_service::metrics::metrics;
use pinion_service::ops::ops;
use pinion_service::parameters::parameter_changes;
use pinion_wire::{ErrorCode, OpContext, Result};

use super::expiring::{Expiring, expiring};
use super::parameters::{TtlParameters, ttl_parameters};

/// What `currentOp` calls it.
const TASK: &str = "TTLMonitor";

/// The task that expires documents; that of core 0 is the node's.
#[derive(Default)]
pub struct TtlMonitor {
    /// The node closes.
    stopping: Cell<bool>,
    /// The deletion that is under way.
    running: RefCell<Option<OpContext>>,
    task: RefCell<Option<JoinHandle<()>>>,
}

/// This core's monitor of what expires.
pub(crate) fn ttl_monitor() -> Rc<TtlMonitor> {
    pinion_runtime::core_local()
}

/// Begins to expire documents. Called on core 0.
pub fn start() {
    assert!(
        pinion_runtime::core_id() == CoreId(0),
        "documents expire by a task of core 0"
    );
    ttl_monitor().stopping.set(false);
    let task = spawn(Queue::Background, run());
    *ttl_monitor().task.borrow_mut() = Some(task);
}

/// Ends the task; when this returns it deletes nothing any more. Called on core 0.
pub async fn stop() {
    ttl_monitor().stopping.set(true);
    if let Some(running) = &*ttl_monitor().running.borrow() {
        running.kill(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    }
    parameter_changes().0.notify_all();
    let task = ttl_monitor().task.borrow_mut().take();
    if let Some(task) = task {
        // One that was dropped has ended too.
        let _ = task.await;
    }
}

async fn run() {
    loop {
        rest().await;
        if ttl_monitor().stopping.get() {
            return;
        }
        // A secondary deletes what its primary deletes.
        if ttl_parameters().borrow().enabled && is_writable() {
            pass().await;
        }
    }
}

/// Waits as long as the parameter says, however often it is set meanwhile.
async fn rest() {
    let began = now();
    loop {
        let changes = parameter_changes();
        let changed = changes.0.notified();
        let due = began + ttl_parameters().borrow().sleep;
        if ttl_monitor().stopping.get() || now() >= due {
            return;
        }
        // Either way the time that is left is computed again.
        let _ = timeout_at(due, changed).await;
    }
}

/// Whether deletions may continue. Nothing is deleted while the node is locked against writes: the
/// rest is left to the next pass.
fn may_continue() -> bool {
    !ttl_monitor().stopping.get()
        && ttl_parameters().borrow().enabled
        && is_writable()
        && !core_catalog().gates().is_locked()
}

/// Deletes everything that has expired.
async fn pass() {
    while may_continue() {
        let more = sub_pass().await;
        metrics().counters.ttl_sub_passes.inc();
        if !more {
            break;
        }
    }
    metrics().counters.ttl_passes.inc();
}

/// Visits in turn whatever expires, for a while; whether something is left.
async fn sub_pass() -> bool {
    let mut work = expiring().await;
    let target = ttl_parameters().borrow().sub_pass_target;
    let end = now() + target;
    while !work.is_empty() {
        let mut left = Vec::new();
        for expiring in work {
            if !may_continue() {
                return true;
            }
            if visit(&expiring).await {
                left.push(expiring);
            }
        }
        work = left;
        if now() >= end {
            break;
        }
    }
    !work.is_empty()
}

/// Deletes some of what has expired; whether there may be more.
async fn visit(expiring: &Expiring) -> bool {
    let now_ns = now().as_nanos();
    let ctx = OpContext::internal(0, pinion_command::row("delete"), expiring.ns.db(), now_ns);
    *ttl_monitor().running.borrow_mut() = Some(ctx.clone());
    ops().set_busy(TASK, true);
    let visited = delete_expired(&ctx, expiring).await;
    *ttl_monitor().running.borrow_mut() = None;
    ops().set_busy(TASK, false);
    match visited {
        Ok(more) => more,
        Err(error) => {
            // A collection or an index that was dropped meanwhile, or a node that closes, is no
            // failure; whatever else it is, the next pass tries again.
            if !ttl_monitor().stopping.get() && error.code != ErrorCode::QUERY_PLAN_KILLED {
                tracing::warn!(
                    target: "INDEX",
                    id = 5_400_703u64,
                    ctx = "TTLMonitor",
                    namespace = expiring.ns.as_str(),
                    index = expiring.index.as_deref(),
                    error = error.message.as_str(),
                    "Error running TTL job on collection"
                );
            }
            false
        }
    }
}

async fn delete_expired(ctx: &OpContext, expiring: &Expiring) -> Result<bool> {
    // A gate that is closed stays so for long at times: by then it is the next pass's.
    let access = pinion_catalog::GateAccess::Write;
    let is_admitted = core_catalog().gates().admits(&expiring.ns, access);
    if !is_admitted || is_blocked(expiring.ns.db()) {
        return Ok(false);
    }
    let wanted = AcquisitionRequest::write(expiring.ns.clone(), None);
    let acquired = acquire_owned(ctx, wanted).await?;
    // Behind the gate, from where on it is waited for.
    if is_blocked(expiring.ns.db()) {
        return Ok(false);
    }
    let found = acquired.collection();
    let Some(collection) = found.filter(|found| found.uuid == expiring.uuid) else {
        return Ok(false);
    };
    let Some(expired) = expiring.expired(collection, pinion_runtime::wall_ms())? else {
        return Ok(false);
    };
    let targets = targets(&ttl_parameters().borrow());
    let mut deleted = 0;
    let outcome = delete_by_plan(ctx, &acquired, expired, targets, &mut deleted).await;
    metrics().counters.ttl_deleted_documents.add(deleted);
    if deleted > 0 {
        sim::event("ttl delete");
    }
    outcome
}

/// When a visit that begins now ends.
fn targets(parameters: &TtlParameters) -> DeletionTargets {
    let some = |number: u64| (parameters.batch_deletes && number > 0).then_some(number);
    let time_ms = parameters.delete_target_time.as_millis() as u64;
    DeletionTargets {
        documents: some(parameters.delete_target_docs).map(|count| count as usize),
        until: some(time_ms).map(|_| now() + parameters.delete_target_time),
    }
}
