//! Named limits of storage, and the relations between them that must hold.

use pinion_runtime::Duration;

/// Unit of allocation in a page file, and of direct I/O.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// Largest key. An index entry carries whole field values and an `_id`, each at most one document.
pub const MAX_KEY_BYTES: usize = 33 * 1024 * 1024;

/// Largest value: a document of 16 MiB with its internal allowance, and room for storage's own
/// envelopes.
pub const MAX_VALUE_BYTES: usize = 17 * 1024 * 1024;

/// Largest single transfer from or to a page file.
pub(crate) const IO_BYTES: usize = 1024 * 1024;

/// Writes of one checkpoint that may be under way at once in one partition.
pub(crate) const WRITES_IN_FLIGHT: usize = 4;

/// Leaves that a cursor or a batch of writes has read ahead; a small cache allows fewer.
pub(crate) const READ_AHEAD_LEAVES: u64 = 16;

/// Leaves that a merge has read ahead of where it is.
pub(crate) const MERGE_READS: usize = 16;

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

/// Largest oplog entry: a document of 16 MiB, and an allowance for what an update entry carries
/// beside it.
pub const MAX_ENTRY_BYTES: usize = 17 * 1024 * 1024;

/// Entries appended to one ring and not yet flushed. Appending waits above it; one largest entry
/// always fits, and what is larger alone waits until nothing else is there.
pub(crate) const MAX_PENDING_BYTES: usize = 48 * 1024 * 1024;

// So does one with an image beside it.
const _: () = assert!(2 * MAX_ENTRY_BYTES < MAX_PENDING_BYTES);

/// The entries of one unit that stays open until it is committed: they are appended in one step.
pub const MAX_UNIT_ENTRY_BYTES: usize = 256 * 1024 * 1024;

/// Entries of one such unit.
pub(crate) const MAX_UNIT_ENTRIES: usize = 8192;

/// Values and entries from this size on change hands as they are; smaller ones are copied to where
/// others lie, which takes less time than the system takes to find memory of their own.
pub(crate) const LARGE_VALUE_BYTES: usize = 256 * 1024;

/// Entries on their way to the disk lie in chunks of this size.
pub(crate) const ENTRY_CHUNK_BYTES: usize = 1024 * 1024;

/// The memory of a flushed group is kept for the next if the group filled at least one part in this
/// many of it.
pub(crate) const SPARE_ENTRIES_USE: usize = 16;

/// Default size of a ring segment, and the smallest that makes sense.
pub(crate) const SEGMENT_BYTES: u64 = 64 * 1024 * 1024;
pub(crate) const MIN_SEGMENT_BYTES: u64 = 4 * BLOCK_BYTES as u64;

/// Zeroed segments kept ready for each ring, and those that may wait for reuse beyond that.
pub(crate) const SPARE_SEGMENTS: usize = 1;
pub(crate) const MAX_IDLE_SEGMENTS: usize = 4;

/// How long an open for which there is no descriptor rests before it is tried again, and how often
/// the log says so.
pub(crate) const OPEN_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const OPEN_WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// How long a background write that finds the disk full rests before it is tried again, and how
/// often the log says so.
pub(crate) const ROOM_PAUSE: Duration = Duration::from_millis(500);
pub(crate) const ROOM_WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// How often a run is written in vain before that counts as a failure of the disk, and the pause
/// before each further time.
pub(crate) const RUN_WRITE_ATTEMPTS: u32 = 5;
pub(crate) const RUN_WRITE_PAUSE: Duration = Duration::from_millis(500);

/// Bytes zeroed by one write while a segment is prepared.
pub(crate) const ZERO_CHUNK_BYTES: usize = 1024 * 1024;

/// Bytes of a segment read at a time while rings are scanned. A reader of the running node's log
/// begins with few.
pub(crate) const SCAN_CHUNK_BYTES: usize = 1024 * 1024;
pub(crate) const FIRST_CHUNK_BYTES: usize = 64 * 1024;

/// The latest flushed entries of each ring that are kept in memory for readers of the log.
pub(crate) const LOG_TAIL_BYTES: usize = 8 * 1024 * 1024;

/// Small entries that are copied for readers of the log share memory in pieces of at most this many
/// bytes.
pub(crate) const LOG_PIECE_BYTES: usize = 256 * 1024;

/// Entries that a reader of the log gets from one ring at a time.
pub(crate) const LOG_FETCH_BYTES: usize = 256 * 1024;

/// When the node starts, the documents in each segment of the log are estimated by samples of its
/// frames: of this many frames each, at most this many of a segment and about this many of the log.
/// A segment of no more frames than that is read whole.
pub(crate) const SAMPLE_FRAMES: u32 = 16;
pub(crate) const SEGMENT_SAMPLES: u32 = 16;
pub(crate) const LOG_SAMPLES: u32 = 1024;

/// A search in a segment ends when it has come down to this many frames; the second is how many
/// are read at first to see what begins there.
pub(crate) const SEEK_FRAMES: u32 = 16;
pub(crate) const PROBE_FRAMES: u32 = 1;

/// Frames laid out at once by a flush.
pub(crate) const FLUSH_STEP_FRAMES: u64 = (1024 * 1024 / BLOCK_BYTES) as u64;

/// Statements placed or written in one step of a batch, and the bytes of their entries, so that no
/// step holds its core for long.
pub(crate) const MAX_STEP_STATEMENTS: usize = 256;
pub(crate) const MAX_STEP_BYTES: usize = 1024 * 1024;

/// Ring bytes since the last checkpoint, over all rings, that start one.
pub(crate) const RING_BYTES_PER_CHECKPOINT: u64 = 2 * 1024 * 1024 * 1024;

/// How long a timestamp that has become visible can at least be read at without a pin.
pub(crate) const SNAPSHOT_GRACE: Duration = Duration::from_millis(100);

/// Blocks of a frozen checkpoint that are read at once, and of free ones between others that are
/// read with them.
pub(crate) const FROZEN_READ_BLOCKS: u64 = 2 * (IO_BYTES / BLOCK_BYTES) as u64;
pub(crate) const FROZEN_GAP_BLOCKS: u64 = 16;

/// Checkpoints that may be frozen at once, and how long one is kept that is not requested.
pub(crate) const MAX_FROZEN: usize = 4;
pub(crate) const FROZEN_PATIENCE: Duration = Duration::from_secs(600);

/// The most bytes of entries from before a checkpoint's timestamp that a copy of it takes along.
pub const MAX_COPIED_ENTRY_BYTES: usize = 64 * 1024 * 1024;

/// Bytes of what is not replicated that go into a copied page file between two checkpoints of it.
pub(crate) const TRANSPLANT_BYTES: usize = 16 * 1024 * 1024;

/// Memory for the pages of a copied file while that is made this node's own.
pub(crate) const TRANSPLANT_CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Bits of a run's filter for each key, and how many of them are asked: one key in a hundred seems
/// to be there and is not.
pub(crate) const RUN_FILTER_BITS: usize = 10;
pub(crate) const RUN_FILTER_PROBES: u64 = 6;
/// The part of a partition's memory for pages that the filter of one run takes at most.
pub(crate) const RUN_FILTER_PART: u64 = 32;

/// Versions of one key that a run keeps together. A key with more of them has the older ones in
/// pieces of this size, so that one version of a key that was written very often can be read
/// without all the others.
pub(crate) const RUN_PIECE_BYTES: usize = 64 * 1024;

/// Records of a run that are built before they are written, and their bytes.
pub(crate) const RUN_PART_RECORDS: usize = 1024;
pub(crate) const RUN_PART_BYTES: usize = 1024 * 1024;

/// Records that a cursor reads ahead of the runs below it.
pub(crate) const RUN_READ_AHEAD: usize = 64;

/// Runs above the stable timestamp. Beyond it writes wait for the timestamp to move.
pub(crate) const MAX_LAYERS: usize = 256;

/// The part of the memory for pages and changes that merged changes may take which old snapshots
/// need, in percent; beyond it they are written to disk.
pub(crate) const HISTORY_MEMORY_PERCENT: u64 = 5;

/// Old versions may take so much of the disk over all partitions, and as much as the live data
/// where that is more.
pub(crate) const HISTORY_DISK_BYTES: u64 = 1024 * 1024 * 1024;

/// Most partitions of a data directory.
pub(crate) const MAX_PARTITIONS: u16 = 1024;

const _: () = assert!(MAX_PENDING_BYTES > 2 * MAX_ENTRY_BYTES);
const _: () =
    assert!(SEGMENT_BYTES.is_multiple_of(BLOCK_BYTES as u64) && SEGMENT_BYTES >= MIN_SEGMENT_BYTES);
const _: () = assert!(MAX_STEP_BYTES < MAX_PENDING_BYTES);
const _: () = assert!(SEEK_FRAMES > 1 && PROBE_FRAMES > 0);
const _: () = assert!(
    (SAMPLE_FRAMES * SEGMENT_SAMPLES) as usize * BLOCK_BYTES <= SCAN_CHUNK_BYTES
        && SCAN_CHUNK_BYTES.is_multiple_of(BLOCK_BYTES)
        && FIRST_CHUNK_BYTES.is_multiple_of(BLOCK_BYTES)
        && ZERO_CHUNK_BYTES.is_multiple_of(BLOCK_BYTES)
);
