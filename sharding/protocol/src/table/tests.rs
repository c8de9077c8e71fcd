//! Tables against a vector of chunks: random splits, moves and merges, refreshed by increments.

use std::collections::BTreeMap;

use pinion_bson::{RawBson, rawdoc};

use super::*;
use crate::documents::ChunkDocument;
use crate::testing::{HIGHEST, LOWEST, Model, Rng, bound};

const SHARDS: [&str; 4] = ["s0", "s1", "s2", "s3"];
/// Keys of the model are in this range.
const KEYS: i64 = 1000;

fn table(model: &Model) -> RoutingTable {
    let all = model.chunks.iter().map(|chunk| chunk.document());
    RoutingTable::new(&model.collection(), all).expect("a table")
}

fn key(table: &RoutingTable, value: i64) -> KeyBytes {
    table.key.bound(&bound(value)).expect("a key")
}

/// One random change.
fn change(model: &mut Model, rng: &mut Rng) {
    let at = rng.below(model.chunks.len());
    let chunk = &model.chunks[at];
    match rng.below(4) {
        0 | 1 => {
            let (low, high) = (chunk.min.max(-KEYS), chunk.max.min(KEYS));
            let mut keys: Vec<i64> = (0..1 + rng.below(4))
                .map(|_| low + 1 + rng.below((high - low).max(1) as usize) as i64)
                .filter(|key| chunk.min < *key && *key < chunk.max)
                .collect();
            keys.sort_unstable();
            keys.dedup();
            if !keys.is_empty() {
                model.split(at, &keys);
            }
        }
        2 => {
            let to = SHARDS[rng.below(SHARDS.len())];
            if chunk.shard() != to {
                model.move_chunk(at, to);
            }
        }
        _ => {
            let same = |other: &&crate::testing::ModelChunk| other.shard() == chunk.shard();
            let run = model.chunks[at..].iter().take_while(same).count();
            if run > 1 {
                model.merge(at, at + 1 + rng.below(run - 1));
            }
        }
    }
}

#[track_caller]
fn check_equal(table: &RoutingTable, model: &Model, rng: &mut Rng) {
    let found: Vec<(RawDocumentBuf, RawDocumentBuf, &str, Timestamp)> = table
        .chunks()
        .map(|chunk| {
            let [min, max] = [&chunk.range.min, &chunk.range.max].map(|k| table.key.document(k));
            (min, max, table.shard(chunk.shard).as_str(), chunk.placement)
        })
        .collect();
    let expected: Vec<(RawDocumentBuf, RawDocumentBuf, &str, Timestamp)> = model
        .chunks
        .iter()
        .map(|c| (bound(c.min), bound(c.max), c.shard(), c.version.placement()))
        .collect();
    assert_eq!(found, expected);
    assert_eq!(table.version(), model.version());
    for shard in SHARDS {
        let of_shard = model.chunks.iter().filter(|chunk| chunk.shard() == shard);
        let highest = of_shard.clone().map(|chunk| chunk.version);
        let highest = highest.max_by_key(|version| version.placement());
        let expected = highest.unwrap_or(ChunkVersion::without_chunks(model.of));
        assert_eq!(
            table.shard_version(shard),
            ShardVersion::Placed(expected),
            "{shard}"
        );
        let count = table
            .shard_of_name(shard)
            .map_or(0, |at| table.chunks_of(at));
        assert_eq!(count, of_shard.count());
    }
    for _ in 0..20 {
        check_reads(table, model, rng);
    }
}

fn check_reads(table: &RoutingTable, model: &Model, rng: &mut Rng) {
    let value = rng.below(2 * KEYS as usize) as i64 - KEYS;
    let at = Timestamp::new(rng.below(model.now.secs() as usize + 3) as u32, 0);
    let owner_then = |chunk: &crate::testing::ModelChunk| {
        let entry = chunk.history.iter().find(|(since, _)| *since <= at);
        entry.map(|(_, shard)| shard.clone())
    };
    let chunk = &model.chunks[model.chunk_of(value)];
    let name = |at| table.shard(at).to_string();
    let owner = |at| table.owner(&key(table, value), at).map(name).ok();
    assert_eq!(owner(None).as_deref(), Some(chunk.shard()));
    assert_eq!(owner(Some(at)), owner_then(chunk), "{value} at {at}");

    let width = 1 + rng.below(300) as i64;
    let range = ChunkRange {
        min: key(table, value),
        max: key(table, value + width),
    };
    let overlapped =
        |chunk: &&crate::testing::ModelChunk| chunk.min < value + width && value < chunk.max;
    let chunks: Vec<_> = model.chunks.iter().filter(overlapped).collect();
    let names = |found: BTreeSet<ShardIdx>| -> BTreeSet<String> {
        found
            .into_iter()
            .map(|at| table.shard(at).to_string())
            .collect()
    };
    let found = table
        .shards_of(std::slice::from_ref(&range), None)
        .map(names)
        .ok();
    assert_eq!(
        found,
        Some(chunks.iter().map(|c| c.shard().to_owned()).collect())
    );
    let found = table.shards_of(&[range], Some(at)).map(names).ok();
    assert_eq!(
        found,
        chunks.iter().map(|chunk| owner_then(chunk)).collect()
    );
}

#[test]
fn increments_against_a_vector() {
    for seed in 1..=60 {
        let mut rng = Rng::new(seed);
        let mut model = Model::new(1, 10, "s0");
        let mut current = table(&model);
        let mut former: Vec<RoutingTable> = Vec::new();
        for round in 0..30 {
            for _ in 0..rng.below(8) {
                change(&mut model, &mut rng);
            }
            let mut changes = model.changes(current.version());
            if rng.below(2) == 0 {
                changes.reverse();
            }
            former.push(current.clone());
            let next = current.apply(&model.collection(), changes);
            current = next.unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            check_equal(&current, &model, &mut rng);
        }
        // From any earlier table to the last in one step.
        for table in former.iter().step_by(7) {
            let changes = model.changes(table.version());
            let next = table.apply(&model.collection(), changes).expect("a table");
            check_equal(&next, &model, &mut rng);
        }
        check_equal(&table(&model), &model, &mut rng);
    }
}

#[test]
fn former_tables_stay() {
    let mut model = Model::new(1, 10, "s0");
    let mut rng = Rng::new(7);
    model.split(0, &[-10, 10]);
    let (before, as_it_was) = (table(&model), model.clone());
    model.move_chunk(1, "s1");
    let after = before
        .apply(&model.collection(), model.changes(before.version()))
        .expect("a table");
    check_equal(&before, &as_it_was, &mut rng);
    check_equal(&after, &model, &mut rng);
}

#[test]
fn what_is_no_table() {
    let mut model = Model::new(1, 10, "s0");
    model.split(0, &[-10, 10]);
    let documents: Vec<ChunkDocument> = model.chunks.iter().map(|c| c.document()).collect();
    let check = |documents: Vec<ChunkDocument>, expected: &str| {
        let error = RoutingTable::new(&model.collection(), documents).expect_err(expected);
        assert!(error.to_string().contains(expected), "{error}");
        error
    };
    let gap = "Gap exists in the routing table of d.c";
    check(Vec::new(), gap);
    for missing in 0..3 {
        let mut some = documents.clone();
        some.remove(missing);
        let error = check(some, gap);
        assert!(matches!(&error, TableError::Inconsistent(_)));
        assert_eq!(pinion_wire::Error::from(error).code.0, 117);
    }
    let with = |at: usize, change: &dyn Fn(&mut ChunkDocument)| {
        let mut changed = documents.clone();
        change(&mut changed[at]);
        changed
    };
    // An overlap by a newer chunk leaves a gap, where the older one is not whole any more.
    let overlap = with(1, &|chunk| chunk.min = bound(-20));
    check(overlap, gap);
    let other = with(1, &|chunk| {
        chunk.of = crate::documents::ChunkOf::Uuid(pinion_bson::Uuid::from_bytes([9; 16]));
    });
    assert!(matches!(
        check(other, "another incarnation"),
        TableError::OtherIncarnation(_)
    ));
    // The key has become finer between the two reads.
    let finer = with(1, &|chunk| {
        chunk.min = pinion_bson::rawdoc! { "a": 1, "b": 1 };
    });
    assert!(matches!(
        check(finer, "is of another shard key"),
        TableError::Inconsistent(_)
    ));
    let empty = with(1, &|chunk| chunk.max = chunk.min.clone());
    assert!(matches!(check(empty, "is empty"), TableError::Malformed(_)));
    check(
        with(1, &|chunk| chunk.placement = Timestamp::MIN),
        "has no version",
    );
    check(with(1, &|chunk| chunk.min = rawdoc! { "b": 1 }), "no bound");
}

#[test]
fn a_read_that_saw_a_split_twice() {
    let mut model = Model::new(1, 10, "s0");
    model.split(0, &[0]);
    let mut seen: Vec<ChunkDocument> = model.chunks.iter().map(|c| c.document()).collect();
    model.split(1, &[50]);
    seen.extend(model.chunks.iter().map(|c| c.document()));
    let found = RoutingTable::new(&model.collection(), seen).expect("a table");
    check_equal(&found, &model, &mut Rng::new(3));
}

#[test]
fn a_refresh_never_goes_back() {
    let mut model = Model::new(1, 10, "s0");
    model.split(0, &[0]);
    let old = model.clone();
    model.move_chunk(0, "s1");
    let current = table(&model);
    // From a config server that is behind: nothing changes.
    let all = old.chunks.iter().map(|chunk| chunk.document());
    let found = current.apply(&old.collection(), all).expect("a table");
    check_equal(&found, &model, &mut Rng::new(3));
    // Half of a change.
    model.split(1, &[5, 6]);
    let mut changes = model.changes(current.version());
    changes.pop();
    let error = current
        .apply(&model.collection(), changes)
        .expect_err("a gap");
    assert!(matches!(error, TableError::Inconsistent(_)));
}

#[test]
fn another_incarnation_is_no_increment() {
    let model = Model::new(1, 10, "s0");
    let again = Model::new(2, 20, "s0");
    let current = table(&model);
    let error = current.apply(&again.collection(), again.changes(again.version()));
    assert!(matches!(error, Err(TableError::OtherIncarnation(_))));
    // The same epoch under another key cannot be.
    let mut other = model.collection();
    other.key = rawdoc! { "a": 1, "b": 1 };
    let error = current.apply(&other, Vec::new());
    assert!(matches!(error, Err(TableError::OtherIncarnation(_))));
}

#[test]
fn options_are_those_of_the_last_document() {
    let model = Model::new(1, 10, "s0");
    let current = table(&model);
    let mut document = model.collection();
    document.permits_migrations = false;
    document.max_chunk_size_bytes = Some(7);
    let found = current.apply(&document, Vec::new()).expect("a table");
    assert!(current.allows_migrations && !found.allows_migrations);
    assert_eq!(found.max_chunk_size_bytes, Some(7));
    assert_eq!(found.version(), current.version());
}

/// Incomplete documents of a donor whose control chunk is missing: its version is looked for.
#[test]
fn a_donor_without_a_control_chunk() {
    let mut model = Model::new(1, 10, "s0");
    model.split(0, &[0, 10]);
    let current = table(&model);
    let last = model.chunks.len() - 1;
    let moved = model.version().moved();
    model.chunks[last].version = moved.migrated;
    model.chunks[last]
        .history
        .insert(0, (Timestamp::new(11, 0), "s1".into()));
    model.now = Timestamp::new(11, 0);
    let changes = model.changes(current.version());
    let found = current
        .apply(&model.collection(), changes)
        .expect("a table");
    check_equal(&found, &model, &mut Rng::new(3));
}

#[test]
fn the_ends_of_the_key_space() {
    let mut model = Model::new(1, 10, "s0");
    model.split(0, &[0]);
    model.move_chunk(1, "s1");
    let found = table(&model);
    let owner = |value| {
        found
            .shard(found.owner(&key(&found, value), None).expect("now"))
            .as_str()
    };
    assert_eq!(
        (owner(LOWEST), owner(-1), owner(0), owner(HIGHEST)),
        ("s0", "s0", "s1", "s1")
    );
    let top = found
        .key
        .key_of(&rawdoc! { "a": RawBson::MaxKey })
        .expect("a key");
    let range = found
        .key
        .range_of_filter(&rawdoc! { "a": RawBson::MaxKey }, true);
    let shards = found
        .shards_of(&[range.expect("a range")], None)
        .expect("now");
    assert_eq!(
        shards
            .into_iter()
            .map(|s| found.shard(s).as_str())
            .collect::<Vec<_>>(),
        ["s1"]
    );
    assert_eq!(found.chunk_of(&top).range.max, top);
}

#[test]
fn a_split_or_a_merge_makes_no_router_stale() {
    // Trap 33.
    let mut model = Model::new(1, 10, "s0");
    model.split(0, &[0, 10]);
    model.move_chunk(1, "s1");
    let before = table(&model);
    model.split(1, &[3, 5, 7]);
    model.merge(2, 3);
    let split = table(&model);
    assert_eq!(before.version().is_older_than(split.version()), Some(true));
    for shard in SHARDS {
        assert!(
            before
                .shard_version(shard)
                .is_placement_equal(split.shard_version(shard))
        );
    }
    model.move_chunk(0, "s2");
    let moved = table(&model);
    let is_served = |shard| {
        split
            .shard_version(shard)
            .is_placement_equal(moved.shard_version(shard))
    };
    // Those of the donor and the recipient are refused, all others served.
    assert_eq!(SHARDS.map(is_served), [false, true, false, true]);
}

#[test]
fn ranges_that_are_not_owned() {
    let mut model = Model::new(1, 10, "s0");
    model.split(0, &[0, 10, 20, 30]);
    model.move_chunk(1, "s1");
    model.move_chunk(2, "s2");
    model.move_chunk(4, "s1");
    let found = table(&model);
    let shard = |name| found.shard_of_name(name).expect("known");
    let next = |name, from| {
        let range = found.next_range_not_owned(shard(name), &key(&found, from))?;
        Some([&range.min, &range.max].map(|k| found.key.document(k)))
    };
    assert_eq!(next("s0", LOWEST), Some([bound(0), bound(20)]));
    assert_eq!(next("s0", 5), Some([bound(5), bound(20)]));
    assert_eq!(next("s0", 20), Some([bound(30), bound(HIGHEST)]));
    assert_eq!(next("s1", 30), None);
    assert_eq!(next("s1", LOWEST), Some([bound(LOWEST), bound(0)]));
}

#[test]
fn history_that_is_missing() {
    let model = Model::new(1, 10, "s0");
    let mut document = model.chunks[0].document();
    document.history.clear();
    let found = RoutingTable::new(&model.collection(), [document]).expect("a table");
    let any = key(&found, 1);
    let error = found
        .owner(&any, Some(Timestamp::new(90, 0)))
        .expect_err("unknown");
    assert_eq!(error.code.0, 250);
    assert!(found.owner(&any, None).is_ok());
    let mut counts: BTreeMap<bool, usize> = BTreeMap::new();
    for at in [None, Some(Timestamp::new(90, 0))] {
        *counts.entry(found.all_shards(at).is_ok()).or_default() += 1;
    }
    assert_eq!(counts, BTreeMap::from([(false, 1), (true, 1)]));
}
