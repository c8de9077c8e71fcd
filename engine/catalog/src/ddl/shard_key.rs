//! What the shard key of a collection asks of its indexes: one at least serves it, and a unique one
//! is unique on all shards.
//!
//! Source: MongoDB's rules, with its messages.

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_query::{IndexKind, IndexSpec};
use pinion_wire::{Error, ErrorCode, Result};

use super::coll_mod::IndexChange;
use crate::entry::Collection;
use crate::specs::Wanted;
use crate::text::render;

/// Whether documents of several shards cannot share a key of an index: it begins with the shard
/// key, or with the `_id`, which clients make unique.
fn is_unique_with(index: &RawDocument, key: &RawDocument) -> bool {
    let first = pinion_bson::elements(index).next();
    if first.is_some_and(|(name, _)| name == "_id") {
        return true;
    }
    let mut names = pinion_bson::elements(index).map(|(name, _)| name);
    pinion_bson::elements(key).all(|(name, _)| names.next() == Some(name))
}

/// Whether the documents of a range of shard keys are found by an index.
fn serves(index: &IndexSpec, key: &RawDocument) -> bool {
    let mut fields = pinion_bson::elements(&index.key);
    let is_prefix = pinion_bson::elements(key).all(|(name, direction)| {
        let field = fields.next();
        field.is_some_and(|(field, same)| {
            field == name && pinion_bson::values_equal(same, direction)
        })
    });
    is_prefix
        && index.kind == IndexKind::Btree
        && index.filter.is_none()
        && !index.sparse
        && index.collation.is_none()
}

/// Whether a key is not hashed. The index of one that is may be dropped: ranges of hashes are found
/// without it.
fn is_ranged(key: &RawDocument) -> bool {
    let mut kinds = pinion_bson::elements(key).map(|(_, kind)| kind);
    kinds.all(|kind| !matches!(kind, RawBsonRef::String(_)))
}

/// Refuses unique indexes that do not keep documents of several shards apart.
///
/// # Errors
/// `CannotCreateIndex`.
pub(super) fn check_wanted(key: &RawDocument, wanted: &[Wanted]) -> Result<()> {
    let refused = wanted
        .iter()
        .find(|wanted| wanted.enforces_unique() && !is_unique_with(wanted.key(), key));
    match refused {
        None => Ok(()),
        Some(wanted) => Err(Error::new(
            ErrorCode::CANNOT_CREATE_INDEX,
            format!(
                "cannot create unique index over {} with shard key pattern {}",
                render(wanted.key()),
                render(key)
            ),
        )),
    }
}

/// Whether an index is kept where all are dropped.
pub(super) fn is_kept(collection: &Collection, key: &RawDocument, name: &str) -> bool {
    let index = collection.index(name);
    is_ranged(key) && index.is_some_and(|index| serves(&index.spec, key))
}

/// Whether no index is left that serves the key without these, of which one does.
fn are_last(collection: &Collection, key: &RawDocument, names: &[String]) -> bool {
    let is_one = |index: &&IndexSpec| names.contains(&index.name);
    let mut indexes = collection.index_specs().iter();
    let serves_one = indexes
        .clone()
        .filter(is_one)
        .any(|index| serves(index, key));
    let is_left = |index: &IndexSpec| {
        !is_one(&index) && index.is_usable() && !index.is_multikey() && serves(index, key)
    };
    is_ranged(key) && serves_one && !indexes.any(is_left)
}

/// Refuses to drop the last index that serves the key.
///
/// # Errors
/// `CannotDropShardKeyIndex`.
pub(super) fn check_dropped(
    collection: &Collection,
    key: &RawDocument,
    names: &[String],
) -> Result<()> {
    match are_last(collection, key, names) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode::CANNOT_DROP_SHARD_KEY_INDEX,
            "Cannot drop the only compatible index for this collection's shard key",
        )),
    }
}

/// Refuses to hide the last index that serves the key, and to make one unique that does not keep
/// documents of several shards apart.
///
/// # Errors
/// `InvalidOptions`.
pub(super) fn check_modified(
    collection: &Collection,
    key: &RawDocument,
    (index, change): (&IndexSpec, &IndexChange),
) -> Result<()> {
    let invalid = |message: String| Err(Error::new(ErrorCode::INVALID_OPTIONS, message));
    let is_hidden = change.hidden == Some(true) && !index.hidden;
    if is_hidden && are_last(collection, key, std::slice::from_ref(&index.name)) {
        return invalid(
            "Can't hide the only compatible index for this collection's shard key".into(),
        );
    }
    let becomes_unique = change.prepare_unique == Some(true) || change.unique == Some(true);
    if becomes_unique && !is_unique_with(&index.key, key) {
        return invalid(format!(
            "cannot set 'prepareUnique' for index {} with shard key pattern {}",
            render(&index.key),
            render(key)
        ));
    }
    Ok(())
}
