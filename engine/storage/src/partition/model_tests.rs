//! A partition against a model: every version of every key in an ordered map, under random
//! operations from a seed.
//!
//! Units that stay open are part of it: snapshot isolation, where the first committer wins, with
//! reads of their own writes; and units that are prepared and committed late. So are old versions
//! on disk: the history that snapshots below the base need, and layers of changes that no
//! checkpoint may hold yet.
//!
//! Checked: newest reads, snapshot reads, cursors in both directions, step by step and by blocks,
//! seeks, expectations, intents, exact counts, pins, all while checkpoints run, caches of a few
//! pages evict and the horizon rises over versions that no reader sees; after each checkpoint the
//! page file verifies, and a partition opened again from its roots has exactly the versions up to
//! the checkpoint. Not checked here: crashes, which need rings.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{JoinHandle, Queue, Rng, sim, spawn, yield_now};

mod blocks;
mod layers;
mod open_units;

use blocks::{BlockReader, all_behind, all_by_blocks};
use open_units::{OpenUnit, Outcome, Prepared};

use super::delta::TreeDelta;
use super::{Cursor, Partition, SnapshotPin, UnitId};
use crate::base::{PartitionOptions, PartitionRoots, verify_partition};
use crate::types::{
    Direction, Expect, Fatal, Key, KeyRange, Op, PartitionId, ReadAt, ReadError, TreeId,
    VersionToken, Write, WriteError,
};

const ID: PartitionId = PartitionId(3);
const DIR: &str = "/data/partition-03";

type History = BTreeMap<(u64, Vec<u8>), BTreeMap<u64, Option<Bytes>>>;

#[derive(Default)]
struct Model {
    history: History,
    /// When what was committed late, of a tree, a key and a timestamp, was decided.
    late: BTreeMap<(u64, Vec<u8>, u64), u64>,
}

impl Model {
    fn get(&self, tree: u64, key: &[u8], at: u64) -> Option<&Bytes> {
        self.history
            .get(&(tree, key.to_vec()))?
            .range(..=at)
            .next_back()?
            .1
            .as_ref()
    }

    fn put(&mut self, ts: u64, write: &Write) {
        if write.op == Op::Check {
            return;
        }
        let value = write.op.value_at(Timestamp::from_u64(ts));
        self.history
            .entry((write.tree.0, write.key.to_vec()))
            .or_default()
            .insert(ts, value);
    }

    /// The live records of a tree in key order.
    fn scan(&self, tree: u64, at: u64) -> impl DoubleEndedIterator<Item = (&[u8], &Bytes)> {
        self.history
            .range((tree, Vec::new())..(tree + 1, Vec::new()))
            .filter_map(move |((_, key), versions)| {
                Some((
                    key.as_slice(),
                    versions.range(..=at).next_back()?.1.as_ref()?,
                ))
            })
    }
}

impl Model {
    fn put_late(&mut self, commit: u64, decided: u64, write: &Write) {
        self.put(commit, write);
        if write.op != Op::Check && commit < decided {
            let version = (write.tree.0, write.key.to_vec(), commit);
            self.late.insert(version, decided);
        }
    }

    /// The live records for a reader that waits for nothing that is prepared.
    fn scan_decided(&self, tree: u64, at: u64) -> BTreeMap<Vec<u8>, Bytes> {
        let keys = (self.history).range((tree, Vec::new())..(tree + 1, Vec::new()));
        let seen = keys.filter_map(|((_, key), versions)| {
            let is_decided = |ts: u64| {
                let late = self.late.get(&(tree, key.clone(), ts));
                late.is_none_or(|&decided| decided <= at)
            };
            let mut versions = versions.range(..=at).rev();
            let (_, value) = versions.find(|(ts, _)| is_decided(**ts))?;
            Some((key.clone(), value.clone()?))
        });
        seen.collect()
    }
}

struct OpenCursor {
    reader: BlockReader,
    tree: u64,
    at: u64,
    range: KeyRange,
    direction: Direction,
    last: Option<Vec<u8>>,
    /// Of this unit, over what it has written.
    unit: Option<UnitId>,
    /// It does not wait for what is prepared.
    passes: bool,
}

/// What a run has beside reads, writes and checkpoints.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    /// Units that stay open. Without them nothing but pins and cursors keeps merges from giving up
    /// what they have merged.
    has_units: bool,
    /// Snapshots from the horizon on are readable though they lie below the base.
    keeps_history: bool,
    has_layers: bool,
}

struct Run {
    rng: Rng,
    /// Chooses what is read by blocks, and changes nothing else that a seed does.
    block_rng: Rng,
    partition: Rc<Partition>,
    options: PartitionOptions,
    model: Model,
    now: u64,
    base: u64,
    /// Below it, snapshots need a pin.
    horizon: u64,
    roots: PartitionRoots,
    checkpoint: Option<(u64, JoinHandle<Result<PartitionRoots, Fatal>>)>,
    pins: Vec<(u64, SnapshotPin)>,
    cursors: Vec<OpenCursor>,
    undecided: Vec<(UnitId, Vec<Write>)>,
    kind: Kind,
    /// The timestamps of the layers, oldest first; the newest may be on its way, and the oldest on
    /// its way back for the checkpoint there.
    layers: VecDeque<u64>,
    writing: Option<JoinHandle<Result<(), Fatal>>>,
    dissolving: Option<JoinHandle<Result<(), Fatal>>>,
    layered: u64,
    dissolved: u64,
    open: Vec<OpenUnit>,
    prepared: Vec<Prepared>,
    /// What was prepared and committed, as long as a checkpoint does not hold it for sure.
    outcomes: Vec<Outcome>,
    met: open_units::Met,
    next_unit: u64,
    checkpoints: u64,
    /// How many of them left changes to be merged later, and how often a directory with such
    /// changes was opened.
    spilled: u64,
    reopened_spilled: u64,
    reopened: u64,
    /// Steps while readers had a part of what a checkpoint merged, and those in which sealed
    /// changes were given up.
    partly_merged: u64,
    given_up: u64,
    /// Scans of which each was taken by steps and by blocks.
    compared: u64,
}

impl Run {
    async fn new(seed: u64, options: PartitionOptions, kind: Kind) -> Run {
        let partition = Partition::create(ID, Path::new(DIR), options.clone())
            .await
            .unwrap();
        partition.end_replay(Timestamp::MIN, kind.keeps_history);
        let roots = partition.roots();
        Run {
            rng: Rng::from_seed(seed),
            block_rng: Rng::from_seed(!seed),
            partition,
            options,
            model: Model::default(),
            now: 10,
            base: 0,
            horizon: 0,
            roots,
            checkpoint: None,
            pins: Vec::new(),
            cursors: Vec::new(),
            undecided: Vec::new(),
            kind,
            layers: VecDeque::new(),
            writing: None,
            dissolving: None,
            layered: 0,
            dissolved: 0,
            open: Vec::new(),
            prepared: Vec::new(),
            outcomes: Vec::new(),
            met: open_units::Met::default(),
            next_unit: 1,
            checkpoints: 0,
            spilled: 0,
            reopened_spilled: 0,
            reopened: 0,
            partly_merged: 0,
            given_up: 0,
            compared: 0,
        }
    }

    fn key(&mut self) -> Key {
        let n = self.rng.below(120);
        let text = match self.rng.below(10) {
            0 => format!("k{n}"),
            1 => format!("a long common prefix of many bytes, then {n:04}"),
            _ => format!("key-{n:03}"),
        };
        Key::from_slice(text.as_bytes())
    }

    fn value(&mut self) -> Bytes {
        let len = match self.rng.below(12) {
            0 => 0,
            1 => self.rng.between(200, 9000),
            _ => self.rng.below(60),
        };
        let mut value = vec![0; len as usize];
        self.rng.fill_bytes(&mut value);
        Bytes::from(value)
    }

    fn write(&mut self) -> Write {
        let op = match self.rng.chance(0.65) {
            true => match self.value() {
                value if value.len() >= 8 && self.rng.chance(0.2) => {
                    let at = value.len() - 8;
                    Op::PutStamped {
                        value,
                        at,
                        first: None,
                    }
                }
                value => Op::Put(value),
            },
            false => Op::Delete,
        };
        Write {
            partition: ID,
            tree: TreeId(1 + self.rng.below(3)),
            key: self.key(),
            op,
            expect: Expect::Any,
        }
    }

    /// Whether some unit holds the key.
    fn held(&self, write: &Write) -> bool {
        let key = (write.tree.0, write.key.to_vec());
        self.decides(write) || self.open.iter().any(|unit| unit.held.contains_key(&key))
    }

    /// Whether a newest read waits for a unit before it reads the key.
    fn decides(&self, write: &Write) -> bool {
        let undecided = self.undecided.iter().flat_map(|(_, writes)| writes);
        let prepared = self.prepared.iter().flat_map(|unit| &unit.writes);
        undecided
            .chain(prepared)
            .any(|w| w.tree == write.tree && w.key == write.key)
    }

    /// A statement of distinct keys with random expectations, and what should come of it.
    async fn statement(&mut self) -> (Vec<Write>, Result<(), ()>) {
        let mut writes: Vec<Write> = Vec::new();
        let mut expected = Ok(());
        for _ in 0..self.rng.between(1, 4) {
            let mut write = self.write();
            if writes
                .iter()
                .any(|w| w.tree == write.tree && w.key == write.key)
            {
                continue;
            }
            let live = self.model.get(write.tree.0, &write.key, u64::MAX).is_some();
            let ok = match self.rng.below(6) {
                0 => {
                    write.expect = Expect::Absent;
                    !live
                }
                1 => {
                    write.expect = Expect::Present;
                    live
                }
                2 if !self.held(&write) => {
                    let read = self
                        .partition
                        .get(write.tree, &write.key, ReadAt::Newest)
                        .await
                        .unwrap();
                    let stale = self.rng.chance(0.2);
                    let token = read
                        .map(|read| read.token)
                        .unwrap_or(VersionToken(u64::MAX));
                    write.expect =
                        Expect::Version(if stale { VersionToken(u64::MAX) } else { token });
                    live && !stale
                }
                3 if writes.is_empty() => {
                    let len = write.key.len() - 1;
                    write.expect = Expect::UniquePrefix { len };
                    let prefix = &write.key[..len];
                    let tree = write.tree.0;
                    let held = self.is_held_with_prefix(tree, prefix, None);
                    let taken = self
                        .model
                        .scan(tree, u64::MAX)
                        .any(|(key, _)| key.starts_with(prefix) && key != &write.key[..]);
                    !held && !taken
                }
                _ => true,
            };
            if !ok || self.held(&write) {
                expected = Err(());
            }
            writes.push(write);
        }
        (writes, expected)
    }

    async fn step(&mut self) {
        self.now += self.rng.between(1, 3);
        let (is_partly_merged, before) = self.merging();
        self.act().await;
        if self.checkpoint.is_some() {
            self.partly_merged += u64::from(is_partly_merged);
            self.given_up += u64::from(self.merging().1 < before);
        }
    }

    /// Whether readers have a part of what a checkpoint merges, and how many keys it has not given
    /// up.
    fn merging(&self) -> (bool, usize) {
        let state = self.partition.state.borrow();
        let view = state.views.current();
        let keys_sealed = view.with_sealed(|sealed| {
            let trees = (1..=3).filter_map(|tree| sealed?.delta.tree(TreeId(tree)));
            trees.map(TreeDelta::len).sum::<usize>()
        });
        (view.is_partly_merged(), keys_sealed)
    }

    fn view_number(&self) -> u64 {
        self.partition.state.borrow().views.current().number()
    }

    async fn act(&mut self) {
        if self.kind.has_layers && self.rng.chance(0.08) {
            return self.advance_layers().await;
        }
        // What comes without units comes as it would if there were none.
        match self.rng.below(if self.kind.has_units { 140 } else { 100 }) {
            100..=139 => self.act_on_units().await,
            0..=24 => self.write_now().await,
            25..=29 => self.apply_late().await,
            30..=36 => self.place().await,
            37..=43 => self.decide(),
            44..=69 => self.read().await,
            70..=75 => self.scan().await,
            76..=84 => self.step_cursor().await,
            85..=87 => self.open_cursor(),
            88..=89 => self.pin(),
            90..=91 => drop(self.pins.pop()),
            92..=95 => self.advance_checkpoint().await,
            96 if self.rng.chance(0.3) => self.reopen().await,
            97 => self.check_counts(),
            98 => self.raise_horizon().await,
            _ => yield_now().await,
        }
    }

    async fn write_now(&mut self) {
        let number = self.view_number();
        let (writes, expected) = self.statement().await;
        let prepared = self.partition.prepare(&writes).await.unwrap();
        if !self.partition.is_current(&prepared) || self.view_number() != number {
            return;
        }
        let outcome = self.partition.check(&writes, &prepared);
        assert_eq!(
            outcome.is_ok(),
            expected.is_ok(),
            "{outcome:?} of {writes:?}"
        );
        if outcome.is_ok() {
            self.partition
                .write_now(Timestamp::from_u64(self.now), &writes, prepared);
            writes
                .iter()
                .for_each(|write| self.model.put(self.now, write));
        }
    }

    /// A write whose timestamp lies below others, as a secondary or a recovery may apply it, but
    /// above any checkpoint.
    async fn apply_late(&mut self) {
        let write = self.write();
        let floor = self.checkpoint.as_ref().map_or(self.base, |(c, _)| *c);
        let floor = floor.max(self.horizon).max(self.newest_layer());
        if self.held(&write) || self.now - floor < 3 {
            return;
        }
        let ts = self.rng.between(floor + 1, self.now);
        let key = (write.tree.0, write.key.to_vec());
        // Snapshots that are open must not change, as none below the visible timestamp does.
        let oldest_open = self
            .pins
            .iter()
            .map(|(ts, _)| *ts)
            .chain(self.cursors.iter().map(|c| c.at))
            .chain(self.open.iter().map(|unit| unit.snapshot))
            .max()
            .unwrap_or(0);
        if ts <= oldest_open
            || self
                .model
                .history
                .get(&key)
                .is_some_and(|versions| versions.contains_key(&ts))
        {
            return;
        }
        self.partition
            .apply_at(Timestamp::from_u64(ts), std::slice::from_ref(&write))
            .await
            .unwrap();
        self.model.put(ts, &write);
    }

    async fn place(&mut self) {
        let number = self.view_number();
        let (writes, expected) = self.statement().await;
        if self.undecided.len() >= 4 {
            return;
        }
        let prepared = self.partition.prepare(&writes).await.unwrap();
        if !self.partition.is_current(&prepared) || self.view_number() != number {
            return;
        }
        let unit = UnitId(self.next_unit);
        let outcome = self.partition.place_intents(unit, &writes, prepared);
        assert_eq!(
            outcome.is_ok(),
            expected.is_ok(),
            "{outcome:?} of {writes:?}"
        );
        if outcome.is_ok() {
            self.next_unit += 1;
            self.undecided.push((unit, writes));
        }
    }

    fn decide(&mut self) {
        if self.undecided.is_empty() {
            return;
        }
        let (unit, writes) = self
            .undecided
            .swap_remove(self.rng.below(self.undecided.len() as u64) as usize);
        if self.rng.chance(0.7) {
            self.partition.resolve(unit, Timestamp::from_u64(self.now));
            writes
                .iter()
                .for_each(|write| self.model.put(self.now, write));
        } else {
            self.partition.withdraw(unit);
        }
    }

    /// A timestamp that can be read at, without a pin or with one of those held.
    fn readable(&mut self) -> u64 {
        // Later ones wait for what is prepared.
        let last = self.last_unblocked();
        match self.pins.last() {
            Some((ts, _)) if *ts <= last && self.rng.chance(0.4) => *ts,
            _ => self.rng.between(self.oldest(), last),
        }
    }

    /// Snapshots from here on can be read without a pin.
    fn oldest(&self) -> u64 {
        match self.kind.keeps_history {
            true => self.horizon,
            false => self.base.max(self.horizon),
        }
    }

    async fn raise_horizon(&mut self) {
        // A checkpoint at the oldest layer is still to be sealed.
        let most = self.layers.front().copied().unwrap_or(self.now);
        self.horizon = self.rng.between(self.horizon, most);
        if self.rng.chance(0.3) {
            self.pins.clear();
            self.cursors.clear();
            self.horizon = most;
            self.end_all_units();
        }
        self.partition
            .raise_horizon(Timestamp::from_u64(self.horizon));
        let below = self.horizon.saturating_sub(1);
        let open = self
            .pins
            .iter()
            .map(|(ts, _)| *ts)
            .chain(self.cursors.iter().map(|cursor| cursor.at))
            .chain(self.open.iter().map(|unit| unit.snapshot));
        if self.horizon > 0 && !open.clone().any(|at| at == below) {
            let at = ReadAt::At(Timestamp::from_u64(below));
            let too_old = self.partition.get(TreeId(1), b"k", at).await;
            assert_eq!(too_old.err(), Some(ReadError::SnapshotTooOld));
        }
    }

    async fn read(&mut self) {
        let write = self.write();
        if self.rng.chance(0.5) && !self.decides(&write) {
            let read = self
                .partition
                .get(write.tree, &write.key, ReadAt::Newest)
                .await
                .unwrap();
            let expected = self.model.get(write.tree.0, &write.key, u64::MAX);
            assert_eq!(
                read.as_ref().map(|read| &read.value),
                expected,
                "{:?} at newest",
                write.key
            );
        } else {
            let at = self.readable();
            let read = self
                .partition
                .get(write.tree, &write.key, ReadAt::At(Timestamp::from_u64(at)))
                .await
                .unwrap();
            let expected = self.model.get(write.tree.0, &write.key, at);
            assert_eq!(
                read.as_ref().map(|read| &read.value),
                expected,
                "{:?} at {at}",
                write.key
            );
        }
    }

    fn range(&mut self) -> KeyRange {
        let bound = |run: &mut Run| match run.rng.below(3) {
            0 => Bound::Unbounded,
            1 => Bound::Included(run.key()),
            _ => Bound::Excluded(run.key()),
        };
        KeyRange {
            lower: bound(self),
            upper: bound(self),
        }
    }

    fn direction(&mut self) -> Direction {
        if self.rng.chance(0.5) {
            Direction::Forward
        } else {
            Direction::Reverse
        }
    }

    async fn scan(&mut self) {
        // What is prepared is not there, for a reader that does not wait for it.
        let passes = self.rng.chance(0.3);
        let at = match passes {
            true => self.rng.between(self.oldest(), self.now),
            false => self.readable(),
        };
        let (tree, range, direction) = (1 + self.rng.below(3), self.range(), self.direction());
        let is_decided = self.undecided.is_empty() && (passes || self.prepared.is_empty());
        let newest = self.rng.chance(0.3) && is_decided;
        let read_at = match (newest, passes) {
            (true, true) => ReadAt::NewestDecided,
            (true, false) => ReadAt::Newest,
            (false, true) => ReadAt::DecidedAt(Timestamp::from_u64(at)),
            (false, false) => ReadAt::At(Timestamp::from_u64(at)),
        };
        let at = if newest { u64::MAX } else { at };
        let open =
            |run: &Run| (run.partition).cursor(TreeId(tree), range.clone(), direction, read_at);
        let mut cursor = open(self);
        let mut got = Vec::new();
        while let Some((key, read)) = cursor.next().await.unwrap() {
            got.push((key.to_vec(), read.value));
        }
        let mut by_blocks = all_by_blocks(open(self), &mut self.block_rng).await;
        if self.block_rng.chance(0.3) {
            std::mem::swap(&mut self.rng, &mut self.block_rng);
            let other = self.range();
            std::mem::swap(&mut self.rng, &mut self.block_rng);
            let cursor = (self.partition).cursor(TreeId(tree), other, direction, read_at);
            by_blocks = all_behind(cursor, range.clone(), &mut self.block_rng).await;
        }
        self.compared += 1;
        let records = match passes && !newest {
            true => self.model.scan_decided(tree, at),
            false => open_units::overlaid(&self.model, None, tree, at),
        };
        let mut expected: Vec<_> = records
            .into_iter()
            .filter(|(key, _)| range.contains(key))
            .collect();
        if direction == Direction::Reverse {
            expected.reverse();
        }
        assert!(
            got == expected,
            "scan of tree {tree} {range:?} {direction:?} at {at}: {got:?} instead of {expected:?}"
        );
        assert!(
            by_blocks == expected,
            "blocks of tree {tree} {range:?} {direction:?} {read_at:?}: {by_blocks:?} instead of \
             {expected:?}"
        );
    }

    fn open_cursor(&mut self) {
        if self.cursors.len() >= 4 {
            self.cursors.remove(0);
        }
        let passes = self.rng.chance(0.3);
        let (tree, at, range, direction) = (
            1 + self.rng.below(3),
            match passes {
                true => self.rng.between(self.oldest(), self.now),
                false => self.readable(),
            },
            self.range(),
            self.direction(),
        );
        let ts = Timestamp::from_u64(at);
        let read_at = match passes {
            true => ReadAt::DecidedAt(ts),
            false => ReadAt::At(ts),
        };
        let cursor = (self.partition).cursor(TreeId(tree), range.clone(), direction, read_at);
        self.cursors.push(OpenCursor {
            reader: BlockReader::new(cursor),
            tree,
            at,
            range,
            direction,
            last: None,
            unit: None,
            passes,
        });
    }

    async fn step_cursor(&mut self) {
        if self.cursors.is_empty() {
            return;
        }
        let index = self.rng.below(self.cursors.len() as u64) as usize;
        let target = self.key();
        let seeks = self.rng.chance(0.2);
        let open = &mut self.cursors[index];
        let beyond = |from: &[u8], key: &[u8]| match open.direction {
            Direction::Forward => key > from,
            Direction::Reverse => key < from,
        };
        let unit = open
            .unit
            .and_then(|id| self.open.iter().find(|unit| unit.id == id));
        let all = match open.passes {
            true => self.model.scan_decided(open.tree, open.at),
            false => open_units::overlaid(&self.model, unit, open.tree, open.at),
        };
        let mut records = all
            .iter()
            .map(|(key, value)| (key.as_slice(), value))
            .filter(|(key, _)| open.range.contains(key));
        let accept = |key: &[u8]| match (&open.last, seeks) {
            (_, true) => key == &target[..] || beyond(&target, key),
            (None, false) => true,
            (Some(last), false) => beyond(last, key),
        };
        let expected = match open.direction {
            Direction::Forward => records.find(|(key, _)| accept(key)),
            Direction::Reverse => records.rev().find(|(key, _)| accept(key)),
        };
        let is_ahead = (open.last.as_ref()).is_none_or(|last| beyond(last, &target));
        match seeks {
            true if is_ahead && self.block_rng.chance(0.8) => open.reader.seek_ahead(&target),
            true => open.reader.seek(&target),
            false => {}
        }
        // What a unit writes after a block was filled is not in the block.
        let keeps_block = unit.is_none() && self.block_rng.chance(0.8);
        let got = match self.block_rng.chance(0.5) {
            true => open.reader.next_of_block(keeps_block).await,
            false => open.reader.next().await,
        };
        assert_eq!(
            got.as_ref().map(|(key, value)| (key.as_slice(), value)),
            expected,
            "{:?} {:?} at {} after {:?}, seek {:?}",
            open.range,
            open.direction,
            open.at,
            open.last,
            seeks.then_some(&target)
        );
        match got {
            Some((key, _)) => open.last = Some(key.to_vec()),
            None => drop(self.cursors.swap_remove(index)),
        }
    }

    fn pin(&mut self) {
        let last = self.last_unblocked();
        let at = self.rng.between(self.oldest(), last);
        let pin = self.partition.pin(Timestamp::from_u64(at)).unwrap();
        self.pins.push((at, pin));
    }

    async fn advance_checkpoint(&mut self) {
        match self.checkpoint.take() {
            None if self.writing.is_some() => {}
            None => {
                // Undecided units will be resolved above the checkpoint.
                let mut c = self.rng.between(self.base.max(self.horizon), self.now);
                if let Some(&oldest) = self.layers.front() {
                    c = match self.dissolving.is_some() || self.rng.chance(0.7) {
                        true => oldest,
                        // It takes nothing, as everything here is replicated.
                        false => self.base,
                    };
                }
                if self.layers.front() == Some(&c) && !self.dissolve(c).await {
                    return;
                }
                self.partition.seal(Timestamp::from_u64(c));
                let partition = self.partition.clone();
                let thorough = self
                    .rng
                    .chance(if self.kind.has_layers { 0.8 } else { 0.3 });
                self.checkpoint = Some((
                    c,
                    spawn(Queue::Background, async move {
                        partition.merge(thorough, &|| {}).await
                    }),
                ));
            }
            Some((c, merge)) if merge.is_finished() || self.rng.chance(0.3) => {
                let roots = merge.await.unwrap().unwrap();
                if self.rng.chance(0.5) {
                    yield_now().await;
                }
                self.partition.install(roots);
                assert_eq!(roots.timestamp().as_u64(), c);
                self.base = c;
                self.roots = roots;
                self.outcomes.retain(|outcome| outcome.at > c);
                self.checkpoints += 1;
                self.spilled += u64::from(self.partition.has_spilled());
                let report = verify_partition(ID, Path::new(DIR), &roots).await.unwrap();
                assert_eq!(report.problems, [], "after checkpoint {}", self.checkpoints);
                let too_old = self
                    .partition
                    .get(TreeId(1), b"k", ReadAt::At(Timestamp::MIN))
                    .await;
                let kept = self
                    .pins
                    .iter()
                    .map(|(ts, _)| *ts)
                    .chain(self.cursors.iter().map(|c| c.at))
                    .chain(self.open.iter().map(|unit| unit.snapshot))
                    .min();
                let oldest = self.oldest();
                if oldest > 0 && kept.is_none_or(|kept| kept >= oldest) {
                    assert_eq!(too_old.err(), Some(ReadError::SnapshotTooOld));
                }
            }
            waiting => self.checkpoint = waiting,
        }
    }

    async fn reopen(&mut self) {
        if let Some((_, merge)) = self.checkpoint.take() {
            // Its manifest is never written: the result is forgotten.
            merge.await.unwrap().unwrap();
        }
        for task in self
            .writing
            .take()
            .into_iter()
            .chain(self.dissolving.take())
        {
            task.await.unwrap().unwrap();
        }
        self.layers.clear();
        self.cursors.clear();
        self.pins.clear();
        self.undecided.clear();
        self.open.clear();
        self.partition.close().await;
        self.partition = Partition::open(ID, Path::new(DIR), self.roots, self.options.clone())
            .await
            .unwrap();
        self.horizon = match self.kind.keeps_history {
            true => self.base,
            false => 0,
        };
        (self.partition).end_replay(Timestamp::from_u64(self.horizon), self.kind.keeps_history);
        for versions in self.model.history.values_mut() {
            versions.retain(|ts, _| *ts <= self.base);
        }
        self.recover_prepared().await;
        self.reopened += 1;
        self.reopened_spilled += u64::from(self.partition.has_spilled());
        self.check_counts();
    }

    fn check_counts(&self) {
        for tree in 1..=3 {
            let stats = self.partition.tree_stats(TreeId(tree));
            let (mut records, mut key_bytes, mut value_bytes) = (0, 0, 0);
            for (key, value) in self.model.scan(tree, u64::MAX) {
                records += 1;
                key_bytes += key.len() as u64;
                value_bytes += value.len() as u64;
            }
            assert_eq!(
                (stats.records, stats.key_bytes, stats.value_bytes),
                (records, key_bytes, value_bytes)
            );
        }
    }
}

/// What the runs of several seeds came by.
#[derive(Default)]
struct Met {
    /// Checkpoints that spilled, and openings that loaded what they left.
    spilled: u64,
    loaded: u64,
    /// Steps while readers had a part of what a checkpoint merged, and those in which sealed
    /// changes were given up.
    partly_merged: u64,
    given_up: u64,
    /// Layers that were written, and that came back.
    layered: u64,
    dissolved: u64,
    /// Scans of which each was taken by steps and by blocks.
    compared: u64,
    units: open_units::Met,
}

/// Runs one seed.
fn check(seed: u64, options: PartitionOptions, kind: Kind, met: &mut Met) {
    let run = sim::block_on(seed, async move {
        let mut run = Run::new(seed, options, kind).await;
        // Some come by few checkpoints at first.
        let mut steps = 0;
        while steps < 1500 || (run.checkpoints <= 3 && steps < 6000) {
            run.step().await;
            steps += 1;
        }
        while !run.undecided.is_empty() {
            run.decide();
        }
        run.end_all_units();
        run.scan().await;
        run.check_counts();
        run.reopen().await;
        run.scan().await;
        run
    });
    assert!(
        run.checkpoints > 3 && run.reopened > 0,
        "seed {seed} did too little: {} checkpoints",
        run.checkpoints
    );
    met.spilled += run.spilled;
    met.loaded += run.reopened_spilled;
    met.partly_merged += run.partly_merged;
    met.given_up += run.given_up;
    met.layered += run.layered;
    met.dissolved += run.dissolved;
    met.compared += run.compared;
    met.units += run.met;
}

/// A campaign runs more seeds: `PINION_SEEDS` says how many times as many.
fn seeds(range: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let times: u64 = std::env::var("PINION_SEEDS")
        .ok()
        .and_then(|times| times.parse().ok())
        .unwrap_or(1);
    range.start * times..range.end * times
}

const UNITS: Kind = Kind {
    has_units: true,
    keeps_history: false,
    has_layers: false,
};

#[test]
fn random_operations_on_tiny_pages() {
    let mut met = Met::default();
    for seed in seeds(0..40) {
        check(seed, PartitionOptions::hostile(), Kind::default(), &mut met);
    }
    let Met {
        spilled,
        loaded,
        partly_merged,
        given_up,
        compared,
        ..
    } = met;
    assert!(compared > 2000, "{compared} scans by steps and by blocks");
    assert!(
        spilled > 40 && loaded > 10,
        "{spilled} checkpoints spilled, {loaded} openings loaded what they left"
    );
    assert!(
        partly_merged > 1000 && given_up > 20,
        "{partly_merged} steps beside a part of a merge, changes given up in {given_up}"
    );
}

#[test]
fn random_operations_beside_open_units() {
    let mut met = Met::default();
    for seed in seeds(300..400) {
        check(seed, PartitionOptions::hostile(), UNITS, &mut met);
    }
    met.units.check();
}

#[test]
fn random_operations_on_ordinary_pages() {
    for seed in seeds(100..110) {
        let options = PartitionOptions {
            cache_bytes: 1 << 20,
            ..PartitionOptions::default()
        };
        check(seed, options, UNITS, &mut Met::default());
    }
}

#[test]
fn random_operations_without_any_cache() {
    for seed in seeds(200..210) {
        let options = PartitionOptions {
            cache_bytes: 0,
            ..PartitionOptions::hostile()
        };
        check(seed, options, UNITS, &mut Met::default());
    }
}

#[test]
fn a_stale_preparation_conflicts() {
    sim::block_on(1, async {
        let partition = Partition::create(ID, Path::new(DIR), PartitionOptions::default())
            .await
            .unwrap();
        let op = Op::Put(Bytes::from_static(b"v"));
        let writes = [Write {
            partition: ID,
            tree: TreeId(1),
            key: Key::from_slice(b"k"),
            op,
            expect: Expect::Any,
        }];
        let prepared = partition.prepare(&writes).await.unwrap();
        partition.seal(Timestamp::from_u64(5));
        let roots = partition.merge(true, &|| {}).await.unwrap();
        assert_eq!(partition.check(&writes, &prepared), Ok(()));
        partition.install(roots);
        assert_eq!(
            partition.check(&writes, &prepared),
            Err(WriteError::Conflict)
        );
    });
}
