//! Rounds of the balancer on clusters of which every chunk is known: small ones with the moves
//! that are expected, random ones that have to become even.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{RawBson, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_wire::idl::Namespace;

use super::*;
use crate::documents::TagDocument;
use crate::shard_id::ShardId;
use crate::table::RoutingTable;
use crate::testing::{HIGHEST, LOWEST, Model, ModelChunk, Rng, bound};
use crate::version::ChunkVersion;

const MAX_BYTES: u64 = 100;

/// A range of keys and its zone.
type ZoneRange = (i64, i64, &'static str);

#[derive(Clone)]
struct Cluster {
    model: Model,
    table: RoutingTable,
    zone_ranges: Vec<ZoneRange>,
    zones: Zones,
    shards: Vec<ShardState>,
    /// Bytes of each chunk, by its lower bound.
    sizes: BTreeMap<i64, u64>,
    settings: PolicySettings,
}

fn tag(range: &ZoneRange) -> TagDocument {
    TagDocument {
        id: RawBson::Int64(range.0),
        ns: Namespace::new("d", "c").expect("a name"),
        zone: range.2.into(),
        min: bound(range.0),
        max: bound(range.1),
        other: RawDocumentBuf::new(),
    }
}

impl Cluster {
    /// Chunks of ten keys each on these shards, with a size.
    fn new(owners: &[(&str, u64)], shards: Vec<ShardState>, zone_ranges: &[ZoneRange]) -> Cluster {
        let mut model = Model::new(1, 10, "s0");
        let (of, last) = (model.of, owners.len() - 1);
        model.chunks = owners
            .iter()
            .enumerate()
            .map(|(at, (shard, _))| ModelChunk {
                min: if at == 0 { LOWEST } else { at as i64 * 10 },
                max: if at == last {
                    HIGHEST
                } else {
                    (at as i64 + 1) * 10
                },
                version: ChunkVersion::from_placement(of, Timestamp::new(1, at as u32)),
                history: vec![(of.timestamp, (*shard).to_owned())],
                is_jumbo: false,
            })
            .collect();
        let documents = model.chunks.iter().map(ModelChunk::document);
        let table = RoutingTable::new(&model.collection(), documents).expect("a table");
        let tags: Vec<TagDocument> = zone_ranges.iter().map(tag).collect();
        let sizes = model
            .chunks
            .iter()
            .zip(owners)
            .map(|(chunk, (_, size))| (chunk.min, *size));
        Cluster {
            zones: Zones::new(&tags, &table.key).expect("zones"),
            zone_ranges: zone_ranges.to_vec(),
            sizes: sizes.collect(),
            table,
            model,
            shards,
            settings: PolicySettings::default(),
        }
    }

    fn by(mut self, by: BalanceBy) -> Cluster {
        self.settings.by = by;
        self
    }

    fn shard_sizes(&self) -> BTreeMap<ShardId, u64> {
        let mut sizes: BTreeMap<&str, u64> = BTreeMap::new();
        for chunk in &self.model.chunks {
            *sizes.entry(chunk.shard()).or_default() += self.sizes[&chunk.min];
        }
        sizes
            .into_iter()
            .map(|(shard, size)| (ShardId::new(shard), size))
            .collect()
    }

    fn state<'a>(&'a self, sizes: &'a BTreeMap<ShardId, u64>) -> CollectionState<'a> {
        CollectionState {
            table: &self.table,
            zones: &self.zones,
            sizes,
            is_balanced: true,
            max_chunk_size_bytes: MAX_BYTES,
        }
    }

    fn moves(&self, busy: &[&str]) -> Vec<ChunkMove> {
        let sizes = self.shard_sizes();
        let busy = busy.iter().map(|name| ShardId::new(name)).collect();
        plan_moves(&[self.state(&sizes)], &self.shards, &busy, self.settings)
    }

    fn value(&self, key: &crate::key::KeyBytes) -> i64 {
        match pinion_bson::get(&self.table.key.document(key), "a") {
            Some(pinion_bson::RawBsonRef::MinKey) => LOWEST,
            Some(pinion_bson::RawBsonRef::MaxKey) => HIGHEST,
            value => value.and_then(|value| value.as_i64()).expect("a number"),
        }
    }

    /// `s0 > s1: 10 draining`, by the lower bounds of the chunks.
    fn shown(&self, busy: &[&str]) -> Vec<String> {
        let moves = self.moves(busy);
        let show = |planned: &ChunkMove| {
            let min = match self.value(&planned.chunk.min) {
                LOWEST => "min".to_owned(),
                min => min.to_string(),
            };
            let reason = planned.reason.name();
            format!("{} > {}: {min} {reason}", planned.from, planned.to)
        };
        moves.iter().map(show).collect()
    }

    fn shard(&self, name: &str) -> &ShardState {
        let found = self.shards.iter().find(|shard| shard.id == *name);
        found.expect("a shard of the cluster")
    }

    fn zone_of(&self, chunk: &ModelChunk) -> Option<&'static str> {
        let covers = |range: &&ZoneRange| range.0 <= chunk.min && chunk.max <= range.1;
        self.zone_ranges.iter().find(covers).map(|range| range.2)
    }

    /// One round; how many chunks moved.
    fn round(&mut self) -> usize {
        let sizes = self.shard_sizes();
        for split in plan_splits(&[self.state(&sizes)]) {
            let min = self.value(&split.chunk.min);
            let keys: Vec<i64> = split.points.iter().map(|key| self.value(key)).collect();
            let at = self
                .model
                .chunks
                .iter()
                .position(|c| c.min == min)
                .expect("a chunk");
            assert_eq!(self.model.chunks[at].shard(), split.shard.as_str());
            self.model.split(at, &keys);
            let part = self.sizes[&min] / (keys.len() as u64 + 1);
            self.sizes
                .extend(keys.iter().chain([&min]).map(|min| (*min, part)));
        }
        self.refresh();
        let moves = self.moves(&[]);
        self.check_round(&moves);
        for planned in &moves {
            let min = self.value(&planned.chunk.min);
            let at = self
                .model
                .chunks
                .iter()
                .position(|c| c.min == min)
                .expect("a chunk");
            assert_eq!(self.model.chunks[at].shard(), planned.from.as_str());
            self.model.move_chunk(at, &planned.to);
        }
        self.refresh();
        self.settings.turn += 1;
        moves.len()
    }

    fn refresh(&mut self) {
        let changes = self.model.changes(self.table.version());
        let table = self.table.apply(&self.model.collection(), changes);
        self.table = table.expect("a table");
    }

    /// What must hold of every round.
    fn check_round(&self, moves: &[ChunkMove]) {
        let mut used = BTreeSet::new();
        for planned in moves {
            assert!(used.insert(planned.from.clone()), "{} twice", planned.from);
            assert!(used.insert(planned.to.clone()), "{} twice", planned.to);
            let min = self.value(&planned.chunk.min);
            let chunk = self
                .model
                .chunks
                .iter()
                .find(|c| c.min == min)
                .expect("a chunk");
            assert!(!chunk.is_jumbo && chunk.shard() == planned.from.as_str());
            let to = self.shard(&planned.to);
            assert!(!to.is_draining, "{planned:?}");
            let zone = self.zone_of(chunk);
            assert!(
                zone.is_none_or(|zone| to.zones.contains(zone)),
                "{planned:?} {zone:?}"
            );
            let from = self.shard(&planned.from);
            let is_right = zone.is_none_or(|zone| from.zones.contains(zone));
            let expected = match (from.is_draining, is_right) {
                (true, _) => MoveReason::Draining,
                (false, false) => MoveReason::ZoneViolation,
                (false, true) => MoveReason::Imbalance,
            };
            assert_eq!(planned.reason, expected, "{planned:?}");
        }
    }

    /// Until nothing moves any more; how many rounds and moves it took.
    fn settle(&mut self, most_rounds: usize) -> (usize, usize) {
        let mut moves = 0;
        for round in 0..most_rounds {
            match self.round() {
                0 => return (round, moves),
                moved => moves += moved,
            }
        }
        panic!("not settled after {most_rounds} rounds and {moves} moves");
    }

    /// What must hold in the end.
    fn check_settled(&self) {
        let stays = |zone: Option<&str>| {
            let of_zone = |shard: &&ShardState| zone.is_none_or(|z| shard.zones.contains(z));
            let stay = self
                .shards
                .iter()
                .filter(of_zone)
                .filter(|shard| !shard.is_draining);
            stay.map(|shard| &shard.id).collect::<Vec<_>>()
        };
        for chunk in self.model.chunks.iter().filter(|chunk| !chunk.is_jumbo) {
            let zone = self.zone_of(chunk);
            let shard = self.shard(chunk.shard());
            let is_right = zone.is_none_or(|zone| shard.zones.contains(zone));
            let is_stuck = stays(zone).is_empty();
            assert!(
                is_stuck || (is_right && !shard.is_draining),
                "{chunk:?} {zone:?}"
            );
            // No boundary is within a chunk.
            for (min, max, _) in &self.zone_ranges {
                assert!(
                    ![min, max]
                        .iter()
                        .any(|at| chunk.min < **at && **at < chunk.max)
                );
            }
        }
        if self.zone_ranges.is_empty() && self.model.chunks.iter().all(|c| !c.is_jumbo) {
            self.check_even(&stays(None));
        }
    }

    fn check_even(&self, staying: &[&ShardId]) {
        let load = |shard: &ShardId| -> u64 {
            let chunks = self
                .model
                .chunks
                .iter()
                .filter(|chunk| chunk.shard() == shard.as_str());
            match self.settings.by {
                BalanceBy::Chunks => chunks.count() as u64,
                BalanceBy::Bytes => chunks.map(|chunk| self.sizes[&chunk.min]).sum(),
            }
        };
        let loads: Vec<u64> = staying.iter().map(|shard| load(shard)).collect();
        let (least, most) = (loads.iter().min(), loads.iter().max());
        let (Some(least), Some(most)) = (least, most) else {
            return;
        };
        let mean = loads.iter().sum::<u64>() / loads.len() as u64;
        match self.settings.by {
            // None is above the ideal, or none below.
            BalanceBy::Chunks => assert!(*most <= mean + 1 || *least >= mean, "{loads:?}"),
            BalanceBy::Bytes => assert!(most - least < 3 * MAX_BYTES, "{loads:?}"),
        }
    }
}

fn shard(name: &str, zones: &[&str]) -> ShardState {
    ShardState {
        id: name.into(),
        is_draining: false,
        zones: zones.iter().map(|zone| (*zone).to_owned()).collect(),
    }
}

fn draining(name: &str, zones: &[&str]) -> ShardState {
    ShardState {
        is_draining: true,
        ..shard(name, zones)
    }
}

/// `s0: 3, s1: 1`: chunks of 100 bytes.
fn cluster(counts: &[usize], shards: Vec<ShardState>, zones: &[ZoneRange]) -> Cluster {
    let names: Vec<String> = shards.iter().map(|shard| shard.id.to_string()).collect();
    let owners: Vec<(&str, u64)> = counts
        .iter()
        .zip(&names)
        .flat_map(|(count, name)| vec![(name.as_str(), MAX_BYTES); *count])
        .collect();
    Cluster::new(&owners, shards, zones).by(BalanceBy::Chunks)
}

fn three() -> Vec<ShardState> {
    vec![shard("s0", &[]), shard("s1", &[]), shard("s2", &[])]
}

#[test]
fn by_the_number_of_chunks() {
    let check = |counts: &[usize], expected: &[&str]| {
        assert_eq!(
            cluster(counts, three(), &[]).shown(&[]),
            expected,
            "{counts:?}"
        );
    };
    check(&[4, 1, 1], &["s0 > s1: min chunksImbalance"]);
    check(&[1, 4, 1], &["s1 > s0: 10 chunksImbalance"]);
    check(&[3, 3, 0], &["s0 > s2: min chunksImbalance"]);
    // The ideal is rounded up: no shard is above it.
    check(&[2, 2, 0], &[]);
    check(&[1, 1, 1], &[]);
    check(&[5, 5, 4], &[]);
    // A shard that has the ideal takes none, though the one that has less is busy.
    let found = cluster(&[4, 2, 0], three(), &[]);
    assert_eq!(found.shown(&[]), ["s0 > s2: min chunksImbalance"]);
    assert!(found.shown(&["s2"]).is_empty());
    assert!(found.moves(&[]).iter().all(|planned| planned.is_whole));
}

#[test]
fn by_data() {
    let check = |sizes: &[u64], expected: &[&str]| {
        let names = ["s0", "s1", "s2"];
        let owners: Vec<(&str, u64)> = names.into_iter().zip(sizes.iter().copied()).collect();
        let cluster = Cluster::new(&owners, three(), &[]);
        assert_eq!(cluster.shown(&[]), expected, "{sizes:?}");
        assert!(!cluster.moves(&[]).iter().any(|planned| planned.is_whole));
    };
    check(&[400, 100, 150], &["s0 > s1: min chunksImbalance"]);
    check(&[399, 100, 150], &[]);
    check(&[900, 500, 100], &["s0 > s2: min chunksImbalance"]);
    // What a draining shard has will be on the others: none of them is above the ideal.
    let shards = vec![draining("s0", &[]), shard("s1", &[]), shard("s2", &[])];
    let sizes = [("s0", 600), ("s1", 500), ("s2", 150)];
    assert!(Cluster::new(&sizes, shards, &[]).shown(&["s0"]).is_empty());
    // The number of chunks does not count: trap 36.
    let many: Vec<(&str, u64)> = [("s0", 1); 50].into_iter().chain([("s1", 50)]).collect();
    assert!(Cluster::new(&many, three(), &[]).shown(&[]).is_empty());
}

#[test]
fn draining_comes_first_then_zones_then_the_rest() {
    let zones = [(LOWEST, 20, "eu")];
    // s0 is draining with a chunk of the zone; s1 has another one of it and is not in it.
    let shards = vec![
        draining("s0", &[]),
        shard("s1", &[]),
        shard("s2", &["eu"]),
        shard("s3", &["eu"]),
    ];
    let cluster = cluster(&[1, 1, 1, 0], shards, &zones);
    let expected = ["s0 > s2: min draining", "s1 > s3: 10 zoneViolation"];
    assert_eq!(cluster.shown(&[]), expected);
    // With one shard for both, that of the draining one is moved: trap 35.
    assert_eq!(cluster.shown(&["s3"]), &expected[..1]);
    assert_eq!(cluster.shown(&["s0"]), ["s1 > s2: 10 zoneViolation"]);
    assert!(cluster.shown(&["s2", "s3"]).is_empty());
}

#[test]
fn chunks_of_a_zone_stay_in_it() {
    // All of the zone's chunks are on one of its two shards; the third shard is empty.
    let zones = [(LOWEST, 40, "eu")];
    let shards = vec![shard("s0", &["eu"]), shard("s1", &["eu"]), shard("s2", &[])];
    let found = cluster(&[4, 0, 0], shards, &zones).shown(&[]);
    assert_eq!(found, ["s0 > s1: min chunksImbalance"]);
    // No shard is in the zone: nothing can be done, and nothing is tried.
    let found = cluster(&[4, 0, 0], three(), &[(LOWEST, 40, "none")]);
    assert!(found.shown(&[]).is_empty());
}

#[test]
fn jumbo_chunks_are_not_scheduled() {
    let mut found = cluster(&[3, 0, 0], three(), &[]);
    found.model.chunks[0].is_jumbo = true;
    found.model.chunks[0].version = found.model.version().merged();
    found.refresh();
    found.settings.forces_jumbo = true;
    assert_eq!(found.shown(&[]), ["s0 > s1: 10 chunksImbalance"]);
    assert!(found.moves(&[]).iter().all(|planned| planned.forces_jumbo));
    for chunk in 1..3 {
        found.model.chunks[chunk].is_jumbo = true;
        found.model.chunks[chunk].version = found.model.version().merged();
    }
    found.refresh();
    assert!(found.shown(&[]).is_empty());
    // The most loaded shard cannot give: the next one does.
    let mut found = cluster(&[4, 3, 0], three(), &[]);
    for chunk in 0..4 {
        found.model.chunks[chunk].is_jumbo = true;
        found.model.chunks[chunk].version = found.model.version().merged();
    }
    found.refresh();
    assert!(found.shown(&[]).is_empty(), "3 is the ideal");
    found.model.split(4, &[45]);
    found.sizes.insert(45, MAX_BYTES);
    found.refresh();
    assert_eq!(found.shown(&[]), ["s1 > s2: 40 chunksImbalance"]);
}

#[test]
fn what_is_kept_from_the_balancer() {
    let found = cluster(&[8, 0, 0], three(), &[(5, 25, "eu")]);
    let sizes = found.shard_sizes();
    let state = found.state(&sizes);
    let off = CollectionState {
        is_balanced: false,
        ..state
    };
    let mut locked = found.table.clone();
    locked.allows_migrations = false;
    let locked = CollectionState {
        table: &locked,
        ..state
    };
    let plan = |state| plan_moves(&[state], &found.shards, &BTreeSet::new(), found.settings);
    assert_eq!((plan(state).len(), plan_splits(&[state]).len()), (1, 2));
    for state in [off, locked] {
        assert!(plan(state).is_empty() && plan_splits(&[state]).is_empty());
    }
}

#[test]
fn collections_take_turns() {
    let [one, mut two] = [0, 1].map(|_| cluster(&[4, 0], three()[..2].to_vec(), &[]));
    two.table.ns = Namespace::new("d", "other").expect("a name");
    let (sizes, other) = (one.shard_sizes(), two.shard_sizes());
    let states = [one.state(&sizes), two.state(&other)];
    let names = |turn| {
        let settings = PolicySettings {
            turn,
            ..one.settings
        };
        let moves = plan_moves(&states, &one.shards, &BTreeSet::new(), settings);
        moves
            .iter()
            .map(|planned| planned.ns.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        (names(0), names(1)),
        (vec!["d.c".to_owned()], vec!["d.other".to_owned()])
    );
    assert_eq!(names(2), names(0));
    // Draining of one comes before the imbalance of another, whose turn it is.
    let shards = vec![shard("s0", &[]), shard("s1", &[]), draining("s2", &[])];
    let drained = cluster(&[0, 0, 1], shards.clone(), &[]);
    let sizes_of_drained = drained.shard_sizes();
    let states = [one.state(&sizes), drained.state(&sizes_of_drained)];
    let moves = plan_moves(&states, &shards, &BTreeSet::new(), one.settings);
    assert_eq!(moves[0].reason, MoveReason::Draining);
    assert_eq!(moves.len(), 1);
}

#[test]
fn splits_at_the_boundaries_of_zones() {
    let found = cluster(&[3], three(), &[(5, 8, "a"), (8, 15, "b"), (20, 25, "c")]);
    let sizes = found.shard_sizes();
    let splits: Vec<(i64, Vec<i64>)> = plan_splits(&[found.state(&sizes)])
        .iter()
        .map(|split| {
            let points = split.points.iter().map(|key| found.value(key)).collect();
            (found.value(&split.chunk.min), points)
        })
        .collect();
    assert_eq!(
        splits,
        [(LOWEST, vec![5, 8]), (10, vec![15]), (20, vec![25])]
    );
}

#[test]
fn zones_that_overlap_are_refused() {
    let key = cluster(&[1], three(), &[]).table.key;
    let check = |ranges: &[ZoneRange], code| {
        let tags: Vec<TagDocument> = ranges.iter().map(tag).collect();
        let found = Zones::new(&tags, &key).map_err(|error| error.code.0);
        assert_eq!(found.err(), code, "{ranges:?}");
    };
    check(&[(0, 10, "a"), (10, 20, "b")], None);
    check(&[(0, 10, "a"), (9, 20, "b")], Some(178));
    check(&[(0, 10, "a"), (0, 10, "a")], Some(178));
    check(&[(5, 6, "a"), (0, 10, "b")], Some(178));
    check(&[(10, 10, "a")], Some(2));
    check(&[(10, 0, "a")], Some(2));
}

#[test]
fn what_is_said_of_a_collection() {
    let check = |found: &Cluster, expected| {
        let sizes = found.shard_sizes();
        let state = CollectionState {
            is_balanced: false,
            ..found.state(&sizes)
        };
        assert_eq!(
            first_violation(state, &found.shards, found.settings),
            expected
        );
    };
    check(&cluster(&[1, 1, 1], three(), &[]), None);
    check(
        &cluster(&[4, 0, 0], three(), &[]),
        Some(MoveReason::Imbalance),
    );
    let split = cluster(&[1, 1, 1], three(), &[(3, 5, "none")]);
    check(&split, Some(MoveReason::ZoneViolation));
    let shards = vec![draining("s0", &[]), shard("s1", &[])];
    check(&cluster(&[1, 1], shards, &[]), Some(MoveReason::Draining));
}

const ZONES: [&str; 3] = ["a", "b", "c"];

/// A random cluster.
fn random(rng: &mut Rng, shards: usize, chunks: usize, by: BalanceBy) -> Cluster {
    let states: Vec<ShardState> = (0..shards)
        .map(|at| ShardState {
            id: ShardId::new(&format!("s{at}")),
            is_draining: rng.below(10) == 0,
            zones: ZONES
                .iter()
                .filter(|_| rng.below(3) == 0)
                .map(|z| (*z).to_owned())
                .collect(),
        })
        .collect();
    let names: Vec<String> = states.iter().map(|shard| shard.id.to_string()).collect();
    // Few shards have most.
    let owners: Vec<(&str, u64)> = (0..chunks)
        .map(|_| {
            let few = 1 + rng.below(shards);
            let size = rng.below(MAX_BYTES as usize) as u64;
            (names[rng.below(few)].as_str(), size)
        })
        .collect();
    let mut zones = Vec::new();
    let mut at = rng.below(40) as i64;
    while rng.below(4) > 0 && at < chunks as i64 * 10 {
        let end = at + 1 + rng.below(chunks * 3) as i64;
        zones.push((at, end, ZONES[rng.below(3)]));
        at = end + (rng.below(2) * rng.below(50)) as i64;
    }
    let mut found = Cluster::new(&owners, states, &zones).by(by);
    if rng.below(2) == 0 {
        let at = rng.below(chunks);
        found.model.chunks[at].is_jumbo = true;
        found.model.chunks[at].version = found.model.version().merged();
        found.refresh();
    }
    found
}

#[test]
fn random_clusters_settle() {
    let mut moved = 0;
    for seed in 1..=300 {
        let mut rng = Rng::new(seed);
        let by = [BalanceBy::Bytes, BalanceBy::Chunks][rng.below(2)];
        let (shards, chunks) = (1 + rng.below(9), 1 + rng.below(60));
        let mut found = random(&mut rng, shards, chunks, by);
        let (_, moves) = found.settle(4 * chunks + 10);
        assert!(
            moves <= 4 * found.model.chunks.len(),
            "seed {seed}: {moves} moves"
        );
        found.check_settled();
        // It stays so, whatever the turn.
        for _ in 0..3 {
            assert_eq!(found.round(), 0, "seed {seed}");
        }
        moved += moves;
    }
    assert!(moved > 1000, "{moved}");
}

#[test]
fn no_shard_gives_and_takes() {
    for seed in 1..=40 {
        for by in [BalanceBy::Bytes, BalanceBy::Chunks] {
            let mut rng = Rng::new(seed);
            let mut found = random(&mut rng, 6, 60, by);
            found.zones = Zones::default();
            found.zone_ranges.clear();
            for shard in &mut found.shards {
                shard.is_draining = false;
            }
            let (mut gave, mut took) = (BTreeSet::new(), BTreeSet::new());
            loop {
                let moves = found.moves(&[]);
                gave.extend(moves.iter().map(|planned| planned.from.clone()));
                took.extend(moves.iter().map(|planned| planned.to.clone()));
                if found.round() == 0 {
                    break;
                }
            }
            assert!(gave.is_disjoint(&took), "seed {seed}: {gave:?} {took:?}");
            found.check_settled();
        }
    }
}

#[test]
fn a_hundred_shards_and_ten_thousand_chunks() {
    for by in [BalanceBy::Bytes, BalanceBy::Chunks] {
        let mut rng = Rng::new(11);
        let mut found = random(&mut rng, 100, 10_000, by);
        let is_drained = |found: &Cluster| {
            let is_draining =
                |chunk: &&ModelChunk| found.shard(chunk.shard()).is_draining && !chunk.is_jumbo;
            !found.model.chunks.iter().any(|chunk| is_draining(&chunk))
        };
        assert!(!is_drained(&found));
        let (rounds, moves) = found.settle(3000);
        println!("{by:?}: {moves} moves in {rounds} rounds");
        assert!(is_drained(&found));
        found.check_settled();
    }
}
