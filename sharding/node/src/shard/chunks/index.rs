//! The index of a collection that holds its documents in the order of a shard key.

use pinion_bson::{DocBuilder, RawBson, RawDocument, RawDocumentBuf};
use pinion_catalog::core_catalog;
use pinion_query::{IndexKind, IndexSpec};
use pinion_sharding_protocol::ShardKeyPattern;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

/// An index that serves a shard key.
pub(super) struct KeyIndex {
    pub(super) name: String,
    /// Its fields, which begin with those of the shard key.
    key: RawDocumentBuf,
}

/// Looks for one, `may_be_multikey` too.
///
/// # Errors
/// `NamespaceNotFound`.
pub(super) fn find_index(
    ns: &Namespace,
    key: &ShardKeyPattern,
    may_be_multikey: bool,
) -> Result<Option<KeyIndex>> {
    let Some(collection) = core_catalog().get(ns) else {
        return Err(Error::new(ErrorCode::NAMESPACE_NOT_FOUND, "ns not found"));
    };
    let serves = |index: &&IndexSpec| {
        let is_ordered = matches!(index.kind, IndexKind::Btree | IndexKind::Hashed);
        let is_restricted = index.sparse || index.filter.is_some() || index.collation.is_some();
        index.ready
            && !index.hidden
            && is_ordered
            && !is_restricted
            && (may_be_multikey || !index.is_multikey())
            && key.is_prefix_of_index(&index.key)
    };
    let found = collection.index_specs().iter().find(serves);
    Ok(found.map(|index| KeyIndex {
        name: index.name.clone(),
        key: index.key.clone(),
    }))
}

impl KeyIndex {
    /// A bound of the shard key as one of the index: below all that begins with it.
    pub(super) fn bound(&self, bound: &RawDocument) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        out.append_all(bound);
        let more = pinion_bson::elements(&self.key).skip(pinion_bson::field_count(bound));
        for (name, direction) in more {
            let is_descending = pinion_bson::Number::from_value(direction)
                .is_some_and(|direction| direction.to_i64_saturating() < 0);
            let lowest = match is_descending {
                true => RawBson::MaxKey,
                false => RawBson::MinKey,
            };
            out.append_raw(name, lowest.as_raw_bson_ref());
        }
        out.finish()
    }
}

/// The part of a key of the index that is of the shard key.
pub(super) fn shard_key_of(key: &ShardKeyPattern, found: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for elem in pinion_bson::raw_elements(found).take(key.paths().len()) {
        out.append_elem(&elem);
    }
    out.finish()
}
