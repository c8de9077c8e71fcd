//! Rings, partitions, page files, checkpoint, recovery and units of work.

mod types;
mod limits;

pub use limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
pub use types::{
    CATALOG_TREE, Direction, Expect, Fatal, Key, KeyRange, Op, PartitionId, Read, ReadAt, ReadError, TreeId, TreeStats,
    VersionToken, Write, WriteError, prefix_successor,
};
