//! Changes of one stored document, on the core that owns it: read, compute, write, retry on conflict.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawDocument};
use pinion_catalog::{
    Collection, OpEvent, OpKind, document_id, from_read_error, from_write_error, index_writes,
    partition_of,
};
use pinion_clock::Timestamp;
use pinion_query::{Matcher, MultikeyPaths, Update};
use pinion_runtime::Queue;
use pinion_storage::{
    Entry, Expect, Key, Op, PartitionId, ReadAt, Statement, TreeId, Write, WriteError, storage,
};
use pinion_wire::{OpContext, Result};

use super::backoff::Backoff;
use super::document::update_context;
use super::insert::{duplicate_of, entry_of};
use super::order::{first_error, first_taken};
use super::validation::{Validation, check_document};
use crate::compute::{compute, compute_bytes};
use crate::interrupt::{check, is_interruption, pause};
use crate::state::state;

/// What happens to the documents that match.
#[derive(Debug)]
pub(crate) enum Change {
    Update(Update),
    Delete,
}

/// One statement's change, shared by all cores that take part in it.
#[derive(Debug)]
pub(crate) struct ModifyRequest {
    pub collection: Arc<Collection>,
    pub matcher: Matcher,
    pub change: Arc<Change>,
    pub validation: Validation,
    /// Whether nobody has looked at the document before, and it is examined here.
    pub is_lookup: bool,
    /// Whether the caller wants to see the documents before and after.
    pub wants_documents: bool,
}

/// What happened to one document.
#[derive(Debug)]
pub(crate) enum Modified {
    /// It is gone, or does not match any more.
    NoMatch,
    /// The update leaves it as it is.
    Unchanged { document: Option<Bytes> },
    Changed {
        ts: Timestamp,
        old: Option<Bytes>,
        new: Option<Bytes>,
    },
    /// These indexes must be made multikey first; the caller does so and tries this document again.
    NeedsMultikey {
        key: Key,
        trees: Vec<(TreeId, MultikeyPaths)>,
    },
}

/// Changes one document, on its owner's core.
pub(crate) async fn modify_at_owner(
    request: &Arc<ModifyRequest>,
    key: Key,
    ctx: &OpContext,
) -> Result<Modified> {
    let partition = partition_of(&request.collection, &key);
    let owner = storage().owner(partition);
    if owner == pinion_runtime::core_id() {
        return modify(request, partition, key, ctx).await;
    }
    let (request, ctx) = (request.clone(), ctx.clone());
    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
        modify(&request, partition, key, &ctx).await
    })
    .await
}

/// Changes several documents of one owner in this order, up to the first that fails.
pub(crate) async fn modify_many_at(
    request: &Arc<ModifyRequest>,
    owner: pinion_runtime::CoreId,
    keys: Vec<Key>,
    ctx: &OpContext,
) -> Vec<Result<Modified>> {
    let (request, ctx) = (request.clone(), ctx.clone());
    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
        let mut results = Vec::with_capacity(keys.len());
        for key in keys {
            let partition = partition_of(&request.collection, &key);
            let result = modify(&request, partition, key, &ctx).await;
            let failed = result.is_err();
            results.push(result);
            // The statement ends with its first error; what other owners are at goes on to the end of their group.
            if failed {
                break;
            }
            pinion_runtime::yield_if_due().await;
        }
        results
    })
    .await
}

async fn modify(
    request: &ModifyRequest,
    partition: PartitionId,
    key: Key,
    ctx: &OpContext,
) -> Result<Modified> {
    let collection = &request.collection;
    let owned = storage()
        .partition(partition)
        .expect("submitted to its owner");
    let record = collection.record_of(&key);
    let mut backoff = Backoff::default();
    loop {
        check(ctx)?;
        let Some(read) = owned
            .get(collection.tree(), &key, ReadAt::Newest)
            .await
            .map_err(from_read_error)?
        else {
            return Ok(Modified::NoMatch);
        };
        if request.is_lookup {
            let counters = &state().metrics.counters;
            counters.keys_examined.inc();
            counters.docs_examined.inc();
            ctx.work().examined(1, 1);
        }
        let old = pinion_catalog::stored_document(&read.value);
        let matches = || request.matcher.matches_with_position(old);
        let Some(position) = compute(ctx, matches).await? else {
            return Ok(Modified::NoMatch);
        };
        let id = document_id(old)?;
        let computed = match &*request.change {
            Change::Delete => None,
            Change::Update(update) => {
                let context = update_context(false, position.array_index);
                match compute(ctx, || update.apply(old, &context)).await? {
                    Some(new) => Some(Bytes::from(new.into_bytes())),
                    None => {
                        return Ok(Modified::Unchanged {
                            document: request.wants_documents.then(|| read.value.clone()),
                        });
                    }
                }
            }
        };
        let new = computed
            .as_ref()
            .map(|bytes| pinion_catalog::stored_document(bytes));
        if let Some(new) = new {
            check_document(ctx, collection, request.validation, Some(old), new).await?;
        }
        pause(ctx).await?;
        let hash = storage().partition_hash();
        let entries = || index_writes(collection, partition, hash, record, Some(old), new, true);
        let mut index = match compute(ctx, entries).await {
            Ok(index) => index,
            Err(error) => {
                return Err(match new {
                    _ if is_interruption(&error) => error,
                    Some(new) => first_error(collection, record, id, Some(old), new, error).await,
                    None => error,
                });
            }
        };
        if !index.newly_multikey.is_empty() {
            return Ok(Modified::NeedsMultikey {
                key,
                trees: index.newly_multikey,
            });
        }
        if state().shared.options.forget_index_entries && new.is_some() {
            index.writes.pop();
        }
        let op = match &computed {
            Some(bytes) => Op::Put(bytes.clone()),
            None => Op::Delete,
        };
        let mut writes = Vec::with_capacity(1 + index.writes.len());
        writes.push(Write {
            partition,
            tree: collection.tree(),
            key: key.clone(),
            op,
            expect: Expect::Version(read.token),
        });
        writes.extend(index.writes.iter().cloned());
        let entry = change_entry(collection, record, id, old, new).await?;
        let mut results = storage()
            .execute(
                vec![Statement {
                    writes,
                    entry: Some(entry),
                }],
                true,
            )
            .await;
        match results.pop().expect("one statement has one result") {
            Ok(ts) => {
                let keep = |bytes: Bytes| request.wants_documents.then_some(bytes);
                return Ok(Modified::Changed {
                    ts,
                    old: keep(read.value.clone()),
                    new: computed.and_then(keep),
                });
            }
            Err(WriteError::Conflict | WriteError::Missing { .. }) => {
                if !backoff.conflict(ctx).await? {
                    return Err(from_write_error(WriteError::Conflict));
                }
            }
            Err(WriteError::CacheFull) => {
                if !backoff.cache_full(ctx).await? {
                    return Err(from_write_error(WriteError::CacheFull));
                }
            }
            Err(WriteError::Duplicate { write, .. }) if write > 0 => {
                state().metrics.counters.duplicate_key_errors.inc();
                let error = duplicate_of(collection, &index.writes[write - 1]);
                return Err(match new {
                    Some(new) => first_taken(collection, record, id, Some(old), new, error).await,
                    None => error,
                });
            }
            Err(error) => return Err(from_write_error(error)),
        }
    }
}

/// The entry of an update or delete: a diff where there is a short one, otherwise the whole new document.
pub(super) async fn change_entry(
    collection: &Collection,
    record: Option<i64>,
    id: pinion_bson::RawBsonRef<'_>,
    old: &RawDocument,
    new: Option<&RawDocument>,
) -> Result<Entry> {
    let mut key = DocBuilder::new();
    key.append_raw("_id", id);
    let key = key.finish();
    let event = |kind, o, o2| OpEvent {
        kind,
        ns: collection.ns.as_str(),
        uuid: Some(collection.uuid),
        o,
        o2,
        wall_ms: pinion_runtime::wall_ms(),
        session: None,
        record,
    };
    let Some(new) = new else {
        return entry_of(&event(OpKind::Delete, &key, None)).await;
    };
    let bytes = old.as_bytes().len() + new.as_bytes().len();
    let changes = compute_bytes(bytes, || {
        let diff = pinion_query::diff(old, new)?;
        let mut o = DocBuilder::new();
        o.append("$v", 2i32).append("diff", &*diff);
        Some(o.finish())
    });
    let changes = changes.await;
    let o = changes.as_deref().unwrap_or(new);
    entry_of(&event(OpKind::Update, o, Some(&key))).await
}
