//! Ranges of keys, and a chunk as the routing table has it.

use std::fmt;

use pinion_clock::Timestamp;
use pinion_wire::{Error, ErrorCode, Result};

use crate::key::KeyBytes;

/// Keys from `min` up to, and without, `max`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ChunkRange {
    pub min: KeyBytes,
    pub max: KeyBytes,
}

impl ChunkRange {
    pub fn contains(&self, key: &KeyBytes) -> bool {
        self.min <= *key && *key < self.max
    }

    /// Whether all of the other range is in it.
    pub fn covers(&self, other: &ChunkRange) -> bool {
        self.min <= other.min && other.max <= self.max
    }

    pub fn overlaps(&self, other: &ChunkRange) -> bool {
        self.min < other.max && other.min < self.max
    }
}

impl fmt::Debug for ChunkRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{:?}, {:?})", self.min, self.max)
    }
}

/// A shard by its place in the shards of one routing table and those refreshed from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardIdx(pub(crate) u32);

/// A chunk of a routing table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkInfo {
    pub range: ChunkRange,
    pub shard: ShardIdx,
    /// Major and minor version as seconds and counter.
    pub placement: Timestamp,
    /// From when on which shard owned it, the latest first.
    pub history: Box<[(Timestamp, ShardIdx)]>,
    pub is_jumbo: bool,
}

impl ChunkInfo {
    /// The owner at a time; now without one.
    ///
    /// # Errors
    /// `StaleChunkHistory` where the history does not reach back to it.
    pub fn shard_at(&self, at: Option<Timestamp>) -> Result<ShardIdx> {
        let Some(at) = at else {
            return Ok(self.shard);
        };
        let owner = self.history.iter().find(|(since, _)| *since <= at);
        owner.map(|(_, shard)| *shard).ok_or_else(|| {
            Error::new(
                ErrorCode::STALE_CHUNK_HISTORY,
                format!("Cannot find shardId the chunk belonged to at cluster time {at}"),
            )
        })
    }
}
