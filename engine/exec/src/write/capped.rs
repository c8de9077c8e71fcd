//! Inserts into capped collections: one after another, in the order in which readers find them,
//! each with the removal of as many of the oldest documents as the bounds ask for.
//!
//! All documents of such a collection are in one partition, on whose owner each insert takes the
//! collection's turn. It numbers the document, writes it, and only then lets the next one begin: a
//! document with a greater number is never seen before one with a smaller number, so a tailing
//! cursor that has come to a number has missed none before it. What is removed is removed by the
//! statement of the insert, and by the same entry of the oplog, so the bounds hold after a crash.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocumentBuf;
use pinion_catalog::{
    Capped, Collection, Observers, OpEvent, OpKind, OplogFormat, document_id, encode_apply_ops,
    from_read_error, from_write_error, index_writes, oplog_format, record_key, record_of,
    stored_document,
};
use pinion_clock::{OpTime, Term};
use pinion_runtime::{LocalBoxFuture, Queue, submit_to};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::{interruptible, is_interruption, pause};
use pinion_storage::{
    Direction, Entry, Expect, Key, KeyRange, Op, Partition, ReadAt, Statement, VersionToken, Write,
    WriteError, storage,
};
use pinion_wire::{Error, ErrorCode, OpContext, Result};
use smallvec::SmallVec;

use super::backoff::Backoff;
use super::insert::{Attempt, Group, InsertMarks, InsertOptions, Step, insert_statement, taken};
use super::order::first_error;
use super::unit::{insert_event, logged_key};
use super::validation::{Validation, check_document};
use crate::capped::{CappedCollection, RECORDS, capped_table};
use crate::limits::{EVICTION_GROUP, EVICTION_GROUP_BYTES};
use crate::statements::Stamp;

/// Tries to insert a group of documents, on the core that owns them.
pub(super) async fn attempt(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    group: &[(usize, Bytes)],
    options: InsertOptions<'_>,
) -> Step {
    let (ctx, collection) = (ctx.clone(), collection.clone());
    let stamps = group
        .iter()
        .map(|(index, _)| options.stamps.of(&collection, [*index]));
    let how = How {
        ordered: options.ordered,
        validation: options.validation,
        stamps: stamps.collect(),
        from_migrate: options.from_migrate,
    };
    let group: Group = group.into();
    let owner = storage().owner(RECORDS);
    submit_to(owner, Queue::Foreground, move || async move {
        attempt_here(&ctx, &collection, &group, how).await
    })
    .await
}

/// How documents are inserted: what the owning core is sent.
struct How {
    ordered: bool,
    validation: Validation,
    /// That of each document.
    stamps: SmallVec<[Option<Stamp>; 1]>,
    from_migrate: bool,
}

/// Inserts documents in their order into a collection whose gates admit no other operation.
pub async fn insert_capped(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    documents: Vec<Bytes>,
) -> Result<()> {
    let options = InsertOptions {
        validation: Validation::Bypassed,
        ..InsertOptions::default()
    };
    let mut backoff = Backoff::default();
    let mut left: Vec<(usize, Bytes)> = documents.into_iter().enumerate().collect();
    while !left.is_empty() {
        let step = attempt(ctx, collection, &left, options).await;
        let mut done = 0;
        for attempt in step.attempts {
            match attempt {
                Attempt::Done(_) => done += 1,
                Attempt::Failed(error) => return Err(error),
                Attempt::Pending => break,
            }
        }
        left.drain(..done);
        let (waited, error) = match step.full {
            true => (backoff.cache_full(ctx).await?, WriteError::CacheFull),
            false if step.conflict => (backoff.conflict(ctx).await?, WriteError::Conflict),
            false => continue,
        };
        if !waited {
            return Err(from_write_error(error));
        }
    }
    Ok(())
}

async fn attempt_here(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    group: &Group,
    mut how: How,
) -> Step {
    let mut step = Step::default();
    let capped = capped_table().of(collection.tree());
    let inserted = match interruptible(ctx, capped.turn()).await {
        Ok(_turn) => insert_all(ctx, collection, &capped, group, &mut how, &mut step).await,
        Err(error) => Err(error),
    };
    if let Err(error) = inserted {
        step.attempts.push(Attempt::Failed(error));
    }
    let tried = step.attempts.len();
    let untried = (tried..group.len()).map(|_| Attempt::Pending);
    step.attempts.extend(untried);
    step
}

/// Inserts documents up to the first that has to wait or, with order, that fails. An error is that
/// of the document whose turn it would have been.
fn insert_all<'a>(
    ctx: &'a OpContext,
    collection: &'a Arc<Collection>,
    capped: &'a CappedCollection,
    group: &'a Group,
    how: &'a mut How,
    step: &'a mut Step,
) -> LocalBoxFuture<'a, Result<()>> {
    Box::pin(async move {
        let mut last = None;
        for ((_, document), stamp) in group.iter().zip(&mut how.stamps) {
            pause(ctx).await?;
            let record = capped.next_record(collection).await?;
            if let (Some(stamp), Some(ts)) = (&mut *stamp, last) {
                stamp.session.previous = OpTime::new(ts, Term(storage().term()));
            }
            let new = NewDocument {
                document,
                record,
                marks: InsertMarks {
                    stamp: stamp.as_ref(),
                    from_migrate: how.from_migrate,
                },
                validation: how.validation,
            };
            let attempt = insert_one(ctx, collection, capped, new, step).await;
            match &attempt {
                Attempt::Done(ts) => {
                    last = Some(*ts);
                    capped.inserted(record);
                    capped.notify();
                }
                Attempt::Failed(error) if !how.ordered && !is_interruption(error) => {}
                _ => {
                    step.attempts.push(attempt);
                    return Ok(());
                }
            }
            step.attempts.push(attempt);
            if oplog_format() == OplogFormat::V44 && collection.is_replicated() {
                // The next inserts take it along.
                continue;
            }
            evict_rest(ctx, collection, capped).await?;
        }
        Ok(())
    })
}

fn bounds_of(collection: &Collection) -> Capped {
    let bounds = collection.options.capped;
    bounds.expect("only a capped collection is ordered by records")
}

/// A document on its way in.
#[derive(Clone, Copy)]
struct NewDocument<'a> {
    document: &'a Bytes,
    record: i64,
    marks: InsertMarks<'a>,
    validation: Validation,
}

async fn insert_one(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    capped: &CappedCollection,
    new: NewDocument<'_>,
    step: &mut Step,
) -> Attempt {
    let NewDocument {
        document,
        record,
        marks,
        validation,
    } = new;
    let raw = stored_document(document);
    if let Err(error) = check_document(ctx, collection, validation, None, raw).await {
        return Attempt::Failed(error);
    }
    let built = insert_statement(ctx, collection, document, Some(record), marks).await;
    let mut statement = match built {
        Ok(built) if !built.newly_multikey.is_empty() => {
            step.multikey.extend(built.newly_multikey);
            return Attempt::Pending;
        }
        Ok(built) => built.statement,
        Err(error) if is_interruption(&error) => return Attempt::Failed(error),
        Err(error) => {
            let error = match document_id(raw) {
                Ok(id) => first_error(collection, Some(record), id, None, raw, error).await,
                Err(_) => error,
            };
            return Attempt::Failed(error);
        }
    };
    let own = statement.writes.len();
    let mut last_evicted = None;
    // An entry of several writes is that of a transaction if it names a session: what has to go
    // then goes afterwards.
    let form = oplog_format();
    if marks.stamp.is_none() || form == OplogFormat::V44 {
        let evict = evict_beside(ctx, collection, (capped, form), new, &mut statement);
        match evict.await {
            Ok(last) => last_evicted = last,
            Err(error) => return Attempt::Failed(error),
        }
    }
    let mut results = storage().execute(vec![statement], true).await;
    match results.pop().expect("one statement has one result") {
        Ok(ts) => {
            if let Some(record) = last_evicted {
                capped.evicted(record);
            }
            Attempt::Done(ts)
        }
        Err(WriteError::CacheFull) => {
            step.full = true;
            Attempt::Pending
        }
        Err(error @ (WriteError::Exists { write } | WriteError::Duplicate { write, .. }))
            if write < own =>
        {
            Attempt::Failed(taken(collection, document, Some(record), error).await)
        }
        // Another client changes one of those that are evicted, or has removed it.
        Err(WriteError::Conflict | WriteError::Missing { .. } | WriteError::NotReached) => {
            step.conflict = true;
            Attempt::Pending
        }
        Err(error) => Attempt::Failed(from_write_error(error)),
    }
}

/// Makes the removal of what a document has no room beside a part of the statement that inserts it.
/// Gives the newest record that is removed.
async fn evict_beside(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    (capped, form): (&CappedCollection, OplogFormat),
    new: NewDocument<'_>,
    statement: &mut Statement,
) -> Result<Option<i64>> {
    let evicted = oldest_beyond(collection, capped, 1, new.document.len() as u64).await?;
    if evicted.is_empty() {
        return Ok(None);
    }
    let removal = removal(ctx, collection, evicted).await?;
    let last = removal.last();
    if form == OplogFormat::V44 {
        // Each member of MongoDB 4.4 removes the surplus itself, and does not apply removals of
        // others.
        statement.writes.extend(removal.writes);
        return Ok(last);
    }
    let document = stored_document(new.document);
    let document_key = logged_key(collection, document).await?;
    let event = insert_event(
        collection,
        (document, &document_key),
        Some(new.record),
        new.marks.from_migrate,
    );
    statement.entry = entry_of_all(collection, Some(event), &removal.removed)?;
    statement.writes.extend(removal.writes);
    Ok(last)
}

/// Removes what one statement had no room for: much, when the bounds have become smaller.
async fn evict_rest(
    ctx: &OpContext,
    collection: &Arc<Collection>,
    capped: &CappedCollection,
) -> Result<()> {
    let mut backoff = Backoff::default();
    loop {
        let evicted = oldest_beyond(collection, capped, 0, 0).await?;
        if evicted.is_empty() {
            return Ok(());
        }
        let removal = removal(ctx, collection, evicted).await?;
        let last = removal.last();
        let statement = Statement {
            entry: entry_of_all(collection, None, &removal.removed)?,
            writes: removal.writes,
        };
        let mut results = storage().execute(vec![statement], true).await;
        let more = match results.pop().expect("one statement has one result") {
            Ok(_) => {
                capped.evicted(last.expect("something was evicted"));
                true
            }
            Err(WriteError::CacheFull) => backoff.cache_full(ctx).await?,
            Err(WriteError::Conflict | WriteError::Missing { .. } | WriteError::NotReached) => {
                backoff.conflict(ctx).await?
            }
            Err(error) => return Err(from_write_error(error)),
        };
        if !more {
            // The next insert continues.
            return Ok(());
        }
    }
}

/// A document that has to go.
struct Evicted {
    key: Key,
    document: Bytes,
    token: VersionToken,
}

/// The oldest documents that have to go when so much is added; the newest stays, whatever it takes.
async fn oldest_beyond(
    collection: &Collection,
    capped: &CappedCollection,
    added: u64,
    added_bytes: u64,
) -> Result<Vec<Evicted>> {
    let owned: std::rc::Rc<Partition> = storage().partition(RECORDS).expect("run on its owner");
    let stats = owned.tree_stats(collection.tree());
    let bounds = bounds_of(collection);
    let mut records = stats.records + added;
    let mut bytes = stats.value_bytes + added_bytes;
    let is_beyond = |records: u64, bytes: u64| {
        let max = bounds.max_documents.map(i64::unsigned_abs);
        records > 1
            && (max.is_some_and(|max| records > max) || bytes > bounds.size_bytes.unsigned_abs())
    };
    let mut evicted = Vec::new();
    if !is_beyond(records, bytes) {
        return Ok(evicted);
    }
    let range = KeyRange {
        lower: Bound::Included(record_key(capped.oldest())),
        upper: Bound::Unbounded,
    };
    let mut cursor = owned.cursor(collection.tree(), range, Direction::Forward, ReadAt::Newest);
    let mut ids = 0;
    while is_beyond(records, bytes) && evicted.len() < EVICTION_GROUP && ids < EVICTION_GROUP_BYTES
    {
        let Some((key, read)) = cursor.next().await.map_err(from_read_error)? else {
            break;
        };
        records -= 1;
        bytes = bytes.saturating_sub(read.value.len() as u64);
        ids += key.len() + read.value.len().min(EVICTION_GROUP_BYTES / EVICTION_GROUP);
        evicted.push(Evicted {
            key,
            document: read.value,
            token: read.token,
        });
    }
    Ok(evicted)
}

/// What removes the oldest documents of a capped collection that has become too large, a document
/// at a time. Called on the owner.
///
/// # Errors
/// Those of a read.
pub async fn beyond_bounds(collection: &Arc<Collection>) -> Result<Vec<Vec<Write>>> {
    let capped = capped_table().of(collection.tree());
    let evicted = oldest_beyond(collection, &capped, 0, 0).await?;
    let hash = storage().partition_hash();
    let mut removals = Vec::with_capacity(evicted.len());
    for Evicted { key, document, .. } in evicted {
        let record = record_of(&key);
        let old = stored_document(&document);
        let entries = || index_writes(collection, RECORDS, hash, record, Some(old), None, false);
        let made = compute_bytes(document.len(), entries).await?;
        let mut writes = vec![Write {
            partition: RECORDS,
            tree: collection.tree(),
            key,
            op: Op::Delete,
            expect: Expect::Any,
        }];
        writes.extend(made.writes);
        removals.push(writes);
        if let Some(record) = record {
            capped.evicted(record);
        }
    }
    Ok(removals)
}

/// What removes documents.
struct Removal {
    writes: Vec<Write>,
    /// The logged key and the record of each.
    removed: Vec<(RawDocumentBuf, i64)>,
}

impl Removal {
    /// The newest of the records that are removed.
    fn last(&self) -> Option<i64> {
        self.removed.last().map(|(_, record)| *record)
    }
}

async fn removal(
    ctx: &OpContext,
    collection: &Collection,
    evicted: Vec<Evicted>,
) -> Result<Removal> {
    let hash = storage().partition_hash();
    let mut out = Removal {
        writes: Vec::with_capacity(2 * evicted.len()),
        removed: Vec::with_capacity(evicted.len()),
    };
    for Evicted {
        key,
        document,
        token,
    } in evicted
    {
        let old = stored_document(&document);
        let record = record_of(&key).ok_or_else(|| {
            let what = format!("a document of {} has no record number", collection.ns);
            Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, what)
        })?;
        let entries = || {
            index_writes(
                collection,
                RECORDS,
                hash,
                Some(record),
                Some(old),
                None,
                false,
            )
        };
        let index = compute(ctx, entries).await?;
        out.removed
            .push((logged_key(collection, old).await?, record));
        out.writes.push(Write {
            partition: RECORDS,
            tree: collection.tree(),
            key,
            op: Op::Delete,
            expect: Expect::Version(token),
        });
        out.writes.extend(index.writes);
    }
    Ok(out)
}

/// One entry of an insert and removals, each shown to the observers; none of what is not
/// replicated.
fn entry_of_all(
    collection: &Collection,
    insert: Option<OpEvent<'_>>,
    removed: &[(RawDocumentBuf, i64)],
) -> Result<Option<Entry>> {
    if !collection.is_replicated() {
        return Ok(None);
    }
    let deletes = removed.iter().map(|(key, record)| OpEvent {
        kind: OpKind::Delete,
        ..insert_event(collection, (key, key), Some(*record), false)
    });
    let events: Vec<OpEvent<'_>> = insert.into_iter().chain(deletes).collect();
    let observers = pinion_runtime::core_local::<Observers>();
    for event in &events {
        observers.show(event)?;
    }
    Ok(Some(encode_apply_ops(&events)))
}
