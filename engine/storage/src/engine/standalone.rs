//! What a standalone writes over the data of a member of a replica set, for maintenance.
//!
//! Such writes are no part of the set's oplog. While the node is a standalone they have timestamps
//! and entries as all others have, above the last entry of the oplog, which the manifest names, and
//! the oplog below is kept. When the node is opened as a member again they are *folded* into the
//! base: a checkpoint takes everything in, and the manifest that makes it true calls it the state
//! at the last entry of the oplog, and cuts off what is logged above. So the member follows from
//! where it was, as it would after a rollback to there, and has what was written meanwhile, without
//! a timestamp.
//!
//! The base holds everything up to that entry then, whether a majority has it or not: a member that
//! has to take some of it back cannot.

use pinion_clock::Timestamp;
use pinion_runtime::{LocalBoxFuture, sim};

use super::error::OpenError;
use super::log::LogRetention;
use super::open::Reopening;
use super::storage::Storage;
use crate::base::PartitionRoots;
use crate::engine::checkpoint::Turn;
use crate::manifest::{Cut, Manifest};
use crate::ring::SegmentSpan;
use crate::types::Fatal;

impl Storage {
    /// The last entry of a member's oplog above which a standalone writes, or may have written.
    /// Call it on core 0.
    pub fn standalone_above(&self) -> Option<Timestamp> {
        self.node_state().standalone_above.get()
    }

    /// From now on what is written is a standalone's, over the data of a member, whose oplog is
    /// kept as `retention` says. When this returns that is durable. Call it on core 0, after
    /// recovery and before anything is written. Without an oplog there is nothing to keep.
    ///
    /// # Errors
    /// Storage has failed.
    pub fn begin_standalone(
        &self,
        retention: LogRetention,
    ) -> LocalBoxFuture<'_, Result<(), Fatal>> {
        Box::pin(async move {
            let last = self.last_allotted();
            if last.is_null() {
                return Ok(());
            }
            let above = self.standalone_above().unwrap_or_else(|| {
                let node = self.node_state();
                node.member_was_closed.set(node.was_closed.get());
                last
            });
            let mut turn = self.node_state().turns.take().await;
            self.note_standalone(&mut turn, Some(above)).await?;
            self.set_log_retention(Some(retention)).await;
            Ok(())
        })
    }

    /// The data are those of a member no longer: nothing of its oplog is kept. Call it on core 0.
    ///
    /// # Errors
    /// Storage has failed.
    pub fn leave_set(&self) -> LocalBoxFuture<'_, Result<(), Fatal>> {
        Box::pin(async move {
            let mut turn = self.node_state().turns.take().await;
            if self.standalone_above().is_some() {
                self.note_standalone(&mut turn, None).await?;
            }
            self.set_log_retention(None).await;
            Ok(())
        })
    }

    async fn note_standalone(
        &self,
        turn: &mut Turn<'_>,
        above: Option<Timestamp>,
    ) -> Result<(), Fatal> {
        let member_closed = above.is_some() && self.node_state().member_was_closed.get();
        let written = self.write_manifest(turn, |current| Manifest {
            standalone_above: above.map_or(0, Timestamp::as_u64),
            member_closed,
            ..current.clone()
        });
        written
            .await
            .inspect_err(|fatal| self.poison(fatal.clone()))?;
        self.node_state().standalone_above.set(above);
        Ok(())
    }

    /// How far the log of a member may go while a standalone writes: not to the last entry of the
    /// oplog, unless the standalone has logged more than the oplog may take. Then the node is no
    /// member again without copying another.
    pub(super) fn limit_of_member(
        &self,
        limit: Timestamp,
        segments: &[SegmentSpan],
        retention: &LogRetention,
    ) -> Timestamp {
        let Some(above) = self.standalone_above() else {
            return limit;
        };
        let later = segments.iter().filter(|span| span.last > above);
        let bytes: u64 = later.map(|span| span.bytes).sum();
        match bytes <= retention.bytes {
            true => limit.min(above.prev().unwrap_or(Timestamp::MIN)),
            false => limit,
        }
    }

    /// The data are a member's again. Where a standalone has written over them storage is closed,
    /// as [`Storage::close_to_reopen`] does, with all of that in the base: it is to be opened
    /// again. Everything is recovered, and nothing uses storage yet. Call it on core 0.
    ///
    /// # Errors
    /// The directory is what it was; storage is closed or has failed.
    pub fn rejoin_set(&self) -> LocalBoxFuture<'_, Result<Option<Reopening>, OpenError>> {
        Box::pin(async move {
            let Some(above) = self.standalone_above() else {
                return Ok(None);
            };
            let node = self.node_state();
            node.was_closed.set(node.member_was_closed.get());
            let last = self.last_allotted();
            assert!(above <= last, "a standalone writes above the oplog");
            // The log may have been given up that far.
            let keeps = self.retained_above() < above;
            if keeps && above == last {
                let mut turn = self.node_state().turns.take().await;
                let noted = self.note_standalone(&mut turn, None).await;
                return noted.map(|()| None).map_err(OpenError::Fatal);
            }
            self.set_stable(last);
            let base = self.checkpoint_thoroughly().await;
            assert!(
                base.map_err(OpenError::Fatal)? == last,
                "all is in the base"
            );
            self.end_steps().await;
            sim::event("standalone folded");
            let at = if keeps { above } else { last };
            {
                let mut turn = self.node_state().turns.take().await;
                let folded = self.write_manifest(&mut turn, |current| folded(current, at, last));
                folded.await.map_err(OpenError::Fatal)?;
            }
            Ok(Some(self.close_files_to_reopen().await))
        })
    }
}

/// What a manifest whose base is at `last` says when that is to be the state at `at`, without
/// entries above.
fn folded(current: &Manifest, at: Timestamp, last: Timestamp) -> Manifest {
    assert!(current.base() == last, "the base holds everything");
    assert!(!current.spilled, "no change waits to be merged");
    let epoch = current.epoch + 1;
    let mut cuts = current.cuts.clone();
    cuts.add(Cut {
        epoch,
        at: at.as_u64(),
        discarded_through: last.as_u64(),
    });
    let roots = current.roots.iter().map(|roots| PartitionRoots {
        timestamp: at.as_u64(),
        ..*roots
    });
    Manifest {
        epoch,
        cuts,
        base: at.as_u64(),
        all_durable: at.as_u64(),
        // Without an oplog there is nothing to link to.
        retained_above: match at == last {
            true => at.as_u64(),
            false => current.retained_above,
        },
        stable: at.as_u64(),
        roots: roots.collect(),
        standalone_above: 0,
        // As which it is opened again.
        closed: current.member_closed,
        member_closed: false,
        ..current.clone()
    }
}
