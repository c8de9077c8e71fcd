//! Versions in layers that belong to a timestamp below that at which they were decided.

use std::path::Path;

use pinion_clock::Timestamp;
use pinion_runtime::sim;

use super::{DIR, ID, TREE, checkpoint, create, put, write};
use crate::base::PartitionOptions;
use crate::partition::{Partition, UnitId};
use crate::types::{ReadAt, TreeId, Write};

const OTHER: TreeId = TreeId(6);

async fn add_layer(partition: &Partition, at: u64) {
    assert!(partition.seal_layer(Timestamp::from_u64(at)));
    partition.write_layer(&|| {}).await.unwrap();
}

async fn read(partition: &Partition, at: u64) -> Option<String> {
    let at = ReadAt::At(Timestamp::from_u64(at));
    let read = partition.get(TREE, b"k", at).await.unwrap();
    read.map(|read| String::from_utf8(read.value.to_vec()).unwrap())
}

/// The commit is applied before the layer between its two timestamps is sealed, so nothing is older
/// than it yet.
#[test]
fn a_late_commit_is_there_for_snapshots_below_a_layer() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        partition.end_replay(Timestamp::MIN, true);
        let ts = Timestamp::from_u64;
        write(&partition, 5, &[put("k", "old")]).await.unwrap();
        let late = [put("k", "late")];
        let placed = partition.place_prepared(UnitId(1), ts(7), &late).await;
        placed.unwrap();
        partition.resolve_late(UnitId(1), ts(7), ts(12));
        write(&partition, 15, &[put("other", "v")]).await.unwrap();
        for at in [10, 15] {
            add_layer(&partition, at).await;
            assert_eq!(read(&partition, 8).await.as_deref(), Some("late"));
        }
        for at in [10, 15] {
            partition.dissolve_layers(ts(at), &|| {}).await.unwrap();
            checkpoint(&partition, at).await.unwrap();
            let found = read(&partition, 8).await;
            assert_eq!(found.as_deref(), Some("late"), "the base is at {at}");
            assert_eq!(read(&partition, 6).await.as_deref(), Some("old"));
        }
    });
}

/// However little a layer has of a partition.
#[test]
fn what_is_decided_by_a_layer_is_in_the_base_there() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        partition.end_replay(Timestamp::MIN, true);
        let ts = Timestamp::from_u64;
        write(&partition, 5, &[put("k", "first")]).await.unwrap();
        add_layer(&partition, 10).await;
        write(&partition, 15, &[put("k", "second")]).await.unwrap();
        add_layer(&partition, 20).await;
        assert_eq!(read(&partition, 12).await.as_deref(), Some("first"));
        assert_eq!(read(&partition, 30).await.as_deref(), Some("second"));
        for (at, expected) in [(10, "first"), (20, "second")] {
            partition.dissolve_layers(ts(at), &|| {}).await.unwrap();
            checkpoint(&partition, at).await.unwrap();
            // What a crash leaves.
            let roots = partition.roots();
            let options = PartitionOptions::hostile();
            let reopened = Partition::open(ID, Path::new(DIR), roots, options).await;
            let reopened = reopened.unwrap();
            assert_eq!(read(&reopened, at).await.as_deref(), Some(expected));
        }
    });
}

#[test]
fn a_tree_that_was_dropped_below_a_layer_does_not_come_back_with_it() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        partition.end_replay(Timestamp::MIN, true);
        let ts = Timestamp::from_u64;
        write(&partition, 5, &[put("k", "v")]).await.unwrap();
        partition.drop_tree(TREE, ts(8));
        add_layer(&partition, 10).await;
        let other = Write {
            tree: OTHER,
            ..put("k", "v")
        };
        write(&partition, 15, &[other]).await.unwrap();
        add_layer(&partition, 20).await;
        for at in [10, 20] {
            partition.dissolve_layers(ts(at), &|| {}).await.unwrap();
            checkpoint(&partition, at).await.unwrap();
        }
        assert_eq!(partition.tree_ids(), [OTHER]);
    });
}

/// Whatever timestamps its versions have: the tree begins again, while layers above the base have
/// some of it.
#[test]
fn what_layers_have_of_a_tree_goes_with_it_when_it_is_cleared() {
    sim::block_on(1, async {
        let partition = create(PartitionOptions::hostile()).await;
        partition.end_replay(Timestamp::MIN, true);
        let ts = Timestamp::from_u64;
        for at in [5, 15] {
            write(&partition, at, &[put("k", "stale")]).await.unwrap();
            add_layer(&partition, at + 5).await;
        }
        partition.drop_tree(TREE, Timestamp::MIN);
        checkpoint(&partition, 0).await.unwrap();
        assert_eq!(read(&partition, 30).await, None);
        write(&partition, 25, &[put("other", "new")]).await.unwrap();
        for at in [10, 20, 30] {
            partition.dissolve_layers(ts(at), &|| {}).await.unwrap();
            checkpoint(&partition, at).await.unwrap();
            assert_eq!(read(&partition, 30).await, None, "the base is at {at}");
        }
        assert_eq!(partition.tree_stats(TREE).records, 1);
    });
}
