//! The workload of the crash tests, and the oracle that remembers what was promised.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Queue, Rng, random_stream, sleep, submit_to};
use pinion_storage::{
    Applier, ApplyError, Direction, ENTRY_TERM_OFFSET, ENTRY_TS_OFFSET, Entry, Expect, Key,
    KeyRange, Op, PartitionId, ReadAt, ReadError, Statement, Storage, TreeId, Write, WriteError,
    storage,
};

/// Overwritten again and again.
pub const SHARED: TreeId = TreeId(5);
/// Inserted once, several keys at a time.
pub const PAIRS: TreeId = TreeId(6);
/// Keys of a prefix that must be unique and the number of the attempt.
pub const UNIQUE: TreeId = TreeId(7);
pub const SHARED_KEYS: u64 = 24;

/// One statement as the test knows it: what each key becomes; the value is the number of the
/// attempt.
#[derive(Clone, Debug)]
pub struct Attempt {
    pub tree: TreeId,
    pub keys: Vec<u64>,
    /// A prefix that no other attempt may take.
    pub unique: Option<u64>,
    /// What it read, if it was a unit that stayed open.
    pub snapshot: Option<Timestamp>,
    /// In which life of the node it was attempted: timestamps that a crash has cut off come again.
    pub life: u64,
    pub ts: Option<Timestamp>,
    pub durable: bool,
    pub failed: bool,
}

/// What was attempted, and what was promised, over all lives of the node.
#[derive(Default)]
pub struct Oracle {
    pub attempts: BTreeMap<u64, Attempt>,
    pub next: u64,
    pub acknowledged: u64,
    pub conflicts: u64,
    pub duplicates: u64,
    pub refusals: u64,
    pub snapshots: u64,
    /// Units that stayed open and were committed, and those that were aborted or refused.
    pub units: u64,
    pub aborted_units: u64,
    pub replayed: u64,
    pub cut: u64,
    pub torn: u64,
    pub refused: Vec<String>,
    pub recoveries: u64,
}

pub type SharedOracle = Rc<RefCell<Oracle>>;

fn key_bytes(key: u64) -> Key {
    Key::from_slice(&key.to_be_bytes())
}

fn writes(storage: &Storage, number: u64, attempt: &Attempt) -> Vec<Write> {
    let write = |&key: &u64| Write {
        partition: storage.partition_of_hash(&key.to_be_bytes()),
        tree: attempt.tree,
        key: key_bytes(key),
        op: Op::Put(Bytes::copy_from_slice(&number.to_be_bytes())),
        expect: if attempt.tree == PAIRS {
            Expect::Absent
        } else {
            Expect::Any
        },
    };
    let unique = attempt.unique.map(|prefix| Write {
        partition: storage.partition_of_hash(&prefix.to_be_bytes()),
        tree: UNIQUE,
        key: [prefix.to_be_bytes(), number.to_be_bytes()].concat().into(),
        op: Op::Put(Bytes::new()),
        expect: Expect::UniquePrefix { len: 8 },
    });
    attempt.keys.iter().map(write).chain(unique).collect()
}

/// Where an entry has its attempt: number, tree, unique prefix, how many keys, and these.
const ATTEMPT_AT: usize = ENTRY_TERM_OFFSET + 8;

/// A document as far as storage cares: length, `ts`, `t`, and the attempt behind it. Padded, so
/// that entries span frames.
fn entry(number: u64, attempt: &Attempt, padding: usize) -> Entry {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(b"\x11ts\0");
    assert_eq!(bytes.len(), ENTRY_TS_OFFSET);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(b"\x12t\0");
    assert_eq!(bytes.len(), ENTRY_TERM_OFFSET);
    bytes.extend_from_slice(&[0; 8]);
    let unique = attempt.unique.unwrap_or(u64::MAX);
    for word in [number, attempt.tree.0, unique, attempt.keys.len() as u64]
        .iter()
        .chain(&attempt.keys)
    {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.resize(bytes.len() + padding, b'p');
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    Entry::new(bytes)
}

/// Applies entries of this workload.
pub struct TestApplier {
    pub last: RefCell<Timestamp>,
}

impl Applier for TestApplier {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        assert!(ts > self.last.replace(ts), "entries are replayed in order");
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
        assert_eq!(
            word(ENTRY_TS_OFFSET),
            ts.as_u64(),
            "the entry carries its timestamp"
        );
        let attempt = Attempt {
            tree: TreeId(word(ATTEMPT_AT + 8)),
            keys: (0..word(ATTEMPT_AT + 24) as usize)
                .map(|at| word(ATTEMPT_AT + 32 + at * 8))
                .collect(),
            unique: Some(word(ATTEMPT_AT + 16)).filter(|&prefix| prefix != u64::MAX),
            snapshot: None,
            life: 0,
            ts: Some(ts),
            durable: false,
            failed: false,
        };
        let storage = storage();
        storage
            .apply_at(ts, writes(&storage, word(ATTEMPT_AT), &attempt))
            .await
    }
}

/// One client: random statements, one after another, until the node dies or `count` are done.
pub async fn client(oracle: SharedOracle, count: u64) {
    let storage = storage();
    let mut rng = random_stream("client");
    let fresh = |rng: &mut Rng, oracle: &SharedOracle| {
        let mut oracle = oracle.borrow_mut();
        oracle.next += 1;
        let number = oracle.next;
        let shared = rng.chance(0.5);
        let keys: BTreeSet<u64> = match shared {
            true => (0..=rng.below(3)).map(|_| rng.below(SHARED_KEYS)).collect(),
            false => (0..=rng.below(3)).map(|nth| number * 10 + nth).collect(),
        };
        let tree = if shared { SHARED } else { PAIRS };
        let unique = (!shared && rng.chance(0.4)).then(|| rng.below(60));
        let keys = keys.into_iter().collect();
        let attempt = Attempt {
            tree,
            keys,
            unique,
            snapshot: None,
            life: oracle.recoveries,
            ts: None,
            durable: false,
            failed: false,
        };
        oracle.attempts.insert(number, attempt.clone());
        (number, attempt)
    };
    for _ in 0..count {
        let batch = if rng.chance(0.2) {
            1 + rng.below(12)
        } else {
            1
        };
        let attempts: Vec<(u64, Attempt)> = (0..batch).map(|_| fresh(&mut rng, &oracle)).collect();
        let statements = attempts.iter().map(|(number, attempt)| {
            let padding = if rng.chance(0.05) {
                rng.below(20_000)
            } else {
                rng.below(300)
            };
            Statement {
                writes: writes(&storage, *number, attempt),
                entry: Some(entry(*number, attempt, padding as usize)),
            }
        });
        let statements = statements.collect();
        let statements: Vec<Statement> = statements;
        let ordered = rng.chance(0.5);
        let outcomes = match batch == 1 && rng.chance(0.4) {
            true => {
                let statement = statements.into_iter().next().expect("a batch of one");
                let attempt = &attempts[0];
                vec![in_a_unit(&storage, &oracle, &mut rng, attempt, statement).await]
            }
            false => storage.execute(statements, ordered).await,
        };
        let mut last = None;
        for ((number, _), outcome) in attempts.iter().zip(outcomes) {
            let mut oracle = oracle.borrow_mut();
            let attempt = oracle.attempts.get_mut(number).unwrap();
            let count_of_keys = attempt.keys.len();
            match outcome {
                Ok(ts) => {
                    attempt.ts = Some(ts);
                    last = last.max(Some(ts));
                }
                Err(WriteError::Fatal(fatal)) => panic!("{fatal}"),
                Err(error) => {
                    attempt.failed = true;
                    match error {
                        WriteError::Conflict | WriteError::NotReached => oracle.conflicts += 1,
                        WriteError::Duplicate { write, .. } if write == count_of_keys => {
                            oracle.duplicates += 1
                        }
                        WriteError::CacheFull => oracle.refusals += 1,
                        other => panic!("{other:?}"),
                    }
                }
            }
        }
        if let Some(last) = last
            && rng.chance(0.7)
        {
            storage.wait_durable(last).await.unwrap();
            let mut oracle = oracle.borrow_mut();
            for (number, _) in &attempts {
                let attempt = oracle.attempts.get_mut(number).unwrap();
                attempt.durable |= attempt.ts.is_some();
            }
            oracle.acknowledged += 1;
        }
        if rng.chance(0.1) {
            check_snapshot(&storage, &oracle, &attempts).await;
        }
        if rng.chance(0.2) {
            sleep(Duration::from_micros(rng.below(3_000))).await;
        }
    }
}

/// A statement as a transaction: a part at a time, with what it wrote read in between. What it
/// wants to take back is [`WriteError::NotReached`].
async fn in_a_unit(
    storage: &Rc<Storage>,
    oracle: &SharedOracle,
    rng: &mut Rng,
    (number, attempt): &(u64, Attempt),
    statement: Statement,
) -> Result<Timestamp, WriteError> {
    let ts = storage.read_timestamp().await.map_err(WriteError::Fatal)?;
    let mut unit = storage.begin_unit(ts);
    let hold = match rng.chance(0.5) {
        true => storage.hold_snapshot(ts).await.ok(),
        false => None,
    };
    let at = ReadAt::In {
        at: ts,
        unit: unit.id(),
    };
    let mut writes = statement.writes;
    let mut placed = Ok(());
    let mut done = 0;
    while placed.is_ok() && !writes.is_empty() {
        let rest = writes.split_off(1 + rng.below(writes.len() as u64) as usize);
        let count = writes.len();
        placed = storage.write_unit(&mut unit, writes).await;
        writes = rest;
        if let Err(WriteError::Duplicate { write, .. }) = &mut placed {
            *write += done;
        }
        done += count;
        for &key in attempt.keys.iter().take(done).filter(|_| placed.is_ok()) {
            let read = try_read(storage, attempt.tree, key, at).await;
            // Without a hold the snapshot may be gone.
            if read != Err(ReadError::SnapshotTooOld) {
                assert_eq!(read, Ok(Some(*number)), "a unit reads what it wrote");
            }
        }
        if rng.chance(0.3) {
            sleep(Duration::from_micros(rng.below(5_000))).await;
        }
    }
    if placed.is_ok() && rng.chance(0.15) {
        placed = Err(WriteError::NotReached);
    }
    let committed = match placed {
        Ok(()) => {
            let entries = statement.entry.into_iter().collect();
            storage.commit_unit(unit, entries, Vec::new()).await
        }
        Err(error) => {
            storage.abort_unit(unit).await;
            Err(error)
        }
    };
    if let Some(hold) = hold {
        storage.release_snapshot(hold).await;
    }
    let oracle = &mut *oracle.borrow_mut();
    match committed {
        Ok(_) => {
            oracle.units += 1;
            oracle.attempts.get_mut(number).unwrap().snapshot = Some(ts);
        }
        Err(_) => oracle.aborted_units += 1,
    }
    // Of those, the oracle of single statements knows only the conflict.
    committed.map_err(|error| match error {
        WriteError::UnitTooLarge => WriteError::CacheFull,
        WriteError::SnapshotTooOld => WriteError::Conflict,
        error => error,
    })
}

/// No other writer has written what a unit wrote between its snapshot and its commit.
fn check_first_committers(attempts: &BTreeMap<u64, Attempt>) {
    let committed = |attempt: &&Attempt| attempt.tree == SHARED && attempt.ts.is_some();
    for (number, unit) in attempts {
        let (Some(snapshot), Some(ts)) = (unit.snapshot, unit.ts) else {
            continue;
        };
        for other in attempts.values().filter(committed) {
            let is_between =
                other.ts > Some(snapshot) && other.ts < Some(ts) && other.life == unit.life;
            let shared = other.keys.iter().find(|key| unit.keys.contains(key));
            assert!(
                unit.tree != SHARED || !is_between || shared.is_none(),
                "attempt {number} read at {snapshot} and was committed at {ts}, and {other:?} came in between"
            );
        }
    }
}

/// The value of a key, read on its owner. Only the newest is always there to be read: nothing pins
/// older ones here.
async fn try_read(
    storage: &Rc<Storage>,
    tree: TreeId,
    key: u64,
    at: ReadAt,
) -> Result<Option<u64>, ReadError> {
    let partition = storage.partition_of_hash(&key.to_be_bytes());
    let value = submit_to(
        storage.owner(partition),
        Queue::Foreground,
        move || async move {
            let partition = pinion_storage::storage()
                .partition(partition)
                .expect("asked its owner");
            Ok(partition
                .get(tree, &key.to_be_bytes(), at)
                .await?
                .map(|read| read.value))
        },
    )
    .await?;
    Ok(value.map(|bytes: Bytes| u64::from_be_bytes(bytes[..].try_into().unwrap())))
}

async fn read(storage: &Rc<Storage>, tree: TreeId, key: u64) -> Option<u64> {
    try_read(storage, tree, key, ReadAt::Newest)
        .await
        .unwrap_or_else(|error| panic!("{error}"))
}

/// A snapshot holds all keys of a unit or none, and this client's own writes.
async fn check_snapshot(storage: &Rc<Storage>, oracle: &SharedOracle, own: &[(u64, Attempt)]) {
    let ts = storage.read_timestamp().await.unwrap();
    let of_others = {
        let oracle = oracle.borrow();
        oracle
            .attempts
            .iter()
            .rev()
            .take(20)
            .map(|(number, attempt)| (*number, attempt.clone()))
            .collect::<Vec<_>>()
    };
    for (number, attempt) in of_others
        .iter()
        .chain(own)
        .filter(|(_, attempt)| attempt.tree == PAIRS)
    {
        let mut found = Vec::new();
        for &key in &attempt.keys {
            match try_read(storage, PAIRS, key, ReadAt::At(ts)).await {
                Ok(value) => found.push(value),
                Err(ReadError::SnapshotTooOld) => return,
                Err(error) => panic!("{error}"),
            }
        }
        let whole =
            found.iter().all(|value| *value == Some(*number)) || found.iter().all(Option::is_none);
        assert!(
            whole,
            "at {ts} attempt {number} is there in part: {found:?}"
        );
        let known = oracle.borrow().attempts[number].clone();
        if own.iter().any(|(own, _)| own == number) && known.ts.is_some() {
            assert_eq!(
                found[0],
                Some(*number),
                "a snapshot taken afterwards lacks its own write"
            );
        }
    }
    oracle.borrow_mut().snapshots += 1;
}

/// The attempt that holds each unique prefix; never two.
async fn check_unique(storage: &Rc<Storage>) -> BTreeMap<u64, u64> {
    let mut holders = BTreeMap::new();
    for partition in (0..storage.partition_count()).map(PartitionId) {
        let keys = submit_to(
            storage.owner(partition),
            Queue::Foreground,
            move || async move {
                let partition = pinion_storage::storage()
                    .partition(partition)
                    .expect("asked its owner");
                let mut cursor =
                    partition.cursor(UNIQUE, KeyRange::all(), Direction::Forward, ReadAt::Newest);
                let mut keys = Vec::new();
                while let Some((key, _)) = cursor.next().await.unwrap() {
                    keys.push(key);
                }
                keys
            },
        )
        .await;
        for key in keys {
            let word = |at: usize| u64::from_be_bytes(key[at..at + 8].try_into().unwrap());
            let before = holders.insert(word(0), word(8));
            assert_eq!(
                before,
                None,
                "the unique prefix {} is there twice, once by attempt {}",
                word(0),
                word(8)
            );
        }
    }
    holders
}

/// After recovery: every promise is kept, nothing is there in part.
pub async fn check_state(oracle: &SharedOracle) {
    let storage = storage();
    let attempts = oracle.borrow().attempts.clone();
    check_first_committers(&attempts);
    let unique = check_unique(&storage).await;
    let (mut present, mut lost) = (None, Vec::new());
    // Which timestamp each shared key has at least, by what was acknowledged as durable.
    let mut newest: BTreeMap<u64, (Timestamp, u64)> = BTreeMap::new();
    for (&number, attempt) in &attempts {
        match attempt.tree {
            PAIRS => {
                let mut found = Vec::new();
                for &key in &attempt.keys {
                    found.push(read(&storage, PAIRS, key).await);
                }
                let there = found.iter().all(|value| *value == Some(number));
                assert!(
                    there || found.iter().all(Option::is_none),
                    "attempt {number} is there in part: {found:?}"
                );
                let prefix = attempt
                    .unique
                    .filter(|prefix| unique.get(prefix) == Some(&number));
                assert_eq!(
                    prefix,
                    attempt.unique.filter(|_| there),
                    "attempt {number} and its unique key part"
                );
                match attempt.ts.filter(|_| !attempt.failed) {
                    Some(ts) if there => present = present.max(Some(ts)),
                    Some(ts) => lost.push((ts, number)),
                    None => {}
                }
                assert!(
                    there || !attempt.durable,
                    "attempt {number} was durable at {:?} and is lost",
                    attempt.ts
                );
                assert!(
                    !there || !attempt.failed,
                    "attempt {number} failed and is there"
                );
            }
            _ => {
                for &key in attempt.keys.iter().filter(|_| attempt.durable) {
                    let ts = attempt.ts.unwrap();
                    let entry = newest.entry(key).or_insert((ts, number));
                    *entry = (*entry).max((ts, number));
                }
            }
        }
    }
    for (ts, number) in lost {
        assert!(
            Some(ts) > present,
            "attempt {number} at {ts} is lost, and a later one at {present:?} is there"
        );
        // What a cut discarded stays away.
        oracle
            .borrow_mut()
            .attempts
            .get_mut(&number)
            .unwrap()
            .failed = true;
    }
    let mut values: BTreeMap<u64, u64> = BTreeMap::new();
    for key in 0..SHARED_KEYS {
        if let Some(value) = read(&storage, SHARED, key).await {
            values.insert(key, value);
            let attempt = &attempts[&value];
            assert!(
                !attempt.failed && attempt.keys.contains(&key),
                "key {key} has the value of attempt {value}"
            );
        }
    }
    for (key, (ts, number)) in newest {
        let value = *values
            .get(&key)
            .unwrap_or_else(|| panic!("key {key} was durable at {ts} and is lost"));
        let found = &attempts[&value];
        assert!(
            found.ts.is_none_or(|found| found >= ts),
            "key {key} has {value}, older than {number} at {ts}"
        );
    }
    // A statement that is there on one key is there, or overwritten by a later one, on all.
    for (&key, &value) in &values {
        let attempt = &attempts[&value];
        for other in attempt.keys.iter().filter(|&&other| other != key) {
            let there = values
                .get(other)
                .unwrap_or_else(|| panic!("attempt {value} is on {key} and not on {other}"));
            let (one, two) = (attempt.ts, attempts[there].ts);
            assert!(
                one.is_none() || two.is_none() || two >= one,
                "attempt {value} at {one:?} is on {key}, and {other} has the older {there} at {two:?}"
            );
        }
    }
}
