//! Writes that are not replicated: checked, logged in the ring of their own, and visible at once at
//! any timestamp.
//!
//! All of them lie in partition 0, so core 0 checks, logs and applies one in a single poll, as any
//! core does a step all of whose partitions it owns.

use pinion_clock::Timestamp;
use pinion_runtime::{LocalBoxFuture, Queue, submit_to, yield_if_due};

use super::batch::check_sizes;
use super::execute::{Outcome, Statement};
use crate::engine::log::own_entry::{PARTITION, encode, encoded_len};
use crate::engine::storage::{Storage, storage};
use crate::limits::MAX_ENTRY_BYTES;
use crate::ring::{EntryKind, RingStopped};
use crate::types::{Fatal, WriteError};

impl Storage {
    /// As [`Storage::execute`], for statements without an entry that are not replicated: what they
    /// write is this node's own. They have no timestamp, which is `Timestamp::MIN` here, so that
    /// [`Storage::wait_durable`] does not wait for them; see [`Storage::wait_unreplicated`]. They
    /// succeed whether the node leads or follows. [`Storage::execute`] does the same with
    /// statements that write to trees which are not replicated ([`crate::TreeId::is_replicated`]).
    ///
    /// # Panics
    /// When a statement has an entry, or writes elsewhere than in partition 0.
    pub fn execute_unreplicated(
        &self,
        statements: Vec<Statement>,
        ordered: bool,
    ) -> LocalBoxFuture<'_, Vec<Outcome>> {
        Box::pin(async move {
            assert!(
                statements.iter().all(|statement| statement.entry.is_none()),
                "what is not replicated has no place in the oplog"
            );
            let mut writes = statements.iter().flat_map(|statement| &statement.writes);
            assert!(
                writes.all(|write| write.partition == PARTITION),
                "what is not replicated lies in {PARTITION}"
            );
            submit_to(
                self.owner(PARTITION),
                Queue::Foreground,
                move || async move { storage().execute_own(statements, ordered).await },
            )
            .await
        })
    }

    async fn execute_own(&self, statements: Vec<Statement>, ordered: bool) -> Vec<Outcome> {
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(statements.len());
        for statement in &statements {
            let stopped = ordered && outcomes.last().is_some_and(Result::is_err);
            outcomes.push(match stopped {
                true => Err(WriteError::NotReached),
                false => self.execute_one_own(statement).await,
            });
            yield_if_due().await;
        }
        self.publish_memory();
        outcomes
    }

    async fn execute_one_own(&self, statement: &Statement) -> Outcome {
        let len = encoded_len(statement);
        check_sizes(statement)?;
        if len > MAX_ENTRY_BYTES {
            return Err(WriteError::TooLarge);
        }
        let _inside = self.roles.enter().map_err(WriteError::Fatal)?;
        self.wait_for_memory(|| statement.writes.iter()).await?;
        let node = self.node_state();
        while node.held.get().is_some() {
            node.released.notified().await;
        }
        let ring = self.own_ring().await.map_err(WriteError::Fatal)?;
        let reserved = ring.reserve(std::iter::once(len)).await;
        let mut reservation = reserved.map_err(|RingStopped| self.stopped())?;
        let partition = self.owned_partition(PARTITION);
        let prepared = loop {
            let prepared = partition.prepare(&statement.writes).await;
            let prepared = prepared.map_err(|error| self.read_failed(&error))?;
            // While checkpoints are held no file changes.
            if node.held.get().is_some() {
                node.released.notified().await;
                continue;
            }
            // A checkpoint installed meanwhile changes the base that was looked at.
            if partition.is_current(&prepared) {
                break prepared;
            }
        };
        self.writable_ring()?;
        partition.check(&statement.writes, &prepared)?;
        // From here to the end nothing awaits.
        let uncompleted = Uncompleted(self);
        let (number, before) = node.own.count();
        let mut bytes = encode(&statement.writes);
        let kind = EntryKind::Unreplicated;
        ring.append(&mut reservation, kind, number, before, &mut bytes);
        partition.write_now(Timestamp::MIN, &statement.writes, prepared);
        node.dirty.set(true);
        std::mem::forget(uncompleted);
        Ok(Timestamp::MIN)
    }

    /// Waits until every unreplicated write that has succeeded so far is durable.
    ///
    /// # Errors
    /// Storage has failed.
    pub async fn wait_unreplicated(&self) -> Result<(), Fatal> {
        submit_to(self.owner(PARTITION), Queue::Foreground, || async {
            storage().wait_own().await
        })
        .await
    }
}

/// A write that is counted and not applied: dropped, it stops storage, since the next one would
/// follow a hole.
struct Uncompleted<'s>(&'s Storage);

impl Drop for Uncompleted<'_> {
    fn drop(&mut self) {
        let fatal = Fatal::new("a write that is not replicated was not completed");
        self.0.poison(fatal);
    }
}
