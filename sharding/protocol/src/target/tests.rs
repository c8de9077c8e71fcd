//! Filters and the shards that they go to; at random, that no document which matches is missed.

use pinion_bson::{
    DateTime, DocBuilder, ObjectId, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf,
    Uuid, rawdoc,
};
use pinion_query::{
    Granularity, Matcher, TimeSeries, TimeSeriesChange, Variables, document_text, parse_collation,
};
use pinion_wire::idl::Namespace;

use super::*;
use crate::documents::{ChunkDocument, ChunkOf, CollectionDocument, OwnerSince};
use crate::key::ShardKeyPattern;
use crate::shard_id::ShardId;
use crate::testing::{Rng, UUID};
use crate::version::Incarnation;

/// A table of a key with these bounds between its chunks, the chunks on shards in turn.
fn table(key: RawDocumentBuf, bounds: Vec<RawDocumentBuf>, shards: usize) -> RoutingTable {
    let of = Incarnation {
        epoch: ObjectId::from_bytes([1; 12]),
        timestamp: Timestamp::new(5, 0),
    };
    let ns = Namespace::new("d", "c").expect("a name");
    let uuid: Uuid = UUID;
    let collection = CollectionDocument::new(ns, of, 0, uuid, key.clone());
    let pattern = ShardKeyPattern::parse(&key).expect("a pattern");
    let mut all = vec![pattern.document(&pattern.min())];
    all.extend(bounds);
    all.push(pattern.document(&pattern.max()));
    let chunks = all.windows(2).enumerate().map(|(at, ends)| {
        let shard = ShardId::new(&format!("s{}", at % shards));
        let placement = Timestamp::new(1, at as u32);
        ChunkDocument {
            id: RawBson::Int64(at as i64),
            of: ChunkOf::Uuid(uuid),
            min: ends[0].clone(),
            max: ends[1].clone(),
            shard: shard.clone(),
            placement,
            on_current_shard_since: None,
            history: vec![OwnerSince {
                valid_after: of.timestamp,
                shard,
            }],
            is_jumbo: false,
            other: RawDocumentBuf::new(),
        }
    });
    RoutingTable::new(&collection, chunks).expect("a table")
}

fn matcher(filter: &RawDocument, collation: Option<&RawDocument>) -> Matcher {
    let variables = Variables {
        collation: collation.and_then(|spec| parse_collation(spec).expect("a collation")),
        ..Variables::default()
    };
    Matcher::parse_query(filter, &variables).expect("a filter")
}

fn shown(table: &RoutingTable, filter: &RawDocument, collation: Option<&RawDocument>) -> String {
    let found = table.target(&matcher(filter, collation), None);
    let found = found.expect("there is no time");
    let names: Vec<&str> = found
        .shards
        .iter()
        .map(|s| table.shard(*s).as_str())
        .collect();
    let mark = found.key.map_or("", |_| "!");
    format!("{}{mark}", names.join(" "))
}

fn german() -> RawDocumentBuf {
    rawdoc! { "locale": "de", "strength": 2 }
}

#[test]
fn ranges_and_points() {
    // s0: below 0; s1: from 0 to 10; s2: from 10 to "m"; s3: above.
    let bounds = vec![
        rawdoc! { "a": 0, "b": 0 },
        rawdoc! { "a": 10, "b": RawBson::MinKey },
        rawdoc! { "a": "m", "b": RawBson::MinKey },
    ];
    let table = table(rawdoc! { "a": 1, "b": 1 }, bounds, 4);
    let check = |filter: RawDocumentBuf, expected: &str| {
        assert_eq!(shown(&table, &filter, None), expected, "{filter:?}");
    };
    check(rawdoc! {}, "s0 s1 s2 s3");
    check(rawdoc! { "b": 5 }, "s0 s1 s2 s3");
    check(rawdoc! { "a": 5 }, "s1");
    check(rawdoc! { "a": 5, "b": 1 }, "s1!");
    check(rawdoc! { "a": 0 }, "s0 s1");
    check(rawdoc! { "a": 0, "b": -1 }, "s0!");
    check(rawdoc! { "a": 0, "b": 0.0 }, "s1!");
    check(rawdoc! { "a": { "$lt": 10 } }, "s0 s1");
    check(rawdoc! { "a": { "$lte": 10 } }, "s0 s1 s2");
    check(rawdoc! { "a": { "$gt": 9, "$lt": "x" } }, "s0");
    check(rawdoc! { "a": { "$gte": "m" } }, "s3");
    check(rawdoc! { "a": { "$in": [5, "z"] } }, "s1 s3");
    check(
        rawdoc! { "a": { "$in": [0, 10] }, "b": { "$lt": 0 } },
        "s0 s2",
    );
    check(rawdoc! { "$or": [{ "a": 5 }, { "a": "a" }] }, "s1 s2");
    check(rawdoc! { "$or": [{ "a": 5 }, { "b": 5 }] }, "s0 s1 s2 s3");
    check(rawdoc! { "a": RawBson::Null }, "s0");
    check(rawdoc! { "$expr": { "$eq": ["$a", 5] } }, "s1");
    check(rawdoc! { "a": { "$gt": 5, "$lt": 4 } }, "s0");
    check(rawdoc! { "a": { "$in": [] } }, "s0");
    // Strings block under a collation, others do not.
    let german = german();
    let check = |filter: RawDocumentBuf, expected: &str| {
        assert_eq!(
            shown(&table, &filter, Some(&german)),
            expected,
            "{filter:?}"
        );
    };
    check(rawdoc! { "a": 5, "b": 1 }, "s1!");
    check(rawdoc! { "a": 5, "b": "x" }, "s1");
    check(rawdoc! { "a": "x" }, "s0 s1 s2 s3");
    check(rawdoc! { "a": { "$in": [5, "x"] } }, "s0 s1 s2 s3");
    check(rawdoc! { "a": { "$gt": 20 } }, "s2");
}

#[test]
fn hashes() {
    let bounds = [-4i64, -2, 0, 2, 4].map(|at| rawdoc! { "a": at << 60 });
    let table = table(rawdoc! { "a": "hashed" }, bounds.into(), 6);
    let owner = |value: i32| {
        let key = table.key.key_of(&rawdoc! { "a": value }).expect("a key");
        table
            .shard(table.owner(&key, None).expect("now"))
            .to_string()
    };
    for value in 0..50 {
        let found = shown(&table, &rawdoc! { "a": value }, None);
        assert_eq!(found, format!("{}!", owner(value)));
        let both = rawdoc! { "a": { "$in": [value, value + 1] } };
        let mut owners = vec![owner(value), owner(value + 1)];
        owners.sort_unstable();
        owners.dedup();
        assert_eq!(shown(&table, &both, None), owners.join(" "));
    }
    let all = "s0 s1 s2 s3 s4 s5";
    assert_eq!(shown(&table, &rawdoc! { "a": { "$gt": 5 } }, None), all);
    let german = german();
    assert_eq!(shown(&table, &rawdoc! { "a": 5 }, Some(&german)), all);
}

#[test]
fn what_stands_around_a_field_names_it() {
    let table = table(rawdoc! { "a.b": 1 }, vec![rawdoc! { "a.b": 0 }], 2);
    assert_eq!(shown(&table, &rawdoc! { "a": { "b": 5 } }, None), "s1!");
    assert_eq!(shown(&table, &rawdoc! { "a.b": { "$lt": 0 } }, None), "s0");
}

fn value(rng: &mut Rng) -> RawBson {
    match rng.below(9) {
        0 => RawBson::Null,
        1 => RawBson::Double(rng.below(8) as f64 - 3.5),
        2 => RawBson::Double(f64::NAN),
        3 => RawBson::String(["", "a", "A", "b", "ä"][rng.below(5)].to_owned()),
        4 => RawBson::Boolean(rng.below(2) == 0),
        5 => RawBson::Document(rawdoc! { "b": rng.below(3) as i32 }),
        _ => RawBson::Int32(rng.below(12) as i32 - 6),
    }
}

fn predicate(rng: &mut Rng) -> RawBson {
    let operand = value(rng);
    let name = ["$eq", "$lt", "$lte", "$gt", "$gte", "$ne", "$in", "$nin"][rng.below(8)];
    let mut out = DocBuilder::new();
    match name {
        "$in" | "$nin" => {
            let mut list = RawArrayBuf::new();
            (0..rng.below(4)).for_each(|_| list.push(value(rng)));
            out.append(name, RawBsonRef::Array(&list));
        }
        _ => {
            out.append_raw(name, operand.as_raw_bson_ref());
        }
    }
    match rng.below(4) {
        0 => operand,
        1 => RawBson::Document(rawdoc! { "$exists": rng.below(2) == 0 }),
        _ => RawBson::Document(out.finish()),
    }
}

fn filter(rng: &mut Rng, depth: usize) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for path in ["a", "b", "c"] {
        if rng.below(3) == 0 {
            out.append_raw(path, predicate(rng).as_raw_bson_ref());
        }
    }
    if depth > 0 && rng.below(2) == 0 {
        let name = ["$or", "$and", "$nor"][rng.below(3)];
        out.start_array(name);
        for _ in 0..=rng.below(3) {
            out.push(&*filter(rng, depth - 1));
        }
        out.end();
    }
    out.finish()
}

fn document(rng: &mut Rng) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for path in ["a", "b", "c"] {
        if rng.below(6) > 0 {
            out.append_raw(path, value(rng).as_raw_bson_ref());
        }
    }
    out.finish()
}

/// Bounds between chunks: keys of random documents, each once and in their order.
fn random_table(rng: &mut Rng) -> RoutingTable {
    let key = match rng.below(4) {
        0 => rawdoc! { "a": 1 },
        1 => rawdoc! { "a": "hashed" },
        2 => rawdoc! { "a": 1, "b": 1 },
        _ => rawdoc! { "a": 1, "b": "hashed" },
    };
    let pattern = ShardKeyPattern::parse(&key).expect("a pattern");
    let keys: BTreeSet<KeyBytes> = (0..rng.below(9))
        .filter_map(|_| pattern.key_of(&document(rng)).ok())
        .collect();
    let bounds = keys.iter().map(|key| pattern.document(key)).collect();
    table(key, bounds, 1 + rng.below(5))
}

#[test]
fn what_matches_lives_on_a_targeted_shard() {
    let (mut matched, mut narrowed) = (0, 0);
    for seed in 0..1500 {
        let rng = &mut Rng::new(seed);
        let table = random_table(rng);
        let german = german();
        let collation = (rng.below(3) == 0).then_some(&*german);
        let filter = filter(rng, 2);
        let matcher = matcher(&filter, collation);
        let targeted = table.target(&matcher, None).expect("there is no time");
        narrowed += usize::from(targeted.shards.len() < table.shards().count());
        for _ in 0..40 {
            let document = document(rng);
            if !matcher.matches(&*document).expect("it can be compared") {
                continue;
            }
            matched += 1;
            let key = table.key.key_of(&document).expect("it has no array");
            let owner = table.owner(&key, None).expect("now");
            let text = || {
                format!(
                    "{seed}: {} {}",
                    document_text(&filter),
                    document_text(&document)
                )
            };
            assert!(targeted.shards.contains(&owner), "{}", text());
            if let Some(only) = &targeted.key {
                assert_eq!(*only, key, "{}", text());
            }
        }
    }
    assert!(matched > 5000 && narrowed > 200, "{matched} {narrowed}");
}

/// The table of a series by source and time, cut at buckets of such measurements.
fn series_table(rng: &mut Rng, measurement: fn(&mut Rng) -> RawDocumentBuf) -> RoutingTable {
    let key = match rng.below(3) {
        0 => rawdoc! { "meta.s": 1, "control.min.t": 1 },
        1 => rawdoc! { "control.min.t": 1 },
        _ => rawdoc! { "meta.s": "hashed", "control.min.t": 1 },
    };
    let pattern = ShardKeyPattern::parse(&key).expect("a pattern");
    let series = TimeSeries {
        time_field: "t".into(),
        meta_field: Some("m".into()),
        granularity: Some(Granularity::Seconds),
        rounding_secs: None,
        max_span_secs: 3600,
    };
    let keys: BTreeSet<KeyBytes> = (0..rng.below(9))
        .map(|_| {
            let bucket = series.bucket_origin(&measurement(rng)).expect("a time");
            pattern.key_of(&bucket).expect("a key")
        })
        .collect();
    let bounds = keys.iter().map(|key| pattern.document(key)).collect();
    let mut table = table(key, bounds, 1 + rng.below(5));
    table.time_series = Some(series);
    table
}

fn minute(rng: &mut Rng) -> DateTime {
    DateTime::from_millis(rng.below(24 * 60) as i64 * 60_000)
}

fn measurement(rng: &mut Rng) -> RawDocumentBuf {
    rawdoc! { "t": minute(rng), "m": { "s": rng.below(5) as i32 }, "v": rng.below(9) as i32 }
}

fn measured_filter(rng: &mut Rng, depth: usize) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    if rng.below(2) == 0 {
        let name = ["$eq", "$lt", "$lte", "$gt", "$gte"][rng.below(5)];
        let mut bound = DocBuilder::new();
        bound.append(name, RawBsonRef::DateTime(minute(rng)));
        out.append("t", &*bound.finish());
    }
    match rng.below(3) {
        0 => {
            out.append("m.s", rng.below(5) as i32);
        }
        1 => {
            out.append("v", &*rawdoc! { "$gte": rng.below(9) as i32 });
        }
        _ => {}
    }
    if depth > 0 && rng.below(2) == 0 {
        out.start_array(["$or", "$and"][rng.below(2)]);
        for _ in 0..=rng.below(2) {
            out.push(&*measured_filter(rng, depth - 1));
        }
        out.end();
    }
    out.finish()
}

#[test]
fn measurements_lie_in_buckets_of_targeted_shards() {
    let (mut matched, mut narrowed) = (0, 0);
    for seed in 0..1000 {
        let rng = &mut Rng::new(seed);
        let table = series_table(rng, measurement);
        let filter = measured_filter(rng, 2);
        let matcher = matcher(&filter, None);
        let targeted = table.target(&matcher, None).expect("there is no time");
        narrowed += usize::from(targeted.shards.len() < table.shards().count());
        for _ in 0..40 {
            let measurement = measurement(rng);
            if !matcher.matches(&*measurement).expect("it can be compared") {
                continue;
            }
            matched += 1;
            // The bucket may have been started by an earlier measurement of the source.
            let Some(RawBsonRef::DateTime(time)) = pinion_bson::get(&measurement, "t") else {
                panic!("it has a time");
            };
            let earlier = time.timestamp_millis() - rng.below(59 * 60_000) as i64;
            let mut first = DocBuilder::new();
            first.append("t", RawBsonRef::DateTime(DateTime::from_millis(earlier)));
            first.append_raw("m", pinion_bson::get(&measurement, "m").expect("a source"));
            let owner = table.target_insert(&first.finish()).expect("a key");
            assert!(
                targeted.shards.contains(&owner),
                "{seed}: {} {} from {earlier}",
                document_text(&filter),
                document_text(&measurement)
            );
        }
    }
    assert!(matched > 5000 && narrowed > 200, "{matched} {narrowed}");
}

/// The options that a series may get; most of those behind each other are longer ones.
fn longer_buckets() -> Vec<TimeSeriesChange> {
    let spans = [3600, 7200, 40_000, 86_400, 200_000, 2_592_000].map(|secs| TimeSeriesChange {
        granularity: None,
        rounding_secs: Some(secs),
        max_span_secs: Some(secs),
    });
    let granularities = [Granularity::Minutes, Granularity::Hours].map(|name| TimeSeriesChange {
        granularity: Some(name),
        ..TimeSeriesChange::default()
    });
    spans.into_iter().chain(granularities).collect()
}

fn of_source(at_ms: i64, source: i32) -> RawDocumentBuf {
    rawdoc! { "t": DateTime::from_millis(at_ms), "m": { "s": source } }
}

/// A time of the first sixty days, to the second.
fn second(rng: &mut Rng) -> i64 {
    rng.below(60 * 24 * 3600) as i64 * 1000
}

/// The bucket of a measurement, which an earlier one of its source may have started.
fn owner_of_bucket(
    rng: &mut Rng,
    table: &RoutingTable,
    series: &TimeSeries,
    at: (i64, i32),
) -> ShardIdx {
    let (at_ms, source) = at;
    let span_ms = i64::from(series.max_span_secs) * 1000;
    let first_ms = at_ms - rng.below(span_ms as usize) as i64;
    let is_in_bucket = at_ms < series.bucket_start_ms(first_ms) + span_ms;
    let first_ms = if is_in_bucket { first_ms } else { at_ms };
    let owner = table.target_insert(&of_source(first_ms, source));
    owner.expect("a key")
}

/// The buckets of a series become longer again and again. Measurements lie where their buckets were
/// when they came; the last options find all of them.
#[test]
fn buckets_that_became_longer_are_found() {
    let (mut changed, mut matched, mut narrowed) = (0, 0, 0);
    for seed in 0..400 {
        let rng = &mut Rng::new(seed);
        let mut table = series_table(rng, |rng| of_source(second(rng), rng.below(5) as i32));
        let mut stored: Vec<(i64, i32, ShardIdx)> = Vec::new();
        for _ in 0..4 {
            let series = table.time_series.clone().expect("a series");
            for _ in 0..20 {
                let at = (second(rng), rng.below(5) as i32);
                let owner = owner_of_bucket(rng, &table, &series, at);
                stored.push((at.0, at.1, owner));
            }
            let all = longer_buckets();
            if let Ok(Some(longer)) = series.changed(all[rng.below(all.len())]) {
                assert!(longer.max_span_secs >= series.max_span_secs);
                table.time_series = Some(longer);
                changed += 1;
            }
        }
        for _ in 0..20 {
            let (about, source, _) = stored[rng.below(stored.len())];
            let name = ["$eq", "$lt", "$lte", "$gt", "$gte"][rng.below(5)];
            let mut bound = DocBuilder::new();
            bound.append(name, RawBsonRef::DateTime(DateTime::from_millis(about)));
            let mut filter = DocBuilder::new();
            filter.append("t", &*bound.finish());
            if rng.below(2) == 0 {
                filter.append("m.s", source);
            }
            let filter = filter.finish();
            let matcher = matcher(&filter, None);
            let targeted = table.target(&matcher, None).expect("there is no time");
            narrowed += usize::from(targeted.shards.len() < table.shards().count());
            for (at_ms, source, owner) in &stored {
                let measurement = of_source(*at_ms, *source);
                if !matcher.matches(&*measurement).expect("it can be compared") {
                    continue;
                }
                matched += 1;
                assert!(
                    targeted.shards.contains(owner),
                    "{seed}: {} {} by {:?}",
                    document_text(&filter),
                    document_text(&measurement),
                    table.time_series
                );
            }
        }
    }
    let counts = (changed, matched, narrowed);
    assert!(
        changed > 300 && matched > 5000 && narrowed > 200,
        "{counts:?}"
    );
}

fn plan(table: &RoutingTable, filter: &RawDocument, options: &str) -> String {
    let collation = options.contains('c').then(german);
    let matcher = matcher(filter, collation.as_deref());
    let statement = ModifyStatement {
        matcher: &matcher,
        is_multi: options.contains('m'),
        is_upsert: options.contains('u'),
        may_broadcast: !options.contains('t'),
    };
    let shown = |name: &str, shards: &BTreeSet<ShardIdx>| {
        let shards = shards.iter().map(|shard| table.shard(*shard).as_str());
        format!("{name} {}", shards.collect::<Vec<_>>().join(" "))
    };
    match table.target_modify(&statement) {
        Ok(WritePlan::One(shard)) => shown("one", &BTreeSet::from([shard])),
        Ok(WritePlan::Each(shards)) => shown("each", &shards),
        Ok(WritePlan::ById(shards)) => shown("id", &shards),
        Ok(WritePlan::Found(shards)) => shown("found", &shards),
        Err(error) => format!("{}", error.code.0),
    }
}

#[test]
fn statements_that_write() {
    let bounds = vec![
        rawdoc! { "a": 0, "b": 0 },
        rawdoc! { "a": 10, "b": RawBson::MinKey },
    ];
    let table = table(rawdoc! { "a": 1, "b": 1 }, bounds, 3);
    let check = |filter: RawDocumentBuf, options: &str, expected: &str| {
        assert_eq!(
            plan(&table, &filter, options),
            expected,
            "{filter:?} {options}"
        );
    };
    // The whole key, however the statement is meant.
    for options in ["", "m", "u", "mu", "t"] {
        check(rawdoc! { "a": 5, "b": 1 }, options, "one s1");
    }
    // A part of the key, or a range.
    check(rawdoc! { "a": 5 }, "", "one s1");
    check(rawdoc! { "a": 5 }, "m", "one s1");
    check(rawdoc! { "a": 5 }, "u", "found s1");
    check(rawdoc! { "a": 5 }, "mu", "61");
    check(rawdoc! { "a": { "$in": [5, 20] } }, "m", "each s1 s2");
    check(rawdoc! { "a": { "$gt": 5 } }, "", "found s1 s2");
    check(rawdoc! { "a": 0 }, "m", "each s0 s1");
    // One `_id`.
    check(rawdoc! { "_id": 7 }, "", "id s0 s1 s2");
    check(rawdoc! { "_id": 7, "a": 0 }, "", "id s0 s1");
    check(rawdoc! { "_id": 7 }, "t", "found s0 s1 s2");
    check(rawdoc! { "_id": 7 }, "u", "found s0 s1 s2");
    check(rawdoc! { "_id": 7 }, "m", "each s0 s1 s2");
    check(rawdoc! { "_id": { "$gt": 7 } }, "", "found s0 s1 s2");
    check(rawdoc! {}, "", "found s0 s1 s2");
    check(rawdoc! {}, "m", "each s0 s1 s2");
    // Strings block under a collation, others do not.
    check(rawdoc! { "a": "x", "b": 1 }, "u", "one s2");
    check(rawdoc! { "a": "x", "b": 1 }, "uc", "found s0 s1 s2");
    check(rawdoc! { "a": 5, "b": 1 }, "uc", "one s1");
    check(rawdoc! { "_id": "x" }, "c", "found s0 s1 s2");
    check(rawdoc! { "_id": 7 }, "c", "id s0 s1 s2");
}

#[test]
fn documents_that_are_inserted() {
    let table = table(rawdoc! { "a": 1 }, vec![rawdoc! { "a": 0 }], 2);
    let owner = |document: RawDocumentBuf| {
        let owner = table.target_insert(&document);
        owner.map(|owner| table.shard(owner).to_string())
    };
    assert_eq!(owner(rawdoc! { "a": 3 }).expect("a key"), "s1");
    assert_eq!(owner(rawdoc! { "b": 3 }).expect("a key"), "s0");
    let error = owner(rawdoc! { "a": [3] }).expect_err("no key");
    assert_eq!(error.code.0, 61);
    assert_eq!(
        error.message,
        "Shard key cannot contain array values or array descendants."
    );
}

/// A table whose chunks, cut at 0, 1, 2 and so on, are on these shards.
fn placed(shards: &[usize], time: u32) -> RoutingTable {
    let of = Incarnation {
        epoch: ObjectId::from_bytes([1; 12]),
        timestamp: Timestamp::new(time, 0),
    };
    let key = rawdoc! { "a": 1 };
    let ns = Namespace::new("d", "c").expect("a name");
    let collection = CollectionDocument::new(ns, of, 0, UUID, key.clone());
    let pattern = ShardKeyPattern::parse(&key).expect("a pattern");
    let mut ends = vec![pattern.document(&pattern.min())];
    ends.extend((1..shards.len()).map(|at| rawdoc! { "a": at as i32 }));
    ends.push(pattern.document(&pattern.max()));
    let chunks = shards.iter().enumerate().map(|(at, shard)| {
        let shard = ShardId::new(&format!("s{shard}"));
        ChunkDocument {
            id: RawBson::Int64(at as i64),
            of: ChunkOf::Uuid(UUID),
            min: ends[at].clone(),
            max: ends[at + 1].clone(),
            shard: shard.clone(),
            placement: Timestamp::new(1, at as u32),
            on_current_shard_since: None,
            history: vec![OwnerSince {
                valid_after: of.timestamp,
                shard,
            }],
            is_jumbo: false,
            other: RawDocumentBuf::new(),
        }
    });
    RoutingTable::new(&collection, chunks).expect("a table")
}

#[test]
fn what_is_left_of_a_statement() {
    let rest = |before: &[usize], now: &[usize], left: &[usize], done: &[usize]| {
        let (before, now) = (placed(before, 5), placed(now, 5));
        let named = |shards: &[usize]| -> BTreeSet<ShardIdx> {
            let names = shards.iter().map(|shard| format!("s{shard}"));
            names
                .filter_map(|name| before.shard_of_name(&name))
                .collect()
        };
        let rest = now.shards_of_rest(&before, &named(left), &named(done))?;
        let names = rest.iter().map(|shard| now.shard(*shard).to_string());
        Some(names.collect::<Vec<_>>().join(" "))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(rest(&[0, 1, 0], &[0, 1, 0], &[1], &[0]), some("s1"));
    assert_eq!(rest(&[0, 1, 0], &[0, 2, 0], &[1], &[0]), some("s2"));
    // The shard that has done its part got what is left.
    assert_eq!(rest(&[0, 1, 0], &[0, 0, 0], &[1], &[0]), None);
    // What was done came to the shard that is left.
    assert_eq!(rest(&[0, 1, 0], &[0, 1, 1], &[1], &[0]), None);
    // What the statement does not concern may be anywhere.
    assert_eq!(rest(&[0, 1, 2], &[2, 1, 1], &[1], &[0]), some("s1"));
    let (before, now) = (placed(&[0, 1], 5), placed(&[0, 1], 6));
    let (left, done) = (BTreeSet::from([ShardIdx(1)]), BTreeSet::from([ShardIdx(0)]));
    assert_eq!(now.shards_of_rest(&before, &left, &done), None);
}
