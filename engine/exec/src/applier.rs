//! The one applier: oplog entries, in timestamp order, routed by this node's own partitions. Recovery feeds it; it checks no
//! constraints, because what is in the oplog has passed them.

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{
    Collection, Uuid, core_catalog, document_id, id_key, index_writes, partition_of,
};
use pinion_clock::Timestamp;
use pinion_runtime::Queue;
use pinion_storage::{Expect, Op, PartitionId, ReadAt, TreeId, Write, storage};
use pinion_wire::{Error, ErrorCode, Result};
use std::sync::Arc;

use crate::state::try_state;

/// Applies entries on core 0.
#[derive(Debug, Default)]
pub struct RecoveryApplier {}

impl pinion_storage::Applier for RecoveryApplier {
    async fn apply(&self, ts: Timestamp, entry: Bytes) -> Result<(), pinion_storage::ApplyError> {
        apply(ts, &entry)
            .await
            .map_err(|error| pinion_storage::ApplyError(error.to_string()))
    }
}

fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, what)
}

fn field<'a>(entry: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    pinion_bson::get(entry, name)
}

fn document<'a>(entry: &'a RawDocument, name: &str) -> Result<&'a RawDocument> {
    match field(entry, name) {
        Some(RawBsonRef::Document(document)) => Ok(document),
        _ => Err(damaged(format!("an oplog entry has no document '{name}'"))),
    }
}

/// Applies one entry.
pub async fn apply(ts: Timestamp, bytes: &Bytes) -> Result<()> {
    let entry = pinion_bson::validate(bytes)
        .map_err(|error| damaged(format!("an oplog entry is malformed: {error}")))?;
    if let Some(state) = try_state() {
        state.metrics.counters.entries_replayed.inc();
    }
    apply_operation(ts, entry).await
}

async fn apply_operation(ts: Timestamp, entry: &RawDocument) -> Result<()> {
    let Some(RawBsonRef::String(op)) = field(entry, "op") else {
        return Err(damaged("an oplog entry has no op"));
    };
    match op {
        "i" | "u" | "d" => apply_document(ts, op, entry).await,
        "c" => {
            let o = document(entry, "o")?;
            if let Some(RawBsonRef::Array(operations)) = field(o, "applyOps") {
                for operation in pinion_bson::values(operations) {
                    let RawBsonRef::Document(operation) = operation else {
                        return Err(damaged("applyOps holds a value that is no document"));
                    };
                    Box::pin(apply_operation(ts, operation)).await?;
                }
                return Ok(());
            }
            pinion_catalog::replay_change(ts, document(entry, "o2")?).await?;
            Ok(())
        }
        "n" => {
            if let Some(RawBsonRef::Document(o2)) = field(entry, "o2") {
                pinion_catalog::replay_change(ts, o2).await?;
            }
            Ok(())
        }
        other => Err(damaged(format!(
            "an oplog entry has the unknown op '{other}'"
        ))),
    }
}

async fn apply_document(ts: Timestamp, op: &str, entry: &RawDocument) -> Result<()> {
    let uuid = field(entry, "ui")
        .and_then(Uuid::from_bson)
        .ok_or_else(|| damaged("an oplog entry has no ui"))?;
    let catalog = core_catalog().current();
    let collection = catalog.by_uuid(uuid).ok_or_else(|| {
        damaged(format!(
            "an oplog entry names the unknown collection {uuid}"
        ))
    })?;
    let o = document(entry, "o")?;
    let key_document = match op {
        "u" => document(entry, "o2")?,
        _ => o,
    };
    let id = document_id(key_document)?;
    let key = id_key(id);
    let partition = partition_of(collection, &key);
    let old = match op {
        // Nothing is there before an insert: the base ends where replay begins.
        "i" => None,
        _ => read(collection, partition, &key).await?,
    };
    let new = match op {
        "d" => None,
        "i" => Some(Bytes::copy_from_slice(o.as_bytes())),
        _ => {
            let old = old
                .as_ref()
                .ok_or_else(|| damaged("an oplog entry updates a document that is not there"))?;
            Some(updated(old, o)?)
        }
    };
    if old.is_none() && new.is_none() {
        return Ok(());
    }
    let made = {
        let old = old
            .as_ref()
            .map(|bytes| pinion_catalog::stored_document(bytes));
        let new = new
            .as_ref()
            .map(|bytes| pinion_catalog::stored_document(bytes));
        index_writes(collection, partition, id, old, new, false)?
    };
    let op = new.map_or(Op::Delete, Op::Put);
    let mut writes = vec![Write {
        partition,
        tree: collection.tree(),
        key,
        op,
        expect: Expect::Any,
    }];
    writes.extend(made.writes);
    storage()
        .apply_at(ts, writes)
        .await
        .map_err(|error| Error::internal(format!("cannot apply an oplog entry: {error}")))
}

fn updated(old: &Bytes, o: &RawDocument) -> Result<Bytes> {
    if let (Some(RawBsonRef::Int32(2)), Some(RawBsonRef::Document(diff))) =
        (field(o, "$v"), field(o, "diff"))
    {
        let new = pinion_query::apply_diff(pinion_catalog::stored_document(old), diff)?;
        return Ok(Bytes::from(new.into_bytes()));
    }
    Ok(Bytes::copy_from_slice(o.as_bytes()))
}

async fn read(
    collection: &Arc<Collection>,
    partition: PartitionId,
    key: &[u8],
) -> Result<Option<Bytes>> {
    async fn get(partition: PartitionId, tree: TreeId, key: &[u8]) -> Result<Option<Bytes>> {
        let owned = storage().partition(partition).expect("asked its owner");
        let read = owned
            .get(tree, key, ReadAt::Newest)
            .await
            .map_err(pinion_catalog::from_read_error)?;
        Ok(read.map(|read| read.value))
    }
    let (owner, tree) = (storage().owner(partition), collection.tree());
    if owner == pinion_runtime::core_id() {
        return get(partition, tree, key).await;
    }
    let key = key.to_vec();
    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
        get(partition, tree, &key).await
    })
    .await
}
