//! Changes of one stored document, on the core that owns it: read, compute, write, retry on
//! conflict.

use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::{Collection, from_write_error, partition_of};
use pinion_clock::Timestamp;
use pinion_query::{Matcher, MultikeyPaths, Update};
use pinion_runtime::Queue;
use pinion_storage::{Key, PartitionId, TreeId, WriteError, storage};
use pinion_wire::{OpContext, Result};

use super::backoff::Backoff;
use super::perform::execute;
use super::prepare::{Prepared, PreparedChange, prepare};
use super::validation::Validation;
use crate::open_transactions::InUnit;
use crate::placement::Ownership;
use crate::statements::Stamp;

/// What happens to the documents that match.
#[derive(Debug)]
pub enum Change {
    Update(Update),
    Delete,
}

impl Change {
    /// The update, if it is one.
    pub(super) fn update(&self) -> Option<&Update> {
        match self {
            Change::Update(update) => Some(update),
            Change::Delete => None,
        }
    }
}

/// One statement's change, shared by all cores that take part in it.
#[derive(Debug)]
pub(crate) struct ModifyRequest {
    pub collection: Arc<Collection>,
    /// What the shard owns of it: other documents are not there for the change.
    pub ownership: Option<Arc<dyn Ownership>>,
    pub matcher: Matcher,
    pub change: Arc<Change>,
    /// Whether it is made to all documents that match.
    pub multi: bool,
    pub validation: Validation,
    /// Whether the document was not examined before, and is examined here.
    pub is_lookup: bool,
    /// Whether the caller wants to see the documents before and after.
    pub wants_documents: bool,
    /// The retryable statement that it is.
    pub stamp: Option<Stamp>,
    pub from_migrate: bool,
    /// What is read, if it is the statement of a transaction: otherwise the newest state is.
    pub reads: Option<InUnit>,
}

/// What happened to one document.
#[derive(Debug)]
pub(crate) enum Modified {
    /// It is gone, or does not match any more, or the shard does not own it.
    NoMatch,
    /// The update leaves it as it is.
    Unchanged { document: Option<Bytes> },
    Changed {
        ts: Timestamp,
        old: Option<Bytes>,
        new: Option<Bytes>,
    },
    /// These indexes must be made multikey first; the caller does so and tries this document again.
    NeedsMultikey { trees: Vec<(TreeId, MultikeyPaths)> },
}

/// Changes one document, on its owner's core.
pub(crate) async fn modify_at_owner(
    request: &Arc<ModifyRequest>,
    key: Key,
    ctx: &OpContext,
) -> Result<Modified> {
    let partition = partition_of(&request.collection, &key);
    let owner = storage().owner(partition);
    if request.reads.is_some() {
        return Box::pin(modify_in_transaction(request, partition, key, ctx)).await;
    }
    if owner == pinion_runtime::core_id() {
        return modify(request, partition, key, ctx).await;
    }
    let (request, ctx) = (request.clone(), ctx.clone());
    pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
        modify(&request, partition, key, &ctx).await
    })
    .await
}

/// Changes one document in the transaction of this core's operation: its owner computes the change,
/// this core writes it.
async fn modify_in_transaction(
    request: &Arc<ModifyRequest>,
    partition: PartitionId,
    key: Key,
    ctx: &OpContext,
) -> Result<Modified> {
    let prepared = {
        let (request, ctx, owner) = (request.clone(), ctx.clone(), storage().owner(partition));
        pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
            prepare(&request, partition, &key, &ctx).await
        })
        .await?
    };
    let (change, statement) = match prepared {
        Prepared::Nothing(modified) => return Ok(modified),
        Prepared::NeedsMultikey(trees) => return Ok(Modified::NeedsMultikey { trees }),
        Prepared::Change { change, statement } => (change, statement),
    };
    let mut results = execute(ctx, vec![statement], true).await;
    match results.pop().expect("one statement has one result") {
        Ok(ts) => Ok(change.done(ts, request.wants_documents)),
        Err(WriteError::Missing { .. }) => Err(from_write_error(WriteError::Conflict)),
        Err(error) => Err(change.refused(&request.collection, error).await),
    }
}

async fn modify(
    request: &ModifyRequest,
    partition: PartitionId,
    key: Key,
    ctx: &OpContext,
) -> Result<Modified> {
    let mut backoff = Backoff::default();
    loop {
        let (change, statement) = match prepare(request, partition, &key, ctx).await? {
            Prepared::Nothing(modified) => return Ok(modified),
            Prepared::NeedsMultikey(trees) => return Ok(Modified::NeedsMultikey { trees }),
            Prepared::Change { change, statement } => (change, statement),
        };
        let mut results = storage().execute(vec![statement], true).await;
        match results.pop().expect("one statement has one result") {
            Ok(ts) => return Ok(change.done(ts, request.wants_documents)),
            Err(error) => retry(&mut backoff, &request.collection, &change, error, ctx).await?,
        }
    }
}

/// Waits before a change is tried again that met another writer, or found no memory.
///
/// # Errors
/// The client's error for any other error, or after the last retry.
pub(super) async fn retry(
    backoff: &mut Backoff,
    collection: &Arc<Collection>,
    change: &PreparedChange,
    error: WriteError,
    ctx: &OpContext,
) -> Result<()> {
    let (error, more) = match error {
        WriteError::Conflict | WriteError::Missing { .. } | WriteError::NotReached => {
            (WriteError::Conflict, backoff.conflict(ctx).await?)
        }
        WriteError::CacheFull => (error, backoff.cache_full(ctx).await?),
        error => return Err(change.refused(collection, error).await),
    };
    match more {
        true => Ok(()),
        false => Err(from_write_error(error)),
    }
}
