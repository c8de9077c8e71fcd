//! Units that stay open, on the whole engine: what others see of them, how they end, what they may
//! take, what survives.

mod crashes;
mod late;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Queue, join_all, now, sleep, spawn, submit_to, timeout};
use pinion_storage::{
    Applier, ApplyError, Direction, ENTRY_TERM_OFFSET, Entry, Expect, Key, KeyRange,
    MAX_UNIT_ENTRY_BYTES, Op, OpenUnit, PartitionId, PreparedUnit, ReadAt, ReadError, Statement,
    Storage, StorageOptions, StorageStats, TreeId, Write, WriteError, open, storage,
};

const TREE: TreeId = TreeId(5);
/// Where what is written beside a unit goes.
const BESIDE: TreeId = TreeId(6);

/// What the entries of these tests record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A statement, or a unit that is committed.
    Writes = 1,
    Prepare = 2,
    /// Followed by the timestamp it was prepared at, and that of its commit.
    Commit = 3,
    Abort = 4,
    /// A part of a unit, of which the next entries have the rest.
    Part = 5,
}

/// As large as one may be, nearly.
const LARGE_ENTRY_BYTES: usize = 16 * 1024 * 1024;

const KIND_AT: usize = ENTRY_TERM_OFFSET + 8;

fn entry_of(kind: Kind, words: &[u64], writes: &[Write]) -> Entry {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(b"\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0");
    assert_eq!(bytes.len(), KIND_AT);
    bytes.push(kind as u8);
    bytes.push(words.len() as u8);
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    for write in writes {
        let value = match &write.op {
            Op::Put(value) => Some(value.clone()),
            Op::Delete => None,
            other => panic!("{other:?} is not told of"),
        };
        bytes.push(write.tree.0 as u8);
        bytes.extend_from_slice(&write.key);
        bytes.extend_from_slice(
            &value
                .as_ref()
                .map_or(u32::MAX, |v| v.len() as u32)
                .to_le_bytes(),
        );
        bytes.extend_from_slice(&value.unwrap_or_default());
    }
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Entry::new(bytes)
}

struct Parsed {
    kind: u8,
    words: Vec<u64>,
    writes: Vec<Write>,
}

fn parse(entry: &Bytes) -> Parsed {
    let (kind, words) = (entry[KIND_AT], usize::from(entry[KIND_AT + 1]));
    let mut rest = &entry[KIND_AT + 2..];
    let mut take = |len: usize| {
        let taken;
        (taken, rest) = rest.split_at(len);
        (taken.to_vec(), rest.is_empty())
    };
    let words: Vec<u64> = (0..words)
        .map(|_| u64::from_le_bytes(take(8).0.try_into().unwrap()))
        .collect();
    let mut writes = Vec::new();
    let mut is_end = entry.len() == KIND_AT + 2 + 8 * words.len();
    while !is_end {
        let tree = TreeId(u64::from(take(1).0[0]));
        let key = u64::from_be_bytes(take(8).0.try_into().unwrap());
        let (len, end) = take(4);
        is_end = end;
        let op = match u32::from_le_bytes(len.try_into().unwrap()) {
            u32::MAX => Op::Delete,
            len => {
                let (value, end) = take(len as usize);
                is_end = end;
                Op::Put(Bytes::from(value))
            }
        };
        writes.push(Write {
            tree,
            ..write(key, op)
        });
    }
    Parsed {
        kind,
        words,
        writes,
    }
}

/// Applies what these tests log, and knows what is prepared.
#[derive(Default)]
struct TestApplier {
    /// By the timestamp of preparation.
    prepared: RefCell<BTreeMap<Timestamp, Vec<Write>>>,
    restored: Rc<RefCell<BTreeMap<Timestamp, PreparedUnit>>>,
    parts: RefCell<Vec<(Timestamp, Vec<Write>)>>,
    applied: Rc<Cell<u64>>,
}

impl TestApplier {
    fn of_parts(&self, ts: Timestamp, parsed: &Parsed) -> (Timestamp, Vec<Write>) {
        let parts = std::mem::take(&mut *self.parts.borrow_mut());
        let first = parts.first().map_or(ts, |(first, _)| *first);
        let mut writes: Vec<Write> = parts.into_iter().flat_map(|(_, writes)| writes).collect();
        writes.extend(parsed.writes.iter().cloned());
        (first, writes)
    }
}

impl Applier for TestApplier {
    async fn look_back(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let parsed = parse(&entry);
        let prepared = &mut *self.prepared.borrow_mut();
        match parsed.kind {
            2 => drop(prepared.insert(ts, parsed.writes)),
            3 | 4 => drop(prepared.remove(&Timestamp::from_u64(parsed.words[0]))),
            5 => self.parts.borrow_mut().push((ts, parsed.writes)),
            _ => self.parts.borrow_mut().clear(),
        }
        Ok(())
    }

    async fn looked_back(&self) -> Result<(), ApplyError> {
        let prepared = std::mem::take(&mut *self.prepared.borrow_mut());
        for (ts, writes) in prepared {
            let unit = storage().restore_prepared(ts, ts, writes).await?;
            self.restored.borrow_mut().insert(ts, unit);
        }
        Ok(())
    }

    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        self.applied.set(self.applied.get() + 1);
        let parsed = parse(&entry);
        match parsed.kind {
            2 => {
                let unit = storage().restore_prepared(ts, ts, parsed.writes).await?;
                self.restored.borrow_mut().insert(ts, unit);
            }
            3 | 4 => {
                let prepared = Timestamp::from_u64(parsed.words[0]);
                let unit = self.restored.borrow_mut().remove(&prepared).unwrap();
                let commit = (parsed.kind == 3).then(|| Timestamp::from_u64(parsed.words[1]));
                storage().apply_outcome(&unit, commit, ts).await?;
            }
            5 => {
                storage().transaction_begins(ts);
                self.parts.borrow_mut().push((ts, parsed.writes));
            }
            _ => {
                let (first, writes) = self.of_parts(ts, &parsed);
                storage().apply_at(ts, writes).await?;
                storage().transaction_ends(first, ts);
            }
        }
        Ok(())
    }
}

fn options() -> StorageOptions {
    StorageOptions {
        partitions: Some(4),
        checkpoint_interval: Duration::MAX,
        ..StorageOptions::new("/srv/pinion/data")
    }
}

/// Runs `test` on core 0 of a node of `cores`, whose storage is open.
fn run<F, Fut>(cores: usize, options: StorageOptions, test: F)
where
    F: Fn(Rc<Storage>) -> Fut + Clone + 'static,
    Fut: Future<Output = ()> + 'static,
{
    let sim = Sim::new(7, SimOptions::default());
    let done = Rc::new(Cell::new(false));
    let ended = done.clone();
    let node = sim.add_node("node", cores, move |core| {
        let (options, test, done) = (options.clone(), test.clone(), done.clone());
        async move {
            if core != CoreId(0) {
                while !done.get() {
                    sleep(Duration::from_millis(1)).await;
                }
                return;
            }
            let applier = TestApplier::default();
            open(options).await.unwrap().recover(applier).await.unwrap();
            test(storage()).await;
            storage().close().await;
            done.set(true);
        }
    });
    sim.run_until_down(node).unwrap();
    assert!(ended.get(), "the test did not run to its end");
}

fn write(key: u64, op: Op) -> Write {
    Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op,
        expect: Expect::Any,
    }
}

fn put(key: u64, value: &str) -> Write {
    write(key, Op::Put(Bytes::copy_from_slice(value.as_bytes())))
}

fn delete(key: u64) -> Write {
    write(key, Op::Delete)
}

async fn execute(writes: Vec<Write>) -> Result<Timestamp, WriteError> {
    let entry = Some(entry_of(Kind::Writes, &[], &writes));
    let outcomes = storage()
        .execute(vec![Statement { writes, entry }], true)
        .await;
    outcomes.into_iter().next().unwrap()
}

async fn begin() -> OpenUnit {
    let ts = storage().read_timestamp().await.unwrap();
    storage().begin_unit(ts)
}

async fn commit(unit: OpenUnit, writes: &[Write]) -> Result<Timestamp, WriteError> {
    let entries = vec![entry_of(Kind::Writes, &[], writes)];
    storage().commit_unit(unit, entries, Vec::new()).await
}

async fn prepare(unit: OpenUnit, writes: &[Write]) -> Result<PreparedUnit, WriteError> {
    let entries = vec![entry_of(Kind::Prepare, &[], writes)];
    storage().prepare_unit(unit, entries, Vec::new()).await
}

async fn commit_prepared(unit: &PreparedUnit, at: Timestamp) -> Result<Timestamp, WriteError> {
    let words = [unit.prepare_timestamp().as_u64(), at.as_u64()];
    let entry = entry_of(Kind::Commit, &words, &[]);
    storage().commit_prepared(unit, at, entry, Vec::new()).await
}

async fn abort_prepared(unit: &PreparedUnit) -> Result<Timestamp, WriteError> {
    let entry = entry_of(Kind::Abort, &[unit.prepare_timestamp().as_u64()], &[]);
    storage().abort_prepared(unit, entry, Vec::new()).await
}

fn inside(unit: &OpenUnit) -> ReadAt {
    ReadAt::In {
        at: unit.snapshot(),
        unit: unit.id(),
    }
}

async fn try_read(key: u64, at: ReadAt) -> Result<Option<String>, ReadError> {
    let partition = storage().partition_of_hash(&key.to_be_bytes());
    let owner = storage().owner(partition);
    submit_to(owner, Queue::Foreground, move || async move {
        let partition = storage().partition(partition).unwrap();
        let read = partition.get(TREE, &key.to_be_bytes(), at).await?;
        Ok(read.map(|read| String::from_utf8(read.value.to_vec()).unwrap()))
    })
    .await
}

async fn read(key: u64, at: ReadAt) -> Option<String> {
    try_read(key, at).await.unwrap()
}

/// Whether the read does not end by itself.
async fn waits(key: u64, at: ReadAt) -> bool {
    timeout(Duration::from_millis(50), read(key, at))
        .await
        .is_err()
}

/// The keys of the tree in order, over all partitions, with their values.
async fn scan(at: ReadAt, direction: Direction) -> Vec<(u64, String)> {
    let mut found = Vec::new();
    for partition in (0..storage().partition_count()).map(PartitionId) {
        let owner = storage().owner(partition);
        let here = submit_to(owner, Queue::Foreground, move || async move {
            let partition = storage().partition(partition).unwrap();
            let mut cursor = partition.cursor(TREE, KeyRange::all(), direction, at);
            let mut found = Vec::new();
            while let Some((key, read)) = cursor.next().await.unwrap() {
                let key = u64::from_be_bytes(key.as_slice().try_into().unwrap());
                found.push((key, String::from_utf8(read.value.to_vec()).unwrap()));
            }
            let mut sorted = found.clone();
            sorted.sort();
            if direction == Direction::Reverse {
                sorted.reverse();
            }
            assert_eq!(found, sorted, "a cursor gives keys in order, each once");
            found
        });
        found.extend(here.await);
    }
    found.sort();
    found
}

fn pairs(expected: &[(u64, &str)]) -> Vec<(u64, String)> {
    expected
        .iter()
        .map(|&(key, value)| (key, value.to_owned()))
        .collect()
}

async fn stats() -> StorageStats {
    let mut sum = StorageStats::default();
    for core in 0..pinion_runtime::core_count() as u16 {
        sum += submit_to(CoreId(core), Queue::Foreground, || async {
            storage().stats()
        })
        .await;
    }
    sum
}

async fn records() -> u64 {
    let mut records = 0;
    for core in 0..pinion_runtime::core_count() as u16 {
        records += submit_to(CoreId(core), Queue::Foreground, || async {
            (0..storage().partition_count())
                .filter_map(|number| storage().partition(PartitionId(number)))
                .map(|partition| partition.tree_stats(TREE).records)
                .sum::<u64>()
        })
        .await;
    }
    records
}

#[test]
fn a_unit_sees_what_it_wrote_and_others_see_it_whole() {
    for cores in 1..=3 {
        run(cores, options(), |storage| async move {
            for key in 0..6 {
                execute(vec![put(key, "old")]).await.unwrap();
            }
            let mut unit = begin().await;
            assert!(!unit.has_writes());
            let first = vec![put(1, "new"), put(7, "new"), delete(2)];
            storage.write_unit(&mut unit, first).await.unwrap();
            let second = vec![put(1, "newer"), put(2, "back"), delete(3), delete(7)];
            storage.write_unit(&mut unit, second).await.unwrap();
            assert!(unit.has_writes() && unit.bytes() > 0);
            let ts = storage.read_timestamp().await.unwrap();
            let olds: Vec<(u64, &str)> = (0..6).map(|key| (key, "old")).collect();
            let mine = [
                (0, "old"),
                (1, "newer"),
                (2, "back"),
                (4, "old"),
                (5, "old"),
            ];
            for direction in [Direction::Forward, Direction::Reverse] {
                assert_eq!(scan(inside(&unit), direction).await, pairs(&mine));
                assert_eq!(scan(ReadAt::Newest, direction).await, pairs(&olds));
                assert_eq!(scan(ReadAt::At(ts), direction).await, pairs(&olds));
            }
            assert_eq!(read(3, inside(&unit)).await, None);
            assert_eq!(read(7, inside(&unit)).await, None);
            assert_eq!(records().await, 6);
            let beside = Write {
                tree: BESIDE,
                ..put(1, "beside")
            };
            let entries = vec![entry_of(Kind::Writes, &[], &[])];
            let committed = storage.commit_unit(unit, entries, vec![beside]).await;
            let committed = committed.unwrap();
            assert_eq!(storage.visible(), committed);
            assert_eq!(scan(ReadAt::Newest, Direction::Forward).await, pairs(&mine));
            assert_eq!(scan(ReadAt::At(ts), Direction::Forward).await, pairs(&olds));
            assert_eq!(records().await, 5);
            let left = stats().await;
            assert_eq!(
                (left.open_units, left.intents, left.open_unit_bytes),
                (0, 0, 0)
            );
        });
    }
}

#[test]
fn the_first_committer_wins() {
    run(2, options(), |storage| async move {
        execute(vec![put(1, "old"), put(2, "old")]).await.unwrap();
        let (mut one, mut two) = (begin().await, begin().await);
        storage
            .write_unit(&mut one, vec![put(1, "one")])
            .await
            .unwrap();
        // What another holds, whether a unit or a statement wants it.
        let conflict = Err(WriteError::Conflict);
        let taken = storage.write_unit(&mut two, vec![put(5, "two"), put(1, "two")]);
        assert_eq!(taken.await, conflict);
        assert_eq!(
            execute(vec![put(1, "alone")]).await,
            Err(WriteError::Conflict)
        );
        // Of the statement that failed nothing is left.
        assert_eq!(read(5, inside(&two)).await, None);
        storage
            .write_unit(&mut one, vec![put(5, "one")])
            .await
            .unwrap();
        // What was committed since the snapshot, though it can be seen that no unit holds it.
        execute(vec![put(2, "since"), put(8, "since")])
            .await
            .unwrap();
        for late in [put(2, "two"), put(8, "two"), delete(8)] {
            assert_eq!(storage.write_unit(&mut two, vec![late]).await, conflict);
        }
        let check = write(2, Op::Check);
        assert_eq!(storage.write_unit(&mut two, vec![check]).await, conflict);
        commit(one, &[put(1, "one"), put(5, "one")]).await.unwrap();
        assert_eq!(
            storage.write_unit(&mut two, vec![put(1, "two")]).await,
            conflict
        );
        // The rest it may write.
        storage
            .write_unit(&mut two, vec![put(9, "two")])
            .await
            .unwrap();
        // The base shows as much as the delta, at least of what was changed.
        storage.checkpoint_merging_all().await.unwrap();
        let hold = storage.hold_snapshot(two.snapshot()).await;
        if hold.is_ok() {
            assert_eq!(
                storage.write_unit(&mut two, vec![put(8, "two")]).await,
                conflict
            );
        }
        storage.abort_unit(two).await;
        assert_eq!(read(9, ReadAt::Newest).await, None);
        if let Ok(hold) = hold {
            storage.release_snapshot(hold).await;
        }
    });
}

#[test]
fn a_snapshot_that_is_held_shows_what_changed_under_a_checkpoint() {
    run(2, options(), |storage| async move {
        for key in 0..40 {
            execute(vec![put(key, "old")]).await.unwrap();
        }
        let mut unit = begin().await;
        let hold = storage.hold_snapshot(unit.snapshot()).await.unwrap();
        for key in (0..40).step_by(2) {
            execute(vec![put(key, "since")]).await.unwrap();
        }
        sleep(Duration::from_secs(1)).await;
        storage.checkpoint_merging_all().await.unwrap();
        sleep(Duration::from_secs(1)).await;
        for key in 0..40 {
            let changed = storage.write_unit(&mut unit, vec![put(key, "mine")]).await;
            let expected = if key % 2 == 0 {
                Err(WriteError::Conflict)
            } else {
                Ok(())
            };
            assert_eq!(changed, expected, "key {key}");
            let seen = if key % 2 == 0 { "old" } else { "mine" };
            assert_eq!(read(key, inside(&unit)).await.as_deref(), Some(seen));
        }
        storage.abort_unit(unit).await;
        storage.release_snapshot(hold).await;
        assert_eq!(records().await, 40);
    });
}

#[test]
fn what_is_expected_is_expected_of_what_the_unit_sees() {
    run(2, options(), |storage| async move {
        execute(vec![put(1, "old")]).await.unwrap();
        let mut unit = begin().await;
        let expecting = |write: Write, expect: Expect| vec![Write { expect, ..write }];
        let unit = &mut unit;
        let absent = |key, value| expecting(put(key, value), Expect::Absent);
        let there = Err(WriteError::Exists { write: 0 });
        assert_eq!(storage.write_unit(unit, absent(1, "a")).await, there);
        storage.write_unit(unit, absent(2, "b")).await.unwrap();
        assert_eq!(storage.write_unit(unit, absent(2, "c")).await, there);
        storage.write_unit(unit, vec![delete(1)]).await.unwrap();
        let missing = storage.write_unit(unit, expecting(put(1, "d"), Expect::Present));
        assert_eq!(missing.await, Err(WriteError::Missing { write: 0 }));
        storage.write_unit(unit, absent(1, "e")).await.unwrap();
        let prefix = expecting(put(0x0100, "f"), Expect::UniquePrefix { len: 4 });
        let taken = storage.write_unit(unit, prefix.clone()).await;
        let own = storage.partition_of_hash(&0x0100u64.to_be_bytes());
        let shares = [1u64, 2].map(|key| storage.partition_of_hash(&key.to_be_bytes()) == own);
        match shares.contains(&true) {
            true => assert!(
                matches!(taken, Err(WriteError::Duplicate { .. })),
                "{taken:?}"
            ),
            false => assert_eq!(taken, Ok(())),
        }
        let aborted = std::mem::replace(unit, begin().await);
        storage.abort_unit(aborted).await;
        assert_eq!(read(1, ReadAt::Newest).await.as_deref(), Some("old"));
        let left = std::mem::replace(unit, begin().await);
        storage.abort_unit(left).await;
    });
}

/// A check holds its key until the end, and a write over it is one.
#[test]
fn a_check_holds_its_key() {
    run(1, options(), |storage| async move {
        execute(vec![put(1, "old")]).await.unwrap();
        let mut unit = begin().await;
        let check = write(1, Op::Check);
        storage
            .write_unit(&mut unit, vec![check.clone()])
            .await
            .unwrap();
        assert_eq!(
            execute(vec![put(1, "other")]).await,
            Err(WriteError::Conflict)
        );
        assert_eq!(read(1, inside(&unit)).await.as_deref(), Some("old"));
        storage
            .write_unit(&mut unit, vec![put(1, "new")])
            .await
            .unwrap();
        storage.write_unit(&mut unit, vec![check]).await.unwrap();
        assert_eq!(read(1, inside(&unit)).await.as_deref(), Some("new"));
        commit(unit, &[put(1, "new")]).await.unwrap();
        assert_eq!(read(1, ReadAt::Newest).await.as_deref(), Some("new"));
        assert_eq!(records().await, 1);
    });
}

#[test]
fn a_commit_that_fails_leaves_nothing() {
    run(3, options(), |storage| async move {
        execute(vec![put(1, "old"), put(2, "old")]).await.unwrap();
        let last = storage.last_allotted();
        let mut unit = begin().await;
        let writes: Vec<Write> = (10..20).map(|key| put(key, "new")).collect();
        storage.write_unit(&mut unit, writes.clone()).await.unwrap();
        let more = Write {
            expect: Expect::Absent,
            ..put(2, "beside")
        };
        let entries = vec![entry_of(Kind::Writes, &[], &writes)];
        let failed = storage.commit_unit(unit, entries, vec![more]).await;
        assert_eq!(failed, Err(WriteError::Exists { write: 0 }));
        let mut unit = begin().await;
        storage.write_unit(&mut unit, writes.clone()).await.unwrap();
        let failed = storage
            .commit_unit(unit, large_entries(MAX_UNIT_ENTRY_BYTES), Vec::new())
            .await;
        assert_eq!(failed, Err(WriteError::UnitTooLarge));
        assert_eq!((storage.last_allotted(), storage.fatal()), (last, None));
        assert_eq!(stats().await.intents, 0);
        assert_eq!(records().await, 2);
        execute(writes).await.unwrap();
    });
}

/// Entries that have a little more than `bytes` together.
fn large_entries(bytes: usize) -> Vec<Entry> {
    let large = |_| {
        let small = entry_of(Kind::Writes, &[], &[]).bytes;
        Entry::new([small, vec![0; LARGE_ENTRY_BYTES]].concat())
    };
    (0..bytes.div_ceil(LARGE_ENTRY_BYTES)).map(large).collect()
}

#[test]
fn a_unit_of_more_than_a_ring_takes_beside_others_comes_alone() {
    run(2, options(), |storage| async move {
        let mut unit = begin().await;
        let writes: Vec<Write> = (10..20).map(|key| put(key, "new")).collect();
        storage.write_unit(&mut unit, writes).await.unwrap();
        let entries = large_entries(5 * LARGE_ENTRY_BYTES);
        let others = spawn(Queue::Foreground, async {
            for key in 100..200 {
                execute(vec![put(key, "beside")]).await.unwrap();
            }
        });
        let committed = storage.commit_unit(unit, entries, Vec::new()).await;
        let committed = committed.unwrap();
        others.await.unwrap();
        assert_eq!(records().await, 110);
        storage.wait_durable(committed).await.unwrap();
    });
}

#[test]
fn what_is_open_ends_when_the_node_follows() {
    run(2, options(), |storage| async move {
        let mut open = begin().await;
        let mut idle = begin().await;
        let writes: Vec<Write> = (0..10).map(|key| put(key, "open")).collect();
        storage.write_unit(&mut open, writes.clone()).await.unwrap();
        let mut prepared = begin().await;
        storage
            .write_unit(&mut prepared, vec![put(20, "kept")])
            .await
            .unwrap();
        let prepared = prepare(prepared, &[put(20, "kept")]).await.unwrap();
        storage.follow().await.unwrap();
        assert_eq!(stats().await.open_units, 0);
        assert_eq!(stats().await.intents, 1);
        let refused = storage.write_unit(&mut idle, vec![put(30, "x")]).await;
        assert_eq!(refused, Err(WriteError::Following));
        assert_eq!(abort_prepared(&prepared).await, Err(WriteError::Following));
        storage.lead().await;
        let ended = storage.write_unit(&mut open, vec![put(1, "more")]).await;
        assert_eq!(ended, Err(WriteError::UnitEnded));
        let committed = commit(open, &writes).await;
        assert_eq!(committed, Err(WriteError::UnitEnded));
        storage.abort_unit(idle).await;
        let at = prepared.prepare_timestamp();
        commit_prepared(&prepared, at).await.unwrap();
        assert_eq!(
            scan(ReadAt::Newest, Direction::Forward).await,
            pairs(&[(20, "kept")])
        );
    });
}

#[test]
fn a_caller_that_goes_away_leaves_nothing_half_done() {
    for wait_us in [0, 1, 5, 20, 50, 100, 1000] {
        run(3, options(), move |storage| async move {
            let writes: Vec<Write> = (0..30).map(|key| put(key, "new")).collect();
            let mut unit = begin().await;
            let wait = Duration::from_micros(wait_us);
            let _ = timeout(wait, storage.write_unit(&mut unit, writes.clone())).await;
            storage.abort_unit(unit).await;
            assert_eq!((stats().await.intents, records().await), (0, 0));
            let mut unit = begin().await;
            storage.write_unit(&mut unit, writes.clone()).await.unwrap();
            let entries = vec![entry_of(Kind::Writes, &[], &writes)];
            let _ = timeout(wait, storage.commit_unit(unit, entries, Vec::new())).await;
            sleep(Duration::from_millis(10)).await;
            assert_eq!(stats().await.intents, 0);
            let there = records().await;
            assert!(there == 0 || there == 30, "{there} of 30 are there");
        });
    }
}

#[test]
fn open_units_take_no_more_memory_than_they_may() {
    let options = StorageOptions {
        cache_bytes: 8 * 1024 * 1024,
        memory_wait: Duration::from_millis(100),
        ..options()
    };
    run(2, options, |storage| async move {
        let large = "v".repeat(40_000);
        let fill = |unit: OpenUnit, first: u64| {
            let (storage, large) = (storage.clone(), large.clone());
            async move {
                let mut unit = unit;
                for key in first..first + 1000 {
                    let placed = storage.write_unit(&mut unit, vec![put(key, &large)]).await;
                    if let Err(error) = placed {
                        return (unit, key - first, error);
                    }
                }
                panic!("nothing was refused");
            }
        };
        let (unit, count, error) = fill(begin().await, 0).await;
        assert_eq!(error, WriteError::UnitTooLarge);
        assert!(count >= 20, "{count} writes of 40 kB");
        // A small one beside it has no room either, but it is not the one that is too large.
        let mut small = begin().await;
        let mut refused = 0;
        for key in 5000..5200 {
            match storage.write_unit(&mut small, vec![put(key, &large)]).await {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error, WriteError::CacheFull);
                    refused += 1;
                    break;
                }
            }
        }
        assert_eq!(refused, 1);
        // Others write and checkpoints continue.
        for key in 10_000..10_400 {
            execute(vec![put(key, &large[..4000])]).await.unwrap();
        }
        storage.checkpoint().await.unwrap();
        assert_eq!(records().await, 400);
        storage.abort_unit(unit).await;
        storage.abort_unit(small).await;
        assert_eq!(stats().await.open_unit_bytes, 0);
        let (unit, count, _) = fill(begin().await, 0).await;
        assert!(count >= 20);
        storage.abort_unit(unit).await;
    });
}

#[test]
fn a_chain_of_entries_is_committed_at_the_last() {
    run(2, options(), |storage| async move {
        let mut unit = begin().await;
        let writes: Vec<Write> = (0..10).map(|key| put(key, "new")).collect();
        storage.write_unit(&mut unit, writes.clone()).await.unwrap();
        let before = storage.last_allotted();
        let entries: Vec<Entry> = writes
            .iter()
            .map(|write| entry_of(Kind::Part, &[], std::slice::from_ref(write)))
            .collect();
        let ts = storage
            .commit_unit(unit, entries, Vec::new())
            .await
            .unwrap();
        assert_eq!(storage.last_allotted(), ts);
        assert!(ts.as_u64() >= before.as_u64() + 10);
        let earlier = Timestamp::from_u64(ts.as_u64() - 1);
        assert_eq!(scan(ReadAt::At(earlier), Direction::Forward).await, []);
        assert_eq!(scan(ReadAt::At(ts), Direction::Forward).await.len(), 10);
    });
}

#[test]
fn readers_wait_for_what_is_prepared() {
    run(2, options(), |storage| async move {
        execute(vec![put(1, "old"), put(2, "old"), put(3, "old")])
            .await
            .unwrap();
        let before = storage.read_timestamp().await.unwrap();
        let hold = storage.hold_snapshot(before).await.unwrap();
        let writes = [put(1, "new"), delete(2), put(4, "new")];
        let mut unit = begin().await;
        storage
            .write_unit(&mut unit, writes.to_vec())
            .await
            .unwrap();
        let unit = prepare(unit, &writes).await.unwrap();
        let prepared = unit.prepare_timestamp();
        // The visible timestamp is not held back.
        let later = execute(vec![put(9, "later")]).await.unwrap();
        let holds = [
            storage.hold_snapshot(prepared).await.unwrap(),
            storage.hold_snapshot(later).await.unwrap(),
        ];
        assert_eq!(storage.read_timestamp().await.unwrap(), later);
        assert_eq!(read(1, ReadAt::At(before)).await.as_deref(), Some("old"));
        assert_eq!(scan(ReadAt::At(before), Direction::Reverse).await.len(), 3);
        for at in [ReadAt::Newest, ReadAt::At(prepared), ReadAt::At(later)] {
            assert!(waits(1, at).await && waits(2, at).await && waits(4, at).await);
            assert_eq!(read(3, at).await.as_deref(), Some("old"));
            let scanned = timeout(Duration::from_millis(50), scan(at, Direction::Forward)).await;
            assert!(scanned.is_err());
        }
        let mut other = begin().await;
        assert!(waits(1, inside(&other)).await);
        let held = storage.write_unit(&mut other, vec![put(4, "other")]).await;
        assert_eq!(held, Err(WriteError::Conflict));
        assert_eq!(
            execute(vec![put(1, "other")]).await,
            Err(WriteError::Conflict)
        );
        let reading = spawn(Queue::Foreground, read(1, ReadAt::At(later)));
        let commit = Timestamp::from_u64(prepared.as_u64());
        let ended = commit_prepared(&unit, commit).await.unwrap();
        assert!(ended > later);
        assert_eq!(reading.await.unwrap().as_deref(), Some("new"));
        assert_eq!(read(2, ReadAt::At(commit)).await, None);
        assert_eq!(read(1, ReadAt::At(before)).await.as_deref(), Some("old"));
        // It is over.
        assert_eq!(
            commit_prepared(&unit, commit).await,
            Err(WriteError::UnitEnded)
        );
        assert_eq!(abort_prepared(&unit).await, Err(WriteError::UnitEnded));
        storage.abort_unit(other).await;

        let mut unit = begin().await;
        storage
            .write_unit(&mut unit, writes.to_vec())
            .await
            .unwrap();
        let unit = prepare(unit, &writes).await.unwrap();
        let reading = spawn(Queue::Foreground, read(4, ReadAt::Newest));
        abort_prepared(&unit).await.unwrap();
        assert_eq!(reading.await.unwrap().as_deref(), Some("new"));
        assert_eq!(records().await, 4);
        storage.release_snapshot(hold).await;
        for hold in holds {
            storage.release_snapshot(hold).await;
        }
    });
}

#[test]
fn closing_interrupts_who_waits_for_what_is_prepared() {
    type Reading = Option<Result<Option<String>, ReadError>>;
    let reading: Rc<RefCell<Reading>> = Rc::default();
    let found = reading.clone();
    run(2, options(), move |storage| {
        let reading = reading.clone();
        async move {
            let mut unit = begin().await;
            storage
                .write_unit(&mut unit, vec![put(1, "new")])
                .await
                .unwrap();
            let unit = prepare(unit, &[put(1, "new")]).await.unwrap();
            spawn(Queue::Foreground, async move {
                let read = try_read(1, ReadAt::Newest).await;
                *reading.borrow_mut() = Some(read);
            });
            sleep(Duration::from_millis(5)).await;
            let _left = begin().await;
            drop(unit);
        }
    });
    assert_eq!(found.borrow_mut().take(), Some(Err(ReadError::Interrupted)));
}

#[test]
fn units_of_many_cores_run_at_once() {
    run(3, options(), |storage| async move {
        const KEYS: u64 = 12;
        for key in 0..KEYS {
            execute(vec![put(key, "10")]).await.unwrap();
        }
        let started = now();
        let client = |core: u16| {
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                let storage = pinion_storage::storage();
                let mut rng = pinion_runtime::random_stream("client");
                let mut committed = 0;
                while committed < 30 {
                    let mut unit = begin().await;
                    let (from, to) = (rng.below(KEYS), rng.below(KEYS));
                    if from == to {
                        continue;
                    }
                    let mut moved = Vec::new();
                    let mut failed = false;
                    for (key, by) in [(from, -1), (to, 1)] {
                        let Ok(value) = try_read(key, inside(&unit)).await else {
                            failed = true;
                            break;
                        };
                        let value: i64 = value.unwrap().parse().unwrap();
                        let write = put(key, &(value + by).to_string());
                        moved.push(write.clone());
                        failed = storage.write_unit(&mut unit, vec![write]).await.is_err();
                        if failed {
                            break;
                        }
                    }
                    if failed {
                        storage.abort_unit(unit).await;
                        sleep(Duration::from_micros(rng.below(500))).await;
                        continue;
                    }
                    commit(unit, &moved).await.unwrap();
                    committed += 1;
                }
            })
        };
        let checker = spawn(Queue::Foreground, async move {
            let mut looks = 0;
            while now() - started < Duration::from_millis(20) {
                let ts = pinion_storage::storage().read_timestamp().await.unwrap();
                let found = scan(ReadAt::At(ts), Direction::Forward).await;
                let sum: i64 = found.iter().map(|(_, v)| v.parse::<i64>().unwrap()).sum();
                assert_eq!(sum, 10 * KEYS as i64, "at {ts}: {found:?}");
                looks += 1;
            }
            looks
        });
        join_all((0..3).map(client)).await;
        assert!(checker.await.unwrap() > 0);
        let found = scan(ReadAt::Newest, Direction::Forward).await;
        let sum: i64 = found.iter().map(|(_, v)| v.parse::<i64>().unwrap()).sum();
        assert_eq!(sum, 10 * KEYS as i64);
        assert_eq!(stats().await.intents, 0);
        let _ = storage;
    });
}
