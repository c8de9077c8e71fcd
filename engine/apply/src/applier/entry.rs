//! What an oplog entry says of itself.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::SYSTEM_VIEWS;
use pinion_clock::Timestamp;
use pinion_storage::ApplyError;
use pinion_wire::{Error, ErrorCode, Result};

use super::prepared::is_prepare;

/// An entry on its way, with its number among all that the applier was given.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub number: u64,
    pub ts: Timestamp,
    /// The time of the first entry of those that take place together.
    pub first: Timestamp,
    pub bytes: Bytes,
    /// The entries before it whose operations take place with those of this one.
    pub before: Arc<[Bytes]>,
}

impl Entry {
    /// The entries whose operations take place together, this one last.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Bytes> {
        self.before.iter().chain([&self.bytes])
    }

    /// Bytes of all of them.
    pub(super) fn len(&self) -> usize {
        self.parts().map(Bytes::len).sum()
    }

    pub(super) fn failed(&self, error: Error) -> ApplyError {
        ApplyError(format!("the entry of {}: {}", self.ts, error.message))
    }
}

pub(super) fn damaged(what: impl Into<String>) -> Error {
    Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, what)
}

pub(super) fn validated(bytes: &Bytes) -> Result<&RawDocument> {
    pinion_bson::validate(bytes)
        .map_err(|error| damaged(format!("an oplog entry is malformed: {error}")))
}

pub(super) fn field<'a>(entry: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    pinion_bson::get(entry, name)
}

pub(super) fn document<'a>(entry: &'a RawDocument, name: &str) -> Result<&'a RawDocument> {
    match field(entry, name) {
        Some(RawBsonRef::Document(document)) => Ok(document),
        _ => Err(damaged(format!("an oplog entry has no document '{name}'"))),
    }
}

pub(super) fn text<'a>(entry: &'a RawDocument, name: &str) -> Result<&'a str> {
    match field(entry, name) {
        Some(RawBsonRef::String(text)) => Ok(text),
        _ => Err(damaged(format!("an oplog entry has no {name}"))),
    }
}

/// The operations of an `applyOps`; `None` for another command.
pub(super) fn operations(
    o: &RawDocument,
) -> Result<Option<impl Iterator<Item = Result<&RawDocument>>>> {
    let Some(RawBsonRef::Array(list)) = field(o, "applyOps") else {
        return Ok(None);
    };
    let operation = |value| match value {
        RawBsonRef::Document(operation) => Ok(operation),
        _ => Err(damaged("applyOps holds a value that is no document")),
    };
    Ok(Some(pinion_bson::values(list).map(operation)))
}

/// Whether an operation writes a document that describes a view, as MongoDB's members log them.
pub(super) fn is_of_views(operation: &RawDocument) -> bool {
    let Some(RawBsonRef::String(ns)) = field(operation, "ns") else {
        return false;
    };
    ns.split_once('.')
        .is_some_and(|(_, collection)| collection == SYSTEM_VIEWS)
}

/// Whether the command of an entry is of a check. It changes nothing, so it need not wait for
/// others, nor others for it.
pub(super) fn is_check(o: &RawDocument) -> bool {
    pinion_bson::elements(o)
        .next()
        .is_some_and(|(name, _)| name == "dbCheck")
}

/// Whether an entry, the bytes of which are valid, is one of `dbCheck`.
pub(super) fn is_check_entry(bytes: &[u8]) -> bool {
    let entry = pinion_catalog::stored_document(bytes);
    field(entry, "op") == Some(RawBsonRef::String("c")) && document(entry, "o").is_ok_and(is_check)
}

/// Whether everything before the entry is to be applied before it, and it before everything behind:
/// it may change the catalog. The bytes need not be valid; what cannot be read is no fence, and is
/// refused later.
pub(super) fn is_fence(bytes: &[u8]) -> bool {
    let is_fence = |entry: &RawDocument| match field(entry, "op") {
        Some(RawBsonRef::String("c")) => true,
        Some(RawBsonRef::String("i" | "u" | "d")) => is_of_views(entry),
        Some(RawBsonRef::String("n")) => match field(entry, "o2") {
            Some(RawBsonRef::Document(o2)) => field(o2, "rows").is_some(),
            _ => false,
        },
        _ => false,
    };
    let Ok(entry) = RawDocument::from_bytes(bytes) else {
        return false;
    };
    let is_document =
        |operation| matches!(operation, RawBsonRef::Document(operation) if !is_fence(operation));
    let is_passed_on = || match field(entry, "o") {
        // What is placed for a later commit needs what is stored before it.
        Some(RawBsonRef::Document(o)) if is_prepare(o) => false,
        Some(RawBsonRef::Document(o)) if is_check(o) => true,
        Some(RawBsonRef::Document(o)) => match field(o, "applyOps") {
            Some(RawBsonRef::Array(list)) => pinion_bson::values(list).all(is_document),
            _ => false,
        },
        _ => false,
    };
    is_fence(entry) && !is_passed_on()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    #[track_caller]
    fn check(entry: RawDocumentBuf, fences: bool) {
        assert_eq!(is_fence(entry.as_bytes()), fences, "{entry:?}");
    }

    #[test]
    fn changes_of_the_catalog_fence() {
        check(rawdoc! { "op": "i", "o": { "applyOps": 1 } }, false);
        check(rawdoc! { "op": "i", "ns": "d.c", "o": {} }, false);
        check(rawdoc! { "op": "i", "ns": "d.system.views", "o": {} }, true);
        check(
            rawdoc! { "op": "i", "ns": "d.c.system.views", "o": {} },
            false,
        );
        check(rawdoc! { "op": "c", "o": { "drop": "c" } }, true);
        check(
            rawdoc! { "op": "c", "o": { "dbCheck": "d.c", "type": "stop" } },
            false,
        );
        check(
            rawdoc! { "op": "c", "o": { "applyOps": [{ "op": "i" }, { "op": "d" }] } },
            false,
        );
        check(
            rawdoc! { "op": "c", "o": { "applyOps": [{ "op": "i" }, { "op": "c" }] } },
            true,
        );
        // No core decodes a command in one.
        check(
            rawdoc! { "op": "c", "o": { "applyOps": [{ "op": "c", "o": { "dbCheck": "d.c" } }] } },
            true,
        );
        check(
            rawdoc! { "op": "c", "o": { "applyOps": [{ "op": "i" }], "prepare": true } },
            true,
        );
        check(
            rawdoc! { "op": "n", "o": { "msg": "periodic noop" } },
            false,
        );
        check(rawdoc! { "op": "n", "o": {}, "o2": { "rows": [] } }, true);
        check(rawdoc! { "op": "n", "o": {}, "o2": { "_id": 1 } }, false);
        assert!(!is_fence(b"no document"));
        let mut cut = rawdoc! { "op": "c", "o": { "drop": "c" } }.into_bytes();
        cut.truncate(9);
        assert!(!is_fence(&cut));
    }

    #[test]
    fn the_first_field_of_a_command_names_it() {
        assert!(is_check(&pinion_bson::rawdoc! { "dbCheck": "d.c" }));
        assert!(!is_check(&pinion_bson::rawdoc! { "drop": "dbCheck" }));
    }
}
