//! What `validate` mends on a standalone: one document and its entries at a time, only as long as
//! they are what was read.
//!
//! The writes have no entries in the log, so the caller makes a checkpoint behind the last of them.

use std::sync::Arc;

use pinion_catalog::{
    Collection, Index, IndexEntry, Placement, entries_of, entry_partition, from_fatal,
    from_read_error, from_write_error, index_writes, partition_of, prefix_len, stored_document,
};
use pinion_exec::local::put_local;
use pinion_runtime::sleep;
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::check;
use pinion_storage::{
    Expect, Key, Op, PartitionId, Read, ReadAt, Statement, TreeId, Write, WriteError, storage,
};
use pinion_wire::Result;

use super::examine::{Form, form_of};
use super::job::{Job, read};
use super::verify::{Extra, Missing};
use crate::limits::MAX_REPAIR_ATTEMPTS;

/// How often something was mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Repairs {
    pub documents_removed: u64,
    pub entries_removed: u64,
    pub entries_put: u64,
    pub documents_moved: u64,
}

impl Repairs {
    pub(super) fn merge(&mut self, other: Repairs) {
        self.documents_removed += other.documents_removed;
        self.entries_removed += other.entries_removed;
        self.entries_put += other.entries_put;
        self.documents_moved += other.documents_moved;
    }
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Repaired {
    /// It is there no more.
    NotNeeded,
    /// The entry is what it should be.
    Put,
    /// Another document has its unique key, so the document was moved to the lost and found.
    Moved,
    /// It is still there.
    Not,
}

/// What one attempt came to.
enum Attempt {
    Done,
    /// Something was written meanwhile.
    Again,
    /// Another document has the key.
    Taken,
}

async fn newest(partition: PartitionId, tree: TreeId, key: &[u8]) -> Result<Option<Read>> {
    let read = read(partition, tree, key, ReadAt::Newest).await;
    read.map_err(from_read_error)
}

async fn attempt(writes: Vec<Write>) -> Result<Attempt> {
    let statement = Statement {
        writes,
        entry: None,
    };
    let mut outcomes = storage().execute(vec![statement], true).await;
    match outcomes.pop().expect("one statement has one outcome") {
        Ok(_) => Ok(Attempt::Done),
        Err(WriteError::Duplicate { .. }) => Ok(Attempt::Taken),
        Err(WriteError::Conflict | WriteError::Missing { .. } | WriteError::Exists { .. }) => {
            Ok(Attempt::Again)
        }
        Err(WriteError::CacheFull) => {
            sleep(pinion_service::limits::KILL_POLL).await;
            Ok(Attempt::Again)
        }
        Err(error) => Err(from_write_error(error)),
    }
}

fn write(partition: PartitionId, tree: TreeId, key: &[u8], op: Op, expect: Expect) -> Write {
    let key = Key::from_slice(key);
    Write {
        partition,
        tree,
        key,
        op,
        expect,
    }
}

/// The entries of a document in an index; `None` if it is no document that has any.
async fn entries(
    job: &Job,
    index: &Index,
    key: &[u8],
    document: &Read,
) -> Result<Option<Vec<IndexEntry>>> {
    let bytes = &document.value;
    let form = compute_bytes(bytes.len(), || form_of(bytes, false)).await;
    if !matches!(form, Form::Sound | Form::Nonconformant(_)) {
        return Ok(None);
    }
    let (collection, document) = (&*job.collection, stored_document(bytes));
    let record = collection.record_of(key);
    let made = compute(&job.ctx, || entries_of(collection, index, document, record)).await;
    Ok(made.ok().map(|made| made.entries))
}

/// Puts an entry that a document of this partition lacks.
pub(super) async fn put_missing(
    job: &Arc<Job>,
    partition: PartitionId,
    missing: &Missing,
) -> Result<Repaired> {
    let index = job.indexes().nth(missing.place).expect("it was looked at");
    let (tree, key) = (job.collection.tree(), &missing.document);
    for _ in 0..MAX_REPAIR_ATTEMPTS {
        check(&job.ctx)?;
        let Some(document) = newest(partition, tree, key).await? else {
            return Ok(Repaired::NotNeeded);
        };
        let Some(made) = entries(job, index, key, &document).await? else {
            return Ok(Repaired::Not);
        };
        let Some(entry) = made.into_iter().find(|made| made.key == missing.entry.key) else {
            return Ok(Repaired::NotNeeded);
        };
        let place = entry_partition(&job.collection, index, &entry, partition, job.hash);
        let there = newest(place, index.tree, &entry.key).await?;
        if there.is_some_and(|there| there.value == entry.type_bits) {
            return Ok(Repaired::NotNeeded);
        }
        let expect = match index.spec.enforces_unique() {
            true => Expect::UniquePrefix {
                len: entry.prefix_len,
            },
            false => Expect::Any,
        };
        let writes = vec![
            write(
                partition,
                tree,
                key,
                Op::Check,
                Expect::Version(document.token),
            ),
            write(
                place,
                index.tree,
                &entry.key,
                Op::Put(entry.type_bits),
                expect,
            ),
        ];
        match attempt(writes).await? {
            Attempt::Done => return Ok(Repaired::Put),
            Attempt::Again => {}
            Attempt::Taken => match move_away(job, partition, key, &document).await? {
                true => return Ok(Repaired::Moved),
                false => continue,
            },
        }
    }
    Ok(Repaired::Not)
}

/// Moves a document to the lost and found of its collection; false if it was changed meanwhile.
async fn move_away(
    job: &Arc<Job>,
    partition: PartitionId,
    key: &[u8],
    document: &Read,
) -> Result<bool> {
    let collection: &Collection = &job.collection;
    put_local(
        &lost_and_found(collection),
        stored_document(&document.value),
    )
    .await?;
    let (stored, record) = (stored_document(&document.value), collection.record_of(key));
    let hash = job.hash;
    let going = compute(&job.ctx, || {
        index_writes(
            collection,
            partition,
            hash,
            record,
            Some(stored),
            None,
            false,
        )
    })
    .await?;
    let expect = Expect::Version(document.token);
    let mut writes = vec![write(partition, collection.tree(), key, Op::Delete, expect)];
    writes.extend(going.writes);
    Ok(matches!(attempt(writes).await?, Attempt::Done))
}

/// The collection of `local` for documents whose unique keys others have.
pub(super) fn lost_and_found(collection: &Collection) -> String {
    format!("lost_and_found.{}", collection.uuid)
}

/// Removes an entry of this partition for which no document asks.
pub(super) async fn remove_extra(
    job: &Arc<Job>,
    partition: PartitionId,
    index: &Index,
    extra: &Extra,
) -> Result<Repaired> {
    // What stands beside such an entry is read as forms of a document, which are many.
    if job.collection.placement == Placement::Scattered {
        return Ok(Repaired::Not);
    }
    let tree = job.collection.tree();
    let prefix = prefix_len(index, &extra.key).unwrap_or(extra.key.len());
    let name = &extra.key[prefix..];
    let home = partition_of(&job.collection, name);
    for _ in 0..MAX_REPAIR_ATTEMPTS {
        check(&job.ctx)?;
        let Some(entry) = newest(partition, index.tree, &extra.key).await? else {
            return Ok(Repaired::NotNeeded);
        };
        let document = newest(home, tree, name).await?;
        if let Some(document) = &document
            && let Some(made) = entries(job, index, name, document).await?
        {
            let is_it = |made: &&IndexEntry| {
                let place = entry_partition(&job.collection, index, made, home, job.hash);
                made.key == extra.key && place == partition
            };
            // With other TypeBits it is one that is missing, which is put over this one.
            if made.iter().any(|made| is_it(&made)) {
                return Ok(Repaired::NotNeeded);
            }
        }
        let unchanged = match &document {
            Some(document) => Expect::Version(document.token),
            None => Expect::Absent,
        };
        let expect = Expect::Version(entry.token);
        let mut writes = vec![write(partition, index.tree, &extra.key, Op::Delete, expect)];
        if !name.is_empty() {
            writes.push(write(home, tree, name, Op::Check, unchanged));
        }
        if let Attempt::Done = attempt(writes).await? {
            return Ok(Repaired::Put);
        }
    }
    Ok(Repaired::Not)
}

/// Removes a document that is none; false if it is sound by now, or stays.
pub(super) async fn remove_corrupt(
    job: &Arc<Job>,
    partition: PartitionId,
    key: &[u8],
) -> Result<bool> {
    let tree = job.collection.tree();
    for _ in 0..MAX_REPAIR_ATTEMPTS {
        check(&job.ctx)?;
        let Some(document) = newest(partition, tree, key).await? else {
            return Ok(false);
        };
        let bytes = &document.value;
        let form = compute_bytes(bytes.len(), || form_of(bytes, false)).await;
        if !matches!(form, Form::Invalid(_)) {
            return Ok(false);
        }
        let expect = Expect::Version(document.token);
        let removing = vec![write(partition, tree, key, Op::Delete, expect)];
        if let Attempt::Done = attempt(removing).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Makes all that was mended durable.
pub(super) async fn keep() -> Result<()> {
    storage().checkpoint().await.map_err(from_fatal)?;
    storage().wait_unreplicated().await.map_err(from_fatal)
}
