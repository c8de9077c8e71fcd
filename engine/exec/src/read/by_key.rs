//! A document by its key.

use bytes::Bytes;
use pinion_catalog::from_read_error;
use pinion_runtime::{Queue, submit_to};
use pinion_storage::{Key, PartitionId, ReadAt, TreeId, storage};
use pinion_wire::Result;

/// The newest version of the document with this key, wherever it is. One document needs no
/// snapshot.
pub(crate) async fn read_newest(
    tree: TreeId,
    partition: PartitionId,
    key: Key,
) -> Result<Option<Bytes>> {
    read_at(tree, partition, key, ReadAt::NewestDecided).await
}

/// The version of the document with this key that a state has, wherever it is.
pub(crate) async fn read_at(
    tree: TreeId,
    partition: PartitionId,
    key: Key,
    at: ReadAt,
) -> Result<Option<Bytes>> {
    let here = storage();
    let found = match here.partition(partition) {
        Some(partition) => partition.get(tree, &key, at).await,
        None => {
            let owner = here.owner(partition);
            submit_to(owner, Queue::Foreground, move || async move {
                let partition = storage().partition(partition).expect("asked its owner");
                partition.get(tree, &key, at).await
            })
            .await
        }
    };
    Ok(found.map_err(from_read_error)?.map(|read| read.value))
}
