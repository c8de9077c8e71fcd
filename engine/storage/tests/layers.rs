//! A member whose stable timestamp stands still, far beyond its memory: it takes writes, answers
//! reads at any time, has all of it after a crash, and brings it into the base when the timestamp
//! moves.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Queue, Rng, sleep, submit_to};
use pinion_storage::{
    Applier, ApplyError, Direction, Entry, Expect, Key, KeyRange, Op, PartitionId, PlantedFault,
    ReadAt, ReadError, Statement, StorageOptions, TreeId, Write, WriteError, open, storage,
};

const TREE: TreeId = TreeId(5);
const KEYS: u64 = 300;

/// What was written: when, which key, and its number.
type Change = (Timestamp, u64, u64);

fn document(key: u64, number: u64) -> Vec<u8> {
    let mut bytes = b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}

fn change_of(bytes: &[u8]) -> (u64, u64) {
    let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    (number(27), number(35))
}

/// The value of a write: small, of a page, or in an extent of its own; none for a deletion.
fn value_of(number: u64) -> Option<Bytes> {
    let len = match number % 11 {
        0 => return None,
        1 => 9000,
        _ => 8 + (number % 700) as usize,
    };
    let mut value = number.to_le_bytes().to_vec();
    value.resize(len, 7);
    Some(Bytes::from(value))
}

fn write(key: u64, number: u64, expect: Expect) -> Write {
    Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: value_of(number).map_or(Op::Delete, Op::Put),
        expect,
    }
}

struct Replay;

impl Applier for Replay {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let (key, number) = change_of(&entry);
        storage()
            .apply_at(ts, vec![write(key, number, Expect::Any)])
            .await
    }
}

#[derive(Default)]
struct Written(Vec<Change>);

impl Written {
    /// The live keys at `ts`, and their numbers.
    fn state(&self, ts: Timestamp) -> BTreeMap<u64, u64> {
        let mut state = BTreeMap::new();
        for &(_, key, number) in self.0.iter().take_while(|change| change.0 <= ts) {
            match value_of(number) {
                Some(_) => state.insert(key, number),
                None => state.remove(&key),
            };
        }
        state
    }

    fn is_live(&self, key: u64) -> bool {
        let newest = self.0.iter().rev().find(|change| change.1 == key);
        newest.is_some_and(|change| value_of(change.2).is_some())
    }
}

/// Writes one key, expecting of it what is true or what is not.
async fn write_some(written: &RefCell<Written>, rng: &mut Rng, number: u64) {
    let key = rng.below(KEYS);
    let is_live = written.borrow().is_live(key);
    let (expect, is_right) = match rng.below(4) {
        0 => (Expect::Absent, !is_live),
        1 => (Expect::Present, is_live),
        _ => (Expect::Any, true),
    };
    let statement = Statement {
        writes: vec![write(key, number, expect)],
        entry: Some(Entry::new(document(key, number))),
    };
    let outcome = storage().execute(vec![statement], true).await.pop();
    match outcome.expect("one outcome") {
        Ok(ts) => {
            assert!(is_right, "{key} was written on a false expectation");
            written.borrow_mut().0.push((ts, key, number));
        }
        Err(WriteError::Exists { .. } | WriteError::Missing { .. }) => {
            assert!(!is_right, "{key} was refused on a true expectation");
        }
        Err(error) => panic!("{error}"),
    }
}

/// A scan of all partitions, in a direction.
async fn scan(at: ReadAt, direction: Direction) -> Result<BTreeMap<u64, Bytes>, ReadError> {
    let mut found = BTreeMap::new();
    for partition in 0..storage().partition_count() {
        let partition = PartitionId(partition);
        let part = submit_to(
            storage().owner(partition),
            Queue::Foreground,
            move || async move {
                let owned = storage().partition(partition).expect("asked its owner");
                let mut cursor = owned.cursor(TREE, KeyRange::all(), direction, at);
                let mut found = Vec::new();
                while let Some((key, read)) = cursor.next().await? {
                    let key = u64::from_be_bytes(key.as_slice().try_into().expect("eight bytes"));
                    found.push((key, Bytes::copy_from_slice(&read.value)));
                }
                Ok::<_, ReadError>(found)
            },
        );
        found.extend(part.await?);
    }
    Ok(found)
}

async fn get(key: u64, at: ReadAt) -> Result<Option<Bytes>, ReadError> {
    let partition = storage().partition_of_hash(&key.to_be_bytes());
    let read = submit_to(
        storage().owner(partition),
        Queue::Foreground,
        move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let read = owned.get(TREE, &key.to_be_bytes(), at).await?;
            Ok(read.map(|read| Bytes::copy_from_slice(&read.value)))
        },
    );
    read.await
}

/// Scans in both directions, and looks some keys up.
async fn check(written: &RefCell<Written>, at: ReadAt, rng: &mut Rng) {
    let ts = match at {
        ReadAt::At(ts) => ts,
        _ => Timestamp::MAX,
    };
    let state = written.borrow().state(ts);
    let value = |number: &u64| value_of(*number).expect("it is live");
    let expected: BTreeMap<u64, Bytes> = state.iter().map(|(key, n)| (*key, value(n))).collect();
    for direction in [Direction::Forward, Direction::Reverse] {
        let found = scan(at, direction).await.unwrap();
        assert!(found == expected, "a scan {direction:?} at {at:?} differs");
    }
    for _ in 0..20 {
        let key = rng.below(KEYS);
        let found = get(key, at).await.unwrap();
        assert_eq!(found, state.get(&key).map(value), "{key} at {at:?}");
    }
}

/// How many layers lie over the base.
async fn layers() -> u64 {
    submit_to(CoreId(0), Queue::Foreground, || async {
        storage().stats().layers
    })
    .await
}

struct Member {
    written: RefCell<Written>,
    /// Lives that came to their end.
    lives: Cell<u32>,
    highest: Cell<u64>,
    replayed_to_layers: Cell<bool>,
}

fn options() -> StorageOptions {
    StorageOptions {
        is_member: true,
        cache_bytes: 1024 * 1024,
        partitions: Some(3),
        ..StorageOptions::hostile("/srv/pinion/data")
    }
}

/// Writes several times what memory holds while nothing becomes stable, and dies.
async fn life(member: Rc<Member>, options: StorageOptions) {
    let life = member.lives.get();
    let mut rng = Rng::from_seed(u64::from(life) + 1);
    open(options).await.unwrap().recover(Replay).await.unwrap();
    let written = &member.written;
    // What was not durable is gone.
    let last = storage().last_allotted();
    written.borrow_mut().0.retain(|change| change.0 <= last);
    let recovered = layers().await;
    member
        .replayed_to_layers
        .set(member.replayed_to_layers.get() | (life > 0 && recovered > 0));
    check(written, ReadAt::Newest, &mut rng).await;
    let budget = storage().stats().delta_budget_bytes;
    let first = u64::from(life) * 100_000;
    for number in first..first + 2500 {
        write_some(written, &mut rng, number).await;
        if number.is_multiple_of(250) {
            check(written, ReadAt::Newest, &mut rng).await;
            let some = rng.below(written.borrow().0.len() as u64) as usize;
            let (ts, ..) = written.borrow().0[some];
            check(written, ReadAt::At(ts), &mut rng).await;
            assert!(storage().stats().delta_bytes <= budget);
        }
    }
    member.highest.set(member.highest.get().max(layers().await));
    let last = storage().last_allotted();
    storage().wait_durable(last).await.unwrap();
    if life == 1 {
        roll_back(written, &mut rng).await;
    }
    member.lives.set(life + 1);
    if life == 2 {
        move_stable(&member, &mut rng).await;
    }
    sleep(Duration::from_secs(3600)).await;
}

/// Takes the last part back; layers above and below end with it, and are made again.
async fn roll_back(written: &RefCell<Written>, rng: &mut Rng) {
    let (to, ..) = {
        let written = &written.borrow().0;
        written[written.len() * 9 / 10]
    };
    let reopening = storage().close_to_reopen().await;
    let opened = reopening.open().await.unwrap();
    let report = opened.recover_up_to(to, Replay).await.unwrap();
    assert_eq!(report.cut, to);
    written.borrow_mut().0.retain(|change| change.0 <= to);
    check(written, ReadAt::Newest, rng).await;
    for number in 0..100 {
        write_some(written, rng, 900_000 + number).await;
    }
    check(written, ReadAt::Newest, rng).await;
    let last = storage().last_allotted();
    storage().wait_durable(last).await.unwrap();
}

/// Lets the timestamp move in some steps; everything comes into the base.
async fn move_stable(member: &Member, rng: &mut Rng) {
    let written = &member.written;
    for part in 1..=4 {
        let at = written.borrow().0.len() * part / 4 - 1;
        let (stable, ..) = written.borrow().0[at];
        storage().set_stable(stable);
        let before = layers().await;
        let base = storage().checkpoint().await.unwrap();
        assert!(base <= stable && layers().await <= before);
        check(written, ReadAt::Newest, rng).await;
        // The history since the oldest timestamp, which has not moved.
        let some = rng.below(written.borrow().0.len() as u64) as usize;
        let (ts, ..) = written.borrow().0[some];
        check(written, ReadAt::At(ts), rng).await;
        for number in 0..50 {
            write_some(written, rng, 1_000_000 + part as u64 * 1000 + number).await;
        }
    }
    let last = storage().last_allotted();
    storage().set_stable(last);
    assert_eq!(storage().checkpoint().await.unwrap(), last);
    assert_eq!(layers().await, 0);
    check(written, ReadAt::Newest, rng).await;
    storage().set_oldest(last);
    member.lives.set(4);
}

fn run(seed: u64, options: StorageOptions) -> Rc<Member> {
    let member = Rc::new(Member {
        written: RefCell::default(),
        lives: Cell::new(0),
        highest: Cell::new(0),
        replayed_to_layers: Cell::new(false),
    });
    let sim = Sim::new(seed, SimOptions::default());
    let main = member.clone();
    let node = sim.add_node("node", 2, move |core| {
        let (member, options) = (main.clone(), options.clone());
        async move {
            match core {
                CoreId(0) => life(member, options).await,
                _ => sleep(Duration::from_secs(3600)).await,
            }
        }
    });
    for next in [1, 2, 4] {
        let clock = sim.handle();
        sim.run_until(|| member.lives.get() == next || !clock.is_running(node))
            .unwrap_or_else(|stuck| panic!("{stuck:?}"));
        sim.crash(node, Death::PowerCut);
        sim.restart(node, 2);
    }
    member
}

#[test]
fn writes_continue_while_nothing_becomes_stable() {
    let member = run(1, options());
    assert_eq!(member.lives.get(), 4);
    let highest = member.highest.get();
    assert!(highest >= 5, "at most {highest} layers");
    assert!(member.replayed_to_layers.get(), "recovery wrote no layer");
}

/// The test above would notice each of these faults.
#[test]
fn planted_faults_of_runs_are_found() {
    for planted_fault in PlantedFault::OF_RUNS {
        let options = StorageOptions {
            planted_fault,
            ..options()
        };
        let run = std::panic::AssertUnwindSafe(|| run(1, options));
        let found = std::panic::catch_unwind(run).is_err();
        assert!(found, "{planted_fault:?} is not found");
    }
}
