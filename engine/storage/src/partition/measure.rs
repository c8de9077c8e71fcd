//! Measurements of the hot paths over cached pages, run by hand:
//! `cargo test --release -p pinion-storage measure -- --ignored --nocapture`.

#![allow(
    clippy::disallowed_methods,
    reason = "a measurement of processor time, outside any node"
)]

use std::hint::black_box;
use std::path::Path;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{Rng, sim};

use super::{Block, Partition};
use crate::base::PartitionOptions;
use crate::types::{Direction, Expect, Key, KeyRange, Op, PartitionId, ReadAt, TreeId, Write};

const RECORDS: u64 = 500_000;
const TREE: TreeId = TreeId(2);

/// 14 bytes, as the key of an ObjectId has.
fn key(n: u64) -> Key {
    let mut key = Key::from_slice(b"\x64pinion");
    key.extend_from_slice(&n.to_be_bytes()[1..]);
    key
}

fn put(n: u64, value: &Bytes, expect: Expect) -> Write {
    Write {
        partition: PartitionId(0),
        tree: TREE,
        key: key(n),
        op: Op::Put(value.clone()),
        expect,
    }
}

fn report(what: &str, start: Instant, count: u64) {
    let elapsed = start.elapsed();
    println!(
        "{what:44} {:>8.0} ns each, {:>9.0} per s",
        elapsed.as_nanos() as f64 / count as f64,
        count as f64 / elapsed.as_secs_f64()
    );
}

async fn insert(
    partition: &Rc<Partition>,
    what: &str,
    keys: impl Iterator<Item = u64>,
    ts: &mut u64,
) {
    let value = Bytes::from(vec![7; 200]);
    let (start, mut count) = (Instant::now(), 0);
    for n in keys {
        let write = [put(n, &value, Expect::Absent)];
        let prepared = partition.prepare(&write).await.unwrap();
        partition.check(&write, &prepared).unwrap();
        *ts += 1;
        partition.write_now(Timestamp::from_u64(*ts), &write, prepared);
        count += 1;
    }
    report(what, start, count);
}

async fn read(partition: &Rc<Partition>, what: &str) {
    let mut rng = Rng::from_seed(1);
    let keys: Vec<Key> = (0..100_000).map(|_| key(rng.below(RECORDS) * 2)).collect();
    for round in 0..2 {
        let start = Instant::now();
        for key in &keys {
            black_box(
                partition
                    .get(TREE, key, ReadAt::Newest)
                    .await
                    .unwrap()
                    .unwrap(),
            );
        }
        if round == 1 {
            report(&format!("get, {what}"), start, keys.len() as u64);
        }
    }
    for direction in [Direction::Forward, Direction::Reverse] {
        let (start, mut count) = (Instant::now(), 0);
        let mut cursor = partition.cursor(TREE, KeyRange::all(), direction, ReadAt::Newest);
        while let Some(record) = cursor.next().await.unwrap() {
            black_box(record);
            count += 1;
        }
        report(&format!("scan {direction:?}, {what}"), start, count);
        let (start, mut count, mut block) = (Instant::now(), 0, Block::default());
        let mut cursor = partition.cursor(TREE, KeyRange::all(), direction, ReadAt::Newest);
        while cursor.fill(&mut block).await.unwrap() {
            while let Some(record) = block.front() {
                black_box(record.value());
                count += 1;
                block.pass();
            }
        }
        report(&format!("blocks {direction:?}, {what}"), start, count);
    }
}

async fn checkpoint(partition: &Rc<Partition>, what: &str, ts: u64) {
    let count = partition.tree_stats(TREE).records;
    let start = Instant::now();
    partition.seal(Timestamp::from_u64(ts));
    let roots = partition.merge(true, &|| {}).await.unwrap();
    report(&format!("merge, {what}"), start, count);
    let start = Instant::now();
    partition.install(roots);
    report("install", start, 1);
    let stats = partition.page_stats();
    println!(
        "{:44} {} MiB file, {} pages written",
        "",
        stats.file_bytes >> 20,
        stats.pages_written
    );
}

#[test]
#[ignore = "a measurement, run by hand in release mode"]
fn measure_hot_paths() {
    sim::block_on(1, async {
        let options = PartitionOptions {
            cache_bytes: 1 << 30,
            ..PartitionOptions::default()
        };
        let partition = Partition::create(PartitionId(0), Path::new("/data"), options)
            .await
            .unwrap();
        let mut ts = 1;
        let mut shuffled: Vec<u64> = (0..RECORDS).collect();
        let mut rng = Rng::from_seed(2);
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, rng.below(i as u64 + 1) as usize);
        }
        insert(
            &partition,
            "insert in order, empty base",
            (0..RECORDS).map(|n| n * 2),
            &mut ts,
        )
        .await;
        read(&partition, "all in the delta").await;
        checkpoint(&partition, "from nothing, of all records", ts).await;
        read(&partition, "all in the base").await;
        insert(
            &partition,
            "insert at random over the base",
            shuffled.iter().take(100_000).map(|n| n * 2 + 1),
            &mut ts,
        )
        .await;
        read(&partition, "a sixth in the delta").await;
        checkpoint(&partition, "of 100,000 scattered inserts", ts).await;
        read(&partition, "all in the base again").await;
    });
}
