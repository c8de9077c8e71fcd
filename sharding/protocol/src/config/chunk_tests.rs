//! Splits, merges and flags of chunks: decided on a few chunks, and applied to them.

use pinion_bson::{ObjectId, RawBson, RawDocumentBuf, Uuid};
use pinion_clock::Timestamp;
use pinion_wire::Result;

use super::*;
use crate::balancer::Zones;
use crate::documents::{ChunkDocument, OwnerSince, TagDocument};
use crate::table::RoutingTable;
use crate::testing::{HIGHEST, LOWEST, Model, ModelChunk, UUID, bound};
use crate::version::ChunkVersion;

/// `[..0) s0, [0..10) s0, [10..) s1` with the versions 1|0, 1|1, 2|0.
fn chunks() -> Vec<ChunkDocument> {
    let of = Model::new(1, 10, "s0").of;
    let chunk = |min, max, major, minor, history: &[(u32, &str)]| {
        let owners = history.iter();
        let owners = owners.map(|(secs, shard)| (Timestamp::new(*secs, 1), (*shard).to_owned()));
        let chunk = ModelChunk {
            min,
            max,
            version: ChunkVersion::from_placement(of, Timestamp::new(major, minor)),
            history: owners.collect(),
            is_jumbo: false,
        };
        let since = chunk.history[0].0;
        ChunkDocument {
            id: RawBson::Int64(min),
            on_current_shard_since: Some(since),
            ..chunk.document()
        }
    };
    vec![
        chunk(LOWEST, 0, 1, 0, &[(5, "s0")]),
        chunk(0, 10, 1, 1, &[(7, "s0"), (5, "s1")]),
        chunk(10, HIGHEST, 2, 0, &[(8, "s1"), (5, "s0")]),
    ]
}

fn collection() -> CommittedCollection {
    let document = Model::new(1, 10, "s0").collection();
    CommittedCollection {
        version: ChunkVersion::from_placement(document.of, Timestamp::new(2, 0)),
        document,
    }
}

fn ids() -> impl FnMut() -> ObjectId {
    let mut next = 0;
    move || {
        next += 1;
        ObjectId::from_bytes([next; 12])
    }
}

fn split(min: i64, max: i64, points: &[i64], shard: &str) -> SplitRequest {
    let document = Model::new(1, 10, "s0").collection();
    SplitRequest {
        ns: document.ns,
        epoch: document.of.epoch,
        timestamp: Some(document.of.timestamp),
        min: bound(min),
        max: bound(max),
        points: points.iter().map(|point| bound(*point)).collect(),
        shard: shard.into(),
    }
}

fn overlapping(min: i64, max: i64) -> Vec<ChunkDocument> {
    // As the filter of the command selects them.
    let key = collection().key().expect("a key");
    let key_of = |bound: &RawDocumentBuf| key.bound(bound).expect("a bound");
    let (min, max) = (key_of(&bound(min)), key_of(&bound(max)));
    let all = chunks().into_iter();
    all.filter(|chunk| key_of(&chunk.min) < max && key_of(&chunk.max) > min)
        .collect()
}

/// The chunks after a change.
fn applied(change: &ChunkChange) -> Vec<ChunkDocument> {
    let mut all = chunks();
    all.retain(|chunk| !change.removed.contains(&chunk.id));
    let replaced = all.iter_mut().find(|chunk| chunk.id == change.replaced.id);
    *replaced.expect("it is there") = change.replaced.clone();
    all.extend(change.inserted.iter().cloned());
    let table = RoutingTable::new(&collection().document, all.clone()).expect("a table");
    assert_eq!(table.version(), change.version);
    all
}

fn decided(request: &SplitRequest, chunks: &[ChunkDocument]) -> Result<Option<ChunkChange>> {
    request.decide(&collection(), chunks, ids())
}

#[test]
fn parts_of_a_split() {
    let request = split(0, 10, &[3, 6], "s0");
    let change = decided(&request, &overlapping(0, 10))
        .expect("decided")
        .expect("a change");
    let parts: Vec<&ChunkDocument> = [&change.replaced]
        .into_iter()
        .chain(&change.inserted)
        .collect();
    let bounds: Vec<_> = parts
        .iter()
        .map(|part| (part.min.clone(), part.max.clone()))
        .collect();
    let expected = [(0, 3), (3, 6), (6, 10)];
    assert_eq!(bounds, expected.map(|(min, max)| (bound(min), bound(max))));
    let versions: Vec<Timestamp> = parts.iter().map(|part| part.placement).collect();
    assert_eq!(versions, [1, 2, 3].map(|minor| Timestamp::new(2, minor)));
    assert_eq!(parts[0].id, RawBson::Int64(0));
    assert!(
        parts
            .iter()
            .all(|part| part.history == overlapping(0, 10)[0].history)
    );
    // Sent again.
    let again = applied(&change);
    let again: Vec<ChunkDocument> = again
        .into_iter()
        .filter(|chunk| bounds.contains(&(chunk.min.clone(), chunk.max.clone())))
        .collect();
    assert_eq!(decided(&request, &again).expect("decided"), None);
    let round = SplitRequest::parse(&request.to_bson()).expect("readable");
    assert_eq!(round.to_bson(), request.to_bson());
}

#[test]
fn splits_that_are_refused() {
    let check = |request: SplitRequest, code: i32| {
        let chunks = overlapping(0, 10);
        assert_eq!(
            decided(&request, &chunks).expect_err("refused").code.0,
            code
        );
    };
    check(split(0, 10, &[6, 3], "s0"), 72);
    check(split(0, 10, &[3, 3], "s0"), 72);
    check(split(0, 10, &[0], "s0"), 72);
    check(split(0, 10, &[10], "s0"), 72);
    check(split(0, 10, &[11], "s0"), 72);
    check(split(0, 10, &[5], "s1"), 105);
    check(split(0, 9, &[5], "s0"), 105);
    let other = SplitRequest {
        epoch: ObjectId::from_bytes([9; 12]),
        ..split(0, 10, &[5], "s0")
    };
    check(other, 150);
    let of_other_fields = SplitRequest {
        points: vec![pinion_bson::rawdoc! { "b": 5 }],
        ..split(0, 10, &[5], "s0")
    };
    check(of_other_fields, 2);
    let array = SplitRequest {
        points: vec![pinion_bson::rawdoc! { "a": [5] }],
        ..split(0, 10, &[5], "s0")
    };
    check(array, 2);
}

fn merge(min: i64, max: i64, shard: &str) -> MergeRequest {
    MergeRequest {
        ns: collection().document.ns,
        shard: shard.into(),
        uuid: UUID,
        min: bound(min),
        max: bound(max),
    }
}

#[test]
fn what_is_merged() {
    let request = merge(LOWEST, 10, "s0");
    let change = request.decide(&collection(), &overlapping(LOWEST, 10));
    let change = change.expect("decided").expect("a change");
    assert_eq!(change.removed, [RawBson::Int64(0)]);
    assert_eq!(change.version.placement(), Timestamp::new(2, 1));
    // One of the parts came at 7.
    let since = OwnerSince {
        valid_after: Timestamp::new(7, 1),
        shard: "s0".into(),
    };
    assert_eq!(change.replaced.history, [since]);
    assert_eq!(
        change.replaced.on_current_shard_since,
        Some(Timestamp::new(7, 1))
    );
    assert_eq!(applied(&change).len(), 2);
    // One chunk is merged already.
    let one = merge(0, 10, "s0").decide(&collection(), &overlapping(0, 10));
    assert_eq!(one.expect("decided"), None);
    let round = MergeRequest::parse(&request.to_bson()).expect("readable");
    assert_eq!(round.to_bson(), request.to_bson());
}

#[test]
fn merges_that_are_refused() {
    let check = |min, max, shard: &str, code: i32| {
        let decided = merge(min, max, shard).decide(&collection(), &overlapping(min, max));
        assert_eq!(decided.expect_err("refused").code.0, code);
    };
    check(LOWEST, HIGHEST, "s0", 20);
    check(LOWEST, 9, "s0", 20);
    check(-5, 10, "s0", 20);
    check(LOWEST, 10, "s1", 20);
    let other = MergeRequest {
        uuid: Uuid::from_bytes([9; 16]),
        ..merge(LOWEST, 10, "s0")
    };
    let decided = other.decide(&collection(), &overlapping(LOWEST, 10));
    assert_eq!(decided.expect_err("refused").code.0, 207);
}

#[test]
fn equal_histories_are_kept() {
    let mut parts = overlapping(LOWEST, 10);
    parts[0].history = parts[1].history.clone();
    let parts: Vec<&ChunkDocument> = parts.iter().collect();
    let change = merged(&parts, collection().version);
    assert_eq!(change.replaced.history, parts[1].history);
}

#[test]
fn runs_of_a_shard() {
    let key = collection().key().expect("a key");
    let check = |chunks: &[ChunkDocument], zones: &Zones, oldest, expected: &[(usize, usize)]| {
        let runs = mergeable_runs(&key, chunks, zones, Timestamp::new(oldest, 0)).expect("runs");
        let found: Vec<_> = runs.into_iter().map(|run| (run.start, run.end)).collect();
        assert_eq!(found, expected);
    };
    let of_s0 = overlapping(LOWEST, 10);
    let none = Zones::default();
    check(&of_s0, &none, 8, &[(0, 2)]);
    // A read may still ask for a time at which one of them was elsewhere.
    check(&of_s0, &none, 6, &[]);
    let mut together = of_s0.clone();
    together[0].history = together[1].history.clone();
    check(&together, &none, 0, &[(0, 2)]);
    let mut jumbo = together.clone();
    jumbo[1].is_jumbo = true;
    check(&jumbo, &none, 8, &[]);
    let tag = TagDocument {
        id: RawBson::Int32(1),
        ns: collection().document.ns,
        zone: "z".to_owned(),
        min: bound(0),
        max: bound(10),
        other: RawDocumentBuf::new(),
    };
    let zones = Zones::new(&[tag], &key).expect("zones");
    check(&together, &zones, 8, &[]);
    let apart = [together[0].clone(), chunks()[2].clone()];
    check(&apart, &none, 9, &[]);
}

#[test]
fn a_chunk_that_may_be_moved_again() {
    let document = collection().document;
    let request = ClearJumboRequest {
        ns: document.ns,
        epoch: document.of.epoch,
        min: bound(0),
        max: bound(10),
    };
    let mut found = overlapping(0, 10);
    assert_eq!(
        request.decide(&collection(), &found).expect("decided"),
        None
    );
    found[0].is_jumbo = true;
    let change = request
        .decide(&collection(), &found)
        .expect("decided")
        .expect("a change");
    assert!(!change.replaced.is_jumbo);
    assert_eq!(change.version.placement(), Timestamp::new(3, 0));
    let code = |found: &[ChunkDocument], request: &ClearJumboRequest| {
        request
            .decide(&collection(), found)
            .expect_err("refused")
            .code
            .0
    };
    assert_eq!(code(&[], &request), 105);
    assert_eq!(code(&overlapping(10, 20), &request), 105);
    let other = ClearJumboRequest {
        epoch: ObjectId::from_bytes([9; 12]),
        ..request
    };
    assert_eq!(code(&found, &other), 150);
}
