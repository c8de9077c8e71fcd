//! Scripts for single behaviours of a partition: expectations, intents, dropped trees, damage,
//! failing disks, reuse of space.

mod counts;
mod damaged;
mod freeing;
mod layered;
mod passing;
mod shrinking;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim::{self, Death, DiskOp, Sim, SimOptions};
use pinion_runtime::{DmaBuf, Duration, File, OpenOptions, Queue, Rng, fs, sleep, spawn};

use super::{Partition, UnitId};
use crate::base::{PartitionOptions, PartitionRoots, verify_partition};
use crate::limits::BLOCK_BYTES;
use crate::types::{
    Direction, Expect, Fatal, Key, KeyRange, Op, PartitionId, ReadAt, ReadError, TreeId, Write,
    WriteError,
};

const ID: PartitionId = PartitionId(0);
const DIR: &str = "/data/partition-00";
const TREE: TreeId = TreeId(5);

async fn create(options: PartitionOptions) -> Rc<Partition> {
    let made = Partition::create(ID, Path::new(DIR), options);
    made.await.unwrap()
}

fn put(key: &str, value: &str) -> Write {
    let op = Op::Put(Bytes::copy_from_slice(value.as_bytes()));
    Write {
        partition: ID,
        tree: TREE,
        key: Key::from_slice(key.as_bytes()),
        op,
        expect: Expect::Any,
    }
}

fn delete(key: &str) -> Write {
    Write {
        op: Op::Delete,
        ..put(key, "")
    }
}

fn unique(key: &str, len: usize) -> Write {
    Write {
        expect: Expect::UniquePrefix { len },
        ..put(key, "v")
    }
}

async fn write(partition: &Partition, ts: u64, writes: &[Write]) -> Result<(), WriteError> {
    let prepared = partition.prepare(writes).await.unwrap();
    partition.check(writes, &prepared)?;
    partition.write_now(Timestamp::from_u64(ts), writes, prepared);
    Ok(())
}

async fn place(partition: &Partition, unit: u64, writes: &[Write]) -> Result<(), WriteError> {
    let prepared = partition.prepare(writes).await.unwrap();
    partition.place_intents(UnitId(unit), writes, prepared)
}

async fn checkpoint(partition: &Partition, c: u64) -> Result<PartitionRoots, Fatal> {
    partition.seal(Timestamp::from_u64(c));
    let roots = partition.merge(true, &|| {}).await?;
    partition.install(roots);
    Ok(roots)
}

async fn newest(partition: &Partition, key: &str) -> Option<String> {
    let read = partition
        .get(TREE, key.as_bytes(), ReadAt::Newest)
        .await
        .unwrap();
    read.map(|read| String::from_utf8(read.value.to_vec()).unwrap())
}

#[test]
fn what_was_prepared_yields_to_what_was_written_since() {
    // Each case: what comes between the preparation of an insert and its check, the outcome, and
    // the values' bytes then.
    let check = |between: &[(u64, Write)], expected: Result<(), WriteError>, value_bytes: u64| {
        for sealed in [false, true] {
            let (between, expected) = (between.to_vec(), expected.clone());
            sim::block_on(1, async move {
                let partition = create(PartitionOptions::hostile()).await;
                write(&partition, 1, &[put("other", "12345")])
                    .await
                    .unwrap();
                checkpoint(&partition, 50).await.unwrap();
                let insert = [Write {
                    expect: Expect::Absent,
                    ..put("key", "123")
                }];
                if sealed {
                    partition.seal(Timestamp::from_u64(60));
                }
                let prepared = partition.prepare(&insert).await.unwrap();
                for (ts, one) in between {
                    write(&partition, ts, &[one]).await.unwrap();
                }
                let checked = partition.check(&insert, &prepared);
                assert_eq!(checked, expected, "sealed {sealed}");
                if checked.is_ok() {
                    partition.write_now(Timestamp::from_u64(100), &insert, prepared);
                }
                assert_eq!(partition.tree_stats(TREE).value_bytes, value_bytes);
            });
        }
    };
    check(&[], Ok(()), 5 + 3);
    check(&[(70, put("between", "1"))], Ok(()), 5 + 1 + 3);
    check(
        &[(70, put("key", "1"))],
        Err(WriteError::Exists { write: 0 }),
        5 + 1,
    );
    check(&[(70, put("key", "1")), (71, delete("key"))], Ok(()), 5 + 3);
}

#[test]
fn unique_prefixes() {
    // Each case: what is there before, in the base or in the delta; the statement; the key it
    // collides with.
    let check = |before: &[Write], statement: &[Write], collides: Option<(usize, &str)>| {
        for in_base in [false, true] {
            let (before, statement) = (before.to_vec(), statement.to_vec());
            let outcome = sim::block_on(1, async move {
                let partition = create(PartitionOptions::hostile()).await;
                for (ts, one) in before.iter().enumerate() {
                    write(&partition, ts as u64 + 1, std::slice::from_ref(one))
                        .await
                        .unwrap();
                }
                if in_base {
                    checkpoint(&partition, 50).await.unwrap();
                }
                write(&partition, 100, &statement).await
            });
            let expected = collides.map_or(Ok(()), |(write, key)| {
                Err(WriteError::Duplicate {
                    write,
                    existing_key: Key::from_slice(key.as_bytes()),
                })
            });
            assert_eq!(outcome, expected);
        }
    };
    check(&[], &[unique("ab1", 2)], None);
    check(&[put("ab1", "v")], &[unique("ab1", 2)], None);
    check(&[put("ab1", "v")], &[unique("ab2", 2)], Some((0, "ab1")));
    check(&[put("ab3", "v")], &[unique("ab2", 2)], Some((0, "ab3")));
    check(&[put("ac", "v"), put("aa", "v")], &[unique("ab2", 2)], None);
    check(&[put("ab1", "v"), delete("ab1")], &[unique("ab2", 2)], None);
    check(&[put("ab1", "v")], &[delete("ab1"), unique("ab2", 2)], None);
    check(
        &[put("ab1", "v")],
        &[unique("ab2", 2), delete("ab1")],
        Some((0, "ab1")),
    );
    check(&[], &[unique("ab1", 2), unique("ab2", 2)], Some((1, "ab1")));
    check(
        &[put("ab1", "v")],
        &[Write {
            op: Op::Check,
            ..unique("ab2", 2)
        }],
        Some((0, "ab1")),
    );
    let many: Vec<Write> = (0..9).map(|n| put(&format!("ab{n}"), "v")).collect();
    check(&many, &[unique("abz", 2)], Some((0, "ab0")));
    let mut removed: Vec<Write> = (0..9).map(|n| delete(&format!("ab{n}"))).collect();
    removed.push(unique("abz", 2));
    sim::block_on(1, async move {
        let partition = create(PartitionOptions::hostile()).await;
        write(&partition, 1, &many).await.unwrap();
        checkpoint(&partition, 50).await.unwrap();
        // More keys than are remembered: the statement has to be tried again, as it cannot be
        // checked.
        assert_eq!(
            write(&partition, 100, &removed).await,
            Err(WriteError::Conflict)
        );
        write(&partition, 100, &removed[..9]).await.unwrap();
        write(&partition, 101, &removed[9..]).await.unwrap();
    });
}

/// Changes that lie far apart cost what they are, are there after opening, and are merged when
/// asked to.
#[test]
fn sparse_changes_are_spilled_and_merged_later() {
    sim::block_on(1, async {
        let options = PartitionOptions::default();
        let mut partition = create(options.clone()).await;
        let key = |n: u32| format!("key-{n:05}");
        for n in 0..2000 {
            let value = "v".repeat(1000);
            write(&partition, 1, &[put(&key(n), &value)]).await.unwrap();
        }
        checkpoint(&partition, 1).await.unwrap();
        let merged = partition.tree_stats(TREE);
        let written = |partition: &Partition| partition.page_stats().bytes_written;
        let before = written(&partition);
        for n in (0..2000).step_by(100) {
            let writes = [put(&key(n), "new"), delete(&key(n + 1))];
            write(&partition, 2, &writes).await.unwrap();
        }
        // Of a key that is newer than the checkpoint the version before is spilled, or nothing.
        write(&partition, 4, &[put(&key(0), "newer"), put("another", "")])
            .await
            .unwrap();
        partition.seal(Timestamp::from_u64(3));
        let roots = partition.merge(false, &|| {}).await.unwrap();
        partition.install(roots);
        assert!(partition.has_spilled());
        assert!(
            written(&partition) - before < 64 * 1024,
            "a merge writes more"
        );
        assert_eq!(newest(&partition, &key(0)).await.as_deref(), Some("newer"));
        assert_eq!(partition.tree_stats(TREE).records, 1981);

        partition.close().await;
        partition = Partition::open(ID, Path::new(DIR), roots, options)
            .await
            .unwrap();
        let check = async |partition: &Partition| {
            assert_eq!(newest(partition, &key(0)).await.as_deref(), Some("new"));
            assert_eq!(newest(partition, &key(101)).await, None);
            let stats = partition.tree_stats(TREE);
            assert_eq!(
                (stats.records, stats.value_bytes),
                (1980, 1960 * 1000 + 20 * 3)
            );
        };
        check(&partition).await;
        assert_eq!(partition.tree_stats(TREE).pages, merged.pages);
        checkpoint(&partition, 3).await.unwrap();
        assert!(!partition.has_spilled() && partition.memory().active_bytes == 0);
        check(&partition).await;
    });
}

#[test]
fn a_unique_prefix_conflicts_with_an_undecided_one() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::default()).await;
        place(&partition, 1, &[unique("ab1", 2)]).await.unwrap();
        assert_eq!(
            write(&partition, 5, &[unique("ab2", 2)]).await,
            Err(WriteError::Conflict)
        );
        partition.withdraw(UnitId(1));
        assert_eq!(write(&partition, 5, &[unique("ab2", 2)]).await, Ok(()));
        place(&partition, 2, &[delete("ab2")]).await.unwrap();
        assert_eq!(
            write(&partition, 6, &[unique("ab3", 2)]).await,
            Err(WriteError::Conflict)
        );
        partition.resolve(UnitId(2), Timestamp::from_u64(7));
        assert_eq!(write(&partition, 8, &[unique("ab3", 2)]).await, Ok(()));
        assert_eq!(partition.memory().intent_bytes, 0);
    });
}

#[test]
fn newest_reads_wait_for_the_decision_and_snapshots_do_not() {
    for commit in [false, true] {
        sim::block_on(1, async move {
            let partition = create(PartitionOptions::default()).await;
            write(&partition, 1, &[put("a", "old"), put("b", "old")])
                .await
                .unwrap();
            place(
                &partition,
                1,
                &[put("a", "new"), delete("b"), put("c", "new")],
            )
            .await
            .unwrap();
            let finished = Rc::new(Cell::new(0));
            let mut waiting = Vec::new();
            for key in ["a", "b", "c"] {
                let (partition, finished) = (partition.clone(), finished.clone());
                waiting.push(spawn(Queue::Foreground, async move {
                    let value = newest(&partition, key).await;
                    finished.set(finished.get() + 1);
                    value
                }));
            }
            let scanner = partition.clone();
            let scan = spawn(Queue::Foreground, async move {
                let mut cursor =
                    scanner.cursor(TREE, KeyRange::all(), Direction::Reverse, ReadAt::Newest);
                let mut keys = Vec::new();
                while let Some((key, _)) = cursor.next().await.unwrap() {
                    keys.push(String::from_utf8(key.to_vec()).unwrap());
                }
                keys
            });
            sleep(Duration::from_millis(50)).await;
            assert_eq!(finished.get(), 0, "a newest read did not wait");
            let at = ReadAt::At(Timestamp::from_u64(1));
            assert_eq!(
                partition.get(TREE, b"a", at).await.unwrap().unwrap().value,
                "old"
            );
            assert!(partition.try_get(TREE, b"a", ReadAt::Newest).is_none());
            let expected = if commit {
                partition.resolve(UnitId(1), Timestamp::from_u64(9));
                ([Some("new"), None, Some("new")], vec!["c", "a"])
            } else {
                partition.withdraw(UnitId(1));
                ([Some("old"), Some("old"), None], vec!["b", "a"])
            };
            for (task, expected) in waiting.into_iter().zip(expected.0) {
                assert_eq!(task.await.unwrap().as_deref(), expected);
            }
            assert_eq!(scan.await.unwrap(), expected.1);
        });
    }
}

#[test]
fn a_check_blocks_writers_but_no_readers() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::default()).await;
        write(&partition, 1, &[put("a", "v")]).await.unwrap();
        let check = Write {
            op: Op::Check,
            expect: Expect::Present,
            ..put("a", "")
        };
        place(&partition, 1, std::slice::from_ref(&check))
            .await
            .unwrap();
        assert_eq!(newest(&partition, "a").await.as_deref(), Some("v"));
        assert_eq!(
            write(&partition, 2, &[delete("a")]).await,
            Err(WriteError::Conflict)
        );
        partition.resolve(UnitId(1), Timestamp::from_u64(3));
        assert_eq!(newest(&partition, "a").await.as_deref(), Some("v"));
        write(&partition, 4, &[delete("a")]).await.unwrap();
        assert_eq!(
            place(&partition, 2, &[check]).await,
            Err(WriteError::Missing { write: 0 })
        );
    });
}

#[test]
fn unreplicated_writes_are_visible_at_any_timestamp() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::default()).await;
        write(&partition, 0, &[put("a", "1")]).await.unwrap();
        write(&partition, 0, &[put("a", "2")]).await.unwrap();
        let at = ReadAt::At(Timestamp::from_u64(7));
        assert_eq!(
            partition.get(TREE, b"a", at).await.unwrap().unwrap().value,
            "2"
        );
        partition.seal(Timestamp::from_u64(9));
        write(&partition, 0, &[put("a", "3")]).await.unwrap();
        assert_eq!(newest(&partition, "a").await.as_deref(), Some("3"));
        let roots = partition.merge(true, &|| {}).await.unwrap();
        partition.install(roots);
        assert_eq!(newest(&partition, "a").await.as_deref(), Some("3"));
        checkpoint(&partition, 9).await.unwrap();
        assert_eq!(newest(&partition, "a").await.as_deref(), Some("3"));
    });
}

/// What may still be read of the state before a checkpoint while it merges.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Older {
    /// A snapshot is open: its pages stay while the cache has room for them, and so do all sealed
    /// changes.
    Pinned,
    /// Snapshots may be opened: the sealed changes stay.
    Readable,
    Nothing,
}

#[test]
fn a_merge_gives_up_memory_as_it_goes() {
    const KEYS: u64 = 4_000;
    for older in [Older::Pinned, Older::Readable, Older::Nothing] {
        sim::block_on(1, async move {
            let part_bytes = 128 * 1024;
            let options = PartitionOptions {
                cache_bytes: 64 * 1024 * 1024,
                part_bytes,
                ..PartitionOptions::default()
            };
            let partition = create(options).await;
            let key = |n: u64| format!("key {n:05}");
            let value = |round: u64, n: u64| format!("{round} {n} {}", "v".repeat(1_000));
            for n in 0..KEYS {
                write(&partition, n + 1, &[put(&key(n), &value(1, n))])
                    .await
                    .unwrap();
            }
            checkpoint(&partition, KEYS).await.unwrap();
            let tree_bytes = partition.tree_stats(TREE).page_bytes;
            assert!(tree_bytes > 16 * part_bytes);
            let before = Timestamp::from_u64(KEYS);
            let pin = (older == Older::Pinned).then(|| partition.pin(before).unwrap());
            for n in 0..KEYS {
                write(&partition, KEYS + n + 1, &[put(&key(n), &value(2, n))])
                    .await
                    .unwrap();
            }
            let at = Timestamp::from_u64(2 * KEYS);
            partition.seal(at);
            let all_sealed = partition.memory().sealed_bytes;
            if older == Older::Nothing {
                partition.raise_horizon(at);
            }
            let freed = Rc::new(Cell::new(0));
            let merge = spawn(Queue::Background, {
                let (partition, freed) = (partition.clone(), freed.clone());
                async move {
                    let memory_freed = || freed.set(freed.get() + 1);
                    partition.merge(true, &memory_freed).await
                }
            });
            let (mut most_cached, mut least_sealed) = (0, all_sealed);
            let mut looks = 0;
            while !merge.is_finished() {
                let memory = partition.memory();
                most_cached = most_cached.max(memory.cache_bytes);
                assert!(memory.sealed_bytes <= least_sealed);
                least_sealed = memory.sealed_bytes;
                let n = looks * 7 % KEYS;
                let now = newest(&partition, &key(n)).await;
                assert_eq!(now, Some(value(2, n)));
                let (key, then) = (key(n), ReadAt::At(before));
                let then = partition.get(TREE, key.as_bytes(), then).await;
                match older {
                    Older::Nothing => assert_eq!(then.unwrap_err(), ReadError::SnapshotTooOld),
                    _ => assert_eq!(then.unwrap().unwrap().value, value(1, n)),
                }
                looks += 1;
                sleep(Duration::from_micros(20)).await;
            }
            assert!(looks > 50);
            let pinned = older == Older::Pinned;
            let room = if pinned { tree_bytes } else { 4 * part_bytes };
            let fits = most_cached < tree_bytes + tree_bytes / 8 + room;
            assert!(
                fits && (most_cached > tree_bytes * 2) == pinned,
                "{older:?}: a cache of {most_cached} bytes for a tree of {tree_bytes}"
            );
            if older != Older::Pinned {
                let reclaimed = least_sealed < all_sealed / 8 && freed.get() > 10;
                assert!(reclaimed, "{least_sealed} bytes left of {all_sealed}");
            } else {
                assert_eq!((least_sealed, freed.get()), (all_sealed, 0), "{older:?}");
            }
            let roots = merge.await.unwrap().unwrap();
            partition.install(roots);
            drop(pin);
            for n in 0..KEYS {
                assert_eq!(newest(&partition, &key(n)).await, Some(value(2, n)));
            }
            let report = verify_partition(ID, Path::new(DIR), &roots).await.unwrap();
            assert_eq!(report.problems, []);
        });
    }
}

/// While there are few changes pages may take nearly all; they give way to changes, and get back
/// what a checkpoint frees.
#[test]
fn pages_take_what_changes_leave() {
    const KEYS: u64 = 2_000;
    sim::block_on(1, async {
        let (cache_bytes, beside) = (2 << 20, 256 << 10);
        let options = PartitionOptions {
            cache_bytes,
            changes_beside_cache_bytes: beside,
            ..PartitionOptions::default()
        };
        let partition = create(options).await;
        let key = |n: u64| format!("key {n:05}");
        let write_all = async |from: u64| {
            for n in 0..KEYS {
                let value = format!("{from} {}", "v".repeat(600));
                let written = write(&partition, from + n + 1, &[put(&key(n), &value)]).await;
                written.unwrap();
                partition.share_memory(&partition.memory());
                let memory = partition.memory();
                let budget = cache_bytes - memory.dirty_bytes().saturating_sub(beside);
                let fits = memory.cache_bytes <= memory.cache_budget_bytes;
                assert!(fits && memory.cache_budget_bytes == budget, "{memory:?}");
            }
        };
        write_all(0).await;
        assert!(partition.memory().dirty_bytes() > 2 * beside);
        checkpoint(&partition, KEYS).await.unwrap();
        partition.raise_horizon(Timestamp::from_u64(KEYS));
        // What was merged is freed in the background, and nothing is written meanwhile.
        sleep(Duration::from_millis(10)).await;
        assert_eq!(partition.memory().cache_budget_bytes, cache_bytes);
        for n in 0..KEYS {
            assert!(newest(&partition, &key(n)).await.is_some());
        }
        let most = partition.memory().cache_bytes;
        write_all(KEYS).await;
        let least = partition.memory().cache_bytes;
        assert!(
            most - least > 2 * beside,
            "{most} bytes of pages, then {least}"
        );
    });
}

#[test]
fn what_was_read_of_the_base_is_not_taken_for_what_was_merged_over_it() {
    sim::block_on(1, async {
        let options = PartitionOptions {
            part_bytes: 1,
            ..PartitionOptions::hostile()
        };
        let partition = create(options).await;
        for n in 0..100 {
            let key = format!("b {n}");
            write(&partition, 1, &[put("a", "1"), put(&key, "1")])
                .await
                .unwrap();
        }
        checkpoint(&partition, 2).await.unwrap();
        let expecting = async |key: &str, op: Op| {
            let read = partition.get(TREE, key.as_bytes(), ReadAt::Newest);
            let read = read.await.unwrap().unwrap();
            Write {
                op,
                expect: Expect::Version(read.token),
                ..put(key, "")
            }
        };
        let stale = expecting("a", Op::Delete).await;
        let elsewhere = expecting("b 99", Op::Check).await;
        write(&partition, 3, &[put("a", "2")]).await.unwrap();
        partition.seal(Timestamp::from_u64(4));
        partition.raise_horizon(Timestamp::from_u64(4));
        let roots = partition.merge(true, &|| {}).await.unwrap();
        assert_eq!(partition.memory().sealed_bytes, 0, "it was given up");
        for _ in 0..2 {
            let outcome = write(&partition, 5, std::slice::from_ref(&stale)).await;
            assert_eq!(outcome, Err(WriteError::Conflict));
            // Its leaf is what it was, so there is no need to look again.
            let outcome = write(&partition, 5, std::slice::from_ref(&elsewhere)).await;
            assert_eq!(outcome, Ok(()));
            if partition.roots() != roots {
                partition.install(roots);
            }
        }
        assert_eq!(newest(&partition, "a").await.as_deref(), Some("2"));
    });
}

/// Cursors and writes that begin in one state of a merge and continue in another.
#[test]
fn cursors_and_writes_continue_while_a_merge_is_published() {
    const KEYS: u64 = 600;
    for seed in 0..8 {
        sim::block_on(seed, async move {
            let options = PartitionOptions {
                cache_bytes: if seed % 2 == 0 { 0 } else { 1 << 20 },
                part_bytes: 1 + seed * BLOCK_BYTES as u64,
                ..PartitionOptions::hostile()
            };
            let partition = create(options).await;
            let key = |n: u64| format!("key {n:05}");
            let mut now = 0;
            let mut records = BTreeMap::new();
            let mut rng = Rng::from_seed(seed);
            // Every other key is changed, moved or taken away, so that leaves begin elsewhere
            // afterwards.
            for round in 0..2 {
                for n in 0..KEYS {
                    now += 1;
                    if round == 0 || rng.chance(0.3) {
                        let value = format!("{round} {}", "v".repeat(rng.below(90) as usize));
                        write(&partition, now, &[put(&key(n), &value)])
                            .await
                            .unwrap();
                        records.insert(key(n), value);
                    } else if rng.chance(0.5) {
                        write(&partition, now, &[delete(&key(n))]).await.unwrap();
                        records.remove(&key(n));
                    }
                }
                if round == 0 {
                    checkpoint(&partition, now).await.unwrap();
                }
            }
            let at = Timestamp::from_u64(now);
            partition.seal(at);
            partition.raise_horizon(at);
            let scans = [
                (Direction::Forward, ReadAt::Newest),
                (Direction::Reverse, ReadAt::Newest),
                (Direction::Forward, ReadAt::At(at)),
                (Direction::Reverse, ReadAt::At(at)),
            ];
            let mut cursors = scans.map(|(direction, at)| {
                let cursor = partition.cursor(TREE, KeyRange::all(), direction, at);
                (direction, cursor, Vec::new())
            });
            let absent = |n: u64| Write {
                expect: Expect::Absent,
                ..put(&key(n), "never")
            };
            let merge = spawn(Queue::Background, {
                let partition = partition.clone();
                async move { partition.merge(true, &|| {}).await }
            });
            let mut stale = 0;
            while !merge.is_finished() {
                for (_, cursor, got) in &mut cursors {
                    got.extend(cursor.next().await.unwrap());
                }
                let n = rng.below(KEYS);
                let there = records.contains_key(&key(n));
                let insert = [absent(n)];
                let prepared = partition.prepare(&insert).await.unwrap();
                sleep(Duration::from_micros(rng.below(60))).await;
                match partition.check(&insert, &prepared) {
                    Ok(()) => assert!(!there, "{} is not found", key(n)),
                    Err(WriteError::Exists { .. }) => assert!(there, "{} is found", key(n)),
                    Err(WriteError::Conflict) => stale += 1,
                    Err(other) => panic!("{other:?}"),
                }
            }
            assert!(stale > 0, "no part was published between two steps");
            partition.install(merge.await.unwrap().unwrap());
            for (direction, mut cursor, mut got) in cursors {
                while let Some(record) = cursor.next().await.unwrap() {
                    got.push(record);
                }
                if direction == Direction::Reverse {
                    got.reverse();
                }
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                let got = got.iter().map(|(key, read)| (text(key), text(&read.value)));
                assert!(got.eq(records.clone()), "seed {seed} {direction:?}");
            }
        });
    }
}

#[test]
fn a_dropped_tree_leaves_no_pages() {
    for large_values in [false, true] {
        sim::block_on(1, async move {
            let partition = create(PartitionOptions::hostile()).await;
            let value = "v".repeat(if large_values { 500 } else { 20 });
            for n in 0..300 {
                write(&partition, n + 1, &[put(&format!("key {n:04}"), &value)])
                    .await
                    .unwrap();
            }
            checkpoint(&partition, 400).await.unwrap();
            assert_eq!(partition.tree_ids(), [TREE]);
            assert!(partition.tree_stats(TREE).pages > 10);
            let one_more = [put("one more", "v")];
            write(&partition, 401, &one_more).await.unwrap();
            partition.drop_tree(TREE, Timestamp::from_u64(402));
            checkpoint(&partition, 401).await.unwrap();
            assert_eq!(partition.tree_ids(), [TREE], "dropped above the checkpoint");
            let roots = checkpoint(&partition, 402).await.unwrap();
            assert_eq!(partition.tree_ids(), []);
            assert_eq!(newest(&partition, "key 0001").await, None);
            let report = verify_partition(ID, Path::new(DIR), &roots).await.unwrap();
            assert_eq!((report.problems, report.trees), (vec![], vec![]));
            let stats = partition.page_stats();
            assert_eq!(
                stats.file_bytes - stats.free_bytes,
                2 * BLOCK_BYTES as u64,
                "header and free list remain"
            );
        });
    }
}

#[test]
fn space_is_reused() {
    sim::block_on(1, async {
        let options = PartitionOptions {
            cache_bytes: 1 << 18,
            ..PartitionOptions::default()
        };
        let partition = create(options).await;
        let mut rng = Rng::from_seed(4);
        let mut now = 1;
        let mut sizes = Vec::new();
        for _round in 0..4 {
            for n in 0..4000u64 {
                let key = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_string();
                let value = "x".repeat(rng.between(100, 900) as usize);
                now += 1;
                write(&partition, now, &[put(&key, &value)]).await.unwrap();
                if n % 500 == 499 {
                    checkpoint(&partition, now).await.unwrap();
                }
            }
            sizes.push(partition.page_stats().file_bytes);
        }
        let stats = partition.page_stats();
        assert!(stats.misses > 0 && stats.evictions > 0);
        assert!(
            sizes[3] as f64 <= sizes[0] as f64 * 1.2 + (16 << 20) as f64,
            "{sizes:?}"
        );
    });
}

#[test]
fn a_failed_write_or_flush_poisons_the_partition() {
    for (op, nth) in [(DiskOp::Write, 1), (DiskOp::Write, 3), (DiskOp::Sync, 1)] {
        let sim = Sim::new(1, SimOptions::default());
        let handle = sim.handle();
        let done = Rc::new(Cell::new(false));
        let finished = done.clone();
        let node = Rc::new(Cell::new(None));
        let node_of_main = node.clone();
        let id = sim.add_node("node", 1, move |_| {
            let (handle, finished, node) = (handle.clone(), finished.clone(), node_of_main.clone());
            async move {
                let partition = create(PartitionOptions::hostile()).await;
                for n in 0..60 {
                    write(
                        &partition,
                        n + 1,
                        &[put(&format!("key {n}"), &"v".repeat(100))],
                    )
                    .await
                    .unwrap();
                }
                handle.fail_disk_operation(
                    node.get().expect("the node's id is set"),
                    op,
                    "pages",
                    nth,
                );
                let error = checkpoint(&partition, 100).await.unwrap_err();
                assert!(error.to_string().contains(DIR), "{error}");
                assert_eq!(
                    newest(&partition, "key 7").await,
                    Some("v".repeat(100)),
                    "reads go on"
                );
                assert_eq!(
                    partition.merge(true, &|| {}).await.unwrap_err(),
                    error,
                    "the poison stays"
                );
                finished.set(true);
            }
        });
        node.set(Some(id));
        sim.run_until_down(id).unwrap();
        assert!(done.get());
    }
}

/// Pages that the last durable manifest refers to survive a crash at any instant, merges included.
#[test]
fn a_crash_never_touches_the_installed_checkpoint() {
    type Records = BTreeMap<String, String>;
    let mut crashes = 0;
    for seed in 0..12 {
        let sim = Sim::new(seed, SimOptions::random(seed));
        // What manifests would hold: the roots, and the records they stand for.
        let durable: Rc<RefCell<Option<(PartitionRoots, Records)>>> = Rc::default();
        let manifest = durable.clone();
        let starts = Rc::new(Cell::new(0u64));
        let started = starts.clone();
        let node = sim.add_node("node", 1, move |_| {
            let (manifest, started) = (manifest.clone(), started.clone());
            async move {
                started.set(started.get() + 1);
                let mut rng = Rng::from_seed(seed * 1000 + started.get());
                let before = manifest.borrow().clone();
                let (partition, mut records) = match before {
                    None => {
                        fs::create_dir_all("/data").await.unwrap();
                        fs::sync_dir("/").await.unwrap();
                        (create(PartitionOptions::hostile()).await, Records::new())
                    }
                    Some((roots, records)) => {
                        let report = verify_partition(ID, Path::new(DIR), &roots).await.unwrap();
                        assert_eq!(report.problems, []);
                        let options = PartitionOptions::hostile();
                        (
                            Partition::open(ID, Path::new(DIR), roots, options)
                                .await
                                .unwrap(),
                            records,
                        )
                    }
                };
                let mut cursor =
                    partition.cursor(TREE, KeyRange::all(), Direction::Forward, ReadAt::Newest);
                let mut found = Records::new();
                while let Some((key, read)) = cursor.next().await.unwrap() {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    found.insert(text(&key), text(&read.value));
                }
                assert_eq!(found, records);
                let mut now = partition.base_timestamp().as_u64();
                loop {
                    for _ in 0..rng.between(1, 30) {
                        now += 1;
                        let key = format!("key {}", rng.below(150));
                        let value = rng
                            .next_u64()
                            .to_string()
                            .repeat(rng.between(1, 20) as usize);
                        write(&partition, now, &[put(&key, &value)]).await.unwrap();
                        records.insert(key, value);
                    }
                    partition.seal(Timestamp::from_u64(now));
                    let roots = partition.merge(true, &|| {}).await.unwrap();
                    *manifest.borrow_mut() = Some((roots, records.clone()));
                    partition.install(roots);
                }
            }
        });
        let mut rng = Rng::from_seed(seed);
        for _ in 0..6 {
            sim.run_for(Duration::from_micros(rng.between(2_000, 60_000)));
            sim.crash(node, Death::PowerCut);
            crashes += 1;
            sim.restart(node, 1);
        }
        sim.run_for(Duration::from_millis(50));
        assert!(
            durable.borrow().is_some() && starts.get() == 7,
            "seed {seed} did nothing"
        );
    }
    assert_eq!(crashes, 72);
}

#[test]
fn a_cursor_among_changes_sees_what_is_written_before_it_gets_there() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        let key = |n: u64| format!("{n:04}");
        // Some in the base, some sealed, most in the active delta.
        for n in (0..400).step_by(10) {
            write(&partition, 1 + n, &[put(&key(n), "base")])
                .await
                .unwrap();
        }
        checkpoint(&partition, 1000).await.unwrap();
        for n in (0..400).step_by(7) {
            write(&partition, 1001 + n, &[put(&key(n), "sealed")])
                .await
                .unwrap();
        }
        partition.seal(Timestamp::from_u64(2000));
        for n in (0..400).filter(|n| n % 3 != 0) {
            write(&partition, 2001 + n, &[put(&key(n), "active")])
                .await
                .unwrap();
        }
        let mut expected: BTreeMap<String, String> = BTreeMap::new();
        for (step, value) in [(10, "base"), (7, "sealed")] {
            expected.extend(
                (0..400)
                    .step_by(step)
                    .map(|n| (key(n as u64), value.to_owned())),
            );
        }
        expected.extend(
            (0..400)
                .filter(|n| n % 3 != 0)
                .map(|n| (key(n), "active".to_owned())),
        );
        let snapshot = expected.clone();
        let mut old = partition.cursor(
            TREE,
            KeyRange::all(),
            Direction::Forward,
            ReadAt::At(Timestamp::from_u64(2500)),
        );
        let mut new = partition.cursor(TREE, KeyRange::all(), Direction::Forward, ReadAt::Newest);
        let (mut seen_old, mut seen_new) = (Vec::new(), Vec::new());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        for turn in 0u64.. {
            let (a, b) = (old.next().await.unwrap(), new.next().await.unwrap());
            if a.is_none() && b.is_none() {
                break;
            }
            seen_old.extend(a.map(|(key, read)| (text(&key), text(&read.value))));
            let at = b.as_ref().map(|(key, _)| text(key));
            seen_new.extend(b.map(|(key, read)| (text(&key), text(&read.value))));
            // A little ahead of the cursor at newest one key goes and another one comes.
            let Some(at) = at.filter(|_| turn % 25 == 24) else {
                continue;
            };
            let at: u64 = at.parse().unwrap();
            let gone = expected.keys().find(|other| **other > key(at)).cloned();
            let Some(gone) = gone else { continue };
            let come = format!("{gone}+");
            let writes = [delete(&gone), put(&come, "late")];
            write(&partition, 3000 + turn, &writes).await.unwrap();
            expected.remove(&gone);
            expected.insert(come, "late".to_owned());
        }
        assert!(seen_old.into_iter().eq(snapshot));
        assert!(seen_new.into_iter().eq(expected.clone()));
        assert!(expected.values().filter(|value| *value == "late").count() > 5);
    });
}
