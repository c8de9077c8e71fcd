//! Entries taken apart: the operations of an `applyOps` one by one, and where a transaction's first
//! entries are.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, Timestamp};

use super::scope::Scope;
use crate::value::{field, items};

/// One operation of an entry.
#[derive(Clone, Debug)]
pub struct Change {
    /// The entry that made it take place, which gives its time and its session.
    pub(super) head: Bytes,
    /// The operation: the entry itself, or one in an `applyOps`.
    pub(super) operation: Bytes,
    /// Which of the operations that take place together it is.
    pub(super) place: u64,
    /// It is one of an `applyOps`.
    pub(super) is_inner: bool,
    pub(super) image: ImagePlace,
}

/// Where the document is as it was before a change.
#[derive(Clone, Debug)]
pub(super) enum ImagePlace {
    /// In the operation, if it is anywhere.
    Inside,
    /// In this no-op.
    In(Bytes),
    /// In what the log has before the entry: see [`Change::wants_image_before`].
    Before,
}

impl Change {
    /// The bytes of the operation and of an image that it has not itself.
    pub fn bytes(&self) -> usize {
        let apart = match &self.image {
            ImagePlace::In(image) => image.len(),
            ImagePlace::Inside | ImagePlace::Before => 0,
        };
        self.operation.len() + apart
    }

    /// Whether the document as it was before the change is in another entry, which the caller
    /// reads: the one right before the change's own, or where that is a later part of a transaction
    /// the part before.
    pub fn wants_image_before(&self) -> bool {
        matches!(self.image, ImagePlace::Before)
    }

    /// Takes the image out of that entry; `None` where the log does not have it any more.
    pub fn take_image_of(&mut self, entry: Option<&Bytes>) {
        let image = entry.and_then(|entry| {
            let document = document_of(entry);
            let operation = match operations_of(document) {
                Some(operations) => operations.last()?,
                None => document,
            };
            is_image(operation).then(|| entry.slice_ref(operation.as_bytes()))
        });
        self.image = image.map_or(ImagePlace::Inside, ImagePlace::In);
    }
}

/// Whether an operation does nothing but have the image of the one behind it.
fn is_image(operation: &RawDocument) -> bool {
    field(operation, "op") == Some(RawBsonRef::String("n"))
        && matches!(field(operation, "preImage"), Some(RawBsonRef::Document(_)))
}

pub(super) fn document_of(bytes: &Bytes) -> &RawDocument {
    RawDocument::from_bytes(bytes).expect("the log holds documents")
}

fn is_command(entry: &RawDocument) -> bool {
    field(entry, "op") == Some(RawBsonRef::String("c"))
}

fn o_of(entry: &RawDocument) -> Option<&RawDocument> {
    match field(entry, "o") {
        Some(RawBsonRef::Document(o)) => Some(o),
        _ => None,
    }
}

fn flag(document: &RawDocument, name: &str) -> bool {
    field(document, name) == Some(RawBsonRef::Boolean(true))
}

/// Whether an operation moves a document between shards: for clients nothing changes with it, since
/// the stream of the cluster has the change that another shard has logged.
pub(super) fn is_migration(operation: &RawDocument) -> bool {
    flag(operation, "fromMigrate")
}

/// The operations of an entry that concern a stream, and how many the entry has. They take place by
/// `head`, which is the entry itself but for the first parts of a transaction; `first` have taken
/// place before.
pub fn changes_of(
    scope: &Scope,
    head: &Bytes,
    entry: &Bytes,
    first: u64,
) -> (VecDeque<Change>, u64) {
    let document = document_of(entry);
    let mut changes = VecDeque::new();
    let mut push = |operation: Bytes, place: u64, is_inner: bool, image: ImagePlace| {
        changes.push_back(Change {
            head: head.clone(),
            operation,
            place,
            is_inner,
            image,
        });
    };
    let Some(operations) = operations_of(document) else {
        if concerns(scope, document) {
            push(entry.clone(), first, false, image_of(document, entry, None));
        }
        return (changes, 1);
    };
    let mut count = 0;
    let mut before = None;
    let is_hidden = is_migration(document);
    for operation in operations {
        if !is_hidden && concerns(scope, operation) {
            let image = image_of(operation, entry, before);
            let bytes = entry.slice_ref(operation.as_bytes());
            push(bytes, first + count, true, image);
        }
        before = Some(operation);
        count += 1;
    }
    (changes, count)
}

/// Where the image of an operation is; `before` is the one before it in its entry.
fn image_of(operation: &RawDocument, entry: &Bytes, before: Option<&RawDocument>) -> ImagePlace {
    match before {
        _ if !flag(operation, "preImageApart") => ImagePlace::Inside,
        Some(before) => ImagePlace::In(entry.slice_ref(before.as_bytes())),
        None => ImagePlace::Before,
    }
}

/// The operations of an `applyOps`.
pub(super) fn operations_of(entry: &RawDocument) -> Option<impl Iterator<Item = &RawDocument>> {
    let o = o_of(entry).filter(|_| is_command(entry))?;
    let Some(RawBsonRef::Array(operations)) = field(o, "applyOps") else {
        return None;
    };
    Some(items(operations).filter_map(|operation| match operation {
        RawBsonRef::Document(operation) => Some(operation),
        _ => None,
    }))
}

/// Whether an operation changes something that is watched.
fn concerns(scope: &Scope, operation: &RawDocument) -> bool {
    if !scope.may_concern(operation) || is_migration(operation) {
        return false;
    }
    match (
        is_command(operation),
        field(operation, "ns"),
        o_of(operation),
    ) {
        (false, _, _) => true,
        (true, Some(RawBsonRef::String(ns)), Some(o)) => scope.has_command(ns, o),
        _ => false,
    }
}

/// What an entry is to a transaction that may have written others before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    /// None of a transaction, or all of it.
    Whole,
    /// A part: what it holds takes place with a later entry, or never.
    Part,
    /// The last one. The others are found from this time backwards; it may hold operations itself.
    Last { before: Timestamp },
}

/// Looks at what an entry is to a transaction.
pub fn transaction_end(entry: &RawDocument) -> TransactionEnd {
    if !is_command(entry) {
        return TransactionEnd::Whole;
    }
    let Some(o) = o_of(entry) else {
        return TransactionEnd::Whole;
    };
    // Statements of retryable writes are linked to each other as well.
    let is_of_transaction = field(entry, "txnNumber").is_some()
        && field(entry, "stmtId").is_none()
        && field(entry, "multiOpType").is_none();
    let is_operations = field(o, "applyOps").is_some();
    if !is_of_transaction || !(is_operations || field(o, "commitTransaction").is_some()) {
        return TransactionEnd::Whole;
    }
    if is_operations && (flag(o, "partialTxn") || flag(o, "prepare")) {
        return TransactionEnd::Part;
    }
    match previous(entry) {
        Some(before) => TransactionEnd::Last { before },
        None => TransactionEnd::Whole,
    }
}

impl TransactionEnd {
    /// The time of the part before one.
    pub fn before_part(entry: &RawDocument) -> Option<Timestamp> {
        previous(entry)
    }
}

fn previous(entry: &RawDocument) -> Option<Timestamp> {
    let Some(RawBsonRef::Document(previous)) = field(entry, "prevOpTime") else {
        return None;
    };
    match field(previous, "ts") {
        Some(RawBsonRef::Timestamp(ts)) if (ts.time, ts.increment) != (0, 0) => Some(ts),
        _ => None,
    }
}
