//! How units that stayed open end: committed, prepared, and what becomes of those that were
//! prepared.
//!
//! All of it is one procedure. First every owner marks the unit as being decided, so that
//! newest reads wait, and is given what is written beside it; whatever fails does so here. Then
//! timestamps are allotted as one range and the entries are appended, in one poll. Then every owner
//! does what was decided, and only when all have done it does the coordinator let go of its
//! applying mark and answer. It is a task of its own: a caller that goes away cannot leave it half
//! done.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::{
    CoreId, Duration, LocalBoxFuture, Queue, join_all, sim, sleep, spawn, submit_to, wall_ms,
};

use super::open_unit::OpenUnit;
use super::prepared::PreparedUnit;
use crate::engine::options::PlantedFault;
use crate::engine::storage::{Storage, storage};
use crate::engine::write::{
    Allotment, Chain, Entry, Part, Placement, append_to, divide, write_fits,
};
use crate::limits::{MAX_ENTRY_BYTES, MAX_UNIT_ENTRIES, MAX_UNIT_ENTRY_BYTES};
use crate::partition::{UnitId, UnitState};
use crate::ring::RingStopped;
use crate::types::{PartitionId, Write, WriteError};
use crate::watermarks::Mark;

/// What a unit comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// What was open is committed at the timestamp of the last entry.
    Commit,
    /// What was open is prepared at that.
    Prepare,
    /// What was prepared is committed at this timestamp.
    CommitPrepared(Timestamp),
    /// What was prepared is forgotten.
    AbortPrepared,
}

impl Outcome {
    /// Whether it is that of a unit that is open until now.
    fn is_of_open(self) -> bool {
        matches!(self, Outcome::Commit | Outcome::Prepare)
    }
}

/// A unit, and what is to become of it.
#[derive(Clone)]
struct Ending {
    unit: UnitId,
    partitions: BTreeSet<PartitionId>,
    outcome: Outcome,
    /// Has what is written beside the unit.
    beside: UnitId,
    /// The unit, if it is prepared until now.
    prepared: Option<PreparedUnit>,
}

/// What one owner has to do first: the unit is decided in these partitions, and this is placed
/// beside it.
struct Deciding {
    partitions: Vec<PartitionId>,
    beside: Vec<Part<'static>>,
}

/// The timestamps of the entries of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Logged {
    pub(super) first: Timestamp,
    pub(super) last: Timestamp,
}

impl Storage {
    /// Commits the unit: `entries` are logged one behind the other, each but the first linked to
    /// the one before it if it is of a chain, and all that the unit has written becomes visible at
    /// once, at the timestamp of the last, which is returned.
    ///
    /// `more` is written with it, but as an ordinary statement is: expectations and conflicts are
    /// those of the newest state, and the unit's own keys are another's.
    ///
    /// # Errors
    /// As of [`Storage::write_unit`]. Nothing is logged then, and the unit is aborted.
    ///
    /// # Panics
    /// If there is nothing to write and nothing to log; if an entry does not begin with `ts` and
    /// `t`.
    pub fn commit_unit(
        &self,
        unit: OpenUnit,
        entries: Vec<Entry>,
        more: Vec<Write>,
    ) -> LocalBoxFuture<'_, Result<Timestamp, WriteError>> {
        Box::pin(async move {
            let logged = self.end_open(unit, Outcome::Commit, entries, more).await?;
            Ok(logged.last)
        })
    }

    /// Prepares the unit: its entries are logged, and what it has written is kept until
    /// [`Storage::commit_prepared`] or [`Storage::abort_prepared`], over a change of the leading
    /// node and over a restart if the entries are durable. Reads at or above the timestamp of the
    /// last entry, or of the newest state, wait for that. `more` is written as of
    /// [`Storage::commit_unit`].
    ///
    /// # Errors
    /// As of [`Storage::commit_unit`].
    ///
    /// # Panics
    /// As of [`Storage::commit_unit`].
    pub fn prepare_unit(
        &self,
        unit: OpenUnit,
        entries: Vec<Entry>,
        more: Vec<Write>,
    ) -> LocalBoxFuture<'_, Result<PreparedUnit, WriteError>> {
        Box::pin(async move {
            let (id, partitions) = (unit.id, unit.partitions.clone());
            let logged = self.end_open(unit, Outcome::Prepare, entries, more).await?;
            Ok(PreparedUnit {
                id,
                incarnation: self.shared.incarnation,
                partitions,
                first: logged.first,
                prepared: logged.last,
                noted_by: self.core,
            })
        })
    }

    async fn end_open(
        &self,
        mut unit: OpenUnit,
        outcome: Outcome,
        entries: Vec<Entry>,
        more: Vec<Write>,
    ) -> Result<Logged, WriteError> {
        assert!(
            unit.has_writes() || !entries.is_empty(),
            "a unit is ended that did nothing"
        );
        // Before anything is allotted, so that a wrong entry does not stop the node.
        assert!(
            entries.iter().all(Entry::has_optime),
            "an entry begins with ts and t"
        );
        // The operations of a unit have theirs among them.
        assert!(
            entries.iter().all(|entry| entry.image.is_none()),
            "no entry of a unit has an image beside it"
        );
        let this = self.rc();
        let ending = spawn(Queue::Foreground, async move {
            this.settle(&mut unit).await?;
            let ending = Ending {
                unit: unit.id,
                partitions: unit.partitions,
                outcome,
                beside: this.units.number(),
                prepared: None,
            };
            let ended = this.clone().end(&ending, entries, more).await;
            if ended.is_err() {
                this.withdraw_everywhere(ending.unit, &ending.partitions)
                    .await;
            }
            ended
        });
        ending.await.expect("a unit is ended to its end")
    }

    /// Logs what became of a prepared unit, and has it done. On an error the unit is what it was.
    pub(super) async fn end_prepared(
        &self,
        unit: &PreparedUnit,
        outcome: Outcome,
        entry: Entry,
        more: Vec<Write>,
    ) -> Result<Timestamp, WriteError> {
        assert!(
            entry.has_optime() && entry.image.is_none(),
            "an entry begins with ts and t, and an outcome has no image"
        );
        if unit.incarnation != self.shared.incarnation {
            return Err(WriteError::UnitEnded);
        }
        let ending = Ending {
            unit: unit.id,
            partitions: unit.partitions.clone(),
            outcome,
            beside: self.units.number(),
            prepared: Some(unit.clone()),
        };
        let this = self.rc();
        let ending = spawn(Queue::Foreground, async move {
            this.end(&ending, vec![entry], more).await
        });
        let ended = ending.await.expect("a unit is ended to its end");
        ended.map(|logged| logged.last)
    }

    /// On an error nothing is logged, and an open unit is to be withdrawn.
    async fn end(
        self: Rc<Self>,
        ending: &Ending,
        entries: Vec<Entry>,
        more: Vec<Write>,
    ) -> Result<Logged, WriteError> {
        check_sizes(&entries, &more)?;
        let (ring, _inside) = self.enter()?;
        self.check_allots()?;
        self.wait_for_memory(|| more.iter()).await?;
        // Without an entry the timestamp is a link of the chain.
        let mut entries: Vec<Option<Entry>> = entries.into_iter().map(Some).collect();
        if entries.is_empty() {
            entries.push(None);
        }
        let lens = entries
            .iter()
            .map(|entry| entry.as_ref().map_or(0, |entry| entry.bytes.len()));
        let reserved = ring.reserve(lens).await;
        let mut reservation = reserved.map_err(|RingStopped| self.stopped())?;
        let (beside, decided) = self.decide_everywhere(ending, &more).await;
        sim::event("open unit decided");
        // Storage may have failed or closed, or follow another node, meanwhile; nothing is allotted
        // then.
        if let Err(error) = decided.and_then(|()| self.check_allots()) {
            drop(reservation);
            self.withdraw_everywhere(ending.beside, &beside).await;
            if !ending.outcome.is_of_open() {
                self.unclaim_everywhere(ending).await;
            }
            return Err(error);
        }

        // From here to `finish` nothing awaits.
        let wall_secs = (wall_ms() / 1000) as u32;
        let allotment = Allotment::new(&self, entries.len() as u64, wall_secs);
        let mut chain = Chain::default();
        for (nth, entry) in entries.iter_mut().enumerate() {
            let place = (allotment.range(), nth as u64);
            let term = self.term();
            append_to(&ring, &mut reservation, entry, &mut chain, place, term);
        }
        let range = allotment.range();
        let logged = Logged {
            first: range.first,
            last: range.last,
        };
        match ending.outcome {
            Outcome::Commit if logged.first < logged.last => {
                self.transaction_begins(logged.first);
                self.transaction_ends(logged.first, logged.last);
            }
            Outcome::Prepare => self.transaction_begins(logged.first),
            _ => {}
        }
        self.progress.hold_applying(range);
        allotment.finish();
        self.announce(Mark::Appending);
        drop(reservation);

        let fault = self.options.planted_fault;
        if fault == PlantedFault::AcknowledgeBeforeResolve && ending.outcome == Outcome::Commit {
            let (this, ending) = (self.clone(), ending.clone());
            spawn(Queue::Foreground, async move {
                sleep(Duration::from_millis(1)).await;
                this.perform_everywhere(&ending, &beside, logged.last).await;
            });
        } else {
            self.perform_everywhere(ending, &beside, logged.last).await;
        }
        if let Some(prepared) = &ending.prepared {
            self.note_outcome(prepared, logged.last).await;
        }
        self.release_applying(logged.first);
        Ok(logged)
    }

    /// Informs every owner that the unit is decided, and places `more` beside it. Returns where
    /// something was placed; with an error, some owners have done nothing.
    async fn decide_everywhere(
        &self,
        ending: &Ending,
        more: &[Write],
    ) -> (BTreeSet<PartitionId>, Result<(), WriteError>) {
        let mut by_core: BTreeMap<CoreId, Deciding> = BTreeMap::new();
        for (core, partitions) in self.by_owner(&ending.partitions) {
            let nothing = Deciding {
                partitions,
                beside: Vec::new(),
            };
            by_core.insert(core, nothing);
        }
        let mut parts = Vec::new();
        divide(more, self.options.planted_fault, &mut parts);
        let beside = parts.iter().map(|part| part.partition).collect();
        for part in parts.into_iter().map(Part::into_owned) {
            let of_core = by_core.entry(self.owner(part.partition));
            let of_core = of_core.or_insert_with(|| Deciding {
                partitions: Vec::new(),
                beside: Vec::new(),
            });
            of_core.beside.push(part);
        }
        let (unit, number, outcome) = (ending.unit, ending.beside, ending.outcome);
        let decided = join_all(by_core.into_iter().map(|(core, deciding)| {
            submit_to(core, Queue::Foreground, move || async move {
                storage().decide_here(unit, outcome, number, deciding).await
            })
        }))
        .await;
        (beside, decided.into_iter().collect())
    }

    async fn decide_here(
        &self,
        unit: UnitId,
        outcome: Outcome,
        beside: UnitId,
        deciding: Deciding,
    ) -> Result<(), WriteError> {
        if !deciding.beside.is_empty() {
            let placement = Placement {
                index: 0,
                unit: beside,
                parts: deciding.beside,
            };
            let placed = self.place_all(vec![placement], true).await;
            placed.into_iter().try_for_each(|(_, placed)| placed)?;
        }
        // All in one poll: a unit that is there is not gone before it is decided.
        let is_open = outcome.is_of_open();
        let is_there = |&partition: &PartitionId| {
            let partition = self.owned_partition(partition);
            match is_open {
                true => partition.unit_state(unit) == Some(UnitState::Open),
                false => partition.claim(unit, beside),
            }
        };
        if !deciding.partitions.iter().all(is_there) {
            return Err(WriteError::UnitEnded);
        }
        for &partition in deciding.partitions.iter().filter(|_| is_open) {
            self.owned_partition(partition).decide(unit);
        }
        Ok(())
    }

    /// An outcome of a prepared unit has failed: another one may be tried.
    async fn unclaim_everywhere(&self, ending: &Ending) {
        let (unit, number) = (ending.unit, ending.beside);
        let by_core = self.by_owner(&ending.partitions);
        join_all(by_core.into_iter().map(|(core, partitions)| {
            submit_to(core, Queue::Foreground, move || async move {
                let storage = storage();
                for partition in partitions {
                    storage.owned_partition(partition).unclaim(unit, number);
                }
            })
        }))
        .await;
    }

    /// Has every owner do what was decided at `ts`.
    async fn perform_everywhere(
        &self,
        ending: &Ending,
        beside: &BTreeSet<PartitionId>,
        ts: Timestamp,
    ) {
        let mut by_core: BTreeMap<CoreId, (Vec<PartitionId>, Vec<PartitionId>)> = BTreeMap::new();
        for (core, partitions) in self.by_owner(&ending.partitions) {
            by_core.entry(core).or_default().0 = partitions;
        }
        for (core, partitions) in self.by_owner(beside) {
            by_core.entry(core).or_default().1 = partitions;
        }
        let (unit, number, outcome) = (ending.unit, ending.beside, ending.outcome);
        join_all(by_core.into_iter().map(|(core, (own, beside))| {
            submit_to(core, Queue::Foreground, move || async move {
                let storage = storage();
                storage.perform_here(unit, &own, outcome, ts);
                for partition in beside {
                    storage.owned_partition(partition).resolve(number, ts);
                }
                storage.publish_memory();
            })
        }))
        .await;
    }

    /// Does in these partitions what was decided at `ts`, all in one poll.
    pub(super) fn perform_here(
        &self,
        unit: UnitId,
        partitions: &[PartitionId],
        outcome: Outcome,
        ts: Timestamp,
    ) {
        for &partition in partitions {
            let partition = self.owned_partition(partition);
            match outcome {
                Outcome::Commit => partition.resolve(unit, ts),
                Outcome::Prepare => partition.set_prepared(unit, ts),
                Outcome::CommitPrepared(commit) => partition.resolve_late(unit, commit, ts),
                Outcome::AbortPrepared => partition.withdraw(unit),
            }
        }
    }
}

/// Refuses what the log or a partition could not hold.
fn check_sizes(entries: &[Entry], more: &[Write]) -> Result<(), WriteError> {
    let entries_fit = entries
        .iter()
        .all(|entry| entry.bytes.len() <= MAX_ENTRY_BYTES);
    if !entries_fit || !more.iter().all(write_fits) {
        return Err(WriteError::TooLarge);
    }
    let bytes: usize = entries.iter().map(|entry| entry.bytes.len()).sum();
    match bytes > MAX_UNIT_ENTRY_BYTES || entries.len() > MAX_UNIT_ENTRIES {
        true => Err(WriteError::UnitTooLarge),
        false => Ok(()),
    }
}
