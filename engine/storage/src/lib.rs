//! Rings, partitions, page files, checkpoint, recovery and units of work.

mod types;
mod limits;
mod words;
mod sequencer;
mod watermarks;
mod marks;
mod ring;
mod base;
mod partition;
mod manifest;
mod recovery;
mod engine;

pub use engine::{
    Applier, ApplyError, ENTRY_TS_OFFSET, Entry, OpenError, Opened, PlantedFault, RecoveryReport, Statement, Storage,
    StorageOptions, StorageStats, open, storage, try_storage,
};
pub use base::{PartitionOptions, PartitionRoots, TreeReport, VerifyReport, verify_partition};
pub use limits::{MAX_ENTRY_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use partition::{Cursor, PageStats, Partition, PartitionMemory, SnapshotPin, UnitId};
pub use types::{
    CATALOG_TREE, Direction, Expect, Fatal, Key, KeyRange, Op, PartitionId, Read, ReadAt, ReadError, TreeId, TreeStats,
    VersionToken, Write, WriteError, prefix_successor,
};
