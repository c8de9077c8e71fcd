//! The whole engine on the simulated runtime, without crashes: what it writes when, and what it
//! keeps in memory.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{Death, DiskOp, Sim, SimOptions};
use pinion_runtime::{
    CoreId, Duration, Queue, join_all, now, sim, sleep, spawn, submit_to, timeout, yield_now,
};
use pinion_storage::{
    Applier, ApplyError, Direction, ENTRY_TERM_OFFSET, ENTRY_TS_OFFSET, Entry, Expect, Inspector,
    Key, KeyRange, Op, PlantedFault, ReadAt, ReadError, Statement, Storage, StorageOptions,
    StorageStats, TreeId, Write, WriteError, open, storage,
};

const TREE: TreeId = TreeId(5);

/// A new directory has nothing to apply.
struct Nothing;

impl Applier for Nothing {
    async fn apply(&self, ts: Timestamp, _: Bytes) -> Result<(), ApplyError> {
        panic!("{ts} is replayed")
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
            open(options).await.unwrap().recover(Nothing).await.unwrap();
            test(storage()).await;
            storage().close().await;
            done.set(true);
        }
    });
    sim.run_until_down(node).unwrap();
    assert!(ended.get(), "the test did not run to its end");
}

fn options() -> StorageOptions {
    StorageOptions {
        partitions: Some(2),
        checkpoint_interval: Duration::MAX,
        ..StorageOptions::new("/srv/pinion/data")
    }
}

fn put(key: u64, value: Vec<u8>) -> Statement {
    let mut bytes = value.clone();
    bytes.splice(
        0..0,
        *b"\0\0\0\0\x11ts\0\0\0\0\0\0\0\0\0\x12t\0\0\0\0\0\0\0\0\0",
    );
    let write = Write {
        partition: storage().partition_of_hash(&key.to_be_bytes()),
        tree: TREE,
        key: Key::from_slice(&key.to_be_bytes()),
        op: Op::Put(Bytes::from(value)),
        expect: Expect::Any,
    };
    Statement {
        writes: vec![write],
        entry: Some(Entry::new(bytes)),
    }
}

async fn write(key: u64, value: Vec<u8>) -> Result<Timestamp, WriteError> {
    storage()
        .execute(vec![put(key, value)], true)
        .await
        .pop()
        .unwrap()
}

/// The sums over all cores.
async fn stats(cores: u16) -> StorageStats {
    let mut sum = StorageStats::default();
    for core in 0..cores {
        sum += submit_to(CoreId(core), Queue::Foreground, || async {
            storage().stats()
        })
        .await;
    }
    sum
}

/// The statement with this image beside its entry.
fn with_image(statement: Statement, image: Vec<u8>) -> Statement {
    let beside = put(0, image).entry.expect("it is logged").bytes;
    let entry = statement.entry.map(|entry| Entry {
        image: Some(beside),
        ..entry
    });
    Statement { entry, ..statement }
}

/// The first entries of the log, each with what `put` made it of.
async fn logged(count: usize) -> Vec<(Timestamp, Vec<u8>)> {
    let mut log = storage().log_after(Timestamp::MIN);
    let mut found = Vec::new();
    while found.len() < count {
        for (ts, entry) in log.next_batch(count, usize::MAX).await.unwrap() {
            let says = &entry[ENTRY_TS_OFFSET..ENTRY_TS_OFFSET + 8];
            assert_eq!(says, ts.to_bson_bytes());
            found.push((ts, entry[ENTRY_TERM_OFFSET + 8..].to_vec()));
        }
        sleep(Duration::from_micros(100)).await;
    }
    found
}

/// Whether one core executes a step or several take part, and with or without others in it.
#[test]
fn an_image_is_logged_right_before_its_entry() {
    run(2, options(), |storage| async move {
        let mut next = 0;
        let mut on = |core: u16| {
            let keys = next..;
            let mut puts = keys.map(|key| (key, put(key, key.to_be_bytes().to_vec())));
            let of_core = |(_, put): &(u64, Statement)| {
                storage.owner(put.writes[0].partition) == CoreId(core)
            };
            let (key, statement) = puts.find(of_core).unwrap();
            next = key + 1;
            statement
        };
        let mut both = on(0);
        both.writes.extend(on(1).writes);
        let steps = [
            vec![with_image(on(0), vec![1])],
            vec![with_image(on(1), vec![2])],
            vec![on(0), with_image(on(0), vec![3]), on(0)],
            vec![on(1), with_image(both, vec![4]), on(0)],
        ];
        let mut expected = Vec::new();
        for step in steps {
            let said = |statement: &Statement| {
                let entry = statement.entry.as_ref().unwrap();
                let says = |bytes: &Vec<u8>| bytes[ENTRY_TERM_OFFSET + 8..].to_vec();
                (entry.image.as_ref().map(says), says(&entry.bytes))
            };
            let says: Vec<_> = step.iter().map(said).collect();
            let outcomes = storage.execute(step, true).await;
            for ((image, entry), outcome) in says.into_iter().zip(outcomes) {
                let ts = outcome.unwrap();
                expected.extend(image.map(|image| (ts.prev().unwrap(), image)));
                expected.push((ts, entry));
            }
        }
        assert_eq!(logged(expected.len()).await, expected);
    });
}

#[test]
fn a_group_commit_is_one_flush_of_each_ring() {
    run(2, options(), |_| async {
        let before = stats(2).await;
        let group = |core: u16| {
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                join_all((0..200).map(|key| async move {
                    let key = key + u64::from(core) * 1000;
                    let ts = write(key, vec![7; 100]).await.unwrap();
                    storage().wait_durable(ts).await.unwrap();
                }))
                .await;
            })
        };
        join_all([group(0), group(1)]).await;
        let after = stats(2).await;
        assert_eq!(after.ring_entries - before.ring_entries, 400);
        let flushes = after.ring_flushes - before.ring_flushes;
        // While a flush is under way the next group gathers: a few groups at most on each ring.
        assert!(
            (2..=12).contains(&flushes),
            "{flushes} flushes of 400 entries"
        );
        // One after another, each has its own; the ring that is not written stays quiet.
        let before = stats(2).await;
        for key in 0..100 {
            let ts = write(key, vec![7; 100]).await.unwrap();
            storage().wait_durable(ts).await.unwrap();
        }
        let after = stats(2).await;
        assert_eq!(after.ring_flushes - before.ring_flushes, 100);
    });
}

/// Writes one key of each core, and both in one unit; the timestamps come in this order.
async fn write_on_either_and_on_both() -> Vec<Timestamp> {
    let on = |core: u16| {
        (0u64..)
            .map(|key| put(key, vec![7; 10]))
            .find(|put| storage().owner(put.writes[0].partition) == CoreId(core))
            .unwrap()
    };
    let mut both = on(0);
    both.writes.extend(on(1).writes);
    let statements = vec![on(0), on(1), both];
    let outcomes = storage().execute(statements, true).await;
    outcomes.into_iter().map(Result::unwrap).collect()
}

/// The optimes that stand in the documents of a closed directory's entries.
async fn logged_optimes(dir: &Path) -> Vec<(Timestamp, i64)> {
    let inspector = Inspector::open(dir).await.unwrap();
    let mut log = inspector.entries(None).await.unwrap();
    let mut optimes = Vec::new();
    while let Some(entry) = log.next().await.unwrap() {
        let document = entry.document.unwrap();
        let word = |at: usize| document[at..at + 8].try_into().unwrap();
        let ts = Timestamp::from_u64(u64::from_le_bytes(word(ENTRY_TS_OFFSET)));
        assert_eq!(ts, entry.ts);
        optimes.push((ts, i64::from_le_bytes(word(ENTRY_TERM_OFFSET))));
    }
    optimes
}

#[test]
fn entries_carry_the_optime_they_were_written_at() {
    let sim = Sim::new(7, SimOptions::default());
    let written: Rc<RefCell<Vec<(Timestamp, i64)>>> = Rc::default();
    let life = Rc::new(Cell::new(0));
    let (expected, ended) = (written.clone(), life.clone());
    let node = sim.add_node("node", 2, move |core| {
        let (written, life) = (written.clone(), life.clone());
        async move {
            match (core, life.get()) {
                (CoreId(0), 0) => {
                    open(options())
                        .await
                        .unwrap()
                        .recover(Nothing)
                        .await
                        .unwrap();
                    for term in [None, Some(0), Some(3)] {
                        for core in 0..2 {
                            submit_to(CoreId(core), Queue::Foreground, move || async move {
                                term.inspect(|&term| storage().set_term(term));
                            })
                            .await;
                        }
                        let timestamps = write_on_either_and_on_both().await;
                        let term = term.unwrap_or(-1);
                        written
                            .borrow_mut()
                            .extend(timestamps.iter().map(|&ts| (ts, term)));
                    }
                    let last = written.borrow().last().unwrap().0;
                    storage().wait_durable(last).await.unwrap();
                    life.set(1);
                }
                (CoreId(0), _) => {
                    let found = logged_optimes(Path::new("/srv/pinion/data")).await;
                    assert_eq!(found, *written.borrow());
                    life.set(2);
                }
                _ => {}
            }
            std::future::pending().await
        }
    });
    sim.run_until(|| ended.get() == 1).unwrap();
    assert_eq!(expected.borrow().len(), 9);
    sim.crash(node, Death::PowerCut);
    sim.restart(node, 2);
    sim.run_until(|| ended.get() == 2).unwrap();
}

#[test]
fn an_entry_without_a_place_for_its_term_is_refused_before_it_has_a_timestamp() {
    run(1, options(), |storage| async move {
        let before = storage.last_allotted();
        let mut statement = put(1, vec![7; 100]);
        let bytes = &mut statement.entry.as_mut().unwrap().bytes;
        bytes.drain(ENTRY_TS_OFFSET + 8..ENTRY_TERM_OFFSET + 8);
        assert!(
            caught(storage.execute(vec![statement], true))
                .await
                .is_none()
        );
        assert_eq!((storage.last_allotted(), storage.fatal()), (before, None));
        write(1, vec![7; 100]).await.unwrap();
    });
}

#[test]
fn a_quiet_node_writes_nothing() {
    run(2, options(), |storage| async move {
        write(1, vec![1; 100]).await.unwrap();
        // Flushed by the interval; then one ring records that it is durable.
        sleep(Duration::from_secs(1)).await;
        let before = stats(2).await;
        assert_eq!(before.ring_flushes, 2, "the entry, and that it is durable");
        sleep(Duration::from_secs(600)).await;
        storage.checkpoint().await.unwrap();
        let checkpointed = stats(2).await;
        assert_eq!(checkpointed.ring_flushes, before.ring_flushes);
        assert_eq!(checkpointed.checkpoints, 1);
        sleep(Duration::from_secs(600)).await;
        storage.checkpoint().await.unwrap();
        assert_eq!(stats(2).await, checkpointed);
    });
}

/// One key, written again and again, takes little memory: the ring's length alone asks for the
/// checkpoint.
#[test]
fn a_long_ring_starts_a_checkpoint() {
    let options = StorageOptions {
        ring_bytes_per_checkpoint: 8 * 1024 * 1024,
        ..options()
    };
    run(1, options, |_| async {
        let mut written = 0;
        while stats(1).await.checkpoints < 3 {
            assert!(written < 40, "no checkpoint after {written} MiB");
            for _ in 0..16 {
                write(1, vec![7; 64 * 1024]).await.unwrap();
            }
            sleep(Duration::from_millis(200)).await;
            written += 1;
        }
        assert!(written >= 24, "three checkpoints after {written} MiB");
    });
}

/// A merge takes the time that its changes have, and no more when it is awaited.
#[test]
fn a_merge_that_is_not_awaited_is_spread_over_time() {
    let interval = Duration::from_secs(4);
    let options = StorageOptions {
        checkpoint_interval: interval,
        ..options()
    };
    let fill = |value: u8| async move {
        for key in 0..8000 {
            write(key, vec![value; 4000]).await.unwrap();
        }
    };
    run(2, options, move |storage| async move {
        // 32 MB of changes, half of them on each core: a second at the slowest pace.
        fill(1).await;
        let waited = now();
        while stats(2).await.checkpoints == 0 {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(waited.elapsed() < interval + Duration::from_secs(2));
        let spread = stats(2).await.checkpoint_last_ms;
        assert!((800..1500).contains(&spread), "{spread} ms");
        fill(2).await;
        let awaited = now();
        storage.checkpoint().await.unwrap();
        let awaited = awaited.elapsed();
        assert!(awaited < Duration::from_millis(500), "{awaited:?}");
        // One that began without a request no longer rests when it is awaited.
        fill(3).await;
        let pages_before = stats(2).await.pages_written;
        while stats(2).await.pages_written < pages_before + 100 {
            sleep(Duration::from_millis(10)).await;
        }
        let awaited = now();
        storage.checkpoint().await.unwrap();
        let awaited = awaited.elapsed();
        assert!(awaited < Duration::from_millis(500), "{awaited:?}");
    });
}

/// Neither what goes into a new tree nor what is spilled into one is written at a stroke.
#[test]
fn pages_of_a_new_tree_are_spread_over_time() {
    const KEYS: u64 = 40_000;
    let options = StorageOptions {
        checkpoint_interval: Duration::from_secs(4),
        ..options()
    };
    let check = |spills: bool| {
        run(1, options.clone(), move |storage| async move {
            // 40 MB of changes in a tree that is not there yet; then 2 MB of changes to one leaf
            // each.
            for key in 0..KEYS {
                write(key, vec![1; 1000]).await.unwrap();
            }
            if spills {
                storage.checkpoint().await.unwrap();
                for key in (0..KEYS).step_by(40) {
                    write(key, vec![2; 2000]).await.unwrap();
                }
            }
            let before = stats(1).await;
            let (mut written, mut most) = (before.pages_written, 0);
            while stats(1).await.checkpoints == before.checkpoints {
                sleep(Duration::from_millis(10)).await;
                let now = stats(1).await.pages_written;
                most = most.max(now - written);
                written = now;
            }
            let all = written - before.pages_written;
            let expected = if spills { 120..200 } else { 2400..2700 };
            assert!(expected.contains(&all), "{all} pages");
            assert!(most < 40, "{most} of {all} pages in 10 ms");
        });
    };
    check(false);
    check(true);
}

/// While the foreground has fallen behind a merge makes way for it, and is late by a fifth of the
/// interval at most.
#[test]
fn a_merge_makes_way_for_a_foreground_without_breaks() {
    let interval = Duration::from_secs(4);
    let options = StorageOptions {
        checkpoint_interval: interval,
        ..options()
    };
    let took_ms = |is_busy: bool| {
        let took_ms = Rc::new(Cell::new(0));
        let result = took_ms.clone();
        run(1, options.clone(), move |_| {
            let result = result.clone();
            async move {
                // 32 MB of changes: two seconds at the slowest pace.
                for key in 0..8000 {
                    write(key, vec![1; 4000]).await.unwrap();
                }
                let busy = Rc::new(Cell::new(is_busy));
                let works = busy.clone();
                let work = spawn(Queue::Foreground, async move {
                    while works.get() {
                        yield_now().await;
                    }
                });
                while stats(1).await.checkpoints == 0 {
                    sleep(Duration::from_millis(10)).await;
                }
                busy.set(false);
                work.await.unwrap();
                result.set(stats(1).await.checkpoint_last_ms);
            }
        });
        took_ms.get()
    };
    let (beside_none, beside_work) = (took_ms(false), took_ms(true));
    assert!((1800..2300).contains(&beside_none), "{beside_none} ms");
    let late = interval.as_millis() as u64 / 5;
    assert!(
        (beside_none + late * 3 / 4..beside_none + late * 5 / 4).contains(&beside_work),
        "{beside_none} and {beside_work} ms"
    );
}

/// What a checkpoint spilled with much memory is loaded with little: it makes room for writes by
/// itself, though nothing was written since that checkpoint.
#[test]
fn a_node_opened_with_less_memory_merges_what_was_spilled() {
    const KEYS: u64 = 4000;
    let sim = Sim::new(7, SimOptions::default());
    let node = sim.add_node("node", 2, |core| async move {
        if core != CoreId(0) {
            return std::future::pending().await;
        }
        open(options())
            .await
            .unwrap()
            .recover(Nothing)
            .await
            .unwrap();
        for key in 0..KEYS {
            write(key, vec![1; 1000]).await.unwrap();
        }
        storage().checkpoint().await.unwrap();
        for key in (0..KEYS).step_by(40) {
            write(key, vec![2; 500]).await.unwrap();
        }
        storage().checkpoint().await.unwrap();
        sim::event("spilled");
        std::future::pending().await
    });
    sim.crash_at(node, "spilled", 1, Death::Kill);
    sim.run_until(|| !sim.is_running(node)).unwrap();
    let ended = Rc::new(Cell::new(false));
    let done = ended.clone();
    sim.set_main(node, move |core| {
        let done = done.clone();
        async move {
            if core != CoreId(0) {
                return std::future::pending().await;
            }
            let options = StorageOptions {
                cache_bytes: 64 << 10,
                ..options()
            };
            open(options).await.unwrap().recover(Nothing).await.unwrap();
            let loaded = stats(2).await;
            assert!(loaded.delta_bytes > loaded.delta_budget_bytes, "{loaded:?}");
            // Of two owners, so that each must have memory for an intent.
            let first = put(1, vec![3; 10]);
            let mut statement = (2..)
                .map(|key| put(key, vec![3; 10]))
                .find(|other| other.writes[0].partition != first.writes[0].partition)
                .unwrap();
            statement.writes.extend(first.writes);
            let mut outcome = Err(WriteError::CacheFull);
            for _ in 0..100 {
                let attempt = Statement {
                    writes: statement.writes.clone(),
                    entry: Some(Entry::new(statement.entry.as_ref().unwrap().bytes.clone())),
                };
                outcome = storage().execute(vec![attempt], true).await.pop().unwrap();
                if outcome != Err(WriteError::CacheFull) {
                    break;
                }
                sleep(Duration::from_millis(20)).await;
            }
            outcome.unwrap();
            done.set(true);
            std::future::pending().await
        }
    });
    sim.restart(node, 2);
    sim.run_until(|| ended.get()).unwrap();
}

#[test]
fn a_hot_key_does_not_fill_memory() {
    let options = StorageOptions {
        cache_bytes: 8 << 20,
        ..options()
    };
    run(1, options, |storage| async move {
        let mut highest = 0;
        for round in 0..2000u64 {
            for key in 0..10 {
                write(key, vec![round as u8; 1000]).await.unwrap();
            }
            sleep(Duration::from_millis(2)).await;
            highest = highest.max(storage.stats().delta_bytes);
        }
        // 20 MB were written over 10 keys; what a grace of snapshots can see stays.
        let stats = storage.stats();
        assert!(highest < 2 << 20, "changes took {highest} bytes");
        assert_eq!((stats.checkpoints, stats.delayed_steps), (0, 0));
    });
}

/// Writers that are faster than checkpoints are held up, and memory stays within its bounds.
#[test]
fn writers_wait_for_memory() {
    let options = StorageOptions {
        cache_bytes: 4 << 20,
        ..options()
    };
    run(2, options, |_| async {
        let writers = |core: u16| {
            submit_to(CoreId(core), Queue::Foreground, move || async move {
                join_all((0..8).map(|writer| async move {
                    let mut highest = 0;
                    for n in 0..500 {
                        let key = u64::from(core) << 32 | writer << 16 | n;
                        // An owner that is full refuses at once; the writer tries again.
                        while let Err(error) = write(key, vec![1; 1000]).await {
                            assert_eq!(error, WriteError::CacheFull);
                            sleep(Duration::from_millis(5)).await;
                        }
                        highest = highest.max(storage().stats().delta_bytes);
                    }
                    highest
                }))
                .await
            })
        };
        let highest = join_all([writers(0), writers(1)])
            .await
            .into_iter()
            .flatten();
        let highest = highest.max().unwrap();
        let stats = stats(2).await;
        assert!(
            stats.delayed_steps > 0 && stats.checkpoints > 3,
            "{stats:?}"
        );
        assert_eq!(stats.refused_steps, 0);
        let budget = stats.delta_budget_bytes / 2;
        assert!(highest <= budget, "{highest} bytes of {budget}");
    });
}

/// Writes until storage fails, to one partition and to both in turn.
async fn write_until_failure(writer: u64) {
    for n in 0u64.. {
        let key = writer << 16 | n;
        let mut statement = put(key, vec![1; 3000]);
        if n % 2 == 1 {
            let other = (1..).find(|&step| {
                let partition = put(key + (step << 48), Vec::new()).writes[0].partition;
                partition != statement.writes[0].partition
            });
            let other = put(
                key + (other.expect("some key is there") << 48),
                vec![2; 100],
            );
            statement.writes.extend(other.writes);
        }
        let written = storage()
            .execute(vec![statement], true)
            .await
            .pop()
            .unwrap();
        match written {
            Ok(ts) => match storage().wait_durable(ts).await {
                Ok(()) => {}
                Err(_) => return,
            },
            Err(WriteError::CacheFull | WriteError::Conflict) => {
                sleep(Duration::from_millis(5)).await;
            }
            Err(WriteError::Fatal(_)) => return,
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Whatever the disk fails at, every waiter gets the error, and storage closes.
#[test]
fn a_failed_disk_leaves_no_caller_waiting() {
    let mut failed_in = std::collections::BTreeSet::new();
    let operations = [
        (DiskOp::Write, "ring", 30),
        (DiskOp::Sync, "ring", 30),
        (DiskOp::Write, "pages", 8),
        (DiskOp::Sync, "pages", 3),
        (DiskOp::Write, "manifest", 2),
        (DiskOp::Sync, "manifest", 2),
        (DiskOp::Write, "superblock", 3),
    ];
    let cases = operations
        .into_iter()
        .flat_map(|(op, path, times)| (1..=times).map(move |nth| (op, path, nth)));
    for (op, path, nth) in cases {
        let sim = Sim::new(nth, SimOptions::default());
        let handle = sim.handle();
        let node = Rc::new(Cell::new(None));
        let node_of_main = node.clone();
        let done = Rc::new(Cell::new(false));
        let why = Rc::new(RefCell::new(String::new()));
        let (ended, reason) = (done.clone(), why.clone());
        let id = sim.add_node("node", 2, move |core| {
            let (handle, node) = (handle.clone(), node_of_main.clone());
            let (done, why) = (done.clone(), why.clone());
            async move {
                if core != CoreId(0) {
                    while !done.get() {
                        sleep(Duration::from_millis(1)).await;
                    }
                    return;
                }
                let options = StorageOptions {
                    partitions: Some(2),
                    ..StorageOptions::hostile("/srv/pinion/data")
                };
                open(options).await.unwrap().recover(Nothing).await.unwrap();
                let node = node.get().expect("the node's id is set");
                handle.fail_disk_operation(node, op, path, nth);
                let writers = (0..2u16).map(|core| {
                    submit_to(CoreId(core), Queue::Foreground, move || async move {
                        let writer = |writer| write_until_failure(u64::from(core) << 4 | writer);
                        join_all((0..12).map(writer)).await;
                    })
                });
                let all = async {
                    join_all(writers).await;
                    storage().close().await;
                };
                timeout(Duration::from_secs(100), all)
                    .await
                    .unwrap_or_else(|_| panic!("{op:?} {nth} of {path}: somebody waits"));
                *why.borrow_mut() = storage().fatal().expect("the disk has failed").to_string();
                done.set(true);
            }
        });
        node.set(Some(id));
        sim.run_until_down(id).unwrap();
        assert!(
            ended.get(),
            "{op:?} {nth} of {path}: the test did not run to its end"
        );
        let place = reason.borrow().split([':', '/']).next().map(str::to_owned);
        failed_in.extend(place);
    }
    let expected = [
        "flushing ",
        "flushing a ring failed",
        "preparing a ring segment failed",
        "writing ",
        "writing a manifest failed",
    ];
    assert!(failed_in.iter().eq(&expected), "{failed_in:?}");
}

fn values(storage: &Storage, at: Timestamp) -> Vec<pinion_storage::Cursor> {
    (0..storage.partition_count())
        .map(|partition| {
            let partition = storage.partition(pinion_storage::PartitionId(partition));
            let (range, at) = (KeyRange::all(), ReadAt::At(at));
            partition
                .unwrap()
                .cursor(TREE, range, Direction::Forward, at)
        })
        .collect()
}

async fn read_all(cursors: &mut [pinion_storage::Cursor]) -> Result<Vec<u8>, ReadError> {
    let mut found = Vec::new();
    for cursor in cursors {
        while let Some((_, read)) = cursor.next().await? {
            found.push(read.value[0]);
        }
    }
    Ok(found)
}

/// Open snapshots keep what they see, through any number of checkpoints, and what they keep is
/// bounded: the oldest end.
#[test]
fn open_snapshots_keep_a_bounded_amount() {
    const KEYS: u64 = 1000;
    let options = StorageOptions {
        cache_bytes: 12 << 20,
        history_bytes: 12 << 20,
        ..options()
    };
    run(1, options, |storage| async move {
        let budget = storage.stats().delta_budget_bytes;
        let limit = 12 << 20;
        let mut open: Vec<(u8, Vec<pinion_storage::Cursor>)> = Vec::new();
        let mut highest = 0;
        for round in 0..20u8 {
            for key in 0..KEYS {
                write(key, vec![round; 1000]).await.unwrap();
            }
            let at = storage.read_timestamp().await.unwrap();
            open.push((round, values(&storage, at)));
            storage.checkpoint().await.unwrap();
            // What has ended is freed in the background.
            sleep(Duration::from_millis(10)).await;
            let stats = storage.stats();
            assert!(stats.retired_bytes <= budget, "{stats:?}");
            highest = highest.max(stats.history_disk_bytes);
        }
        assert!(
            highest > limit / 2 && highest <= limit,
            "{highest} bytes of disk are kept of {limit}"
        );
        let (mut whole, mut ended) = (0, 0);
        for (round, cursors) in &mut open {
            match read_all(cursors).await {
                Ok(found) => {
                    assert_eq!(found, vec![*round; KEYS as usize]);
                    whole += 1;
                }
                Err(error) => {
                    assert_eq!(error, ReadError::SnapshotTooOld);
                    assert_eq!(whole, 0, "a younger snapshot ended before an older one");
                    ended += 1;
                }
            }
        }
        assert!(
            whole >= 3 && ended >= 3,
            "{whole} are whole, {ended} have ended"
        );
        assert!(storage.stats().expired_views >= ended);
        drop(open);
        sleep(Duration::from_secs(1)).await;
        assert_eq!(storage.stats().retired_bytes, 0);
    });
}

/// One old snapshot costs no more however much is written after it.
#[test]
fn one_old_snapshot_survives_any_number_of_checkpoints() {
    let options = StorageOptions {
        cache_bytes: 12 << 20,
        ..options()
    };
    run(1, options, |storage| async move {
        for key in 0..1000 {
            write(key, vec![1; 1000]).await.unwrap();
        }
        let at = storage.read_timestamp().await.unwrap();
        let mut old = values(&storage, at);
        let mut kept = Vec::new();
        for round in 2..40u8 {
            for key in 0..1000 {
                write(key, vec![round; 1000]).await.unwrap();
            }
            storage.checkpoint().await.unwrap();
            sleep(Duration::from_secs(1)).await;
            kept.push(storage.stats().retired_bytes);
        }
        assert!(kept.iter().all(|&bytes| bytes == kept[0]), "{kept:?}");
        assert_eq!(read_all(&mut old).await.unwrap(), vec![1; 1000]);
    });
}

/// What a connection's task does with the panic of its handler: it continues.
async fn caught<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(
        |context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Err(_) => Poll::Ready(None),
        },
    )
    .await
}

#[test]
fn a_commit_that_panics_stops_every_core() {
    let options = StorageOptions {
        planted_fault: PlantedFault::PanicInCommit,
        ..options()
    };
    run(2, options, |storage| async move {
        let here = (0u64..).filter(|key| {
            let partition = storage.partition_of_hash(&key.to_be_bytes());
            storage.owner(partition) == CoreId(0)
        });
        let mut written = 0;
        for key in here.take(1_000) {
            match caught(write(key, vec![7; 100])).await {
                Some(result) => written += u64::from(result.is_ok()),
                None => break,
            }
        }
        assert!((1..1_000).contains(&written), "{written} writes before it");
        assert!(storage.fatal().is_some());
        assert!(matches!(write(0, vec![1]).await, Err(WriteError::Fatal(_))));
        // The other core learns of it by a message.
        sleep(Duration::from_millis(1)).await;
        let elsewhere = submit_to(CoreId(1), Queue::Foreground, || async {
            (
                pinion_storage::storage().fatal().is_some(),
                write(1, vec![1]).await,
            )
        });
        assert!(matches!(elsewhere.await, (true, Err(WriteError::Fatal(_)))));
    });
}
