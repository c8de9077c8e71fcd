//! The documents of the `config` database, one module each: read, written, and where they are.
//!
//! A field that is not known is kept: what another version of the node added stays when a document
//! is written again. A field of a wrong type is an error that names document and field.
//!
//! Source: sharding document, "The authoritative routing table"; names and forms are MongoDB's.

mod cached;
mod changelog;
mod chunk;
mod collection;
mod database;
mod identity;
mod indexes;
mod settings;
mod shard;
mod tag;
mod version;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, raw_elements};
use pinion_wire::Result;
use pinion_wire::idl::{FieldReader, missing_field};

pub use cached::{
    CACHED_CHUNKS_PREFIX, CACHED_COLLECTIONS, CACHED_DATABASES, CachedCollectionDocument,
    CachedDatabaseDocument,
};
pub use changelog::{CHANGELOG, CHANGELOG_BYTES, ChangelogEntry};
pub use chunk::{CHUNKS, ChunkDocument, ChunkOf, OwnerSince};
pub use collection::{COLLECTIONS, CollectionDocument};
pub use database::{DATABASES, DatabaseDocument};
pub use identity::{IDENTITY, ShardIdentityDocument};
pub use indexes::{CatalogIndex, INDEXES};
pub use settings::{
    ActiveWindow, AutoMergeSettings, AutoSplitSettings, BalancerMode, BalancerSettings,
    ChunkSizeSettings, SETTINGS,
};
pub use shard::{SHARDS, ShardDocument};
pub use tag::{TAGS, TagDocument};
pub use version::{VERSION, VersionDocument};

/// The fields of a document that are none of these.
fn other_fields(document: &RawDocument, known: &[&str]) -> RawDocumentBuf {
    let mut out = DocBuilder::with_capacity(5);
    for field in raw_elements(document) {
        if !known.iter().any(|name| name.as_bytes() == field.name) {
            out.append_elem(&field);
        }
    }
    out.finish()
}

/// A field of any type that must be there.
fn any_value(reader: &FieldReader<'_, '_>, name: &str) -> Result<RawBson> {
    reader
        .value(name)
        .map(RawBson::from)
        .ok_or_else(|| missing_field(reader.path().field(name)))
}

fn append_value(out: &mut DocBuilder, name: &str, value: &RawBson) {
    out.append_raw(name, value.as_raw_bson_ref());
}

fn append_document(out: &mut DocBuilder, name: &str, document: &RawDocument) {
    out.append_raw(name, RawBsonRef::Document(document));
}

#[cfg(test)]
mod testing {
    use std::fmt::Debug;

    use super::*;

    /// Reads a document and writes it again, unknown fields included.
    #[track_caller]
    pub(super) fn check_kept<T: Debug + PartialEq>(
        document: &RawDocument,
        parse: fn(&RawDocument) -> Result<T>,
        build: fn(&T) -> RawDocumentBuf,
    ) -> T {
        let parsed = parse(document).expect("a document");
        assert_eq!(build(&parsed), document.to_owned());
        parsed
    }

    /// The document with one field of another value.
    pub(super) fn with(document: &RawDocument, name: &str, value: RawBson) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        for field in raw_elements(document) {
            if field.name == name.as_bytes() {
                append_value(&mut out, name, &value);
            } else {
                out.append_elem(&field);
            }
        }
        out.finish()
    }

    /// Each of these fields is refused with a value of another type, and the error has both names.
    #[track_caller]
    pub(super) fn check_types<T: Debug>(
        document: &RawDocument,
        fields: &[&str],
        parse: fn(&RawDocument) -> Result<T>,
        ns: &str,
    ) {
        for name in fields {
            let bad = with(document, name, RawBson::MaxKey);
            let error = parse(&bad).expect_err(name);
            assert_eq!(error.code.0, 14, "{name}: {error}");
            let path = format!("'{ns}.{name}");
            assert!(error.message.contains(&path), "{path}: {error}");
        }
    }

    /// Each of these fields must be there.
    #[track_caller]
    pub(super) fn check_required<T: Debug>(
        document: &RawDocument,
        fields: &[&str],
        parse: fn(&RawDocument) -> Result<T>,
    ) {
        for name in fields {
            let error = parse(&other_fields(document, &[name])).expect_err(name);
            assert_eq!(error.code.0, 40414, "{name}: {error}");
        }
    }
}
