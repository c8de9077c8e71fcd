//! Inserts: one statement a document, many statements in one step of storage.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_catalog::{
    Clustering, Collection, IndexWrites, document_id, duplicate_entry, duplicate_id,
    from_write_error, index_writes, partition_of,
};
use pinion_clock::Timestamp;
use pinion_query::MultikeyPaths;
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::{check, is_interruption};
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_storage::{
    Key, Op, PartitionHash, PartitionId, Statement, TreeId, Write, WriteError, storage,
};
use pinion_wire::{Error, ErrorCode, OpContext, Result};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::backoff::Backoff;
use super::batch::BatchOutcome;
use super::batch_uniqueness::Claims;
use super::capped;
use super::multikey::mark_multikey;
use super::order::{first_error, first_taken};
use super::perform::execute;
use super::series::insert_measurements;
use super::unit::LoggedWrite;
use super::validation::{Validation, check_document};
use crate::acquire::{AcquiredCollection, acquire};
use crate::limits::{
    INSERT_GROUP_BYTES, INSERT_GROUP_STATEMENTS, INSERT_STEP_WRITES, MAX_CLUSTER_KEY_BYTES,
};
use crate::open_transactions::{ends_command, no_measurements};
use crate::placement::{is_of_versions, stops_batch};
use crate::sessions::RetryableWrite;
use crate::statements::{ExecutedChange, Stamp};

/// A statement that inserts one prepared document, and the indexes that it makes multikey.
pub(super) struct InsertStatement {
    pub statement: Statement,
    pub newly_multikey: Vec<(TreeId, MultikeyPaths)>,
}

/// What the entry of an insert says beside the document.
#[derive(Clone, Copy)]
pub(super) struct InsertMarks<'a> {
    /// The retryable statements that it is of.
    pub stamp: Option<&'a Stamp>,
    pub from_migrate: bool,
}

/// Builds the statement that inserts a prepared document, where its collection is ordered by them
/// under the number `record`.
pub(super) async fn insert_statement(
    ctx: &OpContext,
    collection: &Collection,
    document: &Bytes,
    record: Option<i64>,
    marks: InsertMarks<'_>,
) -> Result<InsertStatement> {
    let raw = pinion_catalog::stored_document(document);
    let id = document_id(raw)?;
    let key = || collection.document_key(id, record);
    let key = compute_bytes(document.len(), key).await;
    check_cluster_key(collection, &key)?;
    let (partition, hash) = (partition_of(collection, &key), storage().partition_hash());
    let index = match collection.indexes.is_empty() {
        true => IndexWrites::default(),
        false => {
            compute(ctx, || {
                new_entries(collection, partition, raw, hash, record)
            })
            .await?
        }
    };
    let write = LoggedWrite {
        collection,
        partition,
        key,
        record,
        old: None,
        new: Some(document),
        update: None,
        stamp: marks.stamp,
        from_migrate: marks.from_migrate,
        in_transaction: is_in(ctx),
    };
    Ok(InsertStatement {
        statement: write.statement(index.writes).await?,
        newly_multikey: index.newly_multikey,
    })
}

/// Refuses an `_id` by which a collection that is declared to be clustered holds no document.
fn check_cluster_key(collection: &Collection, key: &Key) -> Result<()> {
    if collection.options.clustered.is_none() || key.len() <= MAX_CLUSTER_KEY_BYTES {
        return Ok(());
    }
    Err(pinion_wire::Error::new(
        ErrorCode(5_894_900),
        "Size of RecordId is above limit of 8MB",
    ))
}

/// The index entries of a document that was not there before.
fn new_entries(
    collection: &Collection,
    partition: PartitionId,
    document: &RawDocument,
    hash: PartitionHash,
    record: Option<i64>,
) -> Result<IndexWrites> {
    let new = Some(document);
    index_writes(collection, partition, hash, record, None, new, true)
}

/// The error of an insert that storage refused because a key is taken.
pub(super) async fn taken(
    collection: &Arc<Collection>,
    document: &Bytes,
    record: Option<i64>,
    error: WriteError,
) -> pinion_wire::Error {
    metrics().counters.duplicate_key_errors.inc();
    let raw = pinion_catalog::stored_document(document);
    let write = match &error {
        WriteError::Exists { write } | WriteError::Duplicate { write, .. } => *write,
        _ => return from_write_error(error),
    };
    let Ok(id) = document_id(raw) else {
        return from_write_error(error);
    };
    if write == 0 {
        return duplicate_id(collection, id);
    }
    // The statement is gone; the same document gives the same writes again.
    let partition = partition_of(collection, &collection.document_key(id, record));
    let hash = storage().partition_hash();
    let again = || new_entries(collection, partition, raw, hash, record);
    match compute_bytes(document.len(), again).await {
        Ok(made) => {
            let error = duplicate_of(collection, &made.writes[write - 1]);
            first_taken(collection, record, id, None, raw, error).await
        }
        Err(error) => error,
    }
}

/// `E11000` for the index entry that this write wanted to put.
pub(crate) fn duplicate_of(collection: &Collection, write: &Write) -> pinion_wire::Error {
    let index = collection
        .indexes
        .iter()
        .find(|index| index.tree == write.tree);
    match (index, &write.op) {
        (Some(index), Op::Put(type_bits)) => {
            duplicate_entry(collection, index, &write.key, type_bits)
        }
        _ => pinion_wire::Error::internal(
            "a duplicate was reported for a write that is no index entry",
        ),
    }
}

/// How documents are inserted.
#[derive(Clone, Copy)]
pub struct InsertOptions<'s> {
    /// Whether the first that fails ends the batch.
    pub ordered: bool,
    pub validation: Validation,
    /// Where each is a statement of its own, or a part of one, of a retryable write.
    pub stamps: Stamps<'s>,
    /// Whether they come from another shard, as the log then says.
    pub from_migrate: bool,
}

impl Default for InsertOptions<'_> {
    fn default() -> Self {
        InsertOptions {
            ordered: true,
            validation: Validation::default(),
            stamps: Stamps::None,
            from_migrate: false,
        }
    }
}

/// What goes into the entries of inserts that are retryable.
#[derive(Clone, Copy)]
pub enum Stamps<'s> {
    None,
    /// They are statements of their own, by their places in the client's batch.
    Batch(&'s RetryableWrite),
    /// There is one document, and its statement another one.
    One(&'s Stamp),
}

impl Stamps<'_> {
    /// That of a write of the documents at these places.
    pub(super) fn of(
        self,
        collection: &Collection,
        places: impl IntoIterator<Item = usize>,
    ) -> Option<Stamp> {
        match self {
            Stamps::None => None,
            Stamps::Batch(retryable) => retryable.stamp(&collection.ns, places, None),
            Stamps::One(stamp) => Some(stamp.clone()),
        }
    }

    /// A document was inserted by a write at `ts`.
    pub(super) fn wrote(self, place: usize, ts: Timestamp) {
        if let Stamps::Batch(retryable) = self {
            let change = ExecutedChange::Insert { id: None };
            retryable.wrote(place, ts, change, None);
        }
    }
}

/// What one step did with a group of documents.
#[derive(Default)]
pub(super) struct Step {
    pub attempts: Attempts,
    /// Indexes that the catalog must call multikey before the rest is tried again.
    pub multikey: Vec<(TreeId, MultikeyPaths)>,
    /// Some met another writer.
    pub conflict: bool,
    /// Some found no memory.
    pub full: bool,
}

/// What became of each document of a group. Most groups are of one.
pub(super) type Attempts = SmallVec<[Attempt; 1]>;

pub(super) enum Attempt {
    Done(Timestamp),
    Failed(pinion_wire::Error),
    /// Not tried, or to be tried again.
    Pending,
}

/// Inserts documents in their order; `index_of_first` is the place of the first in the client's
/// batch.
pub async fn insert_documents(
    ctx: &OpContext,
    acquired: AcquiredCollection,
    documents: Vec<(usize, Bytes)>,
    options: InsertOptions<'_>,
    outcome: &mut BatchOutcome,
) -> Result<()> {
    let mut options = options;
    // Behind the first that fails a transaction is over.
    options.ordered |= is_in(ctx);
    let ordered = options.ordered;
    let mut backoff = Backoff::default();
    let mut claims = Claims::default();
    let mut queue: std::collections::VecDeque<(usize, Bytes)> = documents.into();
    let mut acquired = acquired;
    while !queue.is_empty() {
        check(ctx)?;
        // The name may have become that of a series while its gate was not held.
        if acquired.series().is_some() {
            if is_in(ctx) {
                return Err(no_measurements("insert into", acquired.ns()));
            }
            let left = queue.into();
            return Box::pin(insert_measurements(ctx, acquired, left, options, outcome)).await;
        }
        let Some(collection) = acquired.collection().cloned() else {
            let made = Box::pin(acquired.create(ctx)).await;
            let Some((again, made)) = unless_stopped(ctx, made, &queue, ordered, outcome)? else {
                return Ok(());
            };
            acquired = again;
            if let Some(ts) = made {
                outcome.wrote(ts);
            }
            continue;
        };
        let group = take_group(&mut queue);
        let Step {
            attempts,
            multikey,
            conflict,
            full,
        } = match collection.clustering {
            Clustering::Id => attempt(ctx, &collection, &group, options, &mut claims).await,
            Clustering::Record => capped::attempt(ctx, &collection, &group, options).await,
            Clustering::Log => unreachable!("the door lets nobody write to the log"),
        };
        let mut again: Vec<(usize, Bytes)> = Vec::new();
        let mut stop = false;
        for ((index, document), attempt) in group.into_iter().zip(attempts) {
            match attempt {
                Attempt::Done(ts) => {
                    outcome.n += 1;
                    outcome.wrote(ts);
                    options.stamps.wrote(index, ts);
                }
                Attempt::Failed(error) if ends_command(ctx, &error) => return Err(error),
                Attempt::Failed(error) => {
                    outcome.failed(index, error);
                    stop |= ordered;
                }
                Attempt::Pending => again.push((index, document)),
            }
        }
        if stop {
            return Ok(());
        }
        if queue.is_empty() && again.is_empty() {
            return Ok(());
        }
        // A DDL or the lock of `fsync` does not wait for the end of a long batch.
        let left = acquired.leave();
        if !multikey.is_empty() {
            mark_multikey(ctx, &collection.ns, collection.uuid, multikey).await?;
        } else if conflict || full {
            let more = if full {
                Box::pin(backoff.cache_full(ctx)).await?
            } else {
                Box::pin(backoff.conflict(ctx)).await?
            };
            if !more {
                let error = if full {
                    WriteError::CacheFull
                } else {
                    WriteError::Conflict
                };
                let error = from_write_error(error);
                if ends_command(ctx, &error) {
                    return Err(error);
                }
                outcome.failed(again[0].0, error);
                if ordered {
                    return Ok(());
                }
                again.remove(0);
            }
        }
        for item in again.into_iter().rev() {
            queue.push_front(item);
        }
        let again = acquire(ctx, left).await;
        let Some(again) = unless_stopped(ctx, again, &queue, ordered, outcome)? else {
            return Ok(());
        };
        acquired = again;
    }
    Ok(())
}

/// Whether an insert that cannot continue answers with what it has done: what is inserted is not to
/// be sent again.
pub(super) fn stops_here(ctx: &OpContext, error: &Error, outcome: &BatchOutcome) -> bool {
    let is_started = outcome.n > 0 && is_of_versions(error.code);
    (is_started || stops_batch(error)) && !ends_command(ctx, error)
}

/// What an access has given; `None` where it has failed with the error of all documents that are
/// left.
fn unless_stopped<T>(
    ctx: &OpContext,
    acquired: Result<T>,
    left: &std::collections::VecDeque<(usize, Bytes)>,
    ordered: bool,
    outcome: &mut BatchOutcome,
) -> Result<Option<T>> {
    match acquired {
        Ok(acquired) => Ok(Some(acquired)),
        Err(error) if stops_here(ctx, &error, outcome) => {
            let left = left.iter().map(|(index, _)| *index);
            outcome.stop(left, ordered, &error);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Documents that are tried in one step, with their places in the client's batch.
pub(super) type Group = SmallVec<[(usize, Bytes); 1]>;

fn take_group(queue: &mut std::collections::VecDeque<(usize, Bytes)>) -> Group {
    let mut group = Group::new();
    let mut bytes = 0;
    while let Some((_, document)) = queue.front() {
        if group.len() >= INSERT_GROUP_STATEMENTS
            || (!group.is_empty() && bytes + document.len() > INSERT_GROUP_BYTES)
        {
            break;
        }
        bytes += document.len();
        group.extend(queue.pop_front());
    }
    group
}

/// One step: builds the statements and hands them to storage together.
async fn attempt(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    group: &[(usize, Bytes)],
    options: InsertOptions<'_>,
    claims: &mut Claims,
) -> Step {
    let ordered = options.ordered;
    let mut attempts = Attempts::with_capacity(group.len());
    let mut statements: Vec<Statement> = Vec::with_capacity(group.len());
    // The places in the group of the statements.
    let mut places: SmallVec<[usize; 1]> = SmallVec::with_capacity(group.len());
    let mut multikey: Vec<(TreeId, MultikeyPaths)> = Vec::new();
    let mut writes = 0;
    for (place, (index, document)) in group.iter().enumerate() {
        attempts.push(Attempt::Pending);
        pinion_runtime::yield_if_due().await;
        let raw = pinion_catalog::stored_document(document);
        // Before all indexes, as an error of theirs comes behind that of the validator.
        let checked = check_document(ctx, collection, options.validation, None, raw).await;
        let is_refused = checked.is_err();
        let built = match checked {
            Ok(()) => {
                let stamp = options.stamps.of(collection, [*index]);
                let marks = InsertMarks {
                    stamp: stamp.as_ref(),
                    from_migrate: options.from_migrate,
                };
                insert_statement(ctx, collection, document, None, marks).await
            }
            Err(error) => Err(error),
        };
        if let Ok(built) = &built
            && !ordered
            && !claims.claim(place, &built.statement)
        {
            continue;
        }
        match built {
            Ok(built) if built.newly_multikey.is_empty() => {
                writes += built.statement.writes.len();
                statements.push(built.statement);
                places.push(place);
                if writes >= INSERT_STEP_WRITES {
                    attempts.extend((place + 1..group.len()).map(|_| Attempt::Pending));
                    break;
                }
            }
            Ok(built) => {
                // This one waits until the catalog says that its indexes are multikey, and so do
                // those after it: if it is interrupted, none of them shall have been inserted.
                multikey.extend(built.newly_multikey);
                attempts.extend((place + 1..group.len()).map(|_| Attempt::Pending));
                break;
            }
            Err(error) => {
                let waits = |attempt: &Attempt| matches!(attempt, Attempt::Pending);
                if attempts[..place].iter().any(waits) {
                    // What comes before this one decides which of its errors is the first.
                    attempts.extend((place + 1..group.len()).map(|_| Attempt::Pending));
                    break;
                }
                let interrupted = is_interruption(&error);
                let error = match document_id(raw) {
                    _ if interrupted || is_refused => error,
                    Ok(id) => Box::pin(first_error(collection, None, id, None, raw, error)).await,
                    Err(_) => error,
                };
                attempts[place] = Attempt::Failed(error);
                if ordered || interrupted {
                    attempts.extend((place + 1..group.len()).map(|_| Attempt::Pending));
                    break;
                }
            }
        }
    }
    let (mut conflict, mut full) = (false, false);
    // The write of each document that found its key taken.
    let mut found_taken: FxHashMap<usize, usize> = FxHashMap::default();
    if !statements.is_empty() {
        let results = execute(ctx, statements, ordered).await;
        assert!(
            results.len() == places.len(),
            "each statement has one result"
        );
        for (place, result) in places.into_iter().zip(results) {
            if let Err(WriteError::Exists { write } | WriteError::Duplicate { write, .. }) = &result
            {
                found_taken.insert(place, *write);
            }
            attempts[place] = match result {
                Ok(ts) => Attempt::Done(ts),
                Err(WriteError::Conflict | WriteError::NotReached) => {
                    conflict = true;
                    Attempt::Pending
                }
                Err(WriteError::CacheFull) => {
                    full = true;
                    Attempt::Pending
                }
                Err(error) => {
                    let document = &group[place].1;
                    Attempt::Failed(Box::pin(taken(collection, document, None, error)).await)
                }
            };
        }
    }
    claims.end_step(|place, write| {
        matches!(attempts[place], Attempt::Done(_)) || found_taken.get(&place) == Some(&write)
    });
    if ordered {
        // What comes behind the first that did not take place was not reached, nor does it fail
        // because it could not be built.
        let first = attempts.iter().position(|a| !matches!(a, Attempt::Done(_)));
        if let Some(first) = first {
            for attempt in &mut attempts[first + 1..] {
                assert!(
                    !matches!(attempt, Attempt::Done(_)),
                    "an ordered batch stops at the first that failed"
                );
                *attempt = Attempt::Pending;
            }
        }
    }
    Step {
        attempts,
        multikey,
        conflict,
        full,
    }
}
