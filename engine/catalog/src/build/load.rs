//! The second part of a build: puts the sorted entries of a partition into its trees.

use std::sync::Arc;

use pinion_storage::{Key, PartitionId, TreeLoad, storage};
use pinion_wire::Result;

use super::chunk::{Chunk, Merge};
use super::scan::{Watch, known_sorter};
use super::shared_fields::SharedFields;
use super::work::Work;
use crate::errors::from_fatal;
use crate::index::Index;
use crate::limits::{LOAD_PART_BYTES, MERGE_STEP_ENTRIES};

/// Loads the trees of all indexes in a partition, on its owner. They begin when
/// they are installed. Gives what entries of each index share their fields though it is unique.
pub(super) async fn load(work: Arc<Work>, partition: PartitionId) -> Result<Vec<SharedFields>> {
    let owned = storage().partition(partition).expect("asked its owner");
    let mut found = Vec::with_capacity(work.indexes.len());
    for (i, index) in work.indexes.iter().enumerate() {
        let mut shared = SharedFields::default();
        if let Some(sorter) = known_sorter(&work, i, partition) {
            let merge = sorter.sorted().await?;
            let mut load = owned.load(index.tree);
            match append(&work, index, merge, &mut load, &mut shared).await {
                Ok(()) => load.finish(),
                Err(error) => {
                    load.abandon().await;
                    return Err(error);
                }
            }
        }
        found.push(shared);
    }
    pinion_runtime::sim::event("index build loaded");
    Ok(found)
}

async fn append(
    work: &Work,
    index: &Index,
    mut merge: Merge,
    load: &mut TreeLoad,
    shared: &mut SharedFields,
) -> Result<()> {
    let mut last: Option<Key> = None;
    let mut watch = Watch::new();
    while let Some(part) = merge.next(LOAD_PART_BYTES).await? {
        if index.spec.enforces_unique() {
            last = compare(index, &part, last, shared).await;
        }
        work.progress.add(part.len() as u64);
        load.append(part.into_records()).await.map_err(from_fatal)?;
        watch.look(work).await?;
    }
    Ok(())
}

/// Looks for neighbours that share their fields; gives the last fields.
async fn compare(
    index: &Index,
    part: &Chunk,
    mut last: Option<Key>,
    shared: &mut SharedFields,
) -> Option<Key> {
    for at in 0..part.len() {
        let fields = index_fields(index, part.key(at));
        if last.as_deref() == Some(fields) {
            shared.note(fields);
        } else {
            last = Some(Key::from_slice(fields));
        }
        if at.is_multiple_of(MERGE_STEP_ENTRIES) {
            pinion_runtime::yield_if_due().await;
        }
    }
    last
}

/// The part of an entry's key that a unique index keeps unique.
fn index_fields<'a>(index: &Index, key: &'a [u8]) -> &'a [u8] {
    let len = crate::keys::prefix_len(index, key);
    &key[..len.expect("the build has made the key")]
}
