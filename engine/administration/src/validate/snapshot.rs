//! The snapshot that a validation reads.

use pinion_catalog::{Collection, from_fatal, from_read_error};
use pinion_clock::Timestamp;
use pinion_exec::acquire::{AcquiredCollection, PrepareConflictBehavior, ReadSource};
use pinion_exec::topology::replica_set;
use pinion_runtime::{Queue, spawn};
use pinion_service::interrupt::interruptible;
use pinion_storage::{ReadAt, ReadError, SnapshotHold, storage};
use pinion_wire::{ErrorCode, OpContext, Result, interruption};

use super::options::Options;
use crate::limits::MAX_SNAPSHOT_ATTEMPTS;

/// A state of the node that stays readable on all partitions until this is dropped, unless memory
/// for old versions runs out.
pub(crate) struct Snapshot {
    at: ReadAt,
    hold: Option<SnapshotHold>,
}

impl Snapshot {
    /// The newest one that the options allow. Whatever is in the catalog by now is there.
    pub(super) async fn take(
        ctx: &OpContext,
        acquired: &AcquiredCollection,
        collection: &Collection,
        options: &Options,
    ) -> Result<Snapshot> {
        // What is not replicated has no versions.
        if !collection.is_replicated() {
            return Ok(Snapshot {
                at: ReadAt::Newest,
                hold: None,
            });
        }
        let is_member = replica_set().is_some();
        let source = match options.background && is_member {
            true => ReadSource::Majority(PrepareConflictBehavior::Ignore),
            false => acquired.source(),
        };
        let indexes = collection.ready_indexes().map(|index| index.visible_from);
        let least = indexes.fold(collection.visible_from, Timestamp::max);
        let mut attempts = 0;
        loop {
            let ts = source.timestamp(ctx).await?.max(least);
            interruptible(ctx, storage().wait_visible(ts))
                .await?
                .map_err(from_fatal)?;
            attempts += 1;
            match Snapshot::hold(ts).await? {
                // It took too long to hold it.
                Err(ReadError::SnapshotTooOld) if attempts < MAX_SNAPSHOT_ATTEMPTS => {}
                held => return held.map_err(from_read_error),
            }
        }
    }

    /// The state at `ts`, which is visible.
    pub(crate) async fn hold(ts: Timestamp) -> Result<std::result::Result<Snapshot, ReadError>> {
        // As a task: a caller that goes away in the middle leaves nothing held.
        let holding = spawn(Queue::Foreground, async move {
            let hold = storage().hold_snapshot(ts).await?;
            Ok::<Snapshot, ReadError>(Snapshot {
                at: ReadAt::DecidedAt(ts),
                hold: Some(hold),
            })
        });
        let shutdown = |_| interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN);
        holding.await.map_err(shutdown)
    }

    pub(crate) fn at(&self) -> ReadAt {
        self.at
    }

    pub(super) fn timestamp(&self) -> Option<Timestamp> {
        self.hold.as_ref().map(SnapshotHold::timestamp)
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        let (Some(hold), Some(storage)) = (self.hold.take(), pinion_storage::try_storage()) else {
            return;
        };
        drop(spawn(Queue::Foreground, async move {
            storage.release_snapshot(hold).await;
        }));
    }
}
