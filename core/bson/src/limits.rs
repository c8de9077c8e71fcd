//! Named limits of BSON documents, as MongoDB has them.

/// The largest document a user may store.
pub const MAX_USER_DOCUMENT_BYTES: usize = 16 * 1024 * 1024;

/// What a document may grow beyond the user's limit when the server wraps it: commands, oplog
/// entries.
pub const INTERNAL_ALLOWANCE_BYTES: usize = 16 * 1024;

/// The largest document that is accepted from outside at all.
pub const MAX_INTERNAL_DOCUMENT_BYTES: usize = MAX_USER_DOCUMENT_BYTES + INTERNAL_ALLOWANCE_BYTES;

/// The deepest nesting of documents and arrays within a document, which is itself none of these
/// levels.
pub const MAX_DEPTH: usize = 200;

/// The same of a message between nodes, which wraps documents that are as deep as they may be.
pub const MAX_WRAPPED_DEPTH: usize = MAX_DEPTH + 16;

/// The smallest document: its length and its terminator.
pub const MIN_DOCUMENT_BYTES: usize = 5;

const _: () = assert!(MAX_INTERNAL_DOCUMENT_BYTES < i32::MAX as usize / 2);
const _: () = assert!(
    MAX_DEPTH > 100,
    "drivers expect documents of a hundred levels to work"
);
