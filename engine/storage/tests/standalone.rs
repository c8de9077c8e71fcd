//! A member's directory that a standalone writes to, and that is a member's again: the oplog is
//! what it was, the writes are there, and what the set has written meanwhile comes behind them
//! whatever its timestamps are.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Queue, Rng, random_stream, submit_to};
use pinion_storage::{
    Applier, ApplyError, Entry, Expect, ForeignEntry, Key, LogRetention, Op, ReadAt, Statement,
    StorageOptions, TreeId, Write, open, storage,
};

const TREE: TreeId = TreeId(5);
const KEYS: u64 = 20;
const LIVES: usize = 7;

fn document(key: u64, value: u64) -> Vec<u8> {
    let mut bytes = b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.extend_from_slice(&value.to_le_bytes());
    bytes.resize(bytes.len() + (value % 3000) as usize, 7);
    bytes
}

fn write(key: u64, value: u64) -> Write {
    Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::copy_from_slice(&value.to_le_bytes())),
        expect: Expect::Any,
    }
}

struct Replay;

impl Applier for Replay {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let number =
            |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        let writes = vec![write(number(27), number(35))];
        storage().apply_at(ts, writes).await
    }
}

async fn state() -> BTreeMap<u64, u64> {
    let mut state = BTreeMap::new();
    for key in 0..KEYS {
        let partition = storage().partition_of_hash(&key.to_be_bytes());
        let owner = storage().owner(partition);
        let read = submit_to(owner, Queue::Foreground, move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let read = owned.get(TREE, &key.to_be_bytes(), ReadAt::Newest).await;
            let read = read.expect("it can be read");
            read.map(|read| u64::from_le_bytes(read.value[..].try_into().unwrap()))
        });
        if let Some(value) = read.await {
            state.insert(key, value);
        }
    }
    state
}

/// What all lives of the directory share.
struct Run {
    seed: u64,
    options: StorageOptions,
    /// What the data are, and the oplog.
    data: RefCell<BTreeMap<u64, u64>>,
    oplog: RefCell<Vec<Timestamp>>,
    lives: Cell<usize>,
    done: Cell<bool>,
    rejoined: Cell<bool>,
}

impl Run {
    fn is_member(&self) -> bool {
        self.lives.get().is_multiple_of(2)
    }

    async fn check(&self, what: &str) {
        assert_eq!(
            state().await,
            *self.data.borrow(),
            "seed {}: {what}",
            self.seed
        );
    }
}

/// The timestamps of the log, oldest first.
async fn logged() -> Vec<Timestamp> {
    let mut log = storage().log_after(Timestamp::MIN);
    let mut found = Vec::new();
    loop {
        let batch = log.next_batch(100, 1 << 20).await.expect("it is kept");
        if batch.is_empty() {
            return found;
        }
        found.extend(batch.into_iter().map(|(ts, _)| ts));
    }
}

async fn life(run: Rc<Run>) {
    let mut rng = random_stream("life");
    let is_member = run.is_member();
    let options = StorageOptions {
        is_member,
        log_retention: is_member.then_some(KEPT),
        ..run.options.clone()
    };
    let opened = open(options).await.unwrap();
    opened.recover(Replay).await.unwrap();
    if is_member {
        if let Some(closed) = storage().rejoin_set().await.unwrap() {
            run.rejoined.set(true);
            let report = closed.open().await.unwrap().recover(Replay).await.unwrap();
            assert_eq!(report.entries_replayed, 0);
        }
        let last = run.oplog.borrow().last().copied().unwrap_or_default();
        assert_eq!(storage().last_allotted(), last, "seed {}", run.seed);
        assert_eq!(storage().standalone_above(), None);
        run.check("as a member").await;
        let known = run.oplog.borrow().clone();
        assert!(known.ends_with(&logged().await), "seed {}", run.seed);
        assert_eq!(logged().await.last(), known.last(), "seed {}", run.seed);
        follow(&run, &mut rng).await;
    } else {
        storage().begin_standalone(KEPT).await.unwrap();
        let above = run.oplog.borrow().last().copied();
        assert_eq!(storage().standalone_above(), above, "seed {}", run.seed);
        run.check("as a standalone").await;
        write_alone(&run, &mut rng).await;
    }
    run.check("at the end").await;
    run.lives.set(run.lives.get() + 1);
    if rng.chance(0.5) {
        storage().close().await;
    }
    run.done.set(true);
    std::future::pending::<()>().await;
}

const KEPT: LogRetention = LogRetention {
    bytes: 1 << 20,
    min_age: Duration::ZERO,
};

/// Takes over entries of the set, whose timestamps are far below those of a standalone: it has
/// another clock.
async fn follow(run: &Run, rng: &mut Rng) {
    storage().follow().await.unwrap();
    for _ in 0..rng.between(1, 40) {
        let last = storage().last_allotted();
        let ts = Timestamp::from_u64(last.as_u64().max(100) + rng.between(1, 3));
        let (key, value) = (rng.below(KEYS), rng.next_u64());
        let entry = ForeignEntry {
            ts,
            predecessor: last,
            bytes: Bytes::from(document(key, value)),
        };
        storage().log_at(&[entry]).await.unwrap();
        storage()
            .apply_at(ts, vec![write(key, value)])
            .await
            .unwrap();
        storage().set_applied(ts);
        run.data.borrow_mut().insert(key, value);
        run.oplog.borrow_mut().push(ts);
        if rng.chance(0.3) {
            storage().set_stable(ts);
        }
        if rng.chance(0.1) {
            storage().checkpoint().await.unwrap();
        }
    }
    let last = storage().last_allotted();
    storage().wait_durable(last).await.unwrap();
    storage().set_stable(last);
    // What is stable is recorded with a checkpoint.
    storage().checkpoint().await.unwrap();
}

async fn write_alone(run: &Run, rng: &mut Rng) {
    for _ in 0..rng.below(30) {
        let (key, value) = (rng.below(KEYS), rng.next_u64());
        let statement = Statement {
            writes: vec![write(key, value)],
            entry: Some(Entry::new(document(key, value))),
        };
        let ts = storage().execute(vec![statement], true).await.pop();
        let ts = ts.expect("one outcome").expect("written");
        storage().wait_durable(ts).await.unwrap();
        run.data.borrow_mut().insert(key, value);
        if rng.chance(0.2) {
            storage().checkpoint().await.unwrap();
        }
    }
}

fn run_seed(seed: u64) -> bool {
    let mut rng = Rng::from_seed(seed);
    let mut options = StorageOptions::hostile("/srv/pinion/data");
    options.partitions = Some(1 + rng.below(4) as u16);
    let run = Rc::new(Run {
        seed,
        options,
        data: RefCell::default(),
        oplog: RefCell::default(),
        lives: Cell::new(0),
        done: Cell::new(false),
        rejoined: Cell::new(false),
    });
    let sim = Sim::new(seed, SimOptions::default());
    let cores = 1 + rng.below(3) as usize;
    let node = {
        let run = run.clone();
        sim.add_node("node", cores, move |core| {
            let run = run.clone();
            async move {
                if core == CoreId(0) {
                    life(run).await;
                }
                std::future::pending::<()>().await;
            }
        })
    };
    while run.lives.get() < LIVES {
        let done = run.clone();
        let ended = sim.run_until(move || done.done.replace(false));
        assert!(ended.is_ok(), "seed {seed}: a life did not end: {ended:?}");
        sim.crash(node, Death::PowerCut);
        sim.restart(node, cores);
    }
    run.rejoined.get()
}

#[test]
fn a_member_that_was_a_standalone_follows_from_where_it_was() {
    let rejoined = (0..40).filter(|seed| run_seed(*seed)).count();
    assert!(rejoined > 20, "{rejoined} of 40 wrote as a standalone");
}

async fn put(value: u64) -> Timestamp {
    let statement = Statement {
        writes: vec![write(1, value)],
        entry: Some(Entry::new(document(1, value))),
    };
    let outcome = storage().execute(vec![statement], true).await.pop();
    outcome.expect("one outcome").expect("written")
}

/// The lives of one directory: a member that writes, a standalone that logs too much, a member.
async fn outgrow(nth: usize) {
    let is_member = nth != 1;
    let options = StorageOptions {
        is_member,
        log_retention: is_member.then_some(KEPT),
        ..StorageOptions::hostile("/srv/pinion/data")
    };
    open(options).await.unwrap().recover(Replay).await.unwrap();
    match nth {
        0 => {
            let last = put(1).await;
            storage().set_stable(last);
        }
        1 => {
            storage().begin_standalone(KEPT).await.unwrap();
            for nth in 0..2 * (KEPT.bytes / 2999) {
                put(2999 + 3000 * nth).await;
            }
        }
        _ => {
            let closed = storage().rejoin_set().await.unwrap();
            let closed = closed.expect("a standalone has written");
            closed.open().await.unwrap().recover(Replay).await.unwrap();
            assert_eq!(logged().await, []);
            assert!(state().await[&1] > 3000);
        }
    }
    storage().close().await;
}

/// A standalone that logs more than the oplog may take has no oplog any more, and keeps all that it
/// has written.
#[test]
fn an_oplog_that_a_standalone_outgrows_is_given_up() {
    let sim = Sim::new(7, SimOptions::default());
    let lives = Rc::new(Cell::new(0));
    let node = {
        let lives = lives.clone();
        sim.add_node("node", 1, move |_| {
            let lives = lives.clone();
            async move {
                outgrow(lives.get()).await;
                lives.set(lives.get() + 1);
                std::future::pending::<()>().await;
            }
        })
    };
    for life in 1..=3 {
        let ended = lives.clone();
        let ended = sim.run_until(move || ended.get() == life);
        assert!(ended.is_ok(), "life {life} did not end: {ended:?}");
        sim.crash(node, Death::PowerCut);
        sim.restart(node, 1);
    }
}
