//! The routing table of one sharded collection: which shard owns which range, now and at earlier
//! times.
//!
//! A table never changes; a refresh makes another one that shares what is equal, so an increment
//! costs its own size and not that of the table.
//!
//! Source: sharding document, "The routing table cache" and "The historical routing table".

mod build;
#[cfg(test)]
mod measure;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use imbl::OrdMap;
use pinion_bson::{RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_query::{TimeSeries, series_of};
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

use crate::chunk::{ChunkInfo, ChunkRange, ShardIdx};
use crate::key::{KeyBytes, ShardKeyPattern};
use crate::shard_id::ShardId;
use crate::version::{ChunkVersion, Incarnation, ShardVersion};

pub use build::TableError;

/// The chunks of a collection: no gap, no overlap, one incarnation.
#[derive(Clone, Debug)]
pub struct RoutingTable {
    pub ns: Namespace,
    /// Absent in old documents of MongoDB 4.4.
    pub uuid: Option<Uuid>,
    pub of: Incarnation,
    pub key: ShardKeyPattern,
    pub is_unique: bool,
    /// That of queries that name none.
    pub default_collation: Option<RawDocumentBuf>,
    /// False while a definition, a resharding or an administrator keeps migrations off.
    pub allows_migrations: bool,
    pub max_chunk_size_bytes: Option<i64>,
    /// The series that the documents of the collection are the buckets of, where the table is for
    /// its measurements.
    pub time_series: Option<TimeSeries>,
    /// By their upper bounds.
    chunks: OrdMap<KeyBytes, Arc<ChunkInfo>>,
    shards: Vec<TableShard>,
}

/// What a table knows of a shard. One that lost its last chunk keeps its place.
#[derive(Clone, Debug)]
struct TableShard {
    id: ShardId,
    /// The highest of its chunks.
    placement: Timestamp,
    chunks: usize,
}

impl RoutingTable {
    /// The name by which it was looked for: of a series its own, and not that of its buckets.
    pub fn name(&self) -> Namespace {
        let series = self.time_series.as_ref().and_then(|_| series_of(&self.ns));
        series.unwrap_or_else(|| self.ns.clone())
    }

    /// The number of chunks.
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Never: a collection has a chunk.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// The collection's version: the highest of all chunks.
    pub fn version(&self) -> ChunkVersion {
        let highest = self.shards.iter().map(|shard| shard.placement).max();
        ChunkVersion::from_placement(self.of, highest.unwrap_or(Timestamp::MIN))
    }

    /// The version of a shard, which need not be known to the table.
    pub fn shard_version(&self, shard: &str) -> ShardVersion {
        let placement = match self.shard_of_name(shard) {
            Some(at) => self.shards[at.0 as usize].placement,
            None => Timestamp::MIN,
        };
        ShardVersion::Placed(ChunkVersion::from_placement(self.of, placement))
    }

    /// The name of a shard of this table.
    ///
    /// # Panics
    /// For one of another table.
    pub fn shard(&self, shard: ShardIdx) -> &ShardId {
        &self.shards[shard.0 as usize].id
    }

    /// A shard that owns chunks or did so.
    pub fn shard_of_name(&self, name: &str) -> Option<ShardIdx> {
        let at = self.shards.iter().position(|shard| shard.id == *name)?;
        Some(ShardIdx(at as u32))
    }

    /// How many chunks a shard owns.
    pub fn chunks_of(&self, shard: ShardIdx) -> usize {
        self.shards[shard.0 as usize].chunks
    }

    /// The shards that own chunks.
    pub fn shards(&self) -> impl Iterator<Item = ShardIdx> + '_ {
        let owns = |(_, shard): &(usize, &TableShard)| shard.chunks > 0;
        let shards = self.shards.iter().enumerate().filter(owns);
        shards.map(|(at, _)| ShardIdx(at as u32))
    }

    /// All chunks in the order of their ranges.
    pub fn chunks(&self) -> impl Iterator<Item = &Arc<ChunkInfo>> + '_ {
        self.chunks.values()
    }

    /// The chunk of a key. The key that equals the bound above all keys is of the last chunk.
    pub fn chunk_of(&self, key: &KeyBytes) -> &Arc<ChunkInfo> {
        self.chunk_at(key.as_bytes())
    }

    /// As `chunk_of`, by the bytes of a key that are compared.
    pub(crate) fn chunk_at(&self, key: &[u8]) -> &Arc<ChunkInfo> {
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        let found = self.chunks.range::<_, [u8]>(behind).next();
        let (_, chunk) = found
            .or_else(|| self.chunks.get_max().map(|(max, chunk)| (max, chunk)))
            .expect("a collection has a chunk");
        chunk
    }

    /// The owner of a key at a time; now without one.
    ///
    /// # Errors
    /// `StaleChunkHistory` where the chunk's history does not reach back to it.
    pub fn owner(&self, key: &KeyBytes, at: Option<Timestamp>) -> Result<ShardIdx> {
        self.chunk_of(key).shard_at(at)
    }

    /// The chunks that have keys of a range, in their order.
    pub fn overlapping<'t>(
        &'t self,
        range: &'t ChunkRange,
    ) -> impl Iterator<Item = &'t Arc<ChunkInfo>> + 't {
        // The key that equals the bound above all keys is of the last chunk.
        let last = self.chunks.get_max().map(|(_, chunk)| chunk);
        let last = last.filter(|last| range.min >= last.range.max);
        self.intersecting(range).chain(last)
    }

    /// As `overlapping`, also while a table is being built, whose last chunk may be missing.
    fn intersecting<'t>(
        &'t self,
        range: &'t ChunkRange,
    ) -> impl Iterator<Item = &'t Arc<ChunkInfo>> + 't {
        let behind = (Bound::Excluded(range.min.as_bytes()), Bound::Unbounded);
        let chunks = self.chunks.range::<_, [u8]>(behind).map(|(_, chunk)| chunk);
        chunks.take_while(|chunk| chunk.range.min < range.max)
    }

    /// The shards that own keys of any of these ranges at a time; now without one.
    ///
    /// # Errors
    /// As [`RoutingTable::owner`].
    pub fn shards_of(
        &self,
        ranges: &[ChunkRange],
        at: Option<Timestamp>,
    ) -> Result<BTreeSet<ShardIdx>> {
        let mut found = BTreeSet::new();
        let all = self.shards().count();
        for range in ranges {
            for chunk in self.overlapping(range) {
                found.insert(chunk.shard_at(at)?);
                // No other shard has any now; earlier owners may have none left.
                if at.is_none() && found.len() == all {
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// The shards that owned chunks at a time; now without one.
    ///
    /// # Errors
    /// As [`RoutingTable::owner`].
    pub fn all_shards(&self, at: Option<Timestamp>) -> Result<BTreeSet<ShardIdx>> {
        match at {
            None => Ok(self.shards().collect()),
            Some(_) => self.chunks().map(|chunk| chunk.shard_at(at)).collect(),
        }
    }

    /// The first range at or behind `from` that a shard does not own, as wide as it is; `None`
    /// where it owns all that follows.
    pub fn next_range_not_owned(&self, shard: ShardIdx, from: &KeyBytes) -> Option<ChunkRange> {
        let behind = (Bound::Excluded(from.as_bytes()), Bound::Unbounded);
        let mut chunks = self
            .chunks
            .range::<_, [u8]>(behind)
            .map(|(_, chunk)| chunk)
            .skip_while(|chunk| chunk.shard == shard)
            .take_while(|chunk| chunk.shard != shard);
        let first = chunks.next()?;
        let last = chunks.last().unwrap_or(first);
        Some(ChunkRange {
            min: first.range.min.clone().max(from.clone()),
            max: last.range.max.clone(),
        })
    }
}
