//! Loaded trees beside checkpoints: what is readable when, and that no block is lost or shared.

use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::sim;

use super::{Partition, TreeLoad};
use crate::base::{PartitionOptions, PartitionRoots, verify_partition};
use crate::types::{Direction, Expect, Key, KeyRange, Op, PartitionId, ReadAt, TreeId, Write};

const ID: PartitionId = PartitionId(0);
const DIR: &str = "/data/partition-00";
const OTHER: TreeId = TreeId(5);
const LOADED: TreeId = TreeId(6);
const PARTS: u64 = 12;
const RECORDS_OF_PART: u64 = 300;

/// What becomes of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The tree begins with a checkpoint.
    Finished,
    /// It begins beside the base that is there.
    Installed,
    Abandoned,
    /// The partition is opened again before it is complete.
    Forgotten,
    /// Finished, and the tree dropped before a checkpoint.
    Dropped,
}

fn record(n: u64) -> (Key, Bytes) {
    let key = format!("key {n:06}");
    let value = if n.is_multiple_of(97) { 5000 } else { n % 20 };
    let value = Bytes::from(vec![b'v'; value as usize]);
    (Key::from_slice(key.as_bytes()), value)
}

async fn write_other(partition: &Partition, ts: u64) {
    let write = |n: u64| Write {
        partition: ID,
        tree: OTHER,
        key: record(n * 7919 % 500).0,
        op: Op::Put(Bytes::from(vec![b'o'; 200])),
        expect: Expect::Any,
    };
    let writes: Vec<Write> = (ts..ts + 40).map(write).collect();
    for one in writes.chunks(1) {
        let prepared = partition.prepare(one).await.unwrap();
        partition.write_now(Timestamp::from_u64(ts), one, prepared);
    }
}

async fn checkpoint(partition: &Partition, c: u64) -> PartitionRoots {
    partition.seal(Timestamp::from_u64(c));
    let roots = partition.merge(true, &|| {}).await.unwrap();
    partition.install(roots);
    roots
}

async fn append(load: &mut TreeLoad, part: u64) {
    let records = part * RECORDS_OF_PART..(part + 1) * RECORDS_OF_PART;
    load.append(records.map(record).collect()).await.unwrap();
}

async fn read_all(partition: &Rc<Partition>) -> Vec<(Key, Bytes)> {
    let all = KeyRange::all();
    let mut cursor = partition.cursor(LOADED, all, Direction::Forward, ReadAt::Newest);
    let mut found = Vec::new();
    while let Some((key, read)) = cursor.next().await.unwrap() {
        found.push((key, read.value));
    }
    found
}

fn check(end: End) {
    sim::block_on(1, async move {
        let options = PartitionOptions::hostile();
        let dir = Path::new(DIR);
        let partition = Partition::create(ID, dir, options.clone()).await.unwrap();
        write_other(&partition, 1).await;
        checkpoint(&partition, 10).await;
        let mut load = partition.load(LOADED);
        let mut roots = None;
        for part in 0..PARTS {
            append(&mut load, part).await;
            write_other(&partition, 20 * (part + 1)).await;
            // One that runs while pages are loaded, and one that does not.
            partition.seal(Timestamp::from_u64(20 * (part + 1)));
            let merged = partition.merge(part % 2 == 0, &|| {}).await.unwrap();
            partition.install(merged);
            roots = Some(merged);
            let report = verify_partition(ID, dir, &merged).await.unwrap();
            assert_eq!(report.problems, [], "{end:?}, part {part}");
            assert_eq!(partition.tree_ids(), [OTHER], "nobody sees what is loaded");
        }
        let roots = roots.unwrap();
        let expected: Vec<_> = match end {
            End::Finished | End::Installed => (0..PARTS * RECORDS_OF_PART).map(record).collect(),
            _ => Vec::new(),
        };
        let partition = match end {
            End::Forgotten => {
                partition.close().await;
                Partition::open(ID, dir, roots, options.clone())
                    .await
                    .unwrap()
            }
            End::Abandoned => {
                load.abandon().await;
                partition
            }
            End::Finished | End::Dropped | End::Installed => {
                load.finish();
                if end == End::Dropped {
                    partition.drop_tree(LOADED, Timestamp::from_u64(400));
                }
                assert_eq!(read_all(&partition).await, [], "before a manifest");
                if end == End::Finished {
                    // No checkpoint makes it begin, and no manifest that is about others.
                    checkpoint(&partition, 440).await;
                    assert_eq!(read_all(&partition).await, [], "nobody has asked for it");
                    assert!(partition.merge_loads(&[OTHER]).await.unwrap().is_none());
                    let roots = partition
                        .merge_loads(&[LOADED])
                        .await
                        .unwrap()
                        .expect("one");
                    partition.install(roots);
                }
                if end == End::Installed {
                    write_other(&partition, 450).await;
                    let before = partition.base_timestamp();
                    let roots = partition
                        .merge_loads(&[LOADED])
                        .await
                        .unwrap()
                        .expect("one");
                    partition.install(roots);
                    assert_eq!(partition.base_timestamp(), before);
                    assert!(read_all(&partition).await == expected);
                    let report = verify_partition(ID, dir, &roots).await.unwrap();
                    assert_eq!(report.problems, []);
                    assert!(partition.merge_loads(&[LOADED]).await.unwrap().is_none());
                }
                partition
            }
        };
        let roots = checkpoint(&partition, 500).await;
        let report = verify_partition(ID, dir, &roots).await.unwrap();
        assert_eq!(report.problems, [], "{end:?}");
        assert!(read_all(&partition).await == expected, "{end:?}");
        let stats = partition.tree_stats(LOADED);
        assert_eq!(stats.records, expected.len() as u64);
        // It is a tree like any other: it changes, and is there after opening.
        let (key, _) = record(3);
        let delete = [Write {
            partition: ID,
            tree: LOADED,
            key: key.clone(),
            op: Op::Delete,
            expect: Expect::Any,
        }];
        let prepared = partition.prepare(&delete).await.unwrap();
        partition.write_now(Timestamp::from_u64(510), &delete, prepared);
        let roots = checkpoint(&partition, 520).await;
        partition.close().await;
        let partition = Partition::open(ID, dir, roots, options).await.unwrap();
        let left: Vec<_> = expected.into_iter().filter(|(k, _)| *k != key).collect();
        assert!(read_all(&partition).await == left, "{end:?}");
        let report = verify_partition(ID, dir, &roots).await.unwrap();
        assert_eq!(report.problems, [], "{end:?}");
    });
}

#[test]
fn a_loaded_tree_begins_with_a_manifest() {
    check(End::Finished);
    check(End::Installed);
}

#[test]
fn a_load_that_does_not_end_leaves_nothing_behind() {
    for end in [End::Abandoned, End::Forgotten, End::Dropped] {
        check(end);
    }
}

#[test]
#[should_panic(expected = "are loaded out of order")]
fn records_come_in_order() {
    sim::block_on(1, async {
        let options = PartitionOptions::hostile();
        let partition = Partition::create(ID, Path::new(DIR), options)
            .await
            .unwrap();
        let mut load = partition.load(LOADED);
        append(&mut load, 1).await;
        append(&mut load, 0).await;
    });
}
