//! Units: what becomes of the intents of one partition, from the first statement to the outcome.

use pinion_clock::Timestamp;

use super::core::{Partition, State};
use super::delta::{Needed, Version};
use super::intents::{Intent, UnitId, UnitState};
use super::view::View;
use super::write::{Fact, Of, Prepared};
use crate::types::{Key, Op, ReadAt, ReadError, TreeId, Write, WriteError};

/// A version that was committed, by an outcome that came later, at a timestamp that older states of
/// the base may be read at.
pub(super) struct Late {
    tree: TreeId,
    key: Key,
    version: Version,
}

impl Late {
    pub(super) fn new(tree: TreeId, key: Key, version: Version) -> Late {
        Late { tree, key, version }
    }

    pub(super) fn version(&self) -> &Version {
        &self.version
    }
}

impl Partition {
    /// As [`Partition::prepare`], for a statement of a unit that reads at `snapshot`.
    pub(crate) async fn prepare_for(
        &self,
        snapshot: Timestamp,
        writes: &[Write],
    ) -> Result<Prepared, ReadError> {
        let mut prepared = self.gather(writes, true).await?;
        if snapshot < prepared.view.timestamp() {
            for (write, fact) in writes.iter().zip(&mut prepared.facts) {
                self.compare_with_base(snapshot, write, &prepared.view, fact)
                    .await?;
                for key in &fact.witnesses {
                    // One that is held conflicts, or was when the snapshot was taken; waiting for
                    // that would hold up the others of the statement.
                    let at = ReadAt::DecidedAt(snapshot);
                    let then = self.get(write.tree, key, at).await?;
                    fact.is_taken_since |= then.is_none();
                }
            }
        }
        Ok(prepared)
    }

    /// The base does not say when a value was written. Where it is newer than the unit's snapshot,
    /// a key that no delta has was changed if the snapshot has another value.
    async fn compare_with_base(
        &self,
        snapshot: Timestamp,
        write: &Write,
        view: &View,
        fact: &mut Fact,
    ) -> Result<(), ReadError> {
        let is_decided = {
            let state = self.state.borrow();
            let held = state.intents.get(write.tree, &write.key);
            // What is held conflicts or is the unit's own; a read of it might wait.
            held.is_some() || state.newest_above_base(view, write, fact).is_some()
        };
        if is_decided {
            return Ok(());
        }
        let at = ReadAt::At(snapshot);
        let then = self.get(write.tree, &write.key, at).await?;
        let now = match view.root(write.tree, ReadAt::Newest) {
            None => None,
            Some(root) => match self.store.get(write.tree, &root, &write.key).await? {
                None => None,
                Some((stored, _)) => Some(self.store.value(write.tree, &stored).await?),
            },
        };
        fact.changed = then.map(|read| read.value) != now;
        Ok(())
    }

    /// Checks a statement for a unit and places its writes as open intents, over those that the
    /// unit has: all or nothing.
    pub(crate) fn place_open(
        &self,
        unit: UnitId,
        snapshot: Timestamp,
        writes: &[Write],
        prepared: &Prepared,
    ) -> Result<(), WriteError> {
        self.check_of(writes, prepared, Some(Of { unit, snapshot }))?;
        let state = &mut *self.state.borrow_mut();
        state.place(unit, UnitState::Open, writes, prepared);
        Ok(())
    }

    /// Takes the last statement of an open unit back, if the unit is still there.
    pub(crate) fn undo_statement(&self, unit: UnitId) {
        self.state.borrow_mut().intents.undo(unit);
    }

    /// How far a unit has come that has intents here.
    pub(crate) fn unit_state(&self, unit: UnitId) -> Option<UnitState> {
        self.state.borrow().intents.state_of(unit)
    }

    /// Bytes of all open intents, and of those of one unit.
    pub(crate) fn open_bytes(&self, unit: UnitId) -> (u64, u64) {
        let state = self.state.borrow();
        (state.intents.open_bytes(), state.intents.bytes_of(unit))
    }

    /// The number of units that are open here.
    pub(crate) fn open_units(&self) -> usize {
        self.state.borrow().intents.open_units().len()
    }

    /// The unit takes no more statements: newest reads wait for it.
    pub(crate) fn decide(&self, unit: UnitId) {
        let intents = &mut self.state.borrow_mut().intents;
        intents.advance(unit, UnitState::Deciding);
    }

    /// Another decides the unit: reads from `ts` on wait for it.
    pub(crate) fn set_prepared(&self, unit: UnitId, ts: Timestamp) {
        let intents = &mut self.state.borrow_mut().intents;
        intents.advance(unit, UnitState::Prepared(ts));
    }

    /// Takes a prepared unit for one that decides it, unless another has it, or it is not there.
    pub(crate) fn claim(&self, unit: UnitId, by: UnitId) -> bool {
        self.state.borrow_mut().intents.claim(unit, by)
    }

    /// Gives a unit back that could not be decided.
    pub(crate) fn unclaim(&self, unit: UnitId, by: UnitId) {
        self.state.borrow_mut().intents.unclaim(unit, by);
    }

    /// Places writes, unchecked, as intents that are prepared at `ts`.
    pub(crate) async fn place_prepared(
        &self,
        unit: UnitId,
        ts: Timestamp,
        writes: &[Write],
    ) -> Result<(), ReadError> {
        loop {
            let prepared = self.gather(writes, false).await?;
            if self.is_current(&prepared) {
                let state = &mut *self.state.borrow_mut();
                state.place(unit, UnitState::Prepared(ts), writes, &prepared);
                return Ok(());
            }
        }
    }

    /// Commits a unit's intents at `ts`: all its keys of this partition become visible at once.
    /// `ts` lies above what was written to these keys before.
    pub(crate) fn resolve(&self, unit: UnitId, ts: Timestamp) {
        self.resolve_late(unit, ts, ts);
    }

    /// The same for a unit that was prepared: its outcome, which the entry at `decided` records, is
    /// a commit at `ts`.
    pub(crate) fn resolve_late(&self, unit: UnitId, ts: Timestamp, decided: Timestamp) {
        assert!(ts <= decided, "a unit is committed at {ts} by {decided}");
        let pins = self.pins.borrow();
        let needed = self.needed(&pins);
        let state = &mut *self.state.borrow_mut();
        let (intents, waited_for) = state.intents.take(unit);
        for (tree, key, intent) in intents {
            state.commit(tree, key, intent, (ts, decided), &needed);
        }
        waited_for.notify_all();
    }

    /// Forgets a unit's intents, if it has any.
    pub(crate) fn withdraw(&self, unit: UnitId) {
        let intents = &mut self.state.borrow_mut().intents;
        if intents.state_of(unit).is_some() {
            let (_, decided) = intents.take(unit);
            decided.notify_all();
        }
    }

    /// Forgets the intents of every open unit.
    pub(crate) fn withdraw_open(&self) {
        let open = self.state.borrow().intents.open_units();
        open.into_iter().for_each(|unit| self.withdraw(unit));
    }
}

impl State {
    fn commit(
        &mut self,
        tree: TreeId,
        key: Key,
        intent: Intent,
        (ts, decided): (Timestamp, Timestamp),
        needed: &Needed<'_>,
    ) {
        let value = match intent.op {
            Op::Check => return,
            Op::Put(value) => Some(value),
            op => op.value_at(ts),
        };
        let after = value.as_ref().map(|value| value.len() as u64);
        let seq = self.sequence();
        let version = Version {
            ts,
            decided,
            seq,
            value,
        };
        let counts = self.counts.entry(tree).or_default();
        counts.change(key.len(), intent.before, after);
        // A unit that was prepared is committed at a timestamp that may lie below checkpoints
        // since, sealed or to come.
        let is_late = self.views.is_readable_below(ts) || self.layers.is_readable_below(ts);
        if is_late {
            let late = Late::new(tree, key.clone(), version.clone());
            self.late.push(late);
        }
        self.active.insert(tree, &key, version, needed);
    }

    /// Right before the active delta is sealed: it is asked for every timestamp, what it becomes
    /// only for those of its view. So older states get what was committed late below them.
    pub(super) fn settle_late(&mut self) {
        for Late { tree, key, version } in std::mem::take(&mut self.late) {
            self.views.insert_below(tree, &key, &version);
        }
    }

    /// The first committer wins: a unit may write a key only if no other has since its snapshot.
    /// Returns what the unit itself has done to the key.
    pub(super) fn check_first(
        &self,
        view: &View,
        of: Of,
        write: &Write,
        fact: &Fact,
    ) -> Result<Option<&Intent>, WriteError> {
        if let Some(intent) = self.intents.get(write.tree, &write.key) {
            return match intent.unit == of.unit {
                true => Ok(Some(intent).filter(|intent| intent.changes())),
                false => Err(WriteError::Conflict),
            };
        }
        match self.newest_above_base(view, write, fact) {
            Some(found) if found.newest.ts > of.snapshot => Err(WriteError::Conflict),
            None if fact.changed => Err(WriteError::Conflict),
            _ => Ok(None),
        }
    }
}
