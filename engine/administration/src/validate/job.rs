//! What every part of a validation knows.

use std::sync::Arc;

use pinion_bson::{BinarySubtype, RawBinaryRef, RawBson, RawBsonRef};
use pinion_catalog::{Collection, Index};
use pinion_query::SeriesForm;
use pinion_runtime::{CoreId, Queue, core_id, submit_to};
use pinion_service::ops::Progress;
use pinion_storage::{PartitionHash, PartitionId, Read, ReadAt, ReadError, TreeId, storage};
use pinion_wire::OpContext;

use super::options::Options;

pub(crate) struct Job {
    pub(super) collection: Arc<Collection>,
    pub(super) options: Options,
    pub(super) ctx: OpContext,
    /// Of a collection of buckets.
    pub(super) series: Option<SeriesForm>,
    pub(super) hash: PartitionHash,
    pub(super) buckets: usize,
    pub(super) progress: Arc<Progress>,
}

impl Job {
    /// A comparison of documents and entries at one snapshot, without sums over them.
    pub(super) fn of_snapshot(ctx: &OpContext, collection: Arc<Collection>) -> Arc<Job> {
        Arc::new(Job {
            collection: collection.without_builds(),
            options: Options::LOOKING,
            ctx: ctx.clone(),
            series: None,
            hash: storage().partition_hash(),
            buckets: 0,
            progress: Arc::default(),
        })
    }

    /// The indexes that are compared with the documents.
    pub(super) fn indexes(&self) -> impl Iterator<Item = &Arc<Index>> {
        self.collection.ready_indexes()
    }

    /// The same over another version of the collection.
    pub(super) fn with_collection(&self, collection: Arc<Collection>) -> Arc<Job> {
        Arc::new(Job {
            collection: collection.without_builds(),
            options: self.options,
            ctx: self.ctx.clone(),
            series: self.series.clone(),
            hash: self.hash,
            buckets: self.buckets,
            progress: self.progress.clone(),
        })
    }

    /// What names a document to clients: the number of its record, or its key.
    pub(super) fn record_id(&self, key: &[u8]) -> RawBson {
        match self.collection.record_of(key) {
            Some(record) => RawBson::Int64(record),
            None => RawBson::from(RawBsonRef::Binary(RawBinaryRef {
                subtype: BinarySubtype::Generic,
                bytes: key,
            })),
        }
    }

    /// The same as text.
    pub(super) fn record_text(&self, key: &[u8]) -> String {
        pinion_query::value_text(self.record_id(key).as_raw_bson_ref())
    }
}

/// Reads a key wherever it is.
pub(crate) async fn read(
    partition: PartitionId,
    tree: TreeId,
    key: &[u8],
    at: ReadAt,
) -> Result<Option<Read>, ReadError> {
    let owner: CoreId = storage().owner(partition);
    if owner == core_id() {
        let owned = storage().partition(partition).expect("it is the owner");
        return owned.get(tree, key, at).await;
    }
    let key = pinion_storage::Key::from_slice(key);
    submit_to(owner, Queue::Background, move || async move {
        let owned = storage().partition(partition).expect("asked its owner");
        owned.get(tree, &key, at).await
    })
    .await
}
