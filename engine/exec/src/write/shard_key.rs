//! Changes of documents' shard keys: what a shard refuses of them, and what it leaves to the router
//! because the document then belongs to another shard.
//!
//! Source: sharding document, "Routing"; the rules and their messages are MongoDB's.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_catalog::Collection;
use pinion_query::hash_value;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::modify::ModifyRequest;
use crate::acquire::AcquiredCollection;
use crate::options::{PlantedFault, node_options};
use crate::placement::Ownership;

/// MongoDB's code of an update that names a document by other fields than its key.
const NEEDS_FULL_KEY: ErrorCode = ErrorCode(31_025);

/// What decides which documents a statement may change: nothing where all are meant.
pub(super) fn ownership_of_write(
    acquired: &AcquiredCollection,
    from_migrate: bool,
) -> Option<Arc<dyn Ownership>> {
    let ownership = acquired.ownership()?;
    let is_exempt =
        from_migrate || node_options().planted_fault == PlantedFault::FilterSkippedInWrites;
    (!is_exempt).then(|| ownership.clone())
}

/// Whether a document is not to be seen by the change: the shard does not own it.
pub(super) fn is_orphan(request: &ModifyRequest, document: &RawDocument) -> Result<bool> {
    match request.ownership.as_deref() {
        Some(ownership) if !ownership.owns_all() => Ok(!ownership.owns_document(document)?),
        _ => Ok(false),
    }
}

/// Checks the new form of a document that the shard owns.
///
/// # Errors
/// `NotSingleValueField`, `InvalidOptions` and `IllegalOperation` for a new key that the document
/// may not have, or not get in this way; `WouldChangeOwningShard` where it belongs to another shard
/// by that.
pub(super) fn check_new_form(
    request: &ModifyRequest,
    ctx: &OpContext,
    old: &RawDocument,
    new: &RawDocument,
) -> Result<()> {
    let Some(ownership) = request.ownership.as_deref() else {
        return Ok(());
    };
    if keeps_key(ownership, old, new) {
        return Ok(());
    }
    for (path, _) in pinion_bson::elements(ownership.key()) {
        check_no_array(new, path)?;
    }
    if request.multi {
        return Err(changes_several_keys());
    }
    if ownership.keeps_keys() {
        return Err(Error::new(
            NEEDS_FULL_KEY,
            "Shard key update is not allowed without specifying the full shard key in the query",
        ));
    }
    if ctx.args.txn_number.is_none() {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.",
        ));
    }
    if ownership.owns_document(new)? {
        return Ok(());
    }
    Err(would_move(
        &request.collection,
        "This update would cause the doc to change owning shards",
        (old, new, false),
    ))
}

/// Refuses a change of several documents that gives one of them another key.
///
/// # Errors
/// `InvalidOptions`.
pub(super) fn check_key_kept(
    ownership: &dyn Ownership,
    old: &RawDocument,
    new: &RawDocument,
) -> Result<()> {
    match keeps_key(ownership, old, new) {
        true => Ok(()),
        false => Err(changes_several_keys()),
    }
}

fn keeps_key(ownership: &dyn Ownership, old: &RawDocument, new: &RawDocument) -> bool {
    let mut fields = pinion_bson::elements(ownership.key());
    fields.all(|field| is_same(field, old, new))
}

fn changes_several_keys() -> Error {
    Error::new(
        ErrorCode::INVALID_OPTIONS,
        "Multi-update operations are not allowed when updating the shard key field.",
    )
}

/// Checks a document that an upsert is to insert: by its filter it was sent to this shard.
///
/// # Errors
/// `WouldChangeOwningShard` where the document belongs to another one, `IllegalOperation` where it
/// cannot be moved there as one with the statement.
pub(super) fn check_upserted(
    ownership: &dyn Ownership,
    collection: &Collection,
    ctx: &OpContext,
    filter: &RawDocument,
    new: &RawDocument,
) -> Result<()> {
    for (path, _) in pinion_bson::elements(ownership.key()) {
        check_no_array(new, path)?;
    }
    if ownership.owns_all() || ownership.owns_document(new)? {
        return Ok(());
    }
    if ctx.args.txn_number.is_none() {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "The upsert document could not be inserted onto the shard targeted by the query, since its shard key belongs on a different shard. Cross-shard upserts are only allowed when running in a transaction or with retryWrites: true.",
        ));
    }
    Err(would_move(
        collection,
        "The document we are inserting belongs on a different shard",
        (filter, new, true),
    ))
}

fn would_move(
    collection: &Collection,
    message: &str,
    (before, after, upserts): (&RawDocument, &RawDocument, bool),
) -> Error {
    Error::new(ErrorCode::WOULD_CHANGE_OWNING_SHARD, message)
        .with_extra(moved_fields(collection, before, after, upserts))
}

fn moved_fields(
    collection: &Collection,
    before: &RawDocument,
    after: &RawDocument,
    upserts: bool,
) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("preImage", before)
        .append("postImage", after)
        .append("shouldUpsert", upserts)
        .append("namespace", collection.ns.as_str())
        .append("uuid", collection.uuid.to_bson());
    out.finish()
}

/// Whether two forms of a document have the same value in a field of the key. One that is missing
/// is null.
fn is_same((path, kind): (&str, RawBsonRef<'_>), old: &RawDocument, new: &RawDocument) -> bool {
    let (Some(old), Some(new)) = (key_value(old, path), key_value(new, path)) else {
        return false;
    };
    let is_hashed = matches!(kind, RawBsonRef::String(_));
    let are_one_number = match (old, new) {
        (RawBsonRef::Double(old), RawBsonRef::Double(new)) => old.to_bits() == new.to_bits(),
        _ => false,
    };
    old == new || are_one_number || (is_hashed && hash_value(old) == hash_value(new))
}

/// What a document has at a path of the key; `None` where that is an array, or lies in one.
fn key_value<'a>(document: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    let (mut document, mut rest) = (document, path);
    loop {
        let (first, after) = rest.split_once('.').unwrap_or((rest, ""));
        match pinion_bson::get(document, first) {
            Some(RawBsonRef::Array(_)) => return None,
            Some(value) if after.is_empty() => return Some(value),
            Some(RawBsonRef::Document(inner)) => (document, rest) = (inner, after),
            Some(_) | None => return Some(RawBsonRef::Null),
        }
    }
}

/// Refuses an array at a path of the key, or on its way.
fn check_no_array(new: &RawDocument, path: &str) -> Result<()> {
    match key_value(new, path) {
        Some(_) => Ok(()),
        None => Err(Error::new(
            ErrorCode::NOT_SINGLE_VALUE_FIELD,
            format!(
                "After applying the update to the document, the (shard key) field '{path}' was found to be an array or array descendant."
            ),
        )),
    }
}
