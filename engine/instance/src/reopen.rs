//! Opening the data directory again inside the process, as of an earlier timestamp: how a member
//! takes back what the others do not have.
//!
//! The base never holds what may have to be taken back, so this is recovery that ends earlier.
//! Everything that refers to storage or to the catalog goes first: operations are interrupted,
//! cursors closed, and what cores remember of the data is forgotten. What comes meanwhile waits.

use std::rc::Rc;

use pinion_administration::end_auto_compact;
use pinion_apply::recovery::{OpenNodeError, recover_node};
use pinion_clock::Timestamp;
use pinion_exec::capped::capped_table;
use pinion_exec::open_transactions::transactions;
use pinion_exec::parameters::parameters;
use pinion_exec::plan_cache::plan_cache;
use pinion_exec::read::{change_feed, parts};
use pinion_exec::write::open_buckets;
use pinion_runtime::sync::Semaphore;
use pinion_runtime::{CoreId, LocalBoxFuture, core_id, on_all_cores, timeout};
use pinion_service::cluster_parameters::cluster_parameters;
use pinion_service::cursors::cursors;
use pinion_service::login::forget_users_here;
use pinion_service::ops::ops;
use pinion_service::parking::parking;
use pinion_service::query_settings::query_settings;
use pinion_storage::{OpenError, RecoveryReport, Reopening, storage};
use pinion_wire::ErrorCode;

use crate::limits::PARKING_POLL;

/// Taken while the data directory is opened again, and when the node closes it for good; on core 0.
pub(crate) struct ReopenTurn(Semaphore);

impl Default for ReopenTurn {
    fn default() -> ReopenTurn {
        ReopenTurn(Semaphore::new(1))
    }
}

fn turn() -> Rc<ReopenTurn> {
    pinion_runtime::core_local()
}

/// The data directory is opened no more from here on. Called on core 0.
pub(crate) async fn end_reopening() {
    turn().0.acquire().await.forget();
}

/// Closes the data directory without a checkpoint and opens it again as of `ts`: nothing above
/// exists afterwards, except what is not replicated. Operations are interrupted; those that come
/// meanwhile wait. The node follows afterwards, and core 0 logs; the term must be set again.
///
/// Call it on core 0, on a member that follows, when neither a fetcher nor an applier is there any
/// more.
///
/// # Errors
/// [`OpenError::BeyondRollback`] where something above `ts` is stable: nothing has happened then.
/// After any other error the node has no data, allows no operation to continue, and must stop.
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

/// Closes the data directory by `close` and opens it again, in this process, as of `limit`. A node
/// that is being closed does neither any more.
///
/// # Errors
/// The node has no data then, allows no operation to continue, and must stop.
pub(crate) async fn reopen(
    limit: Timestamp,
    close: impl AsyncFnOnce() -> std::result::Result<Reopening, OpenError>,
) -> std::result::Result<RecoveryReport, OpenNodeError> {
    // The close of the node waits for the end, and closes what was opened.
    let turn = turn();
    let _turn = turn.0.acquire().await;
    on_all_cores(|_| async { parking().close() }).await;
    pinion_exec::placement::data_close();
    on_all_cores(|_| drain()).await;
    pinion_apply::ttl::stop().await;
    pinion_administration::db_check::stop().await;
    pinion_catalog::end_builds().await;
    forget_data().await;
    let closed = close().await.map_err(OpenNodeError::Storage)?;
    let opened = closed.open().await.map_err(OpenNodeError::Storage)?;
    let report = recover_node(opened, limit).await?;
    parameters().borrow().storage.give_to_storage();
    pinion_apply::ttl::start();
    pinion_administration::db_check::start();
    on_all_cores(|_| async { parking().open() }).await;
    // One that no other member has is gone.
    pinion_exec::time_keys::wake().await;
    Ok(report)
}

/// Interrupts this core's operations until none is left.
async fn drain() {
    while !parking().is_empty() {
        ops().kill_all(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
        cursors().kill_all();
        // One that has just started is not listed yet.
        let _ = timeout(PARKING_POLL, parking().changed()).await;
    }
    cursors().kill_all();
    change_feed().stop().await;
}

/// Forgets what is known of the data, on every core.
pub(crate) async fn forget_data() {
    on_all_cores(|_| async { forget() }).await;
    pinion_exec::sessions::forget_all().await;
}

/// Forgets what this core knows of the data.
fn forget() {
    parts().clear();
    transactions().clear();
    pinion_apply::applier::forget_transactions();
    capped_table().clear();
    end_auto_compact();
    *open_buckets().borrow_mut() = Default::default();
    *cluster_parameters().borrow_mut() = Default::default();
    *query_settings().borrow_mut() = Default::default();
    plan_cache().forget();
    forget_users_here();
}
