//! The one applier: oplog entries, in timestamp order, routed by this node's own partitions. Recovery feeds it; it checks no
//! constraints, because what is in the oplog has passed them.
//!
//! Entries of single documents go in batches to the core that owns the document, one batch at a time to each, so the
//! entries of one document are applied in their order while the cores work side by side. What such an entry writes to other
//! partitions, the entries of unique indexes, is keyed by its document and so keeps its order too. All other entries wait
//! until everything before them is applied.

use std::cell::{Cell, RefCell};

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{
    Clustering, Collection, Uuid, core_catalog, document_id, index_writes, partition_of,
};
use pinion_clock::Timestamp;
use pinion_runtime::{CoreId, JoinHandle, Queue, core_id, spawn, submit_to, yield_if_due};
use pinion_storage::{Expect, Key, Op, PartitionId, ReadAt, TreeId, Write, storage};
use pinion_wire::{Error, ErrorCode, Result};
use std::sync::Arc;

use crate::limits::{REPLAY_BATCH_BYTES, REPLAY_BATCH_ENTRIES};
use crate::state::{state, try_state};

type Applied = Result<(), pinion_storage::ApplyError>;

/// Entries for one core, in order.
#[derive(Default)]
struct Lane {
    batch: RefCell<Vec<(Timestamp, Bytes)>>,
    batch_bytes: Cell<usize>,
    under_way: RefCell<Option<JoinHandle<Applied>>>,
}

/// Applies the entries that recovery finds. Lives on core 0.
pub struct RecoveryApplier {
    lanes: Vec<Lane>,
}

impl Default for RecoveryApplier {
    fn default() -> RecoveryApplier {
        let cores = pinion_runtime::core_count();
        RecoveryApplier {
            lanes: (0..cores).map(|_| Lane::default()).collect(),
        }
    }
}

impl pinion_storage::Applier for RecoveryApplier {
    async fn apply(&self, ts: Timestamp, bytes: Bytes) -> Applied {
        let failed = |error| apply_error(ts, error);
        let entry = validated(&bytes).map_err(failed)?;
        state().metrics.counters.entries_replayed.inc();
        let Some(owner) = owner_of(entry).map_err(failed)? else {
            self.barrier().await?;
            return apply_operation(ts, entry).await.map_err(failed);
        };
        let lane = &self.lanes[usize::from(owner.0)];
        let len = bytes.len();
        lane.batch.borrow_mut().push((ts, bytes));
        lane.batch_bytes.set(lane.batch_bytes.get() + len);
        if lane.batch_bytes.get() >= REPLAY_BATCH_BYTES
            || lane.batch.borrow().len() >= REPLAY_BATCH_ENTRIES
        {
            lane.send(owner).await?;
        }
        Ok(())
    }

    async fn barrier(&self) -> Applied {
        for (core, lane) in self.lanes.iter().enumerate() {
            if !lane.batch.borrow().is_empty() {
                lane.send(CoreId(core as u16)).await?;
            }
        }
        for lane in &self.lanes {
            lane.complete().await?;
        }
        Ok(())
    }
}

impl Lane {
    /// Waits for the batch before, and sends what has been gathered.
    async fn send(&self, owner: CoreId) -> Applied {
        self.complete().await?;
        let batch = self.batch.take();
        self.batch_bytes.set(0);
        let task = submit_to(owner, Queue::Foreground, move || apply_batch(batch));
        *self.under_way.borrow_mut() = Some(spawn(Queue::Foreground, task));
        Ok(())
    }

    async fn complete(&self) -> Applied {
        let task = self.under_way.borrow_mut().take();
        match task {
            None => Ok(()),
            Some(task) => task
                .await
                .map_err(|cancelled| pinion_storage::ApplyError(cancelled.to_string()))?,
        }
    }
}

fn apply_error(ts: Timestamp, error: Error) -> pinion_storage::ApplyError {
    pinion_storage::ApplyError(format!("the entry of {ts}: {error}"))
}

/// Applies the entries of documents that this core owns.
async fn apply_batch(batch: Vec<(Timestamp, Bytes)>) -> Applied {
    let storage = storage();
    let mut elsewhere = Vec::new();
    for (ts, bytes) in batch {
        // Core 0 has validated it.
        let entry = pinion_catalog::stored_document(&bytes);
        let writes = writes_of(entry).await.map_err(|e| apply_error(ts, e))?;
        let others = storage.apply_here(ts, writes).await?;
        elsewhere.extend(others.into_iter().map(|write| (ts, write)));
        yield_if_due().await;
    }
    storage.apply_each(elsewhere).await
}

/// The core that owns the one document which an entry is about; none for every other entry.
fn owner_of(entry: &RawDocument) -> Result<Option<CoreId>> {
    let op = op_of(entry)?;
    if !matches!(op, "i" | "u" | "d") {
        return Ok(None);
    }
    let Target {
        collection, key, ..
    } = target(entry, op)?;
    Ok(Some(storage().owner(partition_of(&collection, &key))))
}

fn validated(bytes: &Bytes) -> Result<&RawDocument> {
    pinion_bson::validate(bytes)
        .map_err(|error| damaged(format!("an oplog entry is malformed: {error}")))
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

fn op_of(entry: &RawDocument) -> Result<&str> {
    match field(entry, "op") {
        Some(RawBsonRef::String(op)) => Ok(op),
        _ => Err(damaged("an oplog entry has no op")),
    }
}

/// Applies one entry, wherever what it changes lies.
pub async fn apply(ts: Timestamp, bytes: &Bytes) -> Result<()> {
    let entry = validated(bytes)?;
    if let Some(state) = try_state() {
        state.metrics.counters.entries_replayed.inc();
    }
    apply_operation(ts, entry).await
}

async fn apply_operation(ts: Timestamp, entry: &RawDocument) -> Result<()> {
    match op_of(entry)? {
        "i" | "u" | "d" => {
            let writes = writes_of(entry).await?;
            let applied = storage().apply_at(ts, writes).await;
            applied
                .map_err(|error| Error::internal(format!("cannot apply an oplog entry: {error}")))
        }
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

/// What an entry of one document names.
struct Target {
    collection: Arc<Collection>,
    /// The number of its record, where the collection is ordered by these.
    record: Option<i64>,
    /// Its key in the collection's tree.
    key: Key,
}

fn target(entry: &RawDocument, op: &str) -> Result<Target> {
    let uuid = field(entry, "ui")
        .and_then(Uuid::from_bson)
        .ok_or_else(|| damaged("an oplog entry has no ui"))?;
    let catalog = core_catalog().current();
    let collection = catalog.by_uuid(uuid).ok_or_else(|| {
        damaged(format!(
            "an oplog entry names the unknown collection {uuid}"
        ))
    })?;
    let record = match collection.clustering {
        Clustering::Id => None,
        Clustering::Record => match field(entry, "rid") {
            Some(RawBsonRef::Int64(record)) => Some(record),
            _ => return Err(damaged("an oplog entry of a capped collection has no rid")),
        },
    };
    let key_document = document(entry, if op == "u" { "o2" } else { "o" })?;
    let key = collection.document_key(document_id(key_document)?, record);
    Ok(Target {
        collection: collection.clone(),
        record,
        key,
    })
}

/// What an entry of one document writes.
async fn writes_of(entry: &RawDocument) -> Result<Vec<Write>> {
    let op = op_of(entry)?;
    let Target {
        collection,
        record,
        key,
    } = target(entry, op)?;
    let collection = &collection;
    let o = document(entry, "o")?;
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
        return Ok(Vec::new());
    }
    let made = {
        let old = old
            .as_ref()
            .map(|bytes| pinion_catalog::stored_document(bytes));
        let new = new
            .as_ref()
            .map(|bytes| pinion_catalog::stored_document(bytes));
        index_writes(
            collection,
            partition,
            storage().partition_hash(),
            record,
            old,
            new,
            false,
        )?
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
    Ok(writes)
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
    if owner == core_id() {
        return get(partition, tree, key).await;
    }
    let key = key.to_vec();
    submit_to(owner, Queue::Foreground, move || async move {
        get(partition, tree, &key).await
    })
    .await
}
