//! The first half of a change of one stored document, on the core that owns it: read it and compute
//! its new form, the index entries and the oplog entry. Nothing is written.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_catalog::{
    Collection, document_id, from_read_error, from_write_error, index_writes, stored_document,
};
use pinion_clock::Timestamp;
use pinion_query::MultikeyPaths;
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::{check, interruptible, is_interruption, pause};
use pinion_service::metrics::metrics;
use pinion_storage::{
    Key, PartitionHash, PartitionId, ReadAt, Statement, TreeId, WriteError, storage,
};
use pinion_wire::{Error, OpContext, Result};

use super::document::update_context;
use super::insert::duplicate_of;
use super::modify::{Change, Modified, ModifyRequest};
use super::order::{first_error, first_taken};
use super::shard_key::{check_new_form, is_orphan};
use super::unit::LoggedWrite;
use super::validation::check_document;
use crate::open_transactions::InUnit;
use crate::options::{PlantedFault, node_options};

/// What is to be done with one document.
pub(super) enum Prepared {
    Nothing(Modified),
    /// These indexes must be made multikey first.
    NeedsMultikey(Vec<(TreeId, MultikeyPaths)>),
    Change {
        change: PreparedChange,
        /// Takes place only if no other operation has written the document meanwhile.
        statement: Statement,
    },
}

impl Prepared {
    /// Bytes that are held until it is written.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Prepared::Change { change, .. } => {
                change.old.len() + change.new.as_ref().map_or(0, Bytes::len)
            }
            _ => 0,
        }
    }
}

/// A change that has not been made.
pub(super) struct PreparedChange {
    partition: PartitionId,
    record: Option<i64>,
    old: Bytes,
    /// `None` if it is deleted.
    new: Option<Bytes>,
}

/// Reads one document and computes its change.
///
/// # Errors
/// Those of the update, of the validator and of the indexes.
pub(super) async fn prepare(
    request: &ModifyRequest,
    partition: PartitionId,
    key: &Key,
    ctx: &OpContext,
) -> Result<Prepared> {
    check(ctx)?;
    let collection = &request.collection;
    let owned = storage().partition(partition);
    let owned = owned.expect("submitted to its owner");
    let at = request.reads.map_or(ReadAt::Newest, InUnit::read_at);
    let read = interruptible(ctx, owned.get(collection.tree(), key, at)).await?;
    let Some(read) = read.map_err(from_read_error)? else {
        return Ok(Prepared::Nothing(Modified::NoMatch));
    };
    if request.is_lookup {
        count_lookup(ctx);
    }
    let old = stored_document(&read.value);
    if is_orphan(request, old)? {
        return Ok(Prepared::Nothing(Modified::NoMatch));
    }
    let new = match new_form(request, old, ctx).await? {
        NewForm::NoMatch => return Ok(Prepared::Nothing(Modified::NoMatch)),
        NewForm::Same => {
            let document = request.wants_documents.then(|| read.value.clone());
            return Ok(Prepared::Nothing(Modified::Unchanged { document }));
        }
        NewForm::Gone => None,
        NewForm::Changed(new) => Some(new),
    };
    if let Some(new) = &new {
        let new = stored_document(new);
        check_new_form(request, ctx, old, new)?;
        check_document(ctx, collection, request.validation, Some(old), new).await?;
    }
    pause(ctx).await?;
    let change = PreparedChange {
        partition,
        record: collection.record_of(key),
        old: read.value.clone(),
        new,
    };
    let hash = storage().partition_hash();
    let mut index = match compute(ctx, || change.index_writes(collection, hash)).await {
        Ok(index) => index,
        Err(error) => return Err(change.first_error(collection, error).await),
    };
    if !index.newly_multikey.is_empty() {
        return Ok(Prepared::NeedsMultikey(index.newly_multikey));
    }
    let planted_fault = node_options().planted_fault;
    if planted_fault == PlantedFault::IndexEntryForgotten && change.new.is_some() {
        index.writes.pop();
    }
    let write = LoggedWrite {
        collection,
        partition,
        key: key.clone(),
        record: change.record,
        old: Some((old, read.token)),
        new: change.new.as_ref(),
        update: request.change.update(),
        stamp: request.stamp.as_ref(),
        from_migrate: request.from_migrate,
        in_transaction: request.reads.is_some(),
    };
    let statement = write.statement(index.writes).await?;
    Ok(Prepared::Change { change, statement })
}

/// Counts a document that is examined here, and was not before.
fn count_lookup(ctx: &OpContext) {
    let metrics = metrics();
    let counters = &metrics.counters;
    counters.keys_examined.inc();
    counters.docs_examined.inc();
    ctx.work().examined(1, 1);
}

/// What becomes of a document.
enum NewForm {
    NoMatch,
    Same,
    Gone,
    Changed(Bytes),
}

async fn new_form(request: &ModifyRequest, old: &RawDocument, ctx: &OpContext) -> Result<NewForm> {
    let matches = || request.matcher.matches_with_position(old);
    let Some(position) = compute(ctx, matches).await? else {
        return Ok(NewForm::NoMatch);
    };
    let Change::Update(update) = &*request.change else {
        return Ok(NewForm::Gone);
    };
    let context = update_context(update, false, position.array_index);
    let new = compute(ctx, || update.apply(old, &context)).await?;
    Ok(new.map_or(NewForm::Same, |new| {
        NewForm::Changed(Bytes::from(new.into_bytes()))
    }))
}

impl PreparedChange {
    fn before(&self) -> &RawDocument {
        stored_document(&self.old)
    }

    fn after(&self) -> Option<&RawDocument> {
        self.new.as_deref().map(stored_document)
    }

    fn index_writes(
        &self,
        collection: &Collection,
        hash: PartitionHash,
    ) -> Result<pinion_catalog::IndexWrites> {
        let (old, new) = (Some(self.before()), self.after());
        index_writes(
            collection,
            self.partition,
            hash,
            self.record,
            old,
            new,
            true,
        )
    }

    /// The change was made.
    pub(super) fn done(self, ts: Timestamp, wants_documents: bool) -> Modified {
        let keep = |bytes: Bytes| wants_documents.then_some(bytes);
        Modified::Changed {
            ts,
            old: keep(self.old),
            new: self.new.and_then(keep),
        }
    }

    /// The error of a document that the indexes have no keys for.
    async fn first_error(&self, collection: &Arc<Collection>, error: Error) -> Error {
        match (self.after(), document_id(self.before())) {
            _ if is_interruption(&error) => error,
            (Some(new), Ok(id)) => {
                first_error(collection, self.record, id, Some(self.before()), new, error).await
            }
            _ => error,
        }
    }

    /// The error of a change that storage has refused for good.
    pub(super) async fn refused(&self, collection: &Arc<Collection>, error: WriteError) -> Error {
        let write = match error {
            WriteError::Duplicate { write, .. } if write > 0 => write,
            error => return from_write_error(error),
        };
        metrics().counters.duplicate_key_errors.inc();
        // The statement is gone; the same documents give the same writes again.
        let hash = storage().partition_hash();
        let bytes = self.old.len() + self.new.as_ref().map_or(0, Bytes::len);
        let again = compute_bytes(bytes, || self.index_writes(collection, hash)).await;
        let error = match again {
            Ok(made) => duplicate_of(collection, &made.writes[write - 1]),
            Err(error) => return error,
        };
        match (self.after(), document_id(self.before())) {
            (Some(new), Ok(id)) => {
                first_taken(collection, self.record, id, Some(self.before()), new, error).await
            }
            _ => error,
        }
    }
}
