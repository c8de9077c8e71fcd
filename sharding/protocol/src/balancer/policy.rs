//! One round: statistics in, splits and moves out.
//!
//! Splits at the boundaries of zones come first, and the round's moves are planned once they are
//! committed. Moves have priorities, over all collections: what is on a draining shard, what is in
//! a wrong zone, what one shard has more of than another. A shard takes part in one move of a
//! round at most.

use std::collections::BTreeSet;

use pinion_wire::idl::Namespace;

use super::distribution::{BalanceBy, CollectionState, Distribution, ShardState};
use super::zones::ZoneOf;
use crate::chunk::ChunkRange;
use crate::key::KeyBytes;
use crate::shard_id::ShardId;

/// What an administrator set, and the round's number.
#[derive(Clone, Copy, Debug, Default)]
pub struct PolicySettings {
    pub by: BalanceBy,
    /// Whether chunks are moved that exceed the size: `attemptToBalanceJumboChunks`. Those that are
    /// marked jumbo are not scheduled all the same.
    pub forces_jumbo: bool,
    /// Another one each round: it decides which collection is the first, and which chunk is taken.
    pub turn: u64,
}

/// A chunk that crosses boundaries of zones, and where it is to be split.
#[derive(Clone, Debug, PartialEq)]
pub struct ZoneSplit {
    pub ns: Namespace,
    pub shard: ShardId,
    pub chunk: ChunkRange,
    pub points: Vec<KeyBytes>,
}

/// Why a chunk is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MoveReason {
    Draining,
    ZoneViolation,
    Imbalance,
}

impl MoveReason {
    /// As `balancerCollectionStatus` names it.
    pub fn name(self) -> &'static str {
        match self {
            MoveReason::Draining => "draining",
            MoveReason::ZoneViolation => "zoneViolation",
            MoveReason::Imbalance => "chunksImbalance",
        }
    }
}

/// A chunk to be moved.
#[derive(Clone, Debug, PartialEq)]
pub struct ChunkMove {
    pub ns: Namespace,
    pub chunk: ChunkRange,
    pub from: ShardId,
    pub to: ShardId,
    pub reason: MoveReason,
    pub max_chunk_size_bytes: u64,
    /// Whether all of it is moved, and is too big where it exceeds the size. Otherwise the donor
    /// moves the first part of it that has the size.
    pub is_whole: bool,
    /// Whether it is moved although it exceeds the size and cannot be cut.
    pub forces_jumbo: bool,
}

/// The splits of a round. Chunks that are marked jumbo could not be split before.
pub fn plan_splits(collections: &[CollectionState<'_>]) -> Vec<ZoneSplit> {
    let mut out = Vec::new();
    for collection in collections.iter().filter(|collection| collection.is_free()) {
        if collection.zones.is_empty() {
            continue;
        }
        let table = collection.table;
        for chunk in table.chunks().filter(|chunk| !chunk.is_jumbo) {
            if collection.zones.zone_of(&chunk.range) == ZoneOf::Crossing {
                out.push(ZoneSplit {
                    ns: table.ns.clone(),
                    shard: table.shard(chunk.shard).clone(),
                    chunk: chunk.range.clone(),
                    points: collection.zones.boundaries_in(&chunk.range),
                });
            }
        }
    }
    out
}

/// The moves of a round, all of which may run at once. `busy` are shards that take part in a
/// migration already.
pub fn plan_moves(
    collections: &[CollectionState<'_>],
    shards: &[ShardState],
    busy: &BTreeSet<ShardId>,
    settings: PolicySettings,
) -> Vec<ChunkMove> {
    let mut free: Vec<&CollectionState<'_>> = collections
        .iter()
        .filter(|collection| collection.is_free())
        .collect();
    if let Some(count) = u64::try_from(free.len()).ok().filter(|count| *count > 0) {
        free.rotate_left((settings.turn % count) as usize);
    }
    let distributions: Vec<Distribution<'_>> = free
        .into_iter()
        .map(|collection| Distribution::new(*collection, shards, settings.by))
        .collect();
    let mut round = Round {
        shards,
        is_used: shards
            .iter()
            .map(|shard| busy.contains(&shard.id))
            .collect(),
        settings,
        moves: Vec::new(),
    };
    for distribution in &distributions {
        round.move_off(distribution, MoveReason::Draining);
    }
    for distribution in &distributions {
        round.move_off(distribution, MoveReason::ZoneViolation);
    }
    for distribution in &distributions {
        for zone in distribution.zones() {
            round.even_out(distribution, zone);
        }
    }
    round.moves
}

/// Why the balancer has work with a collection, if it has: `balancerCollectionStatus`.
pub fn first_violation(
    collection: CollectionState<'_>,
    shards: &[ShardState],
    settings: PolicySettings,
) -> Option<MoveReason> {
    let collections = [CollectionState {
        is_balanced: true,
        ..collection
    }];
    let moves = plan_moves(&collections, shards, &BTreeSet::new(), settings);
    let of_moves = moves.iter().map(|planned| planned.reason).min();
    match plan_splits(&collections).is_empty() {
        true => of_moves,
        false => Some(of_moves.map_or(MoveReason::ZoneViolation, |reason| {
            reason.min(MoveReason::ZoneViolation)
        })),
    }
}

struct Round<'s> {
    shards: &'s [ShardState],
    /// By the place of the shard: whether it takes part in a migration.
    is_used: Vec<bool>,
    settings: PolicySettings,
    moves: Vec<ChunkMove>,
}

impl Round<'_> {
    fn places(&self) -> std::ops::Range<usize> {
        0..self.shards.len()
    }

    /// One chunk from each shard that must not keep it: what is on draining shards, or else chunks
    /// of zones that the shard is not in.
    fn move_off(&mut self, distribution: &Distribution<'_>, reason: MoveReason) {
        for from in self.places() {
            if self.is_used[from] {
                continue;
            }
            for zone in distribution.zones() {
                let must_leave = match reason {
                    MoveReason::Draining => self.shards[from].is_draining,
                    _ => !distribution.is_of(from, zone),
                };
                if !must_leave || distribution.movable(from, zone, 0).is_none() {
                    continue;
                }
                let to = distribution
                    .ideal(zone)
                    .and_then(|ideal| self.least_loaded(distribution, zone, |load| load <= ideal));
                if let Some(to) = to {
                    self.add(distribution, zone, from, to, reason);
                    break;
                }
            }
        }
    }

    /// Moves of a zone from shards above the ideal to shards below it, as long as there are two
    /// such shards.
    fn even_out<'a>(&mut self, distribution: &Distribution<'a>, zone: Option<&'a str>) {
        let Some(ideal) = distribution.ideal(zone) else {
            return;
        };
        let mut donors: Vec<(u64, usize)> = self
            .places()
            .filter(|at| !self.is_used[*at] && !self.shards[*at].is_draining)
            .filter(|at| distribution.is_of(*at, zone))
            .map(|at| (distribution.load(at, zone), at))
            .filter(|(load, at)| *load > ideal && distribution.movable(*at, zone, 0).is_some())
            .collect();
        // The most loaded first; of equal ones the first by its place.
        donors.sort_unstable_by_key(|(load, at)| (std::cmp::Reverse(*load), *at));
        for (load, from) in donors {
            let Some(to) = self.least_loaded(distribution, zone, |load| load < ideal) else {
                return;
            };
            if !distribution.is_worth(load, distribution.load(to, zone)) {
                return;
            }
            self.add(distribution, zone, from, to, MoveReason::Imbalance);
        }
    }

    /// The shard of a zone that has the least, among those that stay, take part in no migration and
    /// have a load that is accepted.
    fn least_loaded<'a>(
        &self,
        distribution: &Distribution<'a>,
        zone: Option<&'a str>,
        is_accepted: impl Fn(u64) -> bool,
    ) -> Option<usize> {
        self.places()
            .filter(|at| !self.is_used[*at] && !self.shards[*at].is_draining)
            .filter(|at| distribution.is_of(*at, zone))
            .map(|at| (distribution.load(at, zone), at))
            .filter(|(load, _)| is_accepted(*load))
            .min()
            .map(|(_, at)| at)
    }

    fn add<'a>(
        &mut self,
        distribution: &Distribution<'a>,
        zone: Option<&'a str>,
        from: usize,
        to: usize,
        reason: MoveReason,
    ) {
        assert!(from != to, "a chunk moves to another shard");
        for at in [from, to] {
            assert!(!self.is_used[at], "a shard takes part in one migration");
            self.is_used[at] = true;
        }
        let chunk = distribution
            .movable(from, zone, self.settings.turn)
            .expect("the donor has one");
        self.moves.push(ChunkMove {
            ns: distribution.collection.table.ns.clone(),
            chunk: chunk.range.clone(),
            from: self.shards[from].id.clone(),
            to: self.shards[to].id.clone(),
            reason,
            max_chunk_size_bytes: distribution.collection.max_chunk_size_bytes,
            is_whole: self.settings.by == BalanceBy::Chunks,
            forces_jumbo: self.settings.forces_jumbo,
        });
    }
}
