//! Taking over another member's files: how an initial sync that copied them ends.
//!
//! All that is replicated is the copy's afterwards; what is not stays this node's. Everything that knows of the data begins anew,
//! as after a rollback.

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, LocalBoxFuture, core_id};
use pinion_storage::{CheckpointCopy, CopiedEntry, RecoveryReport, storage};

use crate::reopen::reopen;
use pinion_apply::recovery::OpenNodeError;

/// Closes the data directory and opens a copied checkpoint in its place, whose log begins with `entries`. Operations are
/// interrupted; those that come meanwhile wait. The node follows afterwards, and core 0 logs; the term must be set again.
///
/// Call it on core 0, on a member that follows and whose data are of no use, when neither a fetcher nor an applier is there any
/// more.
///
/// # Errors
/// The node has no data then, lets no operation go on, and must stop. When it is started again it has what it had, or the copy.
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
