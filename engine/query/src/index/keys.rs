//! The keys of a document in an index, by the index's kind.

use pinion_bson::RawDocument;
use pinion_wire::Result;

use super::{IndexKey, IndexKind, IndexSpec, MultikeyPaths};
use crate::collation::spend_sort_keys;
use crate::error::error;
use crate::fulltext::TextFields;
use crate::keygen::keys;
use crate::sort::key_error;

/// The keys of one document in one index.
#[derive(Debug, Default)]
pub struct IndexKeys<'a> {
    pub keys: Vec<IndexKey<'a>>,
    /// Set when the document makes the index multikey.
    pub multikey: Option<MultikeyPaths>,
}

/// The keys of a document in an index: none where the index's filter leaves it out.
pub fn index_keys<'a>(document: &'a RawDocument, index: &IndexSpec) -> Result<IndexKeys<'a>> {
    crate::work::spend_bytes(document.as_bytes().len())?;
    spend_sort_keys(index.collation.as_deref(), document.as_bytes().len())?;
    if let Some(filter) = &index.filter
        && !filter.matches(document)?
    {
        return Ok(IndexKeys::default());
    }
    if let Some(geo) = index.geo() {
        return super::geo::keys(document, index, geo);
    }
    if let Some(fields) = index.text() {
        return text(document, fields);
    }
    match &index.kind {
        IndexKind::Btree => btree(document, index),
        IndexKind::Hashed => super::hashed::keys(document, index),
        IndexKind::Wildcard => super::wildcard::keys(document, index),
        kind => Err(error(
            238,
            format!("The index type '{}' is not supported", kind.name()),
        )),
    }
}

/// A document with several terms has several keys.
fn text<'a>(document: &'a RawDocument, fields: &TextFields) -> Result<IndexKeys<'a>> {
    let keys: Vec<IndexKey<'a>> = crate::fulltext::keys(document, fields)?
        .into_iter()
        .map(IndexKey::Owned)
        .collect();
    Ok(IndexKeys {
        multikey: (keys.len() > 1).then_some(MultikeyPaths::Anywhere),
        keys,
    })
}

fn btree<'a>(document: &'a RawDocument, index: &IndexSpec) -> Result<IndexKeys<'a>> {
    let found = keys(document, index.paths(), index.sparse).map_err(key_error)?;
    Ok(IndexKeys {
        keys: found.keys.into_iter().map(IndexKey::Borrowed).collect(),
        multikey: found.multikey.map(MultikeyPaths::Fields),
    })
}
