//! Named limits of storage, and the relations between them that must hold.

/// Unit of allocation in a page file, and of direct I/O.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Largest key. An index entry carries whole field values and an `_id`, each at most one document.
pub const MAX_KEY_BYTES: usize = 33 * 1024 * 1024;

/// Largest value: a document of 16 MiB with its internal allowance, and room for storage's own envelopes.
pub const MAX_VALUE_BYTES: usize = 17 * 1024 * 1024;

/// Largest single transfer from or to a page file.
pub(crate) const IO_BYTES: usize = 1024 * 1024;

/// Writes of one checkpoint that may be under way at once in one partition.
pub(crate) const WRITES_IN_FLIGHT: usize = 4;

/// Default target of a leaf.
pub(crate) const LEAF_TARGET_BYTES: usize = 16 * 1024;

/// Largest page of any kind: a page that holds one largest key with one inline value.
pub(crate) const MAX_PAGE_BYTES: usize = 128 * 1024 * 1024;

/// Most blocks in one page: a page pointer has 16 bits for them.
pub(crate) const MAX_PAGE_BLOCKS: u64 = (1 << 16) - 1;

/// Live keys remembered for one unique prefix while a write is prepared.
pub(crate) const MAX_PREFIX_WITNESSES: usize = 4;

/// Problems that one verification lists.
pub(crate) const MAX_VERIFY_PROBLEMS: usize = 1000;

/// Height above which a tree can only be a cycle.
pub(crate) const MAX_TREE_HEIGHT: u8 = 40;

const _: () = assert!(MAX_KEY_BYTES * 2 + MAX_VALUE_BYTES < MAX_PAGE_BYTES);
const _: () = assert!(MAX_PAGE_BYTES as u64 / BLOCK_BYTES as u64 <= MAX_PAGE_BLOCKS);
const _: () = assert!(LEAF_TARGET_BYTES.is_multiple_of(BLOCK_BYTES));
