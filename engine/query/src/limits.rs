//! Named limits of the query language; each is MongoDB's unless it says otherwise.

/// Deepest nesting of a filter's operators.
pub const MAX_FILTER_DEPTH: usize = 100;

/// Most fields a sort or an index key pattern may name.
pub const MAX_KEY_PATTERN_FIELDS: usize = 32;

/// Deepest nesting of a stored document.
pub const MAX_STORED_DEPTH: usize = 200;

/// Longest dotted path, in components, of an update, a projection or an expression.
pub const MAX_PATH_COMPONENTS: usize = 200;

/// Bytes a blocking sort may hold before it fails.
pub const MAX_SORT_BYTES: usize = 100 * 1024 * 1024;

/// Bytes a `$group` may hold before it fails.
pub const MAX_GROUP_BYTES: usize = 100 * 1024 * 1024;

/// Bytes the results of a `$facet` may come to.
pub const MAX_FACET_BYTES: usize = 100 * 1024 * 1024;

/// Most keys one document may put into one index. This is Pinion's own bound: an array's keys are built in memory.
pub const MAX_INDEX_KEYS_PER_DOCUMENT: usize = 1 << 20;

/// Longest regular expression, in bytes.
pub const MAX_REGEX_BYTES: usize = 32_764;

/// Largest array that an update grows by padding with nulls in front of a numeric component.
pub const MAX_ARRAY_PADDING: usize = 1_500_000;

/// Most stages of a pipeline.
pub const MAX_PIPELINE_STAGES: usize = 1000;

/// Most intervals an index scan's bounds may hold for one field before a wider one replaces them (Pinion's own bound).
pub const MAX_INTERVALS_PER_FIELD: usize = 10_000;

const _: () = assert!(MAX_STORED_DEPTH >= MAX_FILTER_DEPTH);
const _: () = assert!(MAX_REGEX_BYTES < MAX_SORT_BYTES);

/// Entries that a sort in memory sorts at once: a millisecond's work.
pub(crate) const SORT_RUN: usize = 4096;

/// How much of a text a message quotes.
pub(crate) const MAX_QUOTED_BYTES: usize = 4096;
