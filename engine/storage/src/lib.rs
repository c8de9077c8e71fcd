//! Rings, partitions, page files, checkpoint, recovery and units of work.

mod base;
mod engine;
mod inspect;
mod layout;
mod limits;
mod manifest;
mod marks;
mod opening;
mod partition;
mod recovery;
mod ring;
mod room;
mod sequencer;
mod types;
mod watermarks;
mod words;

pub use base::{
    Counts, LevelReport, PartitionOptions, PartitionRoots, TreeReport, VerifyReport,
    verify_partition,
};
pub use engine::{
    Applier, ApplyError, CheckpointCopy, CopiedEntry, CopyError, ENTRY_TERM_OFFSET,
    ENTRY_TS_OFFSET, Entry, ForeignEntry, FreezeError, FrozenCheckpoint, FrozenPages, LogCursor,
    LogPin, LogReadError, LogRetention, LogStats, OpenError, OpenUnit, Opened, PageFileCopy,
    PartitionHash, PlantedFault, PreparedUnit, RecoveryReport, Reopening, SnapshotHold, Statement,
    Storage, StorageOptions, StorageStats, Timeline, open, storage, try_storage,
};
pub use inspect::{
    InspectError, Inspector, LogReader, OwnChange, PartitionReport, Problem, RingEntry, RingReport,
    RingsReport, SegmentReport, SuperblockCopy, own_changes,
};
pub use limits::{
    MAX_COPIED_ENTRY_BYTES, MAX_ENTRY_BYTES, MAX_KEY_BYTES, MAX_UNIT_ENTRY_BYTES, MAX_VALUE_BYTES,
};
pub use manifest::{Cut, Cuts, Manifest, Superblock};
pub use partition::{
    Block, BlockRecord, Cursor, KeptCounts, PageStats, Partition, PartitionMemory, Readable,
    SnapshotPin, TreeLoad, UnitId,
};
pub use types::{
    CATALOG_TREE, Direction, Expect, Fatal, FirstStamp, Key, KeyRange, Op, PartitionId, Read,
    ReadAt, ReadError, TreeId, TreeStats, VersionToken, Write, WriteError, prefix_successor,
};
