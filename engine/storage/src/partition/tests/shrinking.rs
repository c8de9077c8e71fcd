//! Trees that lose most of their records at once.

use pinion_runtime::sim;

use super::{DIR, ID, TREE, checkpoint, create, delete, newest, put, write};
use crate::base::{PartitionOptions, verify_partition};
use std::path::Path;

/// All records but the `count` from `kept` on are deleted in one checkpoint. When less is left
/// than fills a page, an inner level below the top may come down to a single page: that is the root
/// then.
async fn check(records: u64, kept: u64, count: u64) {
    let partition = create(PartitionOptions::hostile()).await;
    let key = |n: u64| format!("key {n:05}");
    let value = "v".repeat(40);
    for n in 0..records {
        write(&partition, n + 1, &[put(&key(n), &value)])
            .await
            .unwrap();
    }
    checkpoint(&partition, records).await.unwrap();
    let is_kept = |n: u64| (kept..kept + count).contains(&n);
    for n in (0..records).filter(|n| !is_kept(*n)) {
        write(&partition, records + n + 1, &[delete(&key(n))])
            .await
            .unwrap();
    }
    let roots = checkpoint(&partition, 2 * records).await.unwrap();
    let left = (0..records).filter(|n| is_kept(*n)).count() as u64;
    assert_eq!(
        partition.tree_stats(TREE).records,
        left,
        "{records} {kept} {count}"
    );
    for n in 0..records {
        assert_eq!(newest(&partition, &key(n)).await.is_some(), is_kept(n));
    }
    let report = verify_partition(ID, Path::new(DIR), &roots).await.unwrap();
    assert_eq!(report.problems, [], "{records} {kept} {count}");
    // It grows again.
    write(&partition, 2 * records + 1, &[put("other", "v")])
        .await
        .unwrap();
    checkpoint(&partition, 2 * records + 1).await.unwrap();
    assert_eq!(partition.tree_stats(TREE).records, left + 1);
}

#[test]
fn a_tree_shrinks_to_one_page() {
    sim::block_on(1, async {
        for records in [5, 40, 300, 900] {
            for count in [0, 1, 3, 30] {
                for kept in [0, records / 2, records - 1] {
                    check(records, kept, count).await;
                }
            }
        }
    });
}
