//! Following another node: entries are logged with the timestamps and the links that they came
//! with, and applied later.
//!
//! On a node that follows, what is logged and what is applied are two things. The log counts for a
//! majority when it is durable, whether it is applied or not; reads see what is applied. One core
//! does the logging, in order, and publishes how far the applier, which works on all cores, has
//! come; that core's mark holds the visible timestamp there.
//!
//! A node leads or follows. While it follows no core allots a timestamp; a statement that has come
//! so far is refused then ([`WriteError::Following`]).

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{LocalBoxFuture, sim};

use super::allotment::Allotment;
use super::roles::Role;
use crate::engine::checkpoint::on_node;
use crate::engine::storage::Storage;
use crate::limits::{MAX_ENTRY_BYTES, MAX_STEP_BYTES, MAX_STEP_STATEMENTS};
use crate::ring::{EntryKind, RingStopped};
use crate::types::{Fatal, WriteError};
use crate::watermarks::Mark;

/// An entry of the oplog that another node has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignEntry {
    /// Its timestamp.
    pub ts: Timestamp,
    /// The timestamp of the entry right before it in the oplog.
    pub predecessor: Timestamp,
    /// The document, complete.
    pub bytes: Bytes,
}

impl Storage {
    /// From now on this node allots no timestamps, and the calling core logs what others have
    /// allotted. Gives the last timestamp in the log: all up to it is applied when this returns.
    ///
    /// # Errors
    /// Storage has failed.
    ///
    /// # Panics
    /// If the node follows already.
    pub fn follow(&self) -> LocalBoxFuture<'_, Result<Timestamp, Fatal>> {
        Box::pin(async move {
            assert!(self.leads(), "the node follows already");
            self.set_role(Role::Following { logger: self.core }).await;
            // No statement is placed any more, and those that were placed are seen: no unit is
            // committed.
            self.abort_open_units().await;
            // Units that had their timestamps are on their way to other cores.
            let last = self.last_allotted();
            self.wait_visible(last).await?;
            sim::event("storage follows");
            Ok(last)
        })
    }

    /// From now on this node allots timestamps again, above everything in its log.
    ///
    /// # Panics
    /// If the node leads already, or something that is logged is not applied.
    pub fn lead(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
            self.assert_logger();
            let last = self.last_allotted();
            assert!(
                self.visible() == last,
                "the node leads before all up to {last} is applied"
            );
            self.set_role(Role::Leading).await;
            sim::event("storage leads");
        })
    }

    async fn set_role(&self, role: Role) {
        self.on_all(move |storage| async move { storage.roles.set_role(role) })
            .await;
    }

    fn assert_logger(&self) {
        assert!(self.roles.is_logger(self.core), "this core does not follow");
    }

    /// Starts the log again behind `ts`: what an initial sync brings is the state at that
    /// timestamp, and the next entry links to it. What the log has is no longer part of it. When
    /// this returns a checkpoint holds that.
    ///
    /// # Errors
    /// Storage has failed.
    ///
    /// # Panics
    /// If the log goes beyond `ts`, or the calling core does not follow.
    pub fn begin_log_at(&self, ts: Timestamp) -> LocalBoxFuture<'_, Result<(), Fatal>> {
        Box::pin(async move {
            self.assert_logger();
            let last = self.last_allotted();
            assert!(ts > last && self.visible() == last, "the log is at {last}");
            self.wait_durable(last).await?;
            // The manifest comes first: a ring that records more as durable than manifest and
            // entries reach is damaged. Where storage is closing nothing is recorded as stable
            // that is not there.
            on_node(async move |storage| {
                if storage.stable_to_record().is_some() {
                    storage.set_stable(ts);
                }
                storage.checkpoint_beyond_log(ts).await
            })
            .await
        })
    }

    /// Appends entries to this core's ring, in their order. They are durable with the ring's next
    /// flush, as all entries are ([`Storage::wait_durable`]), and visible when they are applied
    /// ([`Storage::set_applied`]). Of a future that is dropped, or ends with an error, the first
    /// entries may be logged. While checkpoints are held nothing is.
    ///
    /// # Errors
    /// [`WriteError::TooLarge`] for an entry beyond [`MAX_ENTRY_BYTES`], [`WriteError::Fatal`] if
    /// storage has failed.
    ///
    /// # Panics
    /// If an entry's predecessor is not the one before it, in the log or here; if the calling core
    /// does not follow.
    pub fn log_at<'a>(
        &'a self,
        entries: &'a [ForeignEntry],
    ) -> LocalBoxFuture<'a, Result<(), WriteError>> {
        Box::pin(async move {
            self.assert_logger();
            let mut rest = entries;
            while !rest.is_empty() {
                let (mut count, mut bytes) = (0, 0);
                for entry in rest.iter().take(MAX_STEP_STATEMENTS) {
                    if entry.bytes.len() > MAX_ENTRY_BYTES {
                        return Err(WriteError::TooLarge);
                    }
                    bytes += entry.bytes.len();
                    if count > 0 && bytes > MAX_STEP_BYTES {
                        break;
                    }
                    count += 1;
                }
                let step;
                (step, rest) = rest.split_at(count);
                self.log_step(step).await?;
            }
            Ok(())
        })
    }

    /// Completes at once on a core that does not hold checkpoints back: core 0 does, and logs.
    async fn until_checkpoints_released(&self) {
        if let Some(node) = &self.node {
            while node.held.get().is_some() {
                node.released.notified().await;
            }
        }
    }

    async fn log_step(&self, step: &[ForeignEntry]) -> Result<(), WriteError> {
        let (ring, _inside) = self.enter()?;
        let lens = step.iter().map(|entry| entry.bytes.len());
        let reserved = ring.reserve(lens).await;
        let mut reservation = reserved.map_err(|RingStopped| self.stopped())?;
        // While checkpoints are held no file changes.
        self.until_checkpoints_released().await;
        self.writable_ring()?;
        self.assert_logger();
        let mut last = self.last_allotted();
        for entry in step {
            assert!(
                entry.predecessor == last && entry.ts > last,
                "an entry at {} that follows {} is logged behind {last}",
                entry.ts,
                entry.predecessor
            );
            last = entry.ts;
        }
        // From here to the end nothing awaits.
        let allotment = Allotment::of_another(self, step[0].ts, last);
        for entry in step {
            let mut bytes = Vec::from(entry.bytes.clone());
            let (ts, predecessor) = (entry.ts, entry.predecessor);
            ring.append(
                &mut reservation,
                EntryKind::Logged,
                ts,
                predecessor,
                &mut bytes,
            );
        }
        allotment.finish();
        drop(reservation);
        self.announce(Mark::Appending);
        Ok(())
    }

    /// Entries up to `ts` that were logged are applied on their owners: reads see them. It never
    /// goes back.
    ///
    /// # Panics
    /// If no entry is logged up to there, or the calling core does not follow.
    pub fn set_applied(&self, ts: Timestamp) {
        self.assert_logger();
        self.announce_applied(ts);
    }
}
