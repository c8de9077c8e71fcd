//! Counts that are wrong, in memory and in the base, are corrected while the tree is written, and
//! stay so.

use std::path::Path;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::sim;

use super::{DIR, ID, TREE, create, delete, put, write};
use crate::base::{Counts, PartitionOptions, PartitionRoots, verify_partition};
use crate::partition::Partition;
use crate::partition::view::View;
use crate::types::{Direction, KeyRange, ReadAt};

const RECORDS: u64 = 60;

/// Has the root and memory count more than there is.
fn miscount(partition: &Partition) {
    let state = &mut *partition.state.borrow_mut();
    let view = state.views.current().clone();
    let mut trees = view.trees.clone();
    let wrong = |counts: &mut Counts| {
        counts.records += 7;
        counts.key_bytes += 70;
        counts.value_bytes += 700;
    };
    wrong(&mut trees.get_mut(&TREE).expect("it is in the base").counts);
    wrong(state.counts.get_mut(&TREE).expect("it has records"));
    let number = state.sequence();
    let wrong = View::new(view.roots, view.master, trees, number);
    state.views.replace(wrong, Vec::new());
}

async fn count(partition: &Rc<Partition>) -> Counts {
    let (range, forward) = (KeyRange::all(), Direction::Forward);
    let mut cursor = partition.cursor(TREE, range, forward, ReadAt::Newest);
    let mut counts = Counts::default();
    while let Some((key, read)) = cursor.next().await.unwrap() {
        counts.add(key.len(), read.value.len() as u64);
    }
    counts
}

fn kept(partition: &Partition) -> Counts {
    partition.settled_counts(TREE).expect("no unit").counts
}

async fn checkpoint(partition: &Partition, at: u64, thorough: bool) -> PartitionRoots {
    partition.seal(Timestamp::from_u64(at));
    let roots = partition.merge(thorough, &|| {}).await.unwrap();
    partition.install(roots);
    roots
}

async fn is_sound(roots: &PartitionRoots) -> bool {
    let report = verify_partition(ID, Path::new(DIR), roots).await.unwrap();
    report.problems.is_empty()
}

async fn reopen(partition: Rc<Partition>, roots: PartitionRoots) -> Rc<Partition> {
    partition.close().await;
    drop(partition);
    let options = PartitionOptions::hostile();
    let opened = Partition::open(ID, Path::new(DIR), roots, options).await;
    opened.unwrap()
}

/// A partition whose page file counts wrongly; the records of the tree lie in many pages, and some
/// of them in extents.
async fn miscounted() -> Rc<Partition> {
    let partition = create(PartitionOptions::hostile()).await;
    for n in 0..RECORDS {
        let value = "v".repeat(if n % 20 == 0 { 400 } else { 30 });
        let put = put(&format!("key {n:03}"), &value);
        write(&partition, n + 1, &[put]).await.unwrap();
    }
    checkpoint(&partition, 100, true).await;
    assert_eq!(kept(&partition), count(&partition).await);
    miscount(&partition);
    // A change has the root written.
    write(&partition, 101, &[put("key 001", "changed")])
        .await
        .unwrap();
    let roots = checkpoint(&partition, 101, true).await;
    assert!(!is_sound(&roots).await, "the root counts what there is");
    let opened = reopen(partition, roots).await;
    assert_eq!(kept(&opened).records, RECORDS + 7);
    opened
}

#[test]
fn wrong_counts_are_corrected_for_good() {
    // Whether something is written after the correction, and whether the checkpoint may spill it.
    for (writes, thorough) in [(false, true), (true, true), (true, false)] {
        sim::block_on(1, async move {
            let partition = miscounted().await;
            let then = partition.settled_counts(TREE).unwrap();
            let found = count(&partition).await;
            // What comes meanwhile is counted with it.
            write(&partition, 110, &[delete("key 002"), put("new", "12345")])
                .await
                .unwrap();
            assert!(partition.correct_counts(TREE, then, found));
            assert_eq!(kept(&partition), count(&partition).await);
            assert!(
                !partition.correct_counts(TREE, then, found),
                "it was corrected twice"
            );
            if writes {
                write(&partition, 111, &[delete("key 003"), put("key 004", "1")])
                    .await
                    .unwrap();
            }
            let roots = checkpoint(&partition, 120, thorough).await;
            assert_eq!(partition.has_spilled(), !thorough);
            let expected = count(&partition).await;
            assert!(is_sound(&roots).await);
            let opened = reopen(partition, roots).await;
            assert_eq!(kept(&opened), expected);
            assert_eq!(count(&opened).await, expected);
            // Nothing of the tree is left, which a wrong count would not allow.
            for n in 0..RECORDS {
                let key = format!("key {n:03}");
                write(&opened, 130 + n, &[delete(&key)]).await.unwrap();
            }
            write(&opened, 300, &[delete("new")]).await.unwrap();
            let roots = checkpoint(&opened, 300, true).await;
            assert_eq!(kept(&opened), Counts::default());
            assert!(is_sound(&roots).await);
        });
    }
}
