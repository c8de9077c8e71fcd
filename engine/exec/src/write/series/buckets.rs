//! One bucket read and written.

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{
    Collection, document_id, from_read_error, index_writes, partition_of, stored_document,
};
use pinion_query::{MultikeyPaths, SeriesForm};
use pinion_runtime::Queue;
use pinion_service::compute::compute;
use pinion_storage::{Key, PartitionId, Read, ReadAt, Statement, TreeId, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::super::unit::LoggedWrite;
use crate::statements::Stamp;

/// The newest version of a bucket, wherever it is.
pub(super) async fn read(collection: &Collection, key: &Key) -> Result<Option<Read>> {
    async fn get(partition: PartitionId, tree: TreeId, key: &[u8]) -> Result<Option<Read>> {
        let owned = storage().partition(partition).expect("asked its owner");
        let read = owned.get(tree, key, ReadAt::Newest).await;
        read.map_err(from_read_error)
    }
    let (partition, tree) = (partition_of(collection, key), collection.tree());
    let owner = storage().owner(partition);
    if owner == pinion_runtime::core_id() {
        return get(partition, tree, key).await;
    }
    let key = key.clone();
    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
        get(partition, tree, &key).await
    })
    .await
}

/// What is written of a bucket.
pub(super) struct BucketWrite {
    /// What was read, unless the bucket is new.
    pub old: Option<Read>,
    /// `None` to delete it.
    pub new: Option<Bytes>,
}

/// A statement that writes a bucket, and the indexes that it makes multikey.
pub(super) struct Built {
    pub statement: Statement,
    pub newly_multikey: Vec<(TreeId, MultikeyPaths)>,
}

/// Builds the statement with the index entries and the oplog entry.
pub(super) async fn build(
    ctx: &OpContext,
    collection: &Collection,
    write: &BucketWrite,
    stamp: Option<&Stamp>,
) -> Result<Built> {
    let old = write.old.as_ref().map(|read| stored_document(&read.value));
    let new = write.new.as_deref().map(stored_document);
    let id = document_id(new.or(old).expect("a bucket is written or deleted"))?;
    let key = collection.id_key(id);
    let (partition, hash) = (partition_of(collection, &key), storage().partition_hash());
    let entries = || index_writes(collection, partition, hash, None, old, new, true);
    let index = compute(ctx, entries).await.map_err(array_error)?;
    let logged = LoggedWrite {
        collection,
        partition,
        key,
        record: None,
        old: old.zip(write.old.as_ref().map(|read| read.token)),
        new: write.new.as_ref(),
        update: None,
        stamp,
        // A migration moves buckets, not measurements.
        from_migrate: false,
        in_transaction: false,
    };
    Ok(Built {
        statement: logged.statement(index.writes).await?,
        newly_multikey: index.newly_multikey,
    })
}

/// Of a field that is indexed, both the least and the greatest value are in the index, which cannot
/// both be arrays.
fn array_error(error: Error) -> Error {
    if error.code != ErrorCode::CANNOT_INDEX_PARALLEL_ARRAYS {
        return error;
    }
    Error::new(
        ErrorCode(5_930_501),
        "Indexed measurement field contains an array value",
    )
}

/// The key of the bucket with this `_id`.
pub(super) fn key_of(collection: &Collection, id: pinion_bson::ObjectId) -> Key {
    collection.id_key(RawBsonRef::ObjectId(id))
}

/// The time at which a bucket begins.
pub(super) fn start_of(form: &SeriesForm, bucket: &RawDocument) -> Option<i64> {
    let control = bucket.get_document("control").ok()?;
    let min = control.get_document("min").ok()?;
    match pinion_bson::get(min, &form.time) {
        Some(RawBsonRef::DateTime(start)) => Some(start.timestamp_millis()),
        _ => None,
    }
}
