//! A member whose log starts again over what an initial sync brings: that has no timestamps, and is
//! in checkpoints all the same.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, Sim, SimOptions};
use pinion_runtime::{CoreId, Duration, Queue, random_stream, sleep, spawn, submit_to};
use pinion_storage::{
    Applier, ApplyError, Expect, ForeignEntry, Key, Op, PartitionId, ReadAt, StorageOptions,
    TreeId, Write, open, storage,
};

const TREE: TreeId = TreeId(5);

fn put(key: u64) -> Write {
    Write {
        partition: PartitionId((key % 2) as u16),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::copy_from_slice(&key.to_le_bytes())),
        expect: Expect::Any,
    }
}

async fn is_there(key: u64) -> bool {
    let partition = PartitionId((key % 2) as u16);
    submit_to(
        storage().owner(partition),
        Queue::Foreground,
        move || async move {
            let owned = storage().partition(partition).expect("asked its owner");
            let read = owned.get(TREE, &key.to_be_bytes(), ReadAt::Newest).await;
            read.expect("readable").is_some()
        },
    )
    .await
}

/// An entry that puts the key that is its timestamp.
async fn log(ts: u64) {
    let mut bytes = b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0".to_vec();
    bytes.extend_from_slice(&ts.to_le_bytes());
    let entry = ForeignEntry {
        ts: Timestamp::from_u64(ts),
        predecessor: storage().last_allotted(),
        bytes: Bytes::from(bytes),
    };
    storage().log_at(&[entry]).await.expect("storage serves");
}

struct Replay;

impl Applier for Replay {
    async fn apply(&self, ts: Timestamp, _: Bytes) -> Result<(), ApplyError> {
        let writes = vec![put(ts.as_u64())];
        storage().apply_at(ts, writes).await
    }
}

async fn logged() -> Vec<u64> {
    let mut log = storage().log_after(Timestamp::MIN);
    let read = log.next_batch(1000, 1 << 20).await.expect("readable");
    read.iter().map(|(ts, _)| ts.as_u64()).collect()
}

async fn begin_at(ts: u64) {
    let started = storage().begin_log_at(Timestamp::from_u64(ts)).await;
    started.expect("storage serves");
    assert_eq!(storage().visible().as_u64(), ts);
    assert_eq!(logged().await, []);
}

async fn bring(key: u64) {
    let brought = storage().apply_at(Timestamp::MIN, vec![put(key)]).await;
    brought.expect("storage serves");
}

/// Opens the directory of a member that follows.
async fn open_following(options: StorageOptions) {
    let opened = open(options).await.expect("opens");
    opened.recover(Replay).await.expect("recovers");
    storage().follow().await.expect("storage serves");
}

async fn first_life() {
    begin_at(100).await;
    for ts in 101..110 {
        log(ts).await;
    }
    storage().set_applied(Timestamp::from_u64(109));
    // The entries before are no part of the log that begins here, nor of what a start applies.
    begin_at(200).await;
    for key in 1..20 {
        bring(key).await;
        let written = storage().checkpoint().await.expect("storage serves");
        assert_eq!(written.as_u64(), 200, "no timestamp has moved");
    }
    for ts in [203, 207] {
        log(ts).await;
    }
    let last = storage().last_allotted();
    storage().wait_durable(last).await.expect("storage serves");
}

#[test]
fn a_log_begins_again_over_data_without_timestamps() {
    for seed in 0..8 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let mut options = StorageOptions::hostile("/srv/pinion/data");
        options.is_member = true;
        options.partitions = Some(2);
        options.checkpoint_interval = Duration::from_millis([1, 1000][seed as usize % 2]);
        let life = Rc::new(Cell::new(0));
        let lives = life.clone();
        let node = sim.add_node("node", 2, move |core| {
            let (options, life) = (options.clone(), lives.clone());
            async move {
                if core != CoreId(0) {
                    sleep(Duration::from_secs(3600)).await;
                }
                open_following(options).await;
                match life.get() {
                    0 => first_life().await,
                    _ => {
                        for key in (1..20).chain([203, 207]) {
                            assert!(is_there(key).await, "{key} is gone");
                        }
                        assert!(!is_there(105).await, "what was before is applied");
                        assert_eq!(logged().await, [203, 207]);
                    }
                }
                life.set(life.get() + 1);
                sleep(Duration::from_secs(3600)).await;
            }
        });
        for turn in 1..3 {
            let done = sim.run_until(|| life.get() == turn);
            assert!(done.is_ok(), "seed {seed}: {done:?}");
            sim.crash(node, Death::PowerCut);
            if turn == 1 {
                sim.restart(node, 2);
            }
        }
    }
}

/// A node that is stopped while its initial sync begins ends in order.
#[test]
fn a_close_waits_for_a_log_that_begins() {
    let outcomes = Rc::new(Cell::new((0, 0)));
    for seed in 0..40 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        let mut options = StorageOptions::hostile("/srv/pinion/data");
        options.is_member = true;
        options.partitions = Some(2);
        let (done, outcomes) = (Rc::new(Cell::new(false)), outcomes.clone());
        let ended = done.clone();
        sim.add_node("node", 2, move |core| {
            let (options, done, outcomes) = (options.clone(), ended.clone(), outcomes.clone());
            async move {
                if core != CoreId(0) {
                    sleep(Duration::from_secs(3600)).await;
                }
                open_following(options).await;
                let mut rng = random_stream("pauses");
                let mut pause = || sleep(Duration::from_micros(rng.below(3000)));
                let (before_begin, before_close) = (pause(), pause());
                let begin = spawn(Queue::Foreground, async {
                    before_begin.await;
                    storage().begin_log_at(Timestamp::from_u64(100)).await
                });
                before_close.await;
                storage().close().await;
                assert_eq!(storage().fatal(), None, "seed {seed}");
                let (completed, refused) = outcomes.get();
                outcomes.set(match begin.await.expect("it runs to its end") {
                    Ok(()) => (completed + 1, refused),
                    Err(_) => (completed, refused + 1),
                });
                let stable = storage().timeline().stable;
                let last = storage().last_allotted();
                assert!(stable <= last, "seed {seed}: {stable} is stable of {last}");
                done.set(true);
            }
        });
        let ran = sim.run_until(|| done.get());
        assert!(ran.is_ok(), "seed {seed}: {ran:?}");
    }
    let (completed, refused) = outcomes.get();
    assert!(
        completed > 0 && refused > 0,
        "{completed} completed, {refused} refused"
    );
}
