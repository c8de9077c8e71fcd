//! Named limits of KeyStrings.

/// The components a compound key can have, as MongoDB allows for an index.
pub const MAX_COMPONENTS: u32 = 32;

/// The depth to which a decoder follows nested documents and arrays: that of documents, the
/// document itself as a component, and what stands in the deepest.
pub(crate) const MAX_DECODE_DEPTH: usize = pinion_bson::MAX_DEPTH + 2;

/// The longest binary RecordId.
pub const MAX_RECORD_ID_BYTES: usize = 8 * 1024 * 1024;

/// The bytes the length of a binary RecordId can take, seven bits in each.
pub(crate) const MAX_RECORD_ID_LENGTH_BYTES: usize = 4;

const _: () = assert!(MAX_RECORD_ID_BYTES < 1 << (7 * MAX_RECORD_ID_LENGTH_BYTES));
