//! Measurements in buckets and out of them, and filters of buckets against the measurements in
//! them.

use pinion_bson::{DateTime, ObjectId, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};

use super::*;
use crate::matcher::Matcher;

fn form() -> SeriesForm {
    SeriesForm {
        time: "t".into(),
        meta: Some("m".into()),
        max_span_secs: 3600,
    }
}

fn date(ms: i64) -> DateTime {
    DateTime::from_millis(ms)
}

fn packed(all: &[RawDocumentBuf]) -> Packed {
    let all: Vec<&RawDocument> = all.iter().map(|document| &**document).collect();
    let meta = normal_meta(RawBsonRef::String("a"));
    let into = Packing::New {
        id: bucket_id(0, ObjectId::from_bytes([7; 12])),
        start_ms: 0,
        meta: Some(&meta),
    };
    pack(&form(), None, into, &all).expect("measurements")
}

#[test]
fn a_bucket_gives_what_went_in() {
    let all = [
        rawdoc! { "_id": 1, "t": date(1000), "m": "a", "x": 5, "y": { "z": [1, 9] } },
        rawdoc! { "_id": 2, "t": date(3000), "m": "a", "y": { "z": [4, 2, 6], "q": "s" } },
        rawdoc! { "_id": 3, "t": date(2000), "m": "a", "x": "text" },
    ];
    let Packed { bucket, taken } = packed(&all);
    assert_eq!(taken, 3);
    let expected = rawdoc! {
        "_id": bucket_id(0, ObjectId::from_bytes([7; 12])),
        "control": {
            "version": 1,
            "min": { "t": date(0), "_id": 1, "x": 5, "y": { "z": [1, 2, 6], "q": "s" } },
            "max": { "_id": 3, "t": date(3000), "x": "text", "y": { "z": [4, 9, 6], "q": "s" } },
        },
        "meta": "a",
        "data": {
            "_id": { "0": 1, "1": 2, "2": 3 },
            "t": { "0": date(1000), "1": date(3000), "2": date(2000) },
            "x": { "0": 5, "2": "text" },
            "y": { "0": { "z": [1, 9] }, "1": { "z": [4, 2, 6], "q": "s" } },
        },
    };
    assert_eq!(bucket, expected);
    let out = measurements(&form(), &bucket).unwrap();
    let expected = [
        rawdoc! { "t": date(1000), "m": "a", "_id": 1, "x": 5, "y": { "z": [1, 9] } },
        rawdoc! { "t": date(3000), "m": "a", "_id": 2, "y": { "z": [4, 2, 6], "q": "s" } },
        rawdoc! { "t": date(2000), "m": "a", "_id": 3, "x": "text" },
    ];
    assert_eq!(out, expected);
    assert_eq!(measurement_count(&form(), &bucket), 3);
}

#[test]
fn a_bucket_takes_more_later() {
    let all: Vec<RawDocumentBuf> = (0..10)
        .map(|n| rawdoc! { "_id": n, "t": date(i64::from(n) * 7), "m": "a", "x": n % 4 })
        .collect();
    let at_once = packed(&all).bucket;
    let first = packed(&all[..4]).bucket;
    let rest: Vec<&RawDocument> = all[4..].iter().map(|document| &**document).collect();
    let later = pack(&form(), None, Packing::Into(&first), &rest).unwrap();
    assert_eq!((later.bucket, later.taken), (at_once, 6));
}

#[test]
fn buckets_have_limits() {
    let check = |all: &[RawDocumentBuf], expected| assert_eq!(packed(all).taken, expected);
    let at = |ms: i64, bytes: usize| rawdoc! { "t": date(ms), "x": "x".repeat(bytes) };
    check(&[at(3_599_999, 1), at(3_600_000, 1)], 1);
    check(&[at(-1, 1)], 0);
    check(&[at(i64::MIN, 1)], 0);
    check(&vec![at(0, 1); 1100], 1000);
    check(&vec![at(0, 20_000); 50], 10);
    check(&vec![at(0, 1000); 1000], 125);
    check(&[at(0, 5 << 20)], 1);
    let closed = rawdoc! {
        "_id": ObjectId::from_bytes([0; 12]),
        "control": { "version": 1, "min": { "t": date(0) }, "max": { "t": date(0) }, "closed": true },
        "data": { "t": { "0": date(0) } },
    };
    let more = at(0, 1);
    let into = Packing::Into(&closed);
    assert_eq!(pack(&form(), None, into, &[&*more]).unwrap().taken, 0);
    let without = rawdoc! { "x": 1 };
    let into = Packing::Into(&closed);
    assert!(pack(&form(), None, into, &[&*without]).is_ok());
    assert!(time_of(&form(), &without).is_err());
}

#[test]
fn meta_values_are_distinguished_by_their_fields() {
    let a = rawdoc! { "b": 1, "a": { "d": [{ "y": 1, "x": 2 }], "c": 2 } };
    let normal = rawdoc! { "a": { "c": 2, "d": [{ "x": 2, "y": 1 }] }, "b": 1 };
    assert_eq!(normal_meta(RawBsonRef::Document(&a)), normal.into());
}

#[test]
fn filters_are_divided() {
    let check = |filter: RawDocumentBuf, buckets, left| {
        let divided = bucket_filter(&form(), &filter, true);
        assert_eq!((divided.buckets, divided.measurements), (buckets, left));
    };
    check(rawdoc! {}, rawdoc! {}, None);
    check(rawdoc! { "m": "a" }, rawdoc! { "meta": "a" }, None);
    check(
        rawdoc! { "m.x": { "$gt": 1 }, "$or": [{ "m": 1 }, { "m.y": 2 }] },
        rawdoc! { "$and": [
            { "meta.x": { "$gt": 1 } },
            { "$or": [{ "meta": 1 }, { "meta.y": 2 }] },
        ] },
        None,
    );
    check(
        rawdoc! { "mm": null },
        rawdoc! {},
        Some(rawdoc! { "mm": null }),
    );
    let id = |secs: u32, filler: u8| {
        let mut bytes = [filler; 12];
        bytes[..4].copy_from_slice(&secs.to_be_bytes());
        ObjectId::from_bytes(bytes)
    };
    check(
        rawdoc! { "t": { "$gte": date(7_200_000) }, "m": 1 },
        rawdoc! { "$and": [
            {
                "control.min.t": { "$gte": date(3_600_000) },
                "control.max.t": { "$gte": date(7_200_000) },
                "_id": { "$gte": id(3600, 0) },
            },
            { "meta": 1 },
        ] },
        Some(rawdoc! { "t": { "$gte": date(7_200_000) } }),
    );
    check(
        rawdoc! { "$or": [{ "x": { "$regex": "a" } }, { "m": 1 }] },
        rawdoc! {},
        Some(rawdoc! { "$or": [{ "x": { "$regex": "a" } }, { "m": 1 }] }),
    );
}

/// A small random stream, the same each time.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn no_bucket_with_a_match_is_left_out() {
    let mut seed = 0x1234_5678_9abc_def1;
    let (mut skipped, mut kept) = (0, 0);
    for _ in 0..12_000 {
        let all: Vec<RawDocumentBuf> = (0..1 + next(&mut seed) % 3)
            .map(|_| random_measurement(&mut seed))
            .collect();
        let bucket = packed(&all).bucket;
        let filter = random_filter(&mut seed);
        let matcher = Matcher::parse(&filter).expect("a filter");
        let divided = bucket_filter(&form(), &filter, true);
        let buckets = Matcher::parse(&divided.buckets).expect("a filter of buckets");
        let may = buckets.matches(&bucket).unwrap();
        let any = all.iter().any(|one| matcher.matches(one).unwrap());
        assert!(may || !any, "{filter:?}\n{bucket:?}\n{:?}", divided.buckets);
        match may {
            true => kept += 1,
            false => skipped += 1,
        }
    }
    assert!(skipped > 400 && kept > 400, "{skipped} {kept}");
}

fn random_value(seed: &mut u64, depth: u32) -> pinion_bson::RawBson {
    let small = (next(seed) % 6) as i32;
    match next(seed) % if depth < 2 { 11 } else { 8 } {
        0..=2 => small.into(),
        3 => f64::from(small).into(),
        4 => "abcdef"[..small as usize + 1].to_string().into(),
        5 => (small % 2 == 0).into(),
        6 if small % 2 == 0 => date(i64::from(small)).into(),
        6 => pinion_bson::RawBson::Null,
        7 => f64::NAN.into(),
        8 | 9 => rawdoc! { "b": random_value(seed, depth + 1) }.into(),
        _ => {
            let mut array = pinion_bson::RawArrayBuf::new();
            for _ in 0..next(seed) % 3 {
                array.push(random_value(seed, depth + 1));
            }
            pinion_bson::RawBson::Array(array)
        }
    }
}

fn random_measurement(seed: &mut u64) -> RawDocumentBuf {
    let mut out = rawdoc! { "t": date((next(seed) % 3_600_000) as i64), "m": "a" };
    if !next(seed).is_multiple_of(4) {
        let value = random_value(seed, 0);
        out.append(pinion_bson::cstr!("a"), value);
    }
    out
}

fn random_filter(seed: &mut u64) -> RawDocumentBuf {
    let operator = ["$eq", "$lt", "$lte", "$gt", "$gte"][(next(seed) % 5) as usize];
    let path = ["a", "a.b", "a.b.b", "t", "a.0"][(next(seed) % 5) as usize];
    let mut operand = pinion_bson::DocBuilder::new();
    match path {
        "t" => {
            let ms = date((next(seed) % 4_000_000) as i64);
            operand.append(operator, RawBsonRef::DateTime(ms))
        }
        _ => operand.append_raw(operator, random_value(seed, 1).as_raw_bson_ref()),
    };
    let mut out = pinion_bson::DocBuilder::new();
    out.append(path, &*operand.finish());
    let one = out.finish();
    match next(seed) % 4 {
        0 => rawdoc! { "$or": [one, random_filter(seed)] },
        1 => rawdoc! { "$and": [one, random_filter(seed)] },
        _ => one,
    }
}
