//! Small clusters with one thing wrong each.

use std::collections::BTreeSet;

use pinion_bson::{Binary, RawBson, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_clock::Timestamp;
use pinion_query::{Granularity, TimeSeries};
use pinion_wire::idl::Namespace;

use super::*;
use crate::documents::{CollectionDocument, DatabaseDocument};
use crate::shard_id::ShardId;
use crate::testing::{HIGHEST, LOWEST, Model, ModelChunk, UUID, bound};
use crate::values::bson_time;
use crate::version::{ChunkVersion, DatabaseVersion};

fn shards() -> BTreeSet<ShardId> {
    BTreeSet::from(["s0".into(), "s1".into()])
}

fn collection() -> CollectionDocument {
    Model::new(1, 10, "s0").collection()
}

/// Chunks between these bounds, of the two shards in turn.
fn chunks(bounds: &[(i64, i64)]) -> Vec<RawDocumentBuf> {
    let of = Model::new(1, 10, "s0").of;
    let chunks = bounds.iter().enumerate().map(|(at, (min, max))| {
        let chunk = ModelChunk {
            min: *min,
            max: *max,
            version: ChunkVersion::from_placement(of, Timestamp::new(1, at as u32)),
            history: vec![(of.timestamp, format!("s{}", at % 2))],
            is_jumbo: false,
        };
        chunk.document().to_bson()
    });
    chunks.collect()
}

fn kinds(found: &Inconsistencies) -> Vec<&str> {
    let kinds = found.documents().iter().map(|document| {
        assert!(pinion_bson::get_path(document, "details.namespace").is_some());
        let kind = pinion_bson::get(document, "type").and_then(|kind| kind.as_str());
        kind.expect("a type")
    });
    kinds.collect()
}

/// The document with a field of another value, or without it.
fn with(document: &RawDocument, name: &str, value: Option<RawBson>) -> RawDocumentBuf {
    let mut out = pinion_bson::DocBuilder::new();
    for field in pinion_bson::raw_elements(document) {
        match &value {
            _ if field.name != name.as_bytes() => {
                out.append_elem(&field);
            }
            Some(value) => {
                out.append_raw(name, value.as_raw_bson_ref());
            }
            None => {}
        }
    }
    out.finish()
}

#[test]
fn routing_tables() {
    let check = |chunks: &[RawDocumentBuf], expected: &[&str]| {
        let found = check_chunks(&collection(), chunks, &shards());
        assert_eq!(kinds(&found.inconsistencies), expected);
    };
    let whole = chunks(&[(LOWEST, 0), (0, 10), (10, HIGHEST)]);
    check(&whole, &[]);
    let found = check_chunks(&collection(), &whole, &shards());
    assert_eq!(found.owners, shards());
    check(&[], &["MissingRoutingTable"]);
    check(
        &chunks(&[(LOWEST, 0), (1, HIGHEST)]),
        &["RoutingTableRangeGap"],
    );
    check(
        &chunks(&[(LOWEST, 2), (1, HIGHEST)]),
        &["RoutingTableRangeOverlap"],
    );
    let ends = ["RoutingTableMissingMinKey", "RoutingTableMissingMaxKey"];
    check(&chunks(&[(0, 10)]), &ends);
    let changed = |name: &str, value: RawBson| {
        let mut changed = whole.clone();
        changed[1] = with(&whole[1], name, Some(value));
        changed
    };
    check(
        &changed("shard", "s9".into()),
        &["RoutingTableUnknownShard", "CorruptedChunkHistory"],
    );
    let later = RawBson::Timestamp(bson_time(Timestamp::new(99, 1)));
    check(
        &changed("onCurrentShardSince", later),
        &["CorruptedChunkHistory"],
    );
    let other = RawBson::Document(rawdoc! { "b": 0 });
    check(
        &changed("min", other),
        &["CorruptedChunkShardKey", "RoutingTableRangeGap"],
    );
    let empty = RawBson::Array(pinion_bson::RawArrayBuf::new());
    check(&changed("history", empty), &["CorruptedChunkHistory"]);
    let moved = CollectionDocument {
        is_unsplittable: true,
        ..collection()
    };
    let found = check_chunks(&moved, &whole, &shards());
    assert_eq!(
        kinds(&found.inconsistencies),
        ["TrackedUnshardedCollectionHasMultipleChunks"]
    );
}

#[test]
fn details_of_a_gap() {
    let chunks = chunks(&[(LOWEST, 0), (1, HIGHEST)]);
    let found = check_chunks(&collection(), &chunks, &shards());
    let expected = rawdoc! {
        "type": "RoutingTableRangeGap",
        "description": "Found a gap between two consecutive chunks",
        "details": {
            "namespace": "d.c", "collectionUUID": Binary::from(UUID),
            "chunkA": chunks[0].clone(), "chunkB": chunks[1].clone(),
        },
    };
    assert_eq!(found.inconsistencies.documents(), [expected]);
}

#[test]
fn zones() {
    let zone = |min: RawDocumentBuf, max: RawDocumentBuf| {
        rawdoc! { "_id": 1, "ns": "d.c", "tag": "z", "min": min, "max": max }
    };
    let check = |zones: &[RawDocumentBuf], expected: &[&str]| {
        assert_eq!(kinds(&check_zones(&collection(), zones)), expected);
    };
    check(&[zone(bound(0), bound(5)), zone(bound(5), bound(9))], &[]);
    check(
        &[zone(bound(0), bound(6)), zone(bound(5), bound(9))],
        &["ZonesRangeOverlap"],
    );
    check(
        &[zone(rawdoc! { "b": 1 }, rawdoc! { "b": 2 })],
        &["CorruptedZoneShardKey"],
    );
}

fn index(key: RawDocumentBuf, name: &str) -> RawDocumentBuf {
    rawdoc! { "v": 2, "key": key, "name": name }
}

fn part(indexes: &[RawDocumentBuf]) -> CollectionOnShard {
    let mut all = vec![index(rawdoc! { "_id": 1 }, "_id_")];
    all.extend_from_slice(indexes);
    CollectionOnShard {
        ns: Namespace::new("d", "c").expect("a name"),
        uuid: UUID,
        options: RawDocumentBuf::new(),
        indexes: all,
        table: KnownTable::Table,
        series: None,
    }
}

fn of_key() -> CollectionOnShard {
    part(&[index(rawdoc! { "a": 1 }, "a_1")])
}

/// What is found where `s0` is the primary shard, and only it and `s1` own chunks.
fn found(parts: &[Option<CollectionOnShard>]) -> Inconsistencies {
    let catalog = CatalogCollection {
        document: collection(),
        owners: shards(),
    };
    let facts = parts.iter().enumerate().map(|(at, part)| ShardFacts {
        shard: ShardId::new(&format!("s{at}")),
        collections: part.iter().cloned().collect(),
        bare_series: Vec::new(),
    });
    let facts: Vec<ShardFacts> = facts.collect();
    check_collections(&"s0".into(), &[catalog], &facts, true)
}

#[track_caller]
fn check(parts: [Option<CollectionOnShard>; 3], expected: &[&str]) {
    assert_eq!(kinds(&found(&parts)), expected);
}

#[test]
fn parts_of_shards() {
    let good = || Some(of_key());
    check([good(), good(), None], &[]);
    check([good(), good(), good()], &[]);
    check([good(), None, None], &["MissingLocalCollection"]);
    check([None, good(), None], &["MissingLocalCollection"]);
    let other_uuid = CollectionOnShard {
        uuid: Uuid::from_bytes([9; 16]),
        ..of_key()
    };
    check(
        [good(), good(), Some(other_uuid)],
        &["CollectionUUIDMismatch"],
    );
    let forgotten = CollectionOnShard {
        table: KnownTable::Unsharded,
        ..of_key()
    };
    check(
        [good(), Some(forgotten.clone()), None],
        &["ShardMissingCollectionRoutingInfo"],
    );
    // A shard without chunks need not know.
    check([good(), good(), Some(forgotten)], &[]);
}

#[test]
fn indexes_of_shards() {
    let good = || Some(of_key());
    check(
        [good(), Some(part(&[])), None],
        &["MissingShardKeyIndex", "InconsistentIndex"],
    );
    let sparse = with(
        &index(rawdoc! { "a": 1 }, "a_1"),
        "v",
        Some(RawBson::Int32(2)),
    );
    let mut sparse = sparse;
    sparse.append(pinion_bson::cstr!("sparse"), true);
    let parts = [good(), Some(part(&[sparse])), None];
    check(
        parts.clone(),
        &["MissingShardKeyIndex", "InconsistentIndex"],
    );
    let expected = rawdoc! {
        "indexName": "a_1", "missingFromShards": [],
        "inconsistentProperties": [{ "k": "sparse", "v": true }],
    };
    let found = found(&parts);
    let info = pinion_bson::get_path(&found.documents()[1], "details.info");
    assert_eq!(info.and_then(|info| info.as_document()), Some(&*expected));
    // A longer index serves too.
    let longer = || Some(part(&[index(rawdoc! { "a": 1, "b": -1 }, "long")]));
    check([longer(), longer(), None], &[]);
    // Shards without chunks may lack some.
    check([longer(), longer(), good()], &[]);
}

#[test]
fn options_of_shards() {
    let with_options = |options: RawDocumentBuf| {
        Some(CollectionOnShard {
            options,
            ..of_key()
        })
    };
    let validated = || with_options(rawdoc! { "validator": { "a": 1 } });
    let mismatch = ["CollectionOptionsMismatch"];
    check([validated(), validated(), None], &[]);
    check([Some(of_key()), validated(), None], &mismatch);
    check([Some(of_key()), Some(of_key()), validated()], &[]);
    let capped = || with_options(rawdoc! { "capped": true, "size": 4096 });
    check([capped(), capped(), None], &[mismatch[0], mismatch[0]]);
    let collated = || with_options(rawdoc! { "collation": { "locale": "en" } });
    check([collated(), collated(), None], &[mismatch[0], mismatch[0]]);
}

#[test]
fn unsharded_collections() {
    let facts = |name: &str| ShardFacts {
        shard: "s1".into(),
        collections: vec![CollectionOnShard {
            ns: Namespace::new("d", name).expect("a name"),
            ..of_key()
        }],
        bare_series: Vec::new(),
    };
    let check = |primary: &str, name: &str, expected: &[&str]| {
        let found = check_collections(&primary.into(), &[], &[facts(name)], false);
        assert_eq!(kinds(&found), expected);
    };
    check("s1", "c", &[]);
    check("s0", "c", &["MisplacedCollection"]);
    check("s0", "system.profile", &[]);
    check("s0", "tmp.agg_out.x", &[]);
    let of_series = [
        "MisplacedCollection",
        "MalformedTimeseriesBucketsCollection",
    ];
    check("s0", "system.buckets.x", &of_series);
}

fn seconds() -> TimeSeries {
    TimeSeries {
        time_field: "t".into(),
        meta_field: None,
        granularity: Some(Granularity::Seconds),
        rounding_secs: None,
        max_span_secs: 3600,
    }
}

/// Buckets of this form, and the series that shows them.
fn buckets_of(series: &TimeSeries) -> CollectionOnShard {
    let options = rawdoc! { "clusteredIndex": true, "timeseries": series.to_document() };
    let view = rawdoc! {
        "viewOn": "system.buckets.s", "pipeline": [], "timeseries": series.to_document(),
    };
    CollectionOnShard {
        ns: Namespace::new("d", "system.buckets.s").expect("a name"),
        options,
        series: Some(view),
        ..part(&[index(rawdoc! { "control.min.t": 1 }, "t_1")])
    }
}

/// What is found of a series on two shards that own its chunks.
fn found_of_series(
    known: Option<TimeSeries>,
    parts: [Option<CollectionOnShard>; 2],
    bare: &[&str],
) -> Inconsistencies {
    let of = collection().of;
    let ns = Namespace::new("d", "system.buckets.s").expect("a name");
    let key = rawdoc! { "control.min.t": 1 };
    let document = CollectionDocument {
        time_series: known,
        ..CollectionDocument::new(ns, of, 0, UUID, key)
    };
    let catalog = CatalogCollection {
        document,
        owners: shards(),
    };
    let facts = parts.into_iter().enumerate().map(|(at, part)| ShardFacts {
        shard: ShardId::new(&format!("s{at}")),
        collections: part.into_iter().collect(),
        bare_series: match at {
            0 => Vec::new(),
            _ => bare
                .iter()
                .map(|name| BareSeries {
                    ns: Namespace::new("d", name).expect("a name"),
                    options: rawdoc! { "viewOn": format!("system.buckets.{name}") },
                })
                .collect(),
        },
    });
    let facts: Vec<ShardFacts> = facts.collect();
    check_collections(&"s0".into(), &[catalog], &facts, true)
}

#[test]
fn time_series() {
    let good = || Some(buckets_of(&seconds()));
    let check = |second: Option<CollectionOnShard>, bare: &[&str], expected: &[&str]| {
        let found = found_of_series(Some(seconds()), [good(), second], bare);
        assert_eq!(kinds(&found), expected);
    };
    let (malformed, mismatch) = (
        "MalformedTimeseriesBucketsCollection",
        "CollectionOptionsMismatch",
    );
    check(good(), &[], &[]);
    let minutes = TimeSeries {
        granularity: Some(Granularity::Minutes),
        max_span_secs: 86_400,
        ..seconds()
    };
    // From the catalog, and from the other shard.
    check(Some(buckets_of(&minutes)), &[], &[mismatch, mismatch]);
    let shown = |series: Option<RawDocumentBuf>| {
        let buckets = buckets_of(&seconds());
        Some(CollectionOnShard { series, ..buckets })
    };
    check(shown(None), &[], &[malformed]);
    // A collection, and the view on other buckets or of another form.
    check(shown(Some(rawdoc! {})), &[], &[malformed]);
    check(shown(buckets_of(&minutes).series), &[], &[malformed]);
    let elsewhere = rawdoc! {
        "viewOn": "system.buckets.x", "timeseries": seconds().to_document(),
    };
    check(shown(Some(elsewhere)), &[], &[malformed]);
    let plain = CollectionOnShard {
        options: RawDocumentBuf::new(),
        ..buckets_of(&seconds())
    };
    check(Some(plain), &[], &[malformed, mismatch, mismatch]);
    check(None, &["s"], &[malformed, "MissingLocalCollection"]);
    check(good(), &["other"], &[malformed]);
    // The catalog says nothing of a series.
    let found = found_of_series(None, [good(), good()], &[]);
    assert_eq!(kinds(&found), [mismatch, mismatch]);
}

#[test]
fn details_of_time_series() {
    let lost = CollectionOnShard {
        series: None,
        ..buckets_of(&seconds())
    };
    let found = found_of_series(
        Some(seconds()),
        [Some(buckets_of(&seconds())), Some(lost)],
        &["x"],
    );
    let details = |at: usize| {
        let document: &RawDocument = &found.documents()[at];
        let details = pinion_bson::get(document, "details").and_then(|found| found.as_document());
        details.expect("details").to_owned()
    };
    let expected = rawdoc! {
        "namespace": "d.system.buckets.s", "shard": "s1",
        "issue": "d.system.buckets.s is a bucket collection but is missing a valid view backing it",
        "options": {},
    };
    assert_eq!(details(0), expected);
    let expected = rawdoc! {
        "namespace": "d.system.buckets.x", "shard": "s1",
        "issue": "d.x is a time series but is missing d.system.buckets.x",
        "options": { "viewOn": "system.buckets.x" },
    };
    assert_eq!(details(1), expected);
    let mut behind = buckets_of(&seconds());
    behind.options = rawdoc! { "timeseries": { "timeField": "other" } };
    behind.series = Some(rawdoc! {
        "viewOn": "system.buckets.s", "timeseries": { "timeField": "other" },
    });
    let both = [Some(behind.clone()), Some(behind)];
    let found = found_of_series(Some(seconds()), both, &[]);
    let expected = rawdoc! {
        "namespace": "d.system.buckets.s",
        "options": [
            { "options": { "timeseriesFields": { "timeField": "other" } }, "shards": ["s0"] },
            {
                "options": { "timeseriesFields": seconds().to_document() },
                "shards": ["config"],
            },
        ],
    };
    let first = pinion_bson::get(&found.documents()[0], "details");
    assert_eq!(
        first.and_then(|found| found.as_document()),
        Some(&*expected)
    );
}

#[test]
fn catalogs() {
    let version = DatabaseVersion::first(Uuid::from_bytes([5; 16]), Timestamp::new(5, 1));
    let database = |name: &str, primary: &str| DatabaseDocument::new(name, primary.into(), version);
    let good = ClusterCatalog {
        shards: shards(),
        databases: vec![database("d", "s0")],
        collections: vec![collection()],
        chunks: vec![(UUID, 3)],
    };
    let check = |catalog: ClusterCatalog, expected: &[&str]| {
        assert_eq!(kinds(&check_cluster(&catalog)), expected);
    };
    check(good.clone(), &[]);
    let hidden = ClusterCatalog {
        databases: Vec::new(),
        ..good.clone()
    };
    check(hidden, &["HiddenShardedCollection"]);
    let unknown = ClusterCatalog {
        databases: vec![database("d", "s9")],
        ..good.clone()
    };
    check(unknown, &["DatabaseUnknownShard"]);
    let orphaned = ClusterCatalog {
        chunks: vec![(UUID, 3), (Uuid::from_bytes([9; 16]), 1)],
        ..good
    };
    check(orphaned, &["ChunksWithoutCollection"]);
}

#[test]
fn what_is_seen_twice_counts() {
    let first = found(&[Some(of_key()), None, None]);
    let again = found(&[Some(of_key()), Some(part(&[])), None]);
    assert!(confirmed(first.clone(), &again).is_empty());
    assert_eq!(confirmed(first.clone(), &first), first);
}

#[test]
fn facts_between_nodes() {
    let part = of_key();
    let read = CollectionOnShard::parse(&part.to_bson()).expect("readable");
    assert_eq!(read, part);
    let bad = with(&part.to_bson(), "table", Some("x".into()));
    assert!(CollectionOnShard::parse(&bad).is_err());
    let buckets = buckets_of(&seconds());
    let read = CollectionOnShard::parse(&buckets.to_bson()).expect("readable");
    assert_eq!(read, buckets);
    let bare = BareSeries {
        ns: buckets.ns,
        options: rawdoc! { "viewOn": "x" },
    };
    assert_eq!(BareSeries::parse(&bare.to_bson()).ok(), Some(bare));
}
