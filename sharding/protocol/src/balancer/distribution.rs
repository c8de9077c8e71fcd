//! Which chunks of which zone of a collection each shard has, and how loaded that makes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::zones::{ZoneOf, Zones};
use crate::chunk::ChunkInfo;
use crate::shard_id::ShardId;
use crate::table::RoutingTable;

/// What is to be even.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BalanceBy {
    /// The data of the collection on each shard.
    #[default]
    Bytes,
    /// The number of its chunks, as MongoDB 4.4 does.
    Chunks,
}

/// A shard as `config.shards` has it.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardState {
    pub id: ShardId,
    pub is_draining: bool,
    pub zones: BTreeSet<String>,
}

impl ShardState {
    fn has(&self, zone: Option<&str>) -> bool {
        zone.is_none_or(|zone| self.zones.contains(zone))
    }
}

/// A collection as the balancer sees it.
#[derive(Clone, Copy, Debug)]
pub struct CollectionState<'a> {
    pub table: &'a RoutingTable,
    pub zones: &'a Zones,
    /// The data of the collection on each shard without orphans, in bytes. A shard that is missing
    /// has none.
    pub sizes: &'a BTreeMap<ShardId, u64>,
    /// Whether an administrator lets the balancer move its chunks.
    pub is_balanced: bool,
    pub max_chunk_size_bytes: u64,
}

impl CollectionState<'_> {
    /// Whether its chunks may be split and moved now.
    pub(super) fn is_free(&self) -> bool {
        self.is_balanced && self.table.allows_migrations
    }
}

/// The chunks of a zone on a shard.
#[derive(Debug, Default)]
struct Share<'a> {
    /// All of them.
    count: u64,
    /// Those that may be scheduled: not jumbo.
    movable: Vec<&'a Arc<ChunkInfo>>,
}

/// By zone, `None` for the keys of none, and by the place of the shard.
type Shares<'a> = BTreeMap<Option<&'a str>, BTreeMap<usize, Share<'a>>>;

#[derive(Debug)]
pub(super) struct Distribution<'a> {
    pub(super) collection: CollectionState<'a>,
    shards: &'a [ShardState],
    by: BalanceBy,
    shares: Shares<'a>,
}

impl<'a> Distribution<'a> {
    /// Chunks that cross a boundary of a zone are left out: they are split first.
    pub(super) fn new(
        collection: CollectionState<'a>,
        shards: &'a [ShardState],
        by: BalanceBy,
    ) -> Distribution<'a> {
        let places: BTreeMap<&str, usize> =
            (shards.iter().map(|shard| &*shard.id)).zip(0..).collect();
        let mut shares = Shares::new();
        for chunk in collection.table.chunks() {
            let zone = match collection.zones.zone_of(&chunk.range) {
                ZoneOf::Crossing => continue,
                ZoneOf::None => None,
                ZoneOf::Zone(zone) => Some(zone),
            };
            let Some(at) = places.get(&**collection.table.shard(chunk.shard)) else {
                continue;
            };
            let share = shares.entry(zone).or_default().entry(*at).or_default();
            share.count += 1;
            if !chunk.is_jumbo {
                share.movable.push(chunk);
            }
        }
        Distribution {
            collection,
            shards,
            by,
            shares,
        }
    }

    pub(super) fn zones(&self) -> Vec<Option<&'a str>> {
        self.shares.keys().copied().collect()
    }

    /// Whether a shard may have chunks of a zone.
    pub(super) fn is_of(&self, shard: usize, zone: Option<&str>) -> bool {
        self.shards[shard].has(zone)
    }

    /// A chunk of a zone on a shard that may be moved: another one with each turn, so that one that
    /// fails does not keep others.
    pub(super) fn movable(
        &self,
        shard: usize,
        zone: Option<&'a str>,
        turn: u64,
    ) -> Option<&'a Arc<ChunkInfo>> {
        let chunks = &self.shares.get(&zone)?.get(&shard)?.movable;
        let count = u64::try_from(chunks.len())
            .ok()
            .filter(|count| *count > 0)?;
        Some(chunks[(turn % count) as usize])
    }

    /// How much a shard has of a zone. By bytes it is what it has of the collection: the sizes of
    /// single chunks are not known.
    pub(super) fn load(&self, shard: usize, zone: Option<&'a str>) -> u64 {
        match self.by {
            BalanceBy::Bytes => self.size(shard),
            BalanceBy::Chunks => {
                let shares = self.shares.get(&zone);
                let share = shares.and_then(|shares| shares.get(&shard));
                share.map_or(0, |share| share.count)
            }
        }
    }

    fn size(&self, shard: usize) -> u64 {
        let id = &self.shards[shard].id;
        self.collection.sizes.get(id).copied().unwrap_or(0)
    }

    /// What each shard of a zone that stays would have if all had the same, rounded up; `None`
    /// where the zone has no such shard.
    pub(super) fn ideal(&self, zone: Option<&'a str>) -> Option<u64> {
        let of_zone = || (0..self.shards.len()).filter(|at| self.shards[*at].has(zone));
        let staying = of_zone().filter(|at| !self.shards[*at].is_draining).count() as u64;
        let total: u64 = match self.by {
            BalanceBy::Bytes => of_zone().map(|at| self.size(at)).sum(),
            BalanceBy::Chunks => {
                let shares = self.shares.get(&zone);
                let shares = shares.into_iter().flat_map(BTreeMap::values);
                shares.map(|share| share.count).sum()
            }
        };
        (staying > 0).then(|| total.div_ceil(staying))
    }

    /// Whether two loads differ by so much that moving a chunk pays.
    pub(super) fn is_worth(&self, from: u64, to: u64) -> bool {
        let least = match self.by {
            BalanceBy::Bytes => super::IMBALANCE_CHUNKS * self.collection.max_chunk_size_bytes,
            BalanceBy::Chunks => 2,
        };
        from.saturating_sub(to) >= least
    }
}
