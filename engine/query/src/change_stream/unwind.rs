//! Entries taken apart: the operations of an `applyOps` one by one, and where a transaction's first entries are.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument, Timestamp};

use super::scope::Scope;
use crate::value::{field, items};

/// One operation of an entry.
#[derive(Clone, Debug)]
pub struct Change {
    /// The entry that made it take place, which tells its time and its session.
    pub(super) head: Bytes,
    /// The operation: the entry itself, or one in an `applyOps`.
    pub(super) operation: Bytes,
    /// Which of the operations that take place together it is.
    pub(super) place: u64,
    /// It is one of an `applyOps`.
    pub(super) is_inner: bool,
}

impl Change {
    /// The bytes of the operation.
    pub fn bytes(&self) -> usize {
        self.operation.len()
    }
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

/// The operations of an entry that concern a stream, and how many the entry has. They take place by `head`, which is the entry
/// itself but for the first parts of a transaction; `first` have taken place before.
pub fn changes_of(
    scope: &Scope,
    head: &Bytes,
    entry: &Bytes,
    first: u64,
) -> (VecDeque<Change>, u64) {
    let document = document_of(entry);
    let mut changes = VecDeque::new();
    let mut push = |operation: Bytes, place: u64, is_inner: bool| {
        changes.push_back(Change {
            head: head.clone(),
            operation,
            place,
            is_inner,
        });
    };
    let Some(operations) = operations_of(document) else {
        if concerns(scope, document) {
            push(entry.clone(), first, false);
        }
        return (changes, 1);
    };
    let mut count = 0;
    for operation in operations {
        if concerns(scope, operation) {
            push(entry.slice_ref(operation.as_bytes()), first + count, true);
        }
        count += 1;
    }
    (changes, count)
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

/// Whether an operation tells of something that is watched.
fn concerns(scope: &Scope, operation: &RawDocument) -> bool {
    if !scope.may_concern(operation) {
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
