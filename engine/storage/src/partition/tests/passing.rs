//! Counting by passing over records that need not be looked at.

use std::collections::BTreeMap;

use pinion_clock::Timestamp;
use pinion_runtime::{Rng, sim};

use super::{TREE, checkpoint, create, delete, put, write};
use crate::base::PartitionOptions;
use crate::partition::Partition;
use crate::types::{Direction, KeyRange, ReadAt};

/// The records of a range, counted by passing over those that need not be looked at.
async fn count(partition: &Partition, range: KeyRange, at: ReadAt) -> usize {
    let mut cursor = partition.cursor(TREE, range, Direction::Forward, at);
    let mut count = 0;
    loop {
        count += cursor.pass(7);
        match cursor.next().await.unwrap() {
            Some(_) => count += 1,
            None => return count,
        }
    }
}

#[test]
fn records_that_are_passed_over_are_counted() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        let key = |at: u32| format!("key{at:04}");
        let mut model = BTreeMap::new();
        let mut rng = Rng::from_seed(7);
        for round in 1..=40u64 {
            let mut writes = Vec::new();
            for _ in 0..25 {
                let at = rng.below(600) as u32;
                // Some rounds lie in one place, so that long parts of leaves are unchanged.
                let at = if round % 3 == 0 { at / 20 } else { at };
                if model.contains_key(&at) && rng.below(4) == 0 {
                    model.remove(&at);
                    writes.push(delete(&key(at)));
                } else {
                    model.insert(at, ());
                    writes.push(put(&key(at), "v"));
                }
                write(&partition, round * 10, &writes.split_off(0))
                    .await
                    .unwrap();
            }
            if round % 4 == 0 {
                checkpoint(&partition, round * 10 + 5).await.unwrap();
            }
            let (low, high) = (rng.below(300) as u32, 300 + rng.below(300) as u32);
            let range = KeyRange::half_open(key(low).as_bytes(), key(high).as_bytes());
            let at = ReadAt::At(Timestamp::from_u64(round * 10 + 5));
            for at in [at, ReadAt::Newest] {
                let found = count(&partition, range.clone(), at).await;
                assert_eq!(found, model.range(low..high).count(), "round {round}");
                assert_eq!(count(&partition, KeyRange::all(), at).await, model.len());
            }
        }
    });
}
