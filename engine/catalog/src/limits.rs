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
pub const MAX_REPORTED_VIOLATIONS: usize = 1000;
/// Most views that stand on one another.
pub const MAX_VIEW_DEPTH: usize = 20;
/// Greatest size of the pipelines of views on one another, together.
pub const MAX_VIEW_PIPELINE_BYTES: usize = 16 << 20;
/// Tree identities below this are reserved for the engine itself.
pub const FIRST_IDENT: u64 = 16;
/// The first of the numbers for what is not replicated; the one before it is the key of the row
/// that counts these.
pub const FIRST_OWN_IDENT: u64 = pinion_storage::TreeId::FIRST_UNREPLICATED.0 + 1;
/// One of them stands for the oplog, which is no tree.
pub const OPLOG_NUMBER: u64 = 15;
/// Documents that an index build reads between two checks whether it should end.
pub const BUILD_STEP_DOCUMENTS: u64 = 1024;
/// How often it looks at the room on the file system.
pub const ROOM_INTERVAL: Duration = Duration::from_millis(500);
/// Entries of an index that are sorted at once.
pub const CHUNK_BYTES: usize = 256 << 10;
/// The memory of a sorter, however many share what a build may take.
pub const LEAST_SORTER_BYTES: usize = 256 << 10;
/// Entries merged between two offers to yield.
pub const MERGE_STEP_ENTRIES: usize = 256;
/// Sorted runs of one sorter, after which they are merged into one: each is read with a buffer of
/// its own.
pub const MAX_SORTED_RUNS: usize = 32;
/// A block of a run, which is read as a whole.
pub const RUN_BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a run written or read at once.
pub const RUN_TRANSFER_BYTES: usize = 1 << 20;
/// Entries brought into a tree at once.
pub const LOAD_PART_BYTES: usize = 1 << 20;
/// Fields that entries of a unique index share, remembered for each index and partition while it is
/// built.
pub const MAX_NOTED_FIELDS: usize = 1000;
/// Side writes of an index build read at once, and brought over by one statement.
pub const DRAIN_BATCH_ENTRIES: usize = 512;
pub const DRAIN_STATEMENT_ENTRIES: usize = 16;
/// Writers are kept out when no more side writes than these came in the last pass, or after this
/// many passes.
pub const DRAINED_ENTRIES: u64 = 1000;
pub const MAX_DRAIN_PASSES: usize = 100;
/// The default of what an index build may take of memory to sort entries, and the least room on the
/// file system.
pub const BUILD_MEMORY_BYTES: u64 = 200 << 20;
pub const BUILD_LEAST_FREE_BYTES: u64 = 500 << 20;
/// The default of how many builds run at once that clients begin.
pub const MAX_ACTIVE_USER_BUILDS: usize = 3;
/// How long a transaction that has made collections waits at its commit for changes of the same
/// names, which may wait for what the transaction holds.
pub const PLANNED_LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// Names that collections went away from, of which it is known when.
pub const MAX_GONE_NAMES: usize = 1000;
/// Versions of the catalog that are kept for snapshots of their time. What a change adds to one is
/// some 10 KB.
pub const MAX_PAST_VERSIONS: usize = 4000;

const _: () = assert!(RUN_TRANSFER_BYTES.is_multiple_of(pinion_runtime::ALIGN));
const _: () = assert!(RUN_TRANSFER_BYTES <= pinion_runtime::limits::MAX_IO_BYTES);
const _: () = assert!(CHUNK_BYTES <= LEAST_SORTER_BYTES);
