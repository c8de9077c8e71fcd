//! Units that are prepared: kept until another decides, over a change of the leading node and
//! over restarts.
//!
//! What a prepared unit holds is in no page file. While it has no outcome the log is kept from its
//! first entry on (transactions.rs), and recovery, or a node that follows, makes it again from
//! there.
//!
//! It is committed at a timestamp chosen where it is decided, at or above the one it was prepared
//! at, while the entry that records that comes later. A reader between the two that waits for what
//! is prepared sees the values; one that does not wait sees nothing of them, whenever the outcome
//! comes: so all that it reads is of one state. No checkpoint between the two holds them either. A
//! node that opens such a base finds the prepared unit over what was there before, and the outcome
//! comes again, or, if its entry was rolled back, is another one.

use std::collections::BTreeSet;

use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, join_all, submit_to};

use super::outcome::Outcome;
use crate::engine::error::ApplyError;
use crate::engine::storage::{Storage, storage};
use crate::engine::write::{Entry, divide};
use crate::partition::{UnitId, UnitState};
use crate::types::{PartitionId, Write, WriteError};

/// A unit that waits for its outcome. Plain data; any core may end it.
#[derive(Clone, Debug)]
pub struct PreparedUnit {
    pub(super) id: UnitId,
    /// Of the opening of the directory that it belongs to.
    pub(super) incarnation: u64,
    pub(super) partitions: BTreeSet<PartitionId>,
    /// Its first entry.
    pub(super) first: Timestamp,
    pub(super) prepared: Timestamp,
    /// The core that keeps the log for it.
    pub(super) noted_by: CoreId,
}

impl PreparedUnit {
    /// The unit's identity.
    pub fn id(&self) -> UnitId {
        self.id
    }

    /// Reads from here on wait for the outcome.
    pub fn prepare_timestamp(&self) -> Timestamp {
        self.prepared
    }
}

impl Storage {
    /// Commits what was prepared, at `commit`: snapshots from there on see it. `entry` records that
    /// and has a timestamp of its own, at which `more` is written; it is returned.
    ///
    /// # Errors
    /// As of [`Storage::commit_unit`], but the unit stays prepared. [`WriteError::UnitEnded`] if it
    /// has its outcome already, or is of an earlier opening of the directory.
    ///
    /// # Panics
    /// If it was prepared above `commit`.
    pub fn commit_prepared<'a>(
        &'a self,
        unit: &'a PreparedUnit,
        commit: Timestamp,
        entry: Entry,
        more: Vec<Write>,
    ) -> LocalBoxFuture<'a, Result<Timestamp, WriteError>> {
        Box::pin(async move {
            check_commit(unit, commit);
            let outcome = Outcome::CommitPrepared(commit);
            self.end_prepared(unit, outcome, entry, more).await
        })
    }

    /// Forgets what was prepared. `entry` records that; `more` is written at its timestamp, which
    /// is returned.
    ///
    /// # Errors
    /// As of [`Storage::commit_prepared`].
    pub fn abort_prepared<'a>(
        &'a self,
        unit: &'a PreparedUnit,
        entry: Entry,
        more: Vec<Write>,
    ) -> LocalBoxFuture<'a, Result<Timestamp, WriteError>> {
        Box::pin(async move {
            self.end_prepared(unit, Outcome::AbortPrepared, entry, more)
                .await
        })
    }

    /// Makes a unit again that was prepared elsewhere, or before a restart: nothing is checked,
    /// `expect` is ignored, and no unit may hold the keys. `first` is the first entry of the unit.
    /// Call it before what comes behind `prepared` in the log is applied, or, for what is in the
    /// base, before anything is.
    ///
    /// # Errors
    /// A page could not be read.
    pub fn restore_prepared(
        &self,
        first: Timestamp,
        prepared: Timestamp,
        writes: Vec<Write>,
    ) -> LocalBoxFuture<'_, Result<PreparedUnit, ApplyError>> {
        Box::pin(async move {
            assert!(first <= prepared, "a unit is prepared by its last entry");
            let id = self.units.number();
            self.transaction_begins(first);
            let mut parts = Vec::new();
            divide(&writes, self.options.planted_fault, &mut parts);
            let partitions = parts.iter().map(|part| part.partition).collect();
            let placed = join_all(parts.into_iter().map(|part| {
                let part = part.into_owned();
                submit_to(
                    self.owner(part.partition),
                    Queue::Foreground,
                    move || async move {
                        let storage = storage();
                        let partition = storage.owned_partition(part.partition);
                        let placed = partition.place_prepared(id, prepared, &part.writes).await;
                        storage.publish_memory();
                        placed
                    },
                )
            }))
            .await;
            for placed in placed {
                placed.map_err(|error| ApplyError(error.to_string()))?;
            }
            Ok(PreparedUnit {
                id,
                incarnation: self.shared.incarnation,
                partitions,
                first,
                prepared,
                noted_by: self.core,
            })
        })
    }

    /// Does what the entry at `at` says of a unit that was prepared: commits it at `commit`, or
    /// forgets it.
    ///
    /// # Errors
    /// The unit is not there.
    ///
    /// # Panics
    /// If it was prepared above `commit`.
    pub fn apply_outcome<'a>(
        &'a self,
        unit: &'a PreparedUnit,
        commit: Option<Timestamp>,
        at: Timestamp,
    ) -> LocalBoxFuture<'a, Result<(), ApplyError>> {
        Box::pin(async move {
            let outcome = match commit {
                Some(commit) => {
                    check_commit(unit, commit);
                    Outcome::CommitPrepared(commit)
                }
                None => Outcome::AbortPrepared,
            };
            let id = unit.id;
            let is_current = unit.incarnation == self.shared.incarnation;
            let performed = join_all(self.by_owner(&unit.partitions).into_iter().map(
                |(core, partitions)| {
                    submit_to(core, Queue::Foreground, move || async move {
                        let storage = storage();
                        let is_there = |&partition: &PartitionId| {
                            let state = storage.owned_partition(partition).unit_state(id);
                            matches!(state, Some(UnitState::Prepared(_)))
                        };
                        let all = is_current && partitions.iter().all(is_there);
                        if all {
                            storage.perform_here(id, &partitions, outcome, at);
                            storage.publish_memory();
                        }
                        all
                    })
                },
            ))
            .await;
            if performed.contains(&false) {
                let what = format!("the unit prepared at {} is not there", unit.prepared);
                return Err(ApplyError(what));
            }
            self.note_outcome(unit, at).await;
            Ok(())
        })
    }

    /// The log need not be kept for the unit by a checkpoint that holds its outcome, at `at`.
    pub(super) async fn note_outcome(&self, unit: &PreparedUnit, at: Timestamp) {
        let first = unit.first;
        submit_to(unit.noted_by, Queue::Foreground, move || async move {
            storage().transaction_ends(first, at);
        })
        .await;
    }
}

fn check_commit(unit: &PreparedUnit, commit: Timestamp) {
    assert!(
        commit >= unit.prepared,
        "a unit that was prepared at {} is committed at {commit}",
        unit.prepared
    );
}
