//! First chunks: each rule by examples, and what holds of all of them by random ones.

use pinion_bson::{RawBson, rawdoc};
use pinion_clock::Timestamp;

use super::*;
use crate::chunk::ChunkRange;
use crate::testing::Rng;

const MIN: RawBson = RawBson::MinKey;
const MAX: RawBson = RawBson::MaxKey;

fn key(pattern: &RawDocument) -> ShardKeyPattern {
    ShardKeyPattern::parse(pattern).expect("a pattern")
}

fn ids(names: &[&str]) -> Vec<ShardId> {
    names.iter().map(|name| ShardId::new(name)).collect()
}

fn zone(name: &str, min: RawDocumentBuf, max: RawDocumentBuf, shards: &[&str]) -> Zone {
    Zone {
        name: name.to_owned(),
        min,
        max,
        shards: ids(shards),
    }
}

/// A request for an empty collection on shards `a`, `b` and `c`.
struct Case {
    key: ShardKeyPattern,
    primary: ShardId,
    shards: Vec<ShardId>,
    zones: Vec<Zone>,
}

impl Case {
    fn new(pattern: &RawDocument) -> Case {
        Case {
            key: key(pattern),
            primary: "b".into(),
            shards: ids(&["a", "b", "c"]),
            zones: Vec::new(),
        }
    }

    fn with(pattern: &RawDocument, zones: Vec<Zone>) -> Case {
        Case {
            zones,
            ..Case::new(pattern)
        }
    }

    fn request(&self) -> InitialSplit<'_> {
        InitialSplit {
            key: &self.key,
            primary: &self.primary,
            shards: &self.shards,
            zones: &self.zones,
            is_empty: true,
            chunks: None,
            presplits_hashed_zones: false,
            points: None,
        }
    }
}

fn presplit_of(case: &Case, chunks: Option<u64>) -> InitialSplit<'_> {
    InitialSplit {
        presplits_hashed_zones: true,
        chunks,
        ..case.request()
    }
}

#[track_caller]
fn check(request: &InitialSplit<'_>, expected: &[(RawDocumentBuf, &str)]) {
    let chunks = initial_chunks(request).expect("chunks");
    let found: Vec<(RawDocumentBuf, &str)> = chunks
        .iter()
        .map(|chunk| (chunk.min.clone(), chunk.shard.as_str()))
        .collect();
    assert_eq!(found, expected);
}

#[track_caller]
fn check_refused(request: &InitialSplit<'_>, code: i32, text: &str) {
    let error = initial_chunks(request).expect_err("refused");
    assert_eq!(error.code.0, code, "{error}");
    assert!(error.message.contains(text), "{error}");
}

#[test]
fn one_chunk_on_the_primary_shard() {
    let expected = [(rawdoc! { "a": MIN }, "b")];
    check(&Case::new(&rawdoc! { "a": 1 }).request(), &expected);
    let hashed = Case::new(&rawdoc! { "a": "hashed" });
    let full = InitialSplit {
        is_empty: false,
        ..hashed.request()
    };
    check(&full, &expected);
    let points = [rawdoc! { "a": 5 }];
    let ranged = Case::new(&rawdoc! { "a": 1 });
    let full = InitialSplit {
        is_empty: false,
        points: Some(&points),
        ..ranged.request()
    };
    check(&full, &expected);
    let compound = Case::new(&rawdoc! { "a": 1, "b": "hashed" });
    check(
        &compound.request(),
        &[(rawdoc! { "a": MIN, "b": MIN }, "b")],
    );
    let zones = vec![zone("z", rawdoc! { "a": 1 }, rawdoc! { "a": 2 }, &[])];
    let zoned = Case::with(&rawdoc! { "a": 1 }, zones);
    let full = InitialSplit {
        is_empty: false,
        ..zoned.request()
    };
    check(&full, &expected);
}

#[test]
fn split_points_that_are_given() {
    let case = Case::new(&rawdoc! { "a": 1 });
    let points = [9, 3, 5, 3, 7].map(|at| rawdoc! { "a": at });
    let request = InitialSplit {
        points: Some(&points),
        ..case.request()
    };
    let expected = [
        (rawdoc! { "a": MIN }, "a"),
        (rawdoc! { "a": 3 }, "b"),
        (rawdoc! { "a": 5 }, "c"),
        (rawdoc! { "a": 7 }, "a"),
        (rawdoc! { "a": 9 }, "b"),
    ];
    check(&request, &expected);
    let other = [rawdoc! { "b": 3 }];
    let request = InitialSplit {
        points: Some(&other),
        ..case.request()
    };
    check_refused(&request, 2, "no bound of the shard key pattern");
}

#[test]
fn hashes_are_symmetric() {
    assert!(hashes(0).is_empty());
    assert!(hashes(1).is_empty());
    assert_eq!(hashes(2), [0]);
    assert_eq!(
        hashes(3),
        [-3_074_457_345_618_258_602, 3_074_457_345_618_258_602]
    );
    assert_eq!(
        hashes(4),
        [-4_611_686_018_427_387_902, 0, 4_611_686_018_427_387_902]
    );
    for chunks in (1..300).chain([8191, 8192, 999_999, 1_000_000]) {
        let hashes = hashes(chunks);
        assert_eq!(hashes.len(), chunks - 1);
        assert!(hashes.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(
            hashes
                .iter()
                .zip(hashes.iter().rev())
                .all(|(one, other)| *one == -other)
        );
    }
}

#[test]
fn hashed_keys() {
    let case = Case::new(&rawdoc! { "a": "hashed" });
    let third = 3_074_457_345_618_258_602i64;
    let expected = [
        (rawdoc! { "a": MIN }, "a"),
        (rawdoc! { "a": -third }, "b"),
        (rawdoc! { "a": third }, "c"),
    ];
    check(&case.request(), &expected);
    let seven = InitialSplit {
        chunks: Some(7),
        ..case.request()
    };
    let owners: Vec<ShardId> = initial_chunks(&seven)
        .expect("chunks")
        .into_iter()
        .map(|chunk| chunk.shard)
        .collect();
    assert_eq!(owners, ids(&["a", "a", "b", "b", "c", "c", "a"]));
    let compound = Case::new(&rawdoc! { "a": "hashed", "b": 1 });
    let two = InitialSplit {
        chunks: Some(2),
        ..compound.request()
    };
    let expected = [
        (rawdoc! { "a": MIN, "b": MIN }, "a"),
        (rawdoc! { "a": 0i64, "b": MIN }, "b"),
    ];
    check(&two, &expected);
}

#[test]
fn numbers_of_chunks_that_are_refused() {
    let hashed = Case::new(&rawdoc! { "a": "hashed" });
    let chunks = |case: &'static str, pattern: RawDocumentBuf, chunks, is_empty| {
        let case_of = Case::new(&pattern);
        let request = InitialSplit {
            chunks: Some(chunks),
            is_empty,
            ..case_of.request()
        };
        check_refused(&request, 72, case);
    };
    chunks(
        "numInitialChunks cannot be more than either: 24576, 8192 * number of shards; or 1000000",
        rawdoc! { "a": "hashed" },
        24_577,
        true,
    );
    let empty = "only supported when the collection is empty and has a hashed field";
    chunks(empty, rawdoc! { "a": 1 }, 2, true);
    chunks(empty, rawdoc! { "a": "hashed" }, 2, false);
    chunks(
        "can only be used when the 'presplitHashedZones' is true",
        rawdoc! { "a": 1, "b": "hashed" },
        2,
        true,
    );
    let many = Case {
        shards: (0..200).map(|at| ShardId::new(&format!("s{at}"))).collect(),
        ..Case::new(&rawdoc! { "a": "hashed" })
    };
    let request = InitialSplit {
        chunks: Some(1_000_001),
        ..many.request()
    };
    check_refused(&request, 72, "or 1000000");
    let request = InitialSplit {
        chunks: Some(1_000_000),
        ..many.request()
    };
    assert_eq!(initial_chunks(&request).expect("chunks").len(), 1_000_000);
    let nowhere = Case {
        shards: Vec::new(),
        ..hashed
    };
    check_refused(&nowhere.request(), 70, "No non-draining shard found");
}

#[test]
fn zones_and_gaps() {
    let zones = vec![
        zone("eu", rawdoc! { "a": 20 }, rawdoc! { "a": 30 }, &["c", "a"]),
        zone("us", rawdoc! { "a": MIN }, rawdoc! { "a": 10 }, &["b"]),
        zone("eu", rawdoc! { "a": 30 }, rawdoc! { "a": 40 }, &["c", "a"]),
        zone("eu", rawdoc! { "a": 50 }, rawdoc! { "a": 60 }, &["c", "a"]),
    ];
    let case = Case::with(&rawdoc! { "a": 1 }, zones);
    let expected = [
        (rawdoc! { "a": MIN }, "b"),
        (rawdoc! { "a": 10 }, "a"),
        (rawdoc! { "a": 20 }, "c"),
        (rawdoc! { "a": 30 }, "a"),
        (rawdoc! { "a": 40 }, "b"),
        (rawdoc! { "a": 50 }, "c"),
        (rawdoc! { "a": 60 }, "c"),
    ];
    check(&case.request(), &expected);
    let points = [rawdoc! { "a": 3 }];
    let request = InitialSplit {
        points: Some(&points),
        ..case.request()
    };
    check_refused(
        &request,
        72,
        "Cannot have both initial split points and tags set",
    );
}

#[test]
fn zones_that_are_refused() {
    let refused = |pattern: RawDocumentBuf, min, max, shards: &[&str], code, text: &str| {
        let case = Case::with(&pattern, vec![zone("z", min, max, shards)]);
        check_refused(&case.request(), code, text);
    };
    let a = |value: i32| rawdoc! { "a": value };
    refused(
        rawdoc! { "a": 1 },
        a(1),
        a(2),
        &[],
        405,
        "not able to find a chunk distribution",
    );
    refused(
        rawdoc! { "a": 1 },
        a(1),
        rawdoc! { "b": 1 },
        &["a"],
        72,
        "the min and max of the existing zone { a: 1 } -->> { b: 1 } have non-matching keys",
    );
    refused(
        rawdoc! { "a": 1, "b": 1 },
        a(1),
        a(2),
        &["a"],
        72,
        "the proposed shard key { a: 1, b: 1 } does not match with the shard key of the existing \
         zone { a: 1 } -->> { a: 2 }",
    );
    refused(
        rawdoc! { "a": "hashed" },
        a(1),
        a(2),
        &["a"],
        72,
        "whose boundaries are not of type NumberLong, MinKey or MaxKey",
    );
    refused(rawdoc! { "a": 1 }, a(2), a(2), &["a"], 2, "is empty");
    let zones = vec![zone("x", a(5), a(9), &["a"]), zone("y", a(1), a(6), &["a"])];
    let case = Case::with(&rawdoc! { "a": 1 }, zones);
    let text = "Zone range: { a: 5 } -->> { a: 9 }  on  x is overlapping with existing: \
        { a: 1 } -->> { a: 6 }  on  y";
    check_refused(&case.request(), 178, text);
}

#[test]
fn presplit_zones() {
    let bounds = |country: &str, end: &str| {
        let min = rawdoc! { "c": country, "h": MIN };
        (min, rawdoc! { "c": end, "h": MIN })
    };
    let (us, us_end) = bounds("us", "ut");
    let (de, de_end) = bounds("de", "df");
    let zones = vec![
        zone("us", us.clone(), us_end.clone(), &["a", "b"]),
        zone("eu", de.clone(), de_end.clone(), &["c"]),
    ];
    let case = Case::with(&rawdoc! { "c": 1, "h": "hashed" }, zones);
    let expected = [
        (rawdoc! { "c": MIN, "h": MIN }, "a"),
        (de.clone(), "c"),
        (de_end.clone(), "b"),
        (us.clone(), "a"),
        (rawdoc! { "c": "us", "h": 0i64 }, "b"),
        (us_end.clone(), "c"),
    ];
    check(&presplit_of(&case, None), &expected);
    // Two chunks on each shard, of which the third one has one range.
    let chunks = initial_chunks(&presplit_of(&case, Some(5))).expect("chunks");
    let owners: Vec<&str> = chunks.iter().map(|chunk| &*chunk.shard).collect();
    assert_eq!(owners, ["a", "c", "c", "b", "a", "a", "b", "b", "c"]);

    let all = vec![zone(
        "z",
        rawdoc! { "h": MIN },
        rawdoc! { "h": MAX },
        &["c", "a"],
    )];
    let case = Case::with(&rawdoc! { "h": "hashed" }, all);
    let expected = [(rawdoc! { "h": MIN }, "c"), (rawdoc! { "h": 0i64 }, "a")];
    check(&presplit_of(&case, None), &expected);
}

#[test]
fn presplits_that_are_refused() {
    let refused = |pattern: RawDocumentBuf, zones: Vec<Zone>, code, text: &str| {
        let case = Case::with(&pattern, zones);
        check_refused(&presplit_of(&case, None), code, text);
    };
    let part = zone("z", rawdoc! { "h": MIN }, rawdoc! { "h": 0i64 }, &["a"]);
    let ranged = zone("z", rawdoc! { "a": 1 }, rawdoc! { "a": 2 }, &["a"]);
    let all = "is only supported when the collection is empty, zones are set up";
    refused(rawdoc! { "h": "hashed" }, vec![], 31_387, all);
    refused(rawdoc! { "a": 1 }, vec![ranged], 31_387, all);
    refused(
        rawdoc! { "h": "hashed" },
        vec![part],
        31_412,
        "a single zone defined which covers entire shard key range",
    );
    let pattern = rawdoc! { "a": 1, "h": "hashed", "s": 1 };
    let three = |a: RawBson, h: RawBson, s: RawBson| rawdoc! { "a": a, "h": h, "s": s };
    let one = RawBson::Int32(1);
    let long = RawBson::Int64(1);
    let end = three(RawBson::Int32(2), MIN, MIN);
    for (min, max, code, text) in [
        (
            three(MIN, MIN, MIN),
            &end,
            31_388,
            "Cannot have MinKey or MaxKey in the lower bound",
        ),
        (
            three(one.clone(), MIN, MIN),
            &three(RawBson::Double(1.0), MAX, MAX),
            31_390,
            "should be greater than that of lower bound, for zone z",
        ),
        (
            three(one.clone(), long, MIN),
            &end,
            31_389,
            "for lower bound must be MinKey, for zone z",
        ),
        (
            three(one.clone(), MIN, one.clone()),
            &end,
            31_391,
            "after the hashed field must have",
        ),
    ] {
        let zones = vec![zone("z", min, max.clone(), &["a"])];
        refused(pattern.clone(), zones, code, text);
    }
}

#[test]
fn shards_of_zones() {
    let shard = |id: &str, tags: &[&str], is_draining| ShardDocument {
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        is_draining,
        ..ShardDocument::new(id.into(), String::new(), Timestamp::MIN)
    };
    let tag = TagDocument {
        id: RawBson::Int32(1),
        ns: pinion_wire::idl::Namespace::new("d", "c").expect("a name"),
        zone: "z".to_owned(),
        min: rawdoc! { "a": 1 },
        max: rawdoc! { "a": 2 },
        other: RawDocumentBuf::new(),
    };
    let shards = [
        shard("a", &["y", "z"], false),
        shard("b", &["y"], false),
        shard("c", &["z"], true),
    ];
    let expected = zone("z", rawdoc! { "a": 1 }, rawdoc! { "a": 2 }, &["a"]);
    assert_eq!(Zone::new(&tag, &shards), expected);
}

fn random_bound(rng: &mut Rng, key: &ShardKeyPattern, has_hash: bool) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    let hashed_at = key.hashed_at();
    for (at, path) in key.paths().enumerate() {
        let value = match (rng.below(8), hashed_at) {
            (0, _) => MIN,
            (1, _) => MAX,
            (_, Some(hashed)) if at >= hashed && !has_hash => MIN,
            (_, Some(hashed)) if at == hashed => RawBson::Int64(rng.next() as i64 - (1 << 40)),
            _ => RawBson::Int32(rng.below(20) as i32),
        };
        out.append_raw(path, value.as_raw_bson_ref());
    }
    out.finish()
}

/// Zones whose bounds are random points in their order.
fn random_zones(rng: &mut Rng, key: &ShardKeyPattern, shards: &[ShardId]) -> Vec<Zone> {
    let has_hash = rng.below(2) == 0;
    let bounds = (0..rng.below(12)).map(|_| random_bound(rng, key, has_hash));
    let mut bounds: Vec<KeyBytes> = bounds
        .map(|bound| key.bound(&bound).expect("one"))
        .collect();
    bounds.sort();
    bounds.dedup();
    let mut zones = Vec::new();
    for pair in bounds.windows(2) {
        let mut of_zone: Vec<ShardId> = shards.to_vec();
        of_zone.retain(|_| rng.below(2) == 0);
        if rng.below(3) > 0 && !of_zone.is_empty() {
            zones.push(Zone {
                name: of_zone.iter().map(|shard| shard.as_str()).collect(),
                min: key.document(&pair[0]),
                max: key.document(&pair[1]),
                shards: of_zone,
            });
        }
    }
    zones
}

fn check_sound(request: &InitialSplit<'_>, chunks: &[InitialChunk]) {
    let key = request.key;
    let mins = chunks
        .iter()
        .map(|chunk| key.bound(&chunk.min).expect("a bound"));
    let ends = mins.clone().skip(1).chain([key.max()]);
    assert_eq!(mins.clone().next(), Some(key.min()));
    for (chunk, (min, max)) in chunks.iter().zip(mins.zip(ends)) {
        assert!(min < max, "{chunk:?}");
        assert!(request.shards.contains(&chunk.shard));
        let range = ChunkRange { min, max };
        for zone in request.zones.iter().filter(|_| request.is_empty) {
            let of_zone = ChunkRange {
                min: key.bound(&zone.min).expect("a bound"),
                max: key.bound(&zone.max).expect("a bound"),
            };
            if range.overlaps(&of_zone) {
                assert!(of_zone.covers(&range), "{chunk:?} crosses {zone:?}");
                assert!(
                    zone.shards.contains(&chunk.shard),
                    "{chunk:?} is not in {zone:?}"
                );
            }
        }
    }
}

#[test]
fn no_gap_no_overlap_and_zones_are_obeyed() {
    let patterns = [
        rawdoc! { "a": 1 },
        rawdoc! { "a": "hashed" },
        rawdoc! { "a": 1, "b": 1 },
        rawdoc! { "a": 1, "b": "hashed" },
        rawdoc! { "a": "hashed", "b": 1 },
        rawdoc! { "a": 1, "b": "hashed", "c": 1 },
    ];
    let (mut several, mut presplit) = (0, 0);
    for seed in 1..20_000 {
        let mut rng = Rng::new(seed);
        let key = key(&patterns[rng.below(patterns.len())]);
        let all = ids(&["a", "b", "c", "d", "e"]);
        let shards = all[..1 + rng.below(5)].to_vec();
        let zones = match rng.below(2) {
            0 => random_zones(&mut rng, &key, &shards),
            _ => Vec::new(),
        };
        let points = (0..rng.below(9)).map(|_| random_bound(&mut rng, &key, true));
        let points: Vec<RawDocumentBuf> = points.collect();
        let request = InitialSplit {
            key: &key,
            primary: &shards[rng.below(shards.len())],
            shards: &shards,
            zones: &zones,
            is_empty: rng.below(5) > 0,
            chunks: (rng.below(3) == 0).then(|| rng.below(40) as u64),
            presplits_hashed_zones: rng.below(3) == 0,
            points: (rng.below(5) == 0).then_some(&*points),
        };
        let Ok(chunks) = initial_chunks(&request) else {
            continue;
        };
        check_sound(&request, &chunks);
        several += usize::from(chunks.len() > 1);
        presplit += usize::from(request.presplits_hashed_zones);
    }
    assert!(several > 2_000 && presplit > 100, "{several}, {presplit}");
}
