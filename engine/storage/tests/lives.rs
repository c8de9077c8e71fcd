//! A member's directory through the lives of some processes: what layers, closing and opening again
//! leave in it.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{Duration, Queue, sleep, spawn, submit_to, timeout};
use pinion_storage::{
    Applier, ApplyError, Entry, Expect, ForeignEntry, Key, LogRetention, Op, PartitionId, ReadAt,
    Statement, StorageOptions, TreeId, Write, open, storage,
};

const TREE: TreeId = TreeId(5);

fn document(key: u64, value: u64) -> Vec<u8> {
    let mut bytes = b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&key.to_le_bytes());
    bytes.extend_from_slice(&value.to_le_bytes());
    bytes
}

/// From it on values take a few bytes.
const SMALL: u64 = 1 << 32;

fn write(key: u64, value: u64) -> Write {
    let mut bytes = value.to_le_bytes().to_vec();
    bytes.resize(if value < SMALL { 600 } else { 8 }, 7);
    Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::from(bytes)),
        expect: Expect::Any,
    }
}

#[derive(Default)]
struct Replay {
    /// Before each entry.
    pause: Duration,
    applied: Rc<Cell<u64>>,
}

impl Applier for Replay {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), ApplyError> {
        let number =
            |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().expect("eight bytes"));
        sleep(self.pause).await;
        let writes = vec![write(number(27), number(35))];
        self.applied.set(self.applied.get() + 1);
        storage().apply_at(ts, writes).await
    }
}

async fn put(key: u64, value: u64) -> Timestamp {
    let statement = Statement {
        writes: vec![write(key, value)],
        entry: Some(Entry::new(document(key, value))),
    };
    let outcome = storage().execute(vec![statement], true).await.pop();
    outcome.expect("one outcome").expect("written")
}

async fn get(key: u64) -> Option<u64> {
    let partition = storage().partition_of_hash(&key.to_be_bytes());
    submit_to(
        storage().owner(partition),
        Queue::Foreground,
        move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let read = owned
                .get(TREE, &key.to_be_bytes(), ReadAt::Newest)
                .await
                .unwrap();
            read.map(|read| u64::from_le_bytes(read.value[..8].try_into().unwrap()))
        },
    )
    .await
}

/// Runs a process `count` times, with a loss of power behind each.
fn lives<F>(count: usize, life: F)
where
    F: AsyncFn(usize) + 'static,
{
    let sim = Sim::new(7, SimOptions::default());
    let done = Rc::new(Cell::new(0));
    let life = Rc::new(life);
    let node = {
        let done = done.clone();
        sim.add_node("node", 1, move |_| {
            let (done, life) = (done.clone(), life.clone());
            async move {
                life(done.get()).await;
                done.set(done.get() + 1);
                std::future::pending::<()>().await;
            }
        })
    };
    for nth in 1..=count {
        let ended = done.clone();
        let clock = sim.handle();
        let ended = sim.run_until(move || ended.get() == nth || !clock.is_running(node));
        assert!(ended.is_ok(), "life {nth} did not end: {ended:?}");
        assert_eq!(done.get(), nth, "life {nth} died");
        sim.crash(node, Death::PowerCut);
        sim.restart(node, 1);
    }
}

fn member(cache_bytes: u64) -> StorageOptions {
    StorageOptions {
        is_member: true,
        cache_bytes,
        partitions: Some(2),
        ..StorageOptions::hostile("/srv/pinion/data")
    }
}

/// A key of a partition.
fn key_of(partition: u16, nth: usize) -> u64 {
    let is_of = |key: &u64| {
        let found = storage().partition_of_hash(&key.to_be_bytes());
        found == PartitionId(partition)
    };
    (0..).filter(is_of).nth(nth).expect("there are many")
}

async fn durable() {
    let last = storage().last_allotted();
    storage().wait_durable(last).await.unwrap();
}

#[test]
fn a_checkpoint_at_a_layer_has_what_a_partition_without_one_is_to_hold() {
    lives(2, async |nth| {
        let opened = open(member(1024 * 1024)).await.unwrap();
        opened.recover(Replay::default()).await.unwrap();
        if nth == 0 {
            let early = put(key_of(0, 0), 42).await;
            let mut written = 0;
            while storage().stats().layers < 1 {
                written += 1;
                put(key_of(1, written % 200), written as u64).await;
            }
            let first = Timestamp::from_u64(storage().stats().layered_since);
            assert!(early < first);
            while storage().stats().layers < 2 {
                written += 1;
                let ts = put(key_of(0, 1 + written % 200), written as u64).await;
                storage().wait_durable(ts).await.unwrap();
            }
            storage().set_stable(first);
            assert_eq!(storage().checkpoint().await.unwrap(), first);
            durable().await;
        }
        assert_eq!(get(key_of(0, 0)).await, Some(42));
    });
}

#[test]
fn a_member_rejoins_with_more_than_its_memory_holds() {
    const KEPT: LogRetention = LogRetention {
        bytes: 1 << 26,
        min_age: Duration::ZERO,
    };
    lives(3, async |nth| {
        let is_member = nth != 1;
        let options = StorageOptions {
            is_member,
            log_retention: is_member.then_some(KEPT),
            checkpoint_interval: Duration::MAX,
            ..member(if is_member { 1 << 20 } else { 64 << 20 })
        };
        let opened = open(options).await.unwrap();
        opened.recover(Replay::default()).await.unwrap();
        match nth {
            0 => {
                let last = put(1, 1).await;
                storage().set_stable(last);
                storage().checkpoint().await.unwrap();
                storage().close().await;
            }
            1 => {
                storage().begin_standalone(KEPT).await.unwrap();
                for n in 0..2000 {
                    put(n % 500, n).await;
                }
                durable().await;
            }
            _ => {
                assert!(storage().stats().layers > 0);
                let closed = storage().rejoin_set().await.unwrap();
                let closed = closed.expect("a standalone has written");
                let opened = closed.open().await.unwrap();
                opened.recover(Replay::default()).await.unwrap();
                assert_eq!(get(499).await, Some(1999));
            }
        }
    });
}

/// A signal during a rollback does that.
#[test]
fn storage_that_is_closed_while_it_recovers_loses_nothing() {
    lives(3, async |nth| {
        let opened = open(member(16 << 20)).await.unwrap();
        match nth {
            0 => {
                opened.recover(Replay::default()).await.unwrap();
                follow_and_apply_some().await;
            }
            1 => {
                let replay = Replay {
                    pause: Duration::from_millis(50),
                    ..Replay::default()
                };
                let applied = replay.applied.clone();
                let recovering = spawn(Queue::Foreground, opened.recover(replay));
                while applied.get() < 5 {
                    sleep(Duration::from_millis(1)).await;
                }
                storage().close().await;
                drop(recovering);
            }
            _ => {
                opened.recover(Replay::default()).await.unwrap();
                assert!(!storage().was_closed());
                for n in 0..50 {
                    assert_eq!(get(n).await, Some(n), "entry {n} is lost");
                }
            }
        }
    });
}

/// When the entry was written that another node logged as the nth.
fn at(n: u64) -> Timestamp {
    Timestamp::from_u64(1000 + 2 * n)
}

async fn log(n: u64, key: u64, value: u64) {
    let entry = ForeignEntry {
        ts: at(n),
        predecessor: storage().last_allotted(),
        bytes: Bytes::from(document(key, value)),
    };
    storage().log_at(&[entry]).await.unwrap();
}

async fn apply(n: u64, key: u64, value: u64) {
    let applied = storage().apply_at(at(n), vec![write(key, value)]).await;
    applied.unwrap();
    storage().set_applied(at(n));
}

/// Logs 50 entries of another node and applies 10; the base has these.
async fn follow_and_apply_some() {
    storage().follow().await.unwrap();
    for n in 0..50 {
        log(n, n, n).await;
        if n < 10 {
            apply(n, n, n).await;
        }
    }
    storage().set_stable(at(45));
    storage().wait_durable(at(49)).await.unwrap();
    assert_eq!(storage().checkpoint().await.unwrap(), at(9));
}

/// The base has spilled changes, which can only be merged, and no entry is at the stable timestamp.
#[test]
fn replay_takes_a_checkpoint_at_the_last_stable_entry() {
    const KEYS: u64 = 1500;
    const SPILLED: u64 = 30;
    const LOGGED: u64 = 4000;
    lives(2, async |nth| {
        let options = StorageOptions {
            checkpoint_interval: Duration::MAX,
            ..member(if nth == 0 { 16 << 20 } else { 1 << 20 })
        };
        let opened = open(options).await.unwrap();
        let replay = Replay {
            pause: Duration::from_millis(5),
            ..Replay::default()
        };
        opened.recover(replay).await.unwrap();
        if nth == 0 {
            storage().follow().await.unwrap();
            for n in 0..KEYS {
                log(n, n, n).await;
                apply(n, n, n).await;
            }
            storage().set_stable(at(KEYS - 1));
            storage().set_oldest(at(KEYS - 1));
            storage().checkpoint_merging_all().await.unwrap();
            for n in KEYS..KEYS + SPILLED {
                let key = (n - KEYS) * (KEYS / SPILLED);
                log(n, key, SMALL + n).await;
                apply(n, key, SMALL + n).await;
                // So that nothing is kept any more for old snapshots.
                sleep(Duration::from_secs(2)).await;
            }
            let applied = at(KEYS + SPILLED - 1);
            storage().set_stable(Timestamp::from_u64(at(KEYS + 200).as_u64() + 1));
            assert_eq!(storage().checkpoint().await.unwrap(), applied);
            for n in KEYS + SPILLED..LOGGED {
                log(n, n, n).await;
            }
            durable().await;
        } else {
            for n in KEYS + SPILLED..LOGGED {
                assert_eq!(get(n).await, Some(n));
            }
            assert_eq!(get(0).await, Some(SMALL + KEYS));
        }
    });
}

#[test]
fn opening_again_while_history_is_written_damages_nothing() {
    const KEYS: u64 = 6000;
    lives(2, async |nth| {
        let options = StorageOptions {
            partitions: Some(1),
            checkpoint_interval: Duration::MAX,
            ring_bytes_per_checkpoint: u64::MAX,
            segment_bytes: 1 << 18,
            is_member: true,
            cache_bytes: 64 << 20,
            ..StorageOptions::new("/srv/pinion/data")
        };
        let opened = open(options).await.unwrap();
        opened.recover(Replay::default()).await.unwrap();
        if nth == 0 {
            for round in 0..2 {
                write_stable((0..KEYS).map(|n| (n, round * 10_000 + n))).await;
                storage().checkpoint().await.unwrap();
            }
            let last = storage().last_allotted();
            let closed = storage().close_to_reopen().await;
            let opened = closed.open().await.unwrap();
            let reopened = opened.recover_up_to(last, Replay::default()).await;
            reopened.unwrap();
            write_stable((0..KEYS).step_by(20).map(|n| (n, 10_000 + n))).await;
            storage().checkpoint_merging_all().await.unwrap();
            sleep(Duration::from_secs(60)).await;
        } else {
            for n in 0..KEYS {
                assert_eq!(get(n).await, Some(10_000 + n));
            }
        }
    });
}

async fn write_stable(writes: impl Iterator<Item = (u64, u64)>) {
    let mut last = Timestamp::MIN;
    for (key, value) in writes {
        last = put(key, value).await;
    }
    storage().wait_durable(last).await.unwrap();
    storage().set_stable(last);
}

/// What they write becomes stable at once, so that there is always one more checkpoint to take.
#[test]
fn a_checkpoint_ends_while_clients_write() {
    lives(1, async |_| {
        let opened = open(member(1024 * 1024)).await.unwrap();
        opened.recover(Replay::default()).await.unwrap();
        let mut written = 0;
        while storage().stats().layers < 6 {
            put(written % 3000, written).await;
            written += 1;
        }
        durable().await;
        storage().set_stable(storage().last_allotted());
        let ended = Rc::new(Cell::new(false));
        for client in 0..16u64 {
            let ended = ended.clone();
            spawn(Queue::Foreground, async move {
                let mut n = client;
                while !ended.get() {
                    let ts = put(n % 3000, n).await;
                    n += 16;
                    storage().wait_durable(ts).await.unwrap();
                    if ts <= storage().visible() {
                        storage().set_stable(ts);
                    }
                }
            });
        }
        sleep(Duration::from_secs(1)).await;
        let taken = timeout(Duration::from_secs(5), storage().checkpoint()).await;
        ended.set(true);
        taken.expect("it ends in time").unwrap();
    });
}
