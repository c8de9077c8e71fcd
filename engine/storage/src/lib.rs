//! Rings, partitions, page files, checkpoint, recovery and units of work.

mod base;
mod limits;
mod partition;
mod types;

pub use base::{PartitionOptions, PartitionRoots, TreeReport, VerifyReport, verify_partition};
pub use limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use partition::{Cursor, PageStats, Partition, PartitionMemory, SnapshotPin, UnitId};
pub use types::{
    CATALOG_TREE, Direction, Expect, Fatal, Key, KeyRange, Op, PartitionId, Read, ReadAt, ReadError, TreeId, TreeStats,
    VersionToken, Write, WriteError, prefix_successor,
};
