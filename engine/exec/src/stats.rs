//! Sizes of collections and databases, summed over partitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_catalog::{Collection, core_catalog};
use pinion_storage::{LogStats, PartitionId, StorageStats, TreeId, TreeStats, storage};

/// The figures of one tree over all partitions.
pub async fn tree_stats(trees: Vec<TreeId>) -> BTreeMap<TreeId, TreeStats> {
    let trees: Arc<[TreeId]> = trees.into();
    let parts = pinion_runtime::on_all_cores(move |_| {
        let trees = trees.clone();
        async move {
            let storage = storage();
            let mut sums: Vec<TreeStats> = vec![TreeStats::default(); trees.len()];
            for number in 0..storage.partition_count() {
                let Some(partition) = storage.partition(PartitionId(number)) else {
                    continue;
                };
                for (tree, sum) in trees.iter().zip(&mut sums) {
                    let stats = partition.tree_stats(*tree);
                    sum.records += stats.records;
                    sum.key_bytes += stats.key_bytes;
                    sum.value_bytes += stats.value_bytes;
                    sum.pages += stats.pages;
                    sum.page_bytes += stats.page_bytes;
                }
            }
            trees.iter().copied().zip(sums).collect::<Vec<_>>()
        }
    })
    .await;
    let mut all: BTreeMap<TreeId, TreeStats> = BTreeMap::new();
    for (tree, stats) in parts.into_iter().flatten() {
        let sum = all.entry(tree).or_default();
        sum.records += stats.records;
        sum.key_bytes += stats.key_bytes;
        sum.value_bytes += stats.value_bytes;
        sum.pages += stats.pages;
        sum.page_bytes += stats.page_bytes;
    }
    all
}

/// Sizes of one collection.
#[derive(Clone, Debug, Default)]
pub struct CollectionSizes {
    pub records: u64,
    pub data_bytes: u64,
    /// What the documents take on disk, or would: pages of the last checkpoint, or the data's own
    /// size when that is newer.
    pub storage_bytes: u64,
    /// By name, the `_id` index first.
    pub indexes: Vec<(String, u64)>,
    /// The parts of what is free in the page files that fall to its documents and to its indexes:
    /// the files are shared, and what is free in them is shared out by what each has in them.
    pub free_bytes: u64,
    pub index_free_bytes: u64,
}

impl CollectionSizes {
    pub(crate) fn index_bytes(&self) -> u64 {
        self.indexes.iter().map(|(_, bytes)| bytes).sum()
    }
}

fn on_disk(stats: &TreeStats) -> u64 {
    let live = stats.key_bytes + stats.value_bytes;
    if stats.page_bytes > 0 {
        stats.page_bytes
    } else {
        live.next_multiple_of(4096)
    }
}

/// Sizes of several collections, in their order.
pub async fn sizes_of(collections: &[Arc<Collection>]) -> Vec<CollectionSizes> {
    let trees: Vec<TreeId> = collections
        .iter()
        .flat_map(|collection| collection.trees().collect::<Vec<_>>())
        .collect();
    let all = tree_stats(trees).await;
    let of = |tree: TreeId| all.get(&tree).copied().unwrap_or_default();
    let log = match collections.iter().find(|collection| collection.is_oplog()) {
        Some(oplog) => {
            let stats = storage().log_stats(oplog.log_through).await;
            stats.unwrap_or_default()
        }
        None => LogStats::default(),
    };
    let files = storage_stats().await;
    let used = files.page_file_bytes.saturating_sub(files.page_free_bytes);
    let share = |pages: u64| {
        let share = u128::from(files.page_free_bytes) * u128::from(pages.min(used));
        share.checked_div(u128::from(used)).unwrap_or(0) as u64
    };
    collections
        .iter()
        .map(|collection| {
            if collection.is_oplog() {
                return CollectionSizes {
                    records: log.entries,
                    data_bytes: log.entry_bytes,
                    storage_bytes: log.bytes,
                    ..CollectionSizes::default()
                };
            }
            let own = of(collection.tree());
            // Documents are clustered by `_id`: its index takes no space of its own but the keys.
            let mut indexes = Vec::with_capacity(collection.index_count());
            if collection.tree_is_id_index() {
                let bytes = own.key_bytes.next_multiple_of(4096).max(4096);
                indexes.push(("_id_".to_owned(), bytes));
            }
            for index in &collection.indexes {
                indexes.push((index.name().to_owned(), on_disk(&of(index.tree)).max(4096)));
            }
            let indexed = collection.indexes.iter();
            let index_pages: u64 = indexed.map(|index| of(index.tree).page_bytes).sum();
            CollectionSizes {
                free_bytes: share(own.page_bytes),
                index_free_bytes: share(index_pages),
                records: own.records,
                data_bytes: own.value_bytes,
                storage_bytes: on_disk(&own).max(4096),
                indexes,
            }
        })
        .collect()
}

/// Bytes on disk of each database.
pub(crate) async fn database_sizes() -> BTreeMap<String, u64> {
    let catalog = core_catalog().current();
    let collections: Vec<Arc<Collection>> = catalog.collections().cloned().collect();
    let sizes = sizes_of(&collections).await;
    let mut by_db: BTreeMap<String, u64> = BTreeMap::new();
    for (collection, sizes) in collections.iter().zip(&sizes) {
        *by_db.entry(collection.ns.db().to_owned()).or_default() +=
            sizes.storage_bytes + sizes.index_bytes();
    }
    by_db
}

/// Storage's figures of the whole node.
pub async fn storage_stats() -> StorageStats {
    let mut sum = StorageStats::default();
    for stats in pinion_runtime::on_all_cores(|_| async { storage().stats() }).await {
        sum += stats;
    }
    sum
}
