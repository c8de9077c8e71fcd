//! Which error of a document comes first, when several of its index entries are refused.

use std::ops::Bound;
use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{
    Collection, Index, IndexEntry, duplicate_entry, duplicate_id, entries_of, entry_partition,
    partition_of,
};
use pinion_runtime::Queue;
use pinion_service::compute::compute_bytes;
use pinion_service::metrics::metrics;
use pinion_storage::{Direction, Key, KeyRange, PartitionId, ReadAt, ReadError, TreeId, storage};
use pinion_wire::Error;

/// `error` says that an index has no keys for `new`. MongoDB brings a document into one index after
/// the other, the one on `_id` before all, so a value that an earlier unique one holds already
/// comes first.
pub(super) async fn first_error(
    collection: &Arc<Collection>,
    record: Option<i64>,
    id: RawBsonRef<'_>,
    old: Option<&RawDocument>,
    new: &RawDocument,
    error: Error,
) -> Error {
    match taken_before(collection, record, id, old, new).await {
        Ok(Some(taken)) => {
            metrics().counters.duplicate_key_errors.inc();
            taken
        }
        // A read that fails leaves the error that is there already.
        Ok(None) | Err(_) => error,
    }
}

/// The error of a document whose unique value storage says is taken. All owners are asked at once,
/// so the value they name need not be the first that MongoDB would meet; `error` names one, in case
/// what took it is gone by now.
pub(super) async fn first_taken(
    collection: &Arc<Collection>,
    record: Option<i64>,
    id: RawBsonRef<'_>,
    old: Option<&RawDocument>,
    new: &RawDocument,
    error: Error,
) -> Error {
    match taken_before(collection, record, id, old, new).await {
        Ok(Some(taken)) => taken,
        Ok(None) | Err(_) => error,
    }
}

/// The first unique value of the document that another one has, of the indexes up to the first that
/// has no keys for it.
async fn taken_before(
    collection: &Arc<Collection>,
    record: Option<i64>,
    id: RawBsonRef<'_>,
    old: Option<&RawDocument>,
    new: &RawDocument,
) -> Result<Option<Error>, ReadError> {
    let key = collection.document_key(id, record);
    let (document, hash) = (partition_of(collection, &key), storage().partition_hash());
    // Where records have numbers, the index on `_id` is one of those below.
    if old.is_none() && record.is_none() {
        let only = KeyRange {
            lower: Bound::Included(key.clone()),
            upper: Bound::Included(key),
        };
        if is_live(document, collection.tree(), only, None).await? {
            return Ok(Some(duplicate_id(collection, id)));
        }
    }
    for index in &collection.indexes {
        let entries = || entries_of(collection, index, new, record);
        let Ok(made) = compute_bytes(new.as_bytes().len(), entries).await else {
            return Ok(None);
        };
        if !index.spec.enforces_unique() || index.building.is_some() {
            continue;
        }
        for entry in &made.entries {
            let partition = entry_partition(collection, index, entry, document, hash);
            if is_held(index, entry, partition).await? {
                let error = duplicate_entry(collection, index, &entry.key, &entry.type_bits);
                return Ok(Some(error));
            }
        }
    }
    Ok(None)
}

/// Whether another document has the fields of this entry of a unique index.
async fn is_held(
    index: &Index,
    entry: &IndexEntry,
    partition: PartitionId,
) -> Result<bool, ReadError> {
    let fields = KeyRange::prefix(&entry.key[..entry.prefix_len]);
    is_live(partition, index.tree, fields, Some(entry.key.clone())).await
}

/// Whether a tree has a live key within `range` that is not `except`.
async fn is_live(
    partition: PartitionId,
    tree: TreeId,
    range: KeyRange,
    except: Option<Key>,
) -> Result<bool, ReadError> {
    pinion_runtime::submit_to(
        storage().owner(partition),
        Queue::Foreground,
        move || async move {
            let owned = storage()
                .partition(partition)
                .expect("submitted to its owner");
            let mut cursor = owned.cursor(tree, range, Direction::Forward, ReadAt::NewestDecided);
            while let Some((key, _)) = cursor.next().await? {
                if except.as_ref() != Some(&key) {
                    return Ok(true);
                }
            }
            Ok(false)
        },
    )
    .await
}
