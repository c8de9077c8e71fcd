//! Units that stay open, in the model: what each has written over its snapshot, and what it may
//! write.

use super::*;
use crate::partition::intents::UnitState;

/// What a unit has done to a key: nothing but hold it, or what it becomes.
type Held = BTreeMap<(u64, Vec<u8>), Option<Option<Bytes>>>;

pub(super) struct OpenUnit {
    pub id: UnitId,
    pub snapshot: u64,
    _pin: SnapshotPin,
    pub held: Held,
    /// Before the last statement.
    before: Option<Held>,
    writes_before: usize,
    writes: Vec<Write>,
}

pub(super) struct Prepared {
    pub id: UnitId,
    at: u64,
    pub writes: Vec<Write>,
}

pub(super) struct Outcome {
    /// The timestamp of the entry that records the outcome.
    pub at: u64,
    prepared: u64,
    commit: u64,
    writes: Vec<Write>,
}

/// What the units of several seeds came by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Met {
    placed: u64,
    conflicts: u64,
    /// A key that lay only in a base newer than the snapshot.
    old_snapshots: u64,
    undone: u64,
    committed: u64,
    aborted: u64,
    prepared: u64,
    late: u64,
    recovered: u64,
    blocked: u64,
}

impl std::ops::AddAssign for Met {
    fn add_assign(&mut self, other: Met) {
        self.placed += other.placed;
        self.conflicts += other.conflicts;
        self.old_snapshots += other.old_snapshots;
        self.undone += other.undone;
        self.committed += other.committed;
        self.aborted += other.aborted;
        self.prepared += other.prepared;
        self.late += other.late;
        self.recovered += other.recovered;
        self.blocked += other.blocked;
    }
}

impl Met {
    pub(super) fn check(&self) {
        let counts = [
            self.placed,
            self.conflicts,
            self.old_snapshots,
            self.undone,
            self.committed,
            self.aborted,
            self.prepared,
            self.late,
            self.recovered,
            self.blocked,
        ];
        assert!(counts.iter().all(|&count| count > 10), "{self:?}");
    }
}

/// The live records of a tree at `at` under what a unit has written.
pub(super) fn overlaid(
    model: &Model,
    unit: Option<&OpenUnit>,
    tree: u64,
    at: u64,
) -> BTreeMap<Vec<u8>, Bytes> {
    let records = model.scan(tree, at);
    let mut records: BTreeMap<Vec<u8>, Bytes> = records
        .map(|(key, value)| (key.to_vec(), value.clone()))
        .collect();
    for ((_, key), change) in unit
        .iter()
        .flat_map(|unit| unit.held.range((tree, Vec::new())..(tree + 1, Vec::new())))
    {
        match change {
            None => {}
            Some(None) => drop(records.remove(key)),
            Some(Some(value)) => drop(records.insert(key.clone(), value.clone())),
        }
    }
    records
}

/// What should come of a statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Done,
    Refused,
    /// Something changed since the snapshot and is what it was, or is gone: that is known only
    /// where a delta has it.
    Either,
}

impl Run {
    /// Snapshots above it wait for what is prepared. If there are none below, nothing stays
    /// prepared.
    pub(super) fn last_unblocked(&mut self) -> u64 {
        while let Some(lowest) = self.prepared.iter().map(|unit| unit.at).min() {
            if lowest > self.oldest() {
                return lowest - 1;
            }
            self.end_prepared();
        }
        self.now
    }

    pub(super) fn is_held_with_prefix(
        &self,
        tree: u64,
        prefix: &[u8],
        but: Option<UnitId>,
    ) -> bool {
        let undecided = self.undecided.iter().flat_map(|(_, writes)| writes);
        let prepared = self.prepared.iter().flat_map(|unit| &unit.writes);
        let others = self.open.iter().filter(|unit| Some(unit.id) != but);
        let mut open = others.flat_map(|unit| &unit.held);
        undecided
            .chain(prepared)
            .any(|w| w.op != Op::Check && w.tree.0 == tree && w.key.starts_with(prefix))
            || open.any(|((of, key), change)| {
                change.is_some() && *of == tree && key.starts_with(prefix)
            })
    }

    pub(super) async fn act_on_units(&mut self) {
        if self.open.is_empty() || (self.open.len() < 4 && self.rng.chance(0.1)) {
            return self.begin_open();
        }
        match self.rng.below(100) {
            0..=29 => self.place_open().await,
            30..=49 => self.read_open().await,
            50..=64 => self.scan_open().await,
            65..=74 => self.open_cursor_in(),
            75..=79 => self.undo_open(),
            80..=89 => self.end_open(),
            90..=93 => self.read_blocked().await,
            94..=96 if !self.prepared.is_empty() => self.end_prepared(),
            _ => self.step_cursor().await,
        }
    }

    fn begin_open(&mut self) {
        let last = self.last_unblocked();
        // Mostly a new snapshot, as those of transactions are.
        let snapshot = match self.rng.chance(0.8) {
            true => last,
            false => self.rng.between(self.oldest(), last),
        };
        let pin = self.partition.pin(Timestamp::from_u64(snapshot)).unwrap();
        self.open.push(OpenUnit {
            id: UnitId(self.next_unit),
            snapshot,
            _pin: pin,
            held: Held::new(),
            before: None,
            writes_before: 0,
            writes: Vec::new(),
        });
        self.next_unit += 1;
    }

    fn some_open(&mut self) -> usize {
        self.rng.below(self.open.len() as u64) as usize
    }

    fn inside(&self, nth: usize) -> ReadAt {
        ReadAt::In {
            at: Timestamp::from_u64(self.open[nth].snapshot),
            unit: self.open[nth].id,
        }
    }

    /// What a unit sees of a key.
    fn seen(&self, nth: usize, tree: u64, key: &[u8]) -> Option<Bytes> {
        let unit = &self.open[nth];
        match unit.held.get(&(tree, key.to_vec())) {
            Some(Some(change)) => change.clone(),
            _ => self.model.get(tree, key, unit.snapshot).cloned(),
        }
    }

    /// Whether a unit may write a key, for all that others have done to it.
    fn first_committer(&mut self, nth: usize, write: &Write) -> Expected {
        let unit = &self.open[nth];
        let key = (write.tree.0, write.key.to_vec());
        if unit.held.contains_key(&key) {
            return Expected::Done;
        }
        if self.held(write) {
            return Expected::Refused;
        }
        let newest = self.model.history.get(&key);
        let newest = newest.and_then(|versions| versions.last_key_value());
        let is_changed = newest.is_some_and(|(&ts, _)| ts > unit.snapshot);
        let then = self.model.get(key.0, &key.1, unit.snapshot);
        let is_same = then == newest.and_then(|(_, value)| value.as_ref());
        match (is_changed, is_same && unit.snapshot < self.base) {
            (false, _) => Expected::Done,
            (true, false) => Expected::Refused,
            (true, true) => Expected::Either,
        }
    }

    fn unique_in(&self, nth: usize, write: &Write, len: usize) -> Expected {
        let unit = &self.open[nth];
        let (tree, prefix) = (write.tree.0, &write.key[..len]);
        if self.is_held_with_prefix(tree, prefix, Some(unit.id)) {
            return Expected::Refused;
        }
        let is_own = |key: &[u8]| {
            let change = unit.held.get(&(tree, key.to_vec()));
            change.is_some_and(Option::is_some)
        };
        let others = |key: &[u8]| key.starts_with(prefix) && key != &write.key[..];
        let own = unit.held.iter().any(|((of, key), change)| {
            *of == tree && others(key) && matches!(change, Some(Some(_)))
        });
        let mut live = self.model.scan(tree, u64::MAX);
        if own || live.any(|(key, _)| others(key) && !is_own(key)) {
            return Expected::Refused;
        }
        let mut changed = self.model.history.iter();
        let changed = changed.any(|((of, key), versions)| {
            let last = versions.last_key_value().map_or(0, |(&ts, _)| ts);
            *of == tree && others(key) && !is_own(key) && last > unit.snapshot
        });
        if changed {
            Expected::Either
        } else {
            Expected::Done
        }
    }

    async fn open_statement(&mut self, nth: usize) -> (Vec<Write>, Expected) {
        let mut writes: Vec<Write> = Vec::new();
        let mut expected = Expected::Done;
        for _ in 0..self.rng.between(1, 4) {
            let mut write = self.write();
            if self.rng.chance(0.15) {
                write.op = Op::Check;
            }
            // Now and then what it has written already.
            if !self.open[nth].held.is_empty() && self.rng.chance(0.4) {
                let at = self.rng.below(self.open[nth].held.len() as u64) as usize;
                let (tree, key) = self.open[nth].held.keys().nth(at).unwrap();
                write.tree = TreeId(*tree);
                write.key = Key::from_slice(key);
            }
            if writes
                .iter()
                .any(|w| w.tree == write.tree && w.key == write.key)
            {
                continue;
            }
            let mut of_write = self.first_committer(nth, &write);
            let seen = self.seen(nth, write.tree.0, &write.key);
            let holds = match self.rng.below(6) {
                0 => {
                    write.expect = Expect::Absent;
                    seen.is_none()
                }
                1 => {
                    write.expect = Expect::Present;
                    seen.is_some()
                }
                2 => {
                    let at = self.inside(nth);
                    let read = self.partition.get(write.tree, &write.key, at).await;
                    let token = read.unwrap().map(|read| read.token);
                    let token = token.unwrap_or(VersionToken(u64::MAX));
                    write.expect = Expect::Version(token);
                    seen.is_some()
                }
                3 if writes.is_empty() => {
                    let len = write.key.len() - 1;
                    write.expect = Expect::UniquePrefix { len };
                    match (self.unique_in(nth, &write, len), of_write) {
                        (Expected::Refused, _) | (_, Expected::Refused) => {
                            of_write = Expected::Refused;
                        }
                        (Expected::Either, _) => of_write = Expected::Either,
                        (Expected::Done, _) => {}
                    }
                    true
                }
                _ => true,
            };
            if !holds {
                of_write = Expected::Refused;
            }
            expected = match (expected, of_write) {
                (Expected::Refused, _) | (_, Expected::Refused) => Expected::Refused,
                (Expected::Either, _) | (_, Expected::Either) => Expected::Either,
                _ => Expected::Done,
            };
            writes.push(write);
        }
        (writes, expected)
    }

    async fn place_open(&mut self) {
        let nth = self.some_open();
        let number = self.view_number();
        let (writes, expected) = self.open_statement(nth).await;
        let unit = &self.open[nth];
        let (id, snapshot) = (unit.id, Timestamp::from_u64(unit.snapshot));
        let prepared = self.partition.prepare_for(snapshot, &writes).await.unwrap();
        if !self.partition.is_current(&prepared) || self.view_number() != number {
            return;
        }
        let outcome = self.partition.place_open(id, snapshot, &writes, &prepared);
        let context = || format!("{outcome:?} of {writes:?} in {id:?} at {snapshot}");
        match expected {
            Expected::Done => assert_eq!(outcome, Ok(()), "{}", context()),
            Expected::Refused => assert!(outcome.is_err(), "{}", context()),
            Expected::Either => {}
        }
        self.met.old_snapshots += u64::from(unit.snapshot < self.base);
        if outcome.is_err() {
            self.met.conflicts += u64::from(outcome == Err(WriteError::Conflict));
            return;
        }
        self.met.placed += 1;
        let unit = &mut self.open[nth];
        unit.before = Some(unit.held.clone());
        unit.writes_before = unit.writes.len();
        for write in &writes {
            let key = (write.tree.0, write.key.to_vec());
            let held = unit.held.entry(key).or_insert(None);
            match &write.op {
                Op::Check => {}
                Op::Delete => *held = Some(None),
                Op::Put(value) | Op::PutStamped { value, .. } => *held = Some(Some(value.clone())),
            }
        }
        unit.writes.extend(writes);
    }

    /// As when another owner has refused the statement.
    fn undo_open(&mut self) {
        let nth = self.some_open();
        let unit = &mut self.open[nth];
        let Some(before) = unit.before.take() else {
            return;
        };
        self.partition.undo_statement(unit.id);
        unit.held = before;
        unit.writes.truncate(unit.writes_before);
        self.met.undone += 1;
        let (id, is_there) = (unit.id, !unit.held.is_empty());
        let state = is_there.then_some(UnitState::Open);
        assert_eq!(self.partition.unit_state(id), state);
    }

    async fn read_open(&mut self) {
        let nth = self.some_open();
        let mut write = self.write();
        if !self.open[nth].held.is_empty() && self.rng.chance(0.5) {
            let at = self.rng.below(self.open[nth].held.len() as u64) as usize;
            let (tree, key) = self.open[nth].held.keys().nth(at).unwrap();
            (write.tree, write.key) = (TreeId(*tree), Key::from_slice(key));
        }
        let at = self.inside(nth);
        let read = self
            .partition
            .get(write.tree, &write.key, at)
            .await
            .unwrap();
        let expected = self.seen(nth, write.tree.0, &write.key);
        let found = read.map(|read| read.value);
        assert_eq!(found, expected, "{:?} of {} {at:?}", write.key, write.tree);
    }

    async fn scan_open(&mut self) {
        let nth = self.some_open();
        let (tree, range, direction) = (1 + self.rng.below(3), self.range(), self.direction());
        let at = self.inside(nth);
        let open = |run: &Run| (run.partition).cursor(TreeId(tree), range.clone(), direction, at);
        let mut cursor = open(self);
        let mut got = Vec::new();
        while let Some((key, read)) = cursor.next().await.unwrap() {
            got.push((key.to_vec(), read.value));
        }
        let by_blocks = all_by_blocks(open(self), &mut self.block_rng).await;
        self.compared += 1;
        let unit = &self.open[nth];
        let records = overlaid(&self.model, Some(unit), tree, unit.snapshot);
        let mut expected: Vec<_> = records
            .into_iter()
            .filter(|(key, _)| range.contains(key))
            .collect();
        if direction == Direction::Reverse {
            expected.reverse();
        }
        assert!(
            got == expected,
            "scan of tree {tree} {range:?} {direction:?} {at:?}: {got:?} instead of {expected:?}"
        );
        assert!(
            by_blocks == expected,
            "blocks of tree {tree} {range:?} {direction:?} {at:?}: {by_blocks:?} instead of \
             {expected:?}"
        );
    }

    fn open_cursor_in(&mut self) {
        if self.cursors.len() >= 4 {
            self.cursors.remove(0);
        }
        let nth = self.some_open();
        let (tree, range, direction) = (1 + self.rng.below(3), self.range(), self.direction());
        let at = self.inside(nth);
        let cursor = self
            .partition
            .cursor(TreeId(tree), range.clone(), direction, at);
        self.cursors.push(OpenCursor {
            reader: BlockReader::new(cursor),
            tree,
            at: self.open[nth].snapshot,
            range,
            direction,
            last: None,
            unit: Some(self.open[nth].id),
            passes: false,
        });
    }

    fn end_open(&mut self) {
        let nth = self.some_open();
        let unit = self.open.swap_remove(nth);
        self.cursors.retain(|cursor| cursor.unit != Some(unit.id));
        let is_there = self.partition.unit_state(unit.id).is_some();
        assert_eq!(is_there, !unit.held.is_empty());
        if !is_there || self.rng.chance(0.2) {
            self.partition.withdraw(unit.id);
            self.met.aborted += 1;
            return;
        }
        self.partition.decide(unit.id);
        if self.rng.chance(0.6) {
            self.partition
                .resolve(unit.id, Timestamp::from_u64(self.now));
            unit.writes
                .iter()
                .for_each(|write| self.model.put(self.now, write));
            self.met.committed += 1;
        } else {
            self.now += 1;
            self.partition
                .set_prepared(unit.id, Timestamp::from_u64(self.now));
            self.prepared.push(Prepared {
                id: unit.id,
                at: self.now,
                writes: unit.writes,
            });
            self.met.prepared += 1;
        }
    }

    pub(super) fn end_prepared(&mut self) {
        let nth = self.rng.below(self.prepared.len() as u64) as usize;
        let unit = self.prepared.swap_remove(nth);
        self.now += 2;
        if self.rng.chance(0.3) {
            self.partition.withdraw(unit.id);
            return;
        }
        let commit = match self.rng.chance(0.6) {
            true => unit.at,
            false => self.rng.between(unit.at, self.now),
        };
        self.met.late += u64::from(commit < self.base);
        let decided = Timestamp::from_u64(self.now);
        (self.partition).resolve_late(unit.id, Timestamp::from_u64(commit), decided);
        unit.writes
            .iter()
            .for_each(|write| self.model.put_late(commit, self.now, write));
        self.outcomes.push(Outcome {
            at: self.now,
            prepared: unit.at,
            commit,
            writes: unit.writes,
        });
    }

    pub(super) fn end_all_units(&mut self) {
        while !self.open.is_empty() {
            self.end_open();
        }
        while !self.prepared.is_empty() {
            self.end_prepared();
        }
    }

    /// What is prepared is not read from there on.
    async fn read_blocked(&mut self) {
        let Some(unit) = self.prepared.last() else {
            return;
        };
        let (at, first) = (unit.at, &unit.writes);
        let changed = first.iter().find(|write| write.op != Op::Check);
        let Some(Write { tree, key, .. }) = changed else {
            return;
        };
        let (tree, key) = (*tree, key.clone());
        for read_at in [ReadAt::Newest, ReadAt::At(Timestamp::from_u64(self.now))] {
            let read = self.partition.try_get(tree, &key, read_at);
            assert!(read.is_none(), "{key:?} {read_at:?} is read: {read:?}");
        }
        if at > self.oldest() {
            let before = Timestamp::from_u64(at - 1);
            let read = self.partition.get(tree, &key, ReadAt::At(before)).await;
            let found = read.unwrap().map(|read| read.value);
            assert_eq!(found.as_ref(), self.model.get(tree.0, &key, at - 1));
        }
        self.met.blocked += 1;
    }

    /// After the base was opened: what its log records of units that were prepared at or below it.
    pub(super) async fn recover_prepared(&mut self) {
        let base = self.base;
        self.prepared.retain(|unit| unit.at <= base);
        self.outcomes.retain(|outcome| outcome.prepared <= base);
        for outcome in &self.outcomes {
            let id = UnitId(self.next_unit);
            self.next_unit += 1;
            let (prepared, commit) = (outcome.prepared, Timestamp::from_u64(outcome.commit));
            let prepared = Timestamp::from_u64(prepared);
            let placed = self.partition.place_prepared(id, prepared, &outcome.writes);
            placed.await.unwrap();
            let decided = Timestamp::from_u64(outcome.at);
            self.partition.resolve_late(id, commit, decided);
            for write in &outcome.writes {
                self.model.put_late(outcome.commit, outcome.at, write);
            }
            self.met.recovered += 1;
        }
        for unit in &self.prepared {
            let at = Timestamp::from_u64(unit.at);
            let placed = self.partition.place_prepared(unit.id, at, &unit.writes);
            placed.await.unwrap();
            self.met.recovered += 1;
        }
    }
}
