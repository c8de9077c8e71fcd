//! Copying another member's data, as its initial sync does: collections and indexes with the
//! other's numbers, documents from all cores at once, all of it unlogged and over nothing.
//!
//! What is copied has no timestamps and may be newer than the point at which the oplog of the copy
//! begins; entries that are applied over it in
//! [`ApplyMode::InitialSync`](pinion_catalog::ApplyMode) make it one state. A document may come
//! twice, also after it has changed.

mod documents;
mod rows;

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocumentBuf;
use pinion_catalog::{Clustering, ListedCollection, core_catalog, from_fatal, is_replicated};
use pinion_clock::Timestamp;
use pinion_exec::capped::capped_table;
use pinion_exec::placement::{WrittenDocuments, documents_applied};
use pinion_exec::transactions::give_up_prepared;
use pinion_runtime::{LocalBoxFuture, on_all_cores};
use pinion_storage::{ApplyError, TreeId, storage};
use pinion_wire::Result;

pub use documents::{CloneTarget, ClonedDocument};
pub(crate) use rows::catalog_rows;
pub use rows::parse_catalog_rows;

/// Drops what this node has of replicated collections, whatever it is, prepared transactions too,
/// and marks everything that was logged so far as applied. Until [`end_clone`] a node that opens
/// this directory drops it again. Called on the core that logs, of a node that follows; no task
/// reads or applies meanwhile.
///
/// # Errors
/// Storage has failed.
pub fn begin_clone() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let storage = storage();
        give_up_prepared().await?;
        let last = storage.last_allotted();
        if storage.visible() < last {
            storage.set_applied(last);
        }
        // What has no timestamp is older than all that has one, unless that is in the base.
        storage.set_stable(last);
        let base = storage.checkpoint().await.map_err(from_fatal)?;
        assert!(
            base >= last,
            "a checkpoint holds what is visible and stable"
        );
        forget_capped().await;
        pinion_catalog::begin_copy().await
    })
}

async fn forget_capped() {
    let catalog = core_catalog().current();
    let capped = catalog
        .collections()
        .filter(|found| is_replicated(&found.ns) && found.clustering == Clustering::Record);
    let trees: Arc<[TreeId]> = capped.map(|found| found.tree()).collect();
    on_all_cores(move |_| {
        let trees = trees.clone();
        async move { capped_table().forget(&trees) }
    })
    .await;
}

/// Makes collections, indexes and views as rows of another member have them, and returns the
/// collections to copy documents into. Indexes that the other was still building are built here too
/// when the copy is complete.
///
/// # Errors
/// A row that cannot be understood.
pub fn clone_catalog(
    rows: Vec<RawDocumentBuf>,
    next_number: u64,
) -> LocalBoxFuture<'static, Result<Vec<CloneTarget>>> {
    Box::pin(async move {
        let made = pinion_catalog::put_copied(rows, next_number).await?;
        Ok(made.into_iter().map(CloneTarget::new).collect())
    })
}

/// Makes collections, indexes and views as a member lists them that has no rows to give, with
/// numbers of this node, and returns the collections to copy documents into.
///
/// # Errors
/// Options or indexes that are not understood.
pub fn clone_listed(
    listed: Vec<ListedCollection>,
) -> LocalBoxFuture<'static, Result<Vec<CloneTarget>>> {
    Box::pin(async move {
        let made = pinion_catalog::put_listed(listed).await?;
        Ok(made.into_iter().map(CloneTarget::new).collect())
    })
}

/// The copy is complete and everything that was logged is applied. When this returns that is
/// durable, also for a node that opens the directory again. Called on the core that logs.
///
/// # Errors
/// Storage has failed, or settings that were copied cannot be read.
pub fn end_clone() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let storage = storage();
        let last = storage.last_allotted();
        assert!(storage.visible() == last, "something is not applied yet");
        storage.wait_durable(last).await.map_err(from_fatal)?;
        storage.set_stable(last);
        // The mark of an incomplete copy must not disappear from a base that is older than the end.
        let base = storage.checkpoint().await.map_err(from_fatal)?;
        assert!(
            base >= last,
            "a checkpoint holds what is visible and stable"
        );
        pinion_catalog::end_copy().await?;
        storage.checkpoint().await.map_err(from_fatal)?;
        pinion_exec::concern::forget_everywhere().await;
        pinion_service::login::forget_users().await;
        pinion_catalog::begin_builds().await?;
        documents_applied(WrittenDocuments::ALL).await;
        pinion_exec::user_write_block_store::load().await?;
        pinion_exec::cluster_parameter_store::load().await
    })
}

/// Whether this node was copying another member's data when it ended, so that it has none.
pub fn has_partial_clone() -> bool {
    core_catalog().current().is_partial()
}

/// Applies nothing of a log.
pub(crate) struct PassedOver;

impl pinion_storage::Applier for PassedOver {
    async fn apply(&self, _: Timestamp, _: Bytes) -> std::result::Result<(), ApplyError> {
        Ok(())
    }

    async fn barrier(&self) -> std::result::Result<(), ApplyError> {
        Ok(())
    }
}
