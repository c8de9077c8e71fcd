//! Named limits of the catalog.

use pinion_runtime::Duration;

/// Most indexes of one collection, the `_id` index included.
pub const MAX_INDEXES: usize = 64;
/// Most fields of one compound index.
pub const MAX_INDEX_FIELDS: usize = 32;
/// Longest index name, in bytes.
pub const MAX_INDEX_NAME_BYTES: usize = 127;
/// Largest key pattern, as a document.
pub const MAX_KEY_PATTERN_BYTES: usize = 2048;
/// Longest time, in seconds, after which a TTL index lets documents expire.
pub const MAX_TTL_SECS: i32 = i32::MAX;
/// Most documents, and most values that documents share, that are named where an index cannot
/// become unique.
pub const MAX_TOLD_VIOLATIONS: usize = 1000;
/// Most views that stand on one another.
pub const MAX_VIEW_DEPTH: usize = 20;
/// Greatest size of the pipelines of views on one another, together.
pub const MAX_VIEW_PIPELINE_BYTES: usize = 16 << 20;
/// Tree identities below this are reserved for the engine itself.
pub const FIRST_IDENT: u64 = 16;
/// Documents that one turn of an index build reads before it writes their entries.
pub const BUILD_BATCH_DOCUMENTS: usize = 512;
/// Index entries written in one step of an index build.
pub const BUILD_BATCH_ENTRIES: usize = 2048;
/// How often a waiting operation looks whether it was killed, at first.
pub const KILL_POLL: Duration = Duration::from_millis(20);
/// The same once it has waited for long: thousands of clients may wait for one lock.
pub const LONGEST_KILL_POLL: Duration = Duration::from_millis(160);

const _: () = assert!(BUILD_BATCH_DOCUMENTS <= BUILD_BATCH_ENTRIES);
