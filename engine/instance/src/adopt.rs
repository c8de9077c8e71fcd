//! Taking over another member's files: how an initial sync that copied them ends.
//!
//! Everything that is replicated is the copy's afterwards; the rest stays this node's. Every module
//! with state about the data starts again, as after a rollback.

use pinion_apply::recovery::OpenNodeError;
use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, LocalBoxFuture, core_id};
use pinion_storage::{CheckpointCopy, CopiedEntry, RecoveryReport, storage};

use crate::reopen::reopen;

/// Closes the data directory and opens a copied checkpoint in its place, whose log begins with
/// `entries`. Operations are interrupted; those that come meanwhile wait. The node follows
/// afterwards, and core 0 logs; the term must be set again.
///
/// Call it on core 0, on a member that follows and whose data are of no use, when neither a fetcher
/// nor an applier is there any more.
///
/// # Errors
/// The node has no data then, allows no operation to continue, and must stop.
///
/// # Panics
/// On another core, or if the node leads.
pub fn reopen_as_copy(
    copy: &CheckpointCopy,
    entries: Vec<CopiedEntry>,
) -> LocalBoxFuture<'_, Result<RecoveryReport, OpenNodeError>> {
    Box::pin(async move {
        assert!(core_id() == CoreId(0), "a node is opened on core 0");
        assert!(!storage().leads(), "a node that leads has data of its own");
        reopen(Timestamp::MAX, async || {
            storage().close_to_adopt(copy, entries).await
        })
        .await
    })
}
