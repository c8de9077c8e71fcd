//! Opening the data directory again inside the process, as of an earlier timestamp: how a member takes back what the others
//! do not have.
//!
//! The base never holds what may have to be taken back, so this is recovery that ends earlier. Everything that refers to
//! storage or to the catalog goes first: operations are interrupted, cursors closed, and what cores remember of the data is
//! forgotten. What comes meanwhile waits.

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, LocalBoxFuture, core_id, on_all_cores, timeout};
use pinion_storage::{OpenError, RecoveryReport, Reopening, storage};
use pinion_wire::{ErrorCode, Invocation, Result};

use crate::interrupt::interruptible;
use crate::limits::PARKING_POLL;
use crate::node::{OpenNodeError, recover_node};
use crate::parking::Inside;
use crate::state::{NodeState, state};

/// Commands that do not touch what is stored: those that may wait for long, and those by which the set knows that this member
/// is there, without which a primary that has no other would step down meanwhile.
const UNPARKED: [&str; 4] = [
    "hello",
    "isMaster",
    "replSetHeartbeat",
    "replSetUpdatePosition",
];

pub(crate) fn is_unparked(command: &str) -> bool {
    UNPARKED.contains(&command)
}

/// Lets a command begin, or holds it up while the data directory is opened again.
///
/// # Errors
/// The command is interrupted while it waits.
#[cold]
pub(crate) async fn park<'a>(state: &'a NodeState, cmd: &Invocation) -> Result<Option<Inside<'a>>> {
    loop {
        if is_unparked(cmd.name()) {
            return Ok(None);
        }
        if let Some(inside) = state.parking.enter() {
            return Ok(Some(inside));
        }
        interruptible(&cmd.ctx, state.parking.until_open()).await?;
    }
}

/// Closes the data directory without a checkpoint and opens it again as of `ts`: nothing above exists afterwards, except what
/// is not replicated. Operations are interrupted; those that come meanwhile wait. The node follows afterwards, and core 0
/// logs; the term must be set again.
///
/// Call it on core 0, on a member that follows, when neither a fetcher nor an applier is there any more.
///
/// # Errors
/// [`OpenError::BeyondRollback`] where something above `ts` is stable: nothing has happened then. After any other error the
/// node has no data, lets no operation go on, and must stop.
///
/// # Panics
/// On another core, or if the node leads.
pub fn reopen_at(
    ts: Timestamp,
) -> LocalBoxFuture<'static, std::result::Result<RecoveryReport, OpenNodeError>> {
    Box::pin(async move {
        assert!(core_id() == CoreId(0), "a node is opened on core 0");
        assert!(!storage().leads(), "a node that leads takes nothing back");
        let stable = storage().timeline().stable;
        if stable > ts {
            let error = OpenError::BeyondRollback { limit: ts, stable };
            return Err(OpenNodeError::Storage(error));
        }
        reopen(ts, async || Ok(storage().close_to_reopen().await)).await
    })
}

/// Closes the data directory by `close` and opens it again, in this process, as of `limit`. A node that is being closed does
/// neither any more.
///
/// # Errors
/// The node has no data then, lets no operation go on, and must stop.
pub(crate) async fn reopen(
    limit: Timestamp,
    close: impl AsyncFnOnce() -> std::result::Result<Reopening, OpenError>,
) -> std::result::Result<RecoveryReport, OpenNodeError> {
    // The close of the node waits for the end, and closes what was opened.
    let _turn = state().reopening.acquire().await;
    on_all_cores(|_| async { state().parking.close() }).await;
    on_all_cores(|_| drain()).await;
    crate::ttl::stop().await;
    crate::db_check::stop().await;
    pinion_catalog::end_builds().await;
    forget_data().await;
    let closed = close().await.map_err(OpenNodeError::Storage)?;
    let opened = closed.open().await.map_err(OpenNodeError::Storage)?;
    let report = recover_node(opened, limit).await?;
    state().parameters.borrow().storage.give_to_storage();
    crate::ttl::start();
    crate::db_check::start();
    on_all_cores(|_| async { state().parking.open() }).await;
    // One that nobody else has is gone.
    crate::time_keys::wake().await;
    Ok(report)
}

/// Interrupts this core's operations until none is left.
async fn drain() {
    let state = state();
    while !state.parking.is_empty() {
        state
            .ops
            .kill_all(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
        state.cursors.kill_all();
        // One that has just begun is not listed yet.
        let _ = timeout(PARKING_POLL, state.parking.changed()).await;
    }
    state.cursors.kill_all();
    state.change_feed.stop().await;
}

/// Forgets what is known of the data, on every core.
pub(crate) async fn forget_data() {
    on_all_cores(|_| async { forget(&state()) }).await;
    crate::sessions::forget_all().await;
}

/// Forgets what this core knows of the data.
fn forget(state: &NodeState) {
    state.parts.clear();
    state.transactions.clear();
    state.open_chain.set(None);
    state.kept_prepared.take();
    state.capped.clear();
    state.auto_compact.set(0);
    *state.open_buckets.borrow_mut() = Default::default();
    *state.cluster_parameters.borrow_mut() = Default::default();
    *state.query_settings.borrow_mut() = Default::default();
    state.plan_cache.forget();
}
