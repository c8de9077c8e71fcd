//! Transactions that end from outside: those too old, those of sessions that are killed, and all
//! when the node stops to lead.

use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_runtime::{Queue, now, on_all_cores, sleep, spawn};
use pinion_service::session_ids::at_home;
use pinion_wire::ErrorCode;
use pinion_wire::idl::Lsid;

use crate::limits::EXPIRY_INTERVAL;
use crate::sessions::session_catalog;

/// Begins to look for transactions that are too old. Called on each core.
pub fn start() {
    drop(spawn(Queue::Background, async {
        while !pinion_runtime::is_shutdown_requested() {
            sleep(EXPIRY_INTERVAL).await;
            expire().await;
        }
    }));
}

/// Aborts the transactions whose home this core is that are older than
/// `transactionLifetimeLimitSeconds`.
async fn expire() {
    let code = ErrorCode::TRANSACTION_EXCEEDED_LIFETIME_LIMIT_SECONDS;
    for lsid in session_catalog().expired(now()) {
        tracing::info!(
            target: "TXN",
            id = 20_707u64,
            sessionId = crate::statements::session_text(&lsid),
            "Aborting transaction because it has been running for longer than 'transactionLifetimeLimitSeconds'"
        );
        session_catalog().abort(&lsid, code).await;
    }
}

/// Aborts the transactions of sessions and of their children; a command that one of them runs is
/// interrupted.
pub async fn abort_sessions(lsids: &[Lsid]) {
    let lsids: Arc<BTreeSet<Lsid>> = Arc::new(lsids.iter().map(at_home).collect());
    on_all_cores(move |_| {
        let lsids = lsids.clone();
        async move {
            let catalog = &session_catalog();
            let mut open = catalog.with_transactions();
            open.retain(|lsid| lsids.contains(lsid) || lsids.contains(&lsid.parent()));
            for lsid in open {
                catalog.abort(&lsid, ErrorCode::INTERRUPTED).await;
            }
        }
    })
    .await;
}

/// Aborts all transactions of this node, and interrupts with this code what runs in them.
pub async fn abort_all(code: ErrorCode) {
    on_all_cores(move |_| async move {
        let catalog = &session_catalog();
        for lsid in catalog.with_transactions() {
            catalog.abort(&lsid, code).await;
        }
    })
    .await;
}
