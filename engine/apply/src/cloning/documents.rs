//! Documents of one collection, brought to the cores that own them and written there with their
//! entries in all indexes.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_catalog::{
    Clustering, Collection, Placement, Uuid, core_catalog, document_id, index_writes, mark_copied,
    partition_of, scattered_key, stored_document,
};
use pinion_clock::Timestamp;
use pinion_exec::capped::capped_table;
use pinion_query::MultikeyPaths;
use pinion_runtime::{CoreId, Queue, join_all, submit_to, yield_if_due};
use pinion_service::compute::compute_bytes;
use pinion_storage::{Expect, Key, Op, PartitionId, TreeId, Write, storage};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use crate::applier::stored;
use crate::limits::{CLONE_STEP_BYTES, CLONE_STEP_DOCUMENTS};

/// A document of another member.
#[derive(Clone, Debug)]
pub struct ClonedDocument {
    pub bytes: Bytes,
    /// The number of its record, if its collection is ordered by these.
    pub record: Option<i64>,
}

/// A collection of this node that another member's documents are copied into. It is used by one
/// core at a time.
#[derive(Clone, Debug)]
pub struct CloneTarget {
    /// As the catalog last had it, without what is being built: builds read the documents when all
    /// are there.
    collection: RefCell<Arc<Collection>>,
}

/// A document on its way to its owner.
struct Placed {
    document: ClonedDocument,
    partition: PartitionId,
    key: Key,
}

type Multikey = Vec<(TreeId, MultikeyPaths)>;

impl CloneTarget {
    pub(super) fn new(collection: Arc<Collection>) -> CloneTarget {
        CloneTarget {
            collection: RefCell::new(collection.without_builds()),
        }
    }

    pub fn ns(&self) -> Namespace {
        self.collection.borrow().ns.clone()
    }

    pub fn uuid(&self) -> Uuid {
        self.collection.borrow().uuid
    }

    /// The number of the collection.
    pub fn number(&self) -> u64 {
        self.collection.borrow().number
    }

    /// How many indexes it has, with that on `_id`.
    pub fn index_count(&self) -> usize {
        self.collection.borrow().index_count()
    }

    /// Whether documents come with the numbers of their records, which are their order.
    pub fn is_ordered_by_record(&self) -> bool {
        self.collection.borrow().clustering == Clustering::Record
    }

    /// Whether a document may be a later form of one that came before: they are to come in the
    /// order of their transaction numbers.
    pub fn is_scattered(&self) -> bool {
        self.collection.borrow().placement == Placement::Scattered
    }

    /// Writes documents with their index entries; unlogged, and without a look at what is unique:
    /// what is not will not be at the end. With `over` some of them may be there already.
    ///
    /// # Errors
    /// Bytes that are no document, a document that cannot be indexed; storage has failed.
    pub async fn put(&self, documents: Vec<ClonedDocument>, over: bool) -> Result<()> {
        let collection = self.collection.borrow().clone();
        let mut by_owner: BTreeMap<CoreId, Vec<Placed>> = BTreeMap::new();
        for document in documents {
            let placed = place(&collection, document)?;
            let owner = storage().owner(placed.partition);
            by_owner.entry(owner).or_default().push(placed);
            yield_if_due().await;
        }
        let written = join_all(by_owner.into_iter().map(|(owner, placed)| {
            let collection = collection.clone();
            submit_to(owner, Queue::Background, move || async move {
                write_owned(&collection, placed, over).await
            })
        }))
        .await;
        let found: Vec<Multikey> = written.into_iter().collect::<Result<_>>()?;
        let found = found.concat();
        if !found.is_empty() {
            let uuid = collection.uuid;
            mark_copied(uuid, found).await?;
            if let Some(marked) = core_catalog().current().by_uuid(uuid) {
                self.collection.replace(marked.without_builds());
            }
        }
        Ok(())
    }
}

fn place(collection: &Collection, document: ClonedDocument) -> Result<Placed> {
    let whole = RawDocument::from_bytes(&document.bytes)
        .map_err(|error| Error::failed_to_parse(error.to_string()))?;
    let record = document.record;
    if record.is_some() != (collection.clustering == Clustering::Record) {
        return Err(Error::bad_value(format!(
            "a document of {} comes without the number of its record, or has one too many",
            collection.ns
        )));
    }
    let key = match collection.placement {
        Placement::Scattered => scattered_key(whole)?,
        _ => collection.document_key(document_id(whole)?, record),
    };
    Ok(Placed {
        partition: partition_of(collection, &key),
        document,
        key,
    })
}

/// Writes documents that this core owns, as far as there is room a step at a time.
async fn write_owned(
    collection: &Arc<Collection>,
    placed: Vec<Placed>,
    over: bool,
) -> Result<Multikey> {
    let mut found = Multikey::new();
    let mut rest = placed.as_slice();
    while !rest.is_empty() {
        let (mut count, mut bytes) = (0, 0);
        // What is there already is seen by the next step, and not by this one.
        let most = if over { 1 } else { CLONE_STEP_DOCUMENTS };
        while count < most.min(rest.len()) && (count == 0 || bytes < CLONE_STEP_BYTES) {
            bytes += rest[count].document.bytes.len();
            count += 1;
        }
        let (step, others) = rest.split_at(count);
        rest = others;
        storage().wait_for_room().await;
        let _pass = core_catalog().gates().begin_change().await;
        write_step(collection, step, over, &mut found).await?;
        yield_if_due().await;
    }
    Ok(found)
}

async fn write_step(
    collection: &Arc<Collection>,
    step: &[Placed],
    over: bool,
    found: &mut Multikey,
) -> Result<()> {
    let mut writes = Vec::new();
    for placed in step {
        let old = match over && !collection.indexes.is_empty() {
            true => stored(collection, placed.partition, &placed.key).await?,
            false => None,
        };
        writes.extend(writes_of(collection, placed, old.as_ref(), found).await?);
    }
    // Those of one partition together; they keep their order.
    writes.sort_by_key(|write| write.partition);
    let failed = |error: pinion_storage::ApplyError| Error::internal(error.0);
    let others = storage().apply_here(Timestamp::MIN, writes).await;
    let others = others.map_err(failed)?;
    if !others.is_empty() {
        let applied = storage().apply_at(Timestamp::MIN, others).await;
        applied.map_err(failed)?;
    }
    for record in step.iter().filter_map(|placed| placed.document.record) {
        capped_table().applied(collection.tree(), record);
    }
    Ok(())
}

async fn writes_of(
    collection: &Arc<Collection>,
    placed: &Placed,
    old: Option<&Bytes>,
    found: &mut Multikey,
) -> Result<Vec<Write>> {
    // A copy of its own: the batch that it came in would stay in memory as long as one of its
    // documents does.
    let new = Bytes::copy_from_slice(&placed.document.bytes);
    let hash = storage().partition_hash();
    let make = || {
        let whole = pinion_bson::validate(&new).map_err(|error| {
            Error::new(
                ErrorCode::INVALID_BSON,
                format!("a document of {} is malformed: {error}", collection.ns),
            )
        })?;
        let old = old.map(|bytes| stored_document(bytes));
        let (partition, record) = (placed.partition, placed.document.record);
        index_writes(collection, partition, hash, record, old, Some(whole), false)
    };
    let made = compute_bytes(new.len(), make).await?;
    found.extend(made.newly_multikey);
    let mut writes = vec![Write {
        partition: placed.partition,
        tree: collection.tree(),
        key: placed.key.clone(),
        op: Op::Put(new),
        expect: Expect::Any,
    }];
    writes.extend(made.writes);
    Ok(writes)
}
