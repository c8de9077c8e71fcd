//! Memory for changes that a merge frees before it is over.

use std::cell::Cell;

use pinion_clock::Timestamp;
use pinion_runtime::sim;

use super::{TREE, create, put, write};
use crate::base::PartitionOptions;
use crate::types::ReadAt;

const KEYS: u64 = 300;

fn key(n: u64) -> String {
    format!("key {n:05}")
}

/// Merges changes, and checks that writers have most of their memory before the merge is over.
async fn check(keeps_history: bool) {
    let partition = create(PartitionOptions::hostile()).await;
    let horizon = if keeps_history { 1 } else { KEYS };
    partition.end_replay(Timestamp::from_u64(horizon), keeps_history);
    for n in 1..=KEYS {
        write(&partition, n, &[put(&key(n), &"v".repeat(100))])
            .await
            .unwrap();
    }
    partition.seal(Timestamp::from_u64(KEYS));
    let before = partition.memory();
    let lowest = Cell::new(before.delta_bytes());
    let freed = || {
        let memory = partition.memory();
        lowest.set(lowest.get().min(memory.delta_bytes()));
        if keeps_history {
            // It is still there, for older snapshots.
            assert_eq!(memory.dirty_bytes(), before.dirty_bytes());
        }
    };
    let roots = partition.merge(true, &freed).await.unwrap();
    assert!(
        lowest.get() < before.delta_bytes() / 2,
        "history {keeps_history}"
    );
    for seen in [KEYS / 3, KEYS].into_iter().filter(|seen| *seen >= horizon) {
        let at = ReadAt::At(Timestamp::from_u64(seen));
        for n in 1..=KEYS {
            let read = partition.get(TREE, key(n).as_bytes(), at).await.unwrap();
            assert_eq!(read.is_some(), n <= seen);
        }
    }
    partition.install(roots);
    assert_eq!(partition.memory().delta_bytes(), 0);
}

#[test]
fn a_merge_frees_memory_before_it_is_over() {
    sim::block_on(1, async {
        check(false).await;
        check(true).await;
    });
}
