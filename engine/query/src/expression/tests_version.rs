//! What a version adds to the language is unknown to the versions before.

use pinion_bson::{
    Binary, BinarySubtype, DateTime, DocBuilder, ObjectId, RawBson, RawDocumentBuf, Timestamp,
    rawbson, rawdoc,
};
use pinion_wire::{COMPATIBLE_VERSION, LanguageVersion, Result};

use super::{Expression, Variables};

fn in_version(expression: &RawBson, version: LanguageVersion) -> Result<Option<RawBson>> {
    let variables = Variables {
        now_ms: Some(5_000),
        version,
        ..Variables::default()
    };
    let expression = Expression::parse(expression.as_raw_bson_ref(), &variables)?;
    let document = rawdoc! { "_id": 1, "arr": [5, 6, 7] };
    Ok(expression.evaluate(&document)?.as_ref().map(RawBson::from))
}

#[track_caller]
fn check(expression: RawBson, expected: RawBson) {
    let found = in_version(&expression, LanguageVersion::V8_3);
    assert_eq!(
        found.expect("it evaluates"),
        Some(expected),
        "{expression:?}"
    );
}

#[track_caller]
fn check_error(expression: RawBson, version: LanguageVersion, code: i32) {
    let found = in_version(&expression, version).map_err(|error| error.code.0);
    assert_eq!(found, Err(code), "{expression:?}");
}

fn binary(subtype: BinarySubtype, bytes: &[u8]) -> RawBson {
    let bytes = bytes.to_vec();
    RawBson::Binary(Binary { subtype, bytes })
}

/// The document of one field.
fn named(name: &str, value: RawBson) -> RawBson {
    let mut out = DocBuilder::new();
    out.append(name, value.as_raw_bson_ref());
    RawBson::Document(out.finish())
}

#[test]
fn the_node_speaks_the_language_of_the_version_that_it_reports() {
    let reported = Variables::default().version;
    assert_eq!(reported, LanguageVersion::REPORTED);
    let is_before = [COMPATIBLE_VERSION[0], COMPATIBLE_VERSION[1]] < [8, 3];
    assert_eq!(reported < LanguageVersion::V8_3, is_before);
}

#[test]
fn what_came_with_8_3_is_unknown_before() {
    let before = LanguageVersion::REPORTED;
    for name in [
        "$subtype",
        "$createObjectId",
        "$hash",
        "$hexHash",
        "$serializeEJSON",
        "$deserializeEJSON",
    ] {
        check_error(named(name, rawbson!({})), before, 168);
        assert!(!super::is_expression_name(name, before), "{name}");
        assert!(
            super::is_expression_name(name, LanguageVersion::V8_3),
            "{name}"
        );
    }
    let over = |operator: &str, body: &str, more: RawDocumentBuf| {
        let mut spec = DocBuilder::new();
        spec.append("input", "$arr").append(body, "$$IDX");
        spec.append_all(&more);
        named(operator, RawBson::Document(spec.finish()))
    };
    let index = rawdoc! { "arrayIndexAs": "i" };
    check_error(over("$map", "in", index.clone()), before, 16879);
    check_error(over("$filter", "cond", index.clone()), before, 28647);
    // As MongoDB it reads the fields in their order.
    check_error(over("$reduce", "in", index), before, 17276);
    check_error(over("$map", "in", rawdoc! {}), before, 17276);
}

#[test]
fn items_have_an_index() {
    let map = |index: &str, body: RawBson| rawbson!({ "$map": { "input": "$arr", "arrayIndexAs": index, "in": body } });
    check(
        map("i", rawbson!({ "$add": ["$$i", "$$this"] })),
        rawbson!([5, 7, 9]),
    );
    check(
        rawbson!({ "$map": { "input": "$arr", "in": "$$IDX" } }),
        rawbson!([0, 1, 2]),
    );
    check(
        rawbson!({ "$filter": { "input": "$arr", "cond": { "$ne": ["$$IDX", 1] } } }),
        rawbson!([5, 7]),
    );
    check(
        rawbson!({ "$filter": { "input": "$arr", "arrayIndexAs": "i", "cond": "$$i" } }),
        rawbson!([6, 7]),
    );
    check(
        rawbson!({ "$reduce": { "input": "$arr", "initialValue": 0, "in": { "$add": ["$$value", "$$IDX"] } } }),
        rawbson!(3),
    );
    check(
        rawbson!({ "$reduce": { "input": "$arr", "initialValue": 0, "in": { "$add": ["$$value", "$$i"] }, "arrayIndexAs": "i" } }),
        rawbson!(3),
    );
    // The index of the array around is that of its own name.
    check(
        map(
            "i",
            rawbson!({ "$map": { "input": [1, 2], "in": ["$$i", "$$IDX"] } }),
        ),
        rawbson!([[[0, 0], [0, 1]], [[1, 0], [1, 1]], [[2, 0], [2, 1]]]),
    );
    let v8_3 = LanguageVersion::V8_3;
    check_error(map("i", rawbson!("$$IDX")), v8_3, 17276);
    check_error(map("this", rawbson!(1)), v8_3, 9);
    check_error(map("Upper", rawbson!(1)), v8_3, 9);
    check_error(
        rawbson!({ "$map": { "input": "$arr", "arrayIndexAs": 1, "in": 1 } }),
        v8_3,
        9,
    );
    check_error(rawbson!("$$IDX"), v8_3, 17276);
}

#[test]
fn ids_are_of_the_time_and_differ() {
    let id = || match in_version(&rawbson!({ "$createObjectId": {} }), LanguageVersion::V8_3) {
        Ok(Some(RawBson::ObjectId(id))) => id,
        other => panic!("no id: {other:?}"),
    };
    assert_eq!(id().bytes()[..4], [0, 0, 0, 5]);
    let two = rawbson!({ "$map": { "input": [1, 2], "in": { "$createObjectId": {} } } });
    let Ok(Some(RawBson::Array(two))) = in_version(&two, LanguageVersion::V8_3) else {
        panic!("no array");
    };
    let ids: Vec<RawBson> = pinion_bson::values(&two).map(RawBson::from).collect();
    assert_ne!(ids[0], ids[1]);
    check_error(rawbson!({ "$createObjectId": 1 }), LanguageVersion::V8_3, 9);
    check_error(
        rawbson!({ "$createObjectId": [] }),
        LanguageVersion::V8_3,
        9,
    );
}

#[test]
fn hashes() {
    let hash = |input: RawBson, algorithm: &str| rawbson!({ "$hexHash": { "input": input, "algorithm": algorithm } });
    check(
        hash(rawbson!("report.pdf"), "sha256"),
        rawbson!("6466E450A16B77B865C5829D6B6C56D9F892956475642DBEB9CCC4340FE01B15"),
    );
    check(
        hash(rawbson!("abc"), "md5"),
        rawbson!("900150983CD24FB0D6963F7D28E17F72"),
    );
    check(hash(rawbson!(""), "xxh64"), rawbson!("EF46DB3751D8E999"));
    check(
        hash(binary(BinarySubtype::Generic, b"abc"), "md5"),
        rawbson!("900150983CD24FB0D6963F7D28E17F72"),
    );
    check(
        rawbson!({ "$hash": { "input": "", "algorithm": "xxh64" } }),
        binary(
            BinarySubtype::Generic,
            &0xef46_db37_51d8_e999_u64.to_be_bytes(),
        ),
    );
    check(hash(rawbson!("$nope"), "md5"), RawBson::Null);
    let v8_3 = LanguageVersion::V8_3;
    check_error(hash(rawbson!(1), "md5"), v8_3, 14);
    check_error(hash(rawbson!("a"), "sha1"), v8_3, 2);
    check_error(rawbson!({ "$hash": { "input": "a" } }), v8_3, 9);
    check_error(
        rawbson!({ "$hash": { "input": "a", "algorithm": "md5", "x": 1 } }),
        v8_3,
        9,
    );
    check_error(rawbson!({ "$hash": "a" }), v8_3, 9);
}

#[test]
fn subtypes() {
    check(
        rawbson!({ "$subtype": (binary(BinarySubtype::Md5, &[1])) }),
        rawbson!(5),
    );
    check(rawbson!({ "$subtype": "$nope" }), RawBson::Null);
    check_error(
        rawbson!({ "$subtype": "a" }),
        LanguageVersion::V8_3,
        10_389_300,
    );
}

/// One value of each type that has a form of its own, with that form and the one that is easier to
/// read.
fn forms() -> Vec<(RawBson, RawBson, RawBson)> {
    let same = |value: RawBson, form: RawBson| (value, form.clone(), form);
    let date = |millis| RawBson::DateTime(DateTime::from_millis(millis));
    let time = Timestamp {
        time: 7,
        increment: u32::MAX,
    };
    vec![
        (rawbson!(42), rawbson!({ "$numberInt": "42" }), rawbson!(42)),
        (
            rawbson!(42_i64),
            rawbson!({ "$numberLong": "42" }),
            rawbson!(42_i64),
        ),
        (
            rawbson!(42.0),
            rawbson!({ "$numberDouble": "42.0" }),
            rawbson!(42.0),
        ),
        same(
            rawbson!(f64::NEG_INFINITY),
            rawbson!({ "$numberDouble": "-Infinity" }),
        ),
        same(
            RawBson::Decimal128("1.50".parse().expect("a decimal")),
            rawbson!({ "$numberDecimal": "1.50" }),
        ),
        (
            date(1_609_459_200_000),
            rawbson!({ "$date": { "$numberLong": "1609459200000" } }),
            rawbson!({ "$date": "2021-01-01T00:00:00.000Z" }),
        ),
        same(date(-1), rawbson!({ "$date": { "$numberLong": "-1" } })),
        same(
            RawBson::ObjectId(ObjectId::from_bytes([0x1a; 12])),
            rawbson!({ "$oid": "1a1a1a1a1a1a1a1a1a1a1a1a" }),
        ),
        same(
            binary(BinarySubtype::Generic, &[1, 2, 3, 4]),
            rawbson!({ "$binary": { "base64": "AQIDBA==", "subType": "00" } }),
        ),
        same(
            RawBson::Timestamp(time),
            rawbson!({ "$timestamp": { "t": 7, "i": (i64::from(u32::MAX)) } }),
        ),
        same(
            RawBson::JavaScriptCode("f".into()),
            rawbson!({ "$code": "f" }),
        ),
        same(RawBson::Symbol("s".into()), rawbson!({ "$symbol": "s" })),
        same(RawBson::MinKey, rawbson!({ "$minKey": 1 })),
        same(RawBson::MaxKey, rawbson!({ "$maxKey": 1 })),
        same(rawbson!("text"), rawbson!("text")),
        same(rawbson!(true), rawbson!(true)),
    ]
}

#[test]
fn extended_json_says_every_type_and_is_read_again() {
    let serialized = |value: &RawBson, relaxed: bool| {
        let input = rawbson!({ "a": [(value.clone())] });
        rawbson!({ "$serializeEJSON": { "input": { "$literal": input }, "relaxed": relaxed } })
    };
    for (value, canonical, relaxed) in forms() {
        check(
            serialized(&value, false),
            rawbson!({ "a": [canonical.clone()] }),
        );
        check(
            serialized(&value, true),
            rawbson!({ "a": [relaxed.clone()] }),
        );
        for form in [canonical, relaxed] {
            check(
                rawbson!({ "$deserializeEJSON": { "input": { "$literal": { "a": [form] } } } }),
                rawbson!({ "a": [(value.clone())] }),
            );
        }
    }
}

#[test]
fn extended_json_that_is_none() {
    let read = |form: RawBson| rawbson!({ "$deserializeEJSON": { "input": { "$literal": form } } });
    let v8_3 = LanguageVersion::V8_3;
    for form in [
        rawbson!({ "$numberInt": 1 }),
        rawbson!({ "$numberInt": "2147483648" }),
        rawbson!({ "$numberInt": "1", "x": 1 }),
        rawbson!({ "$oid": "12" }),
        rawbson!({ "$date": "never" }),
        rawbson!({ "$binary": { "base64": "?", "subType": "00" } }),
        rawbson!({ "$timestamp": { "t": -1, "i": 1 } }),
        rawbson!({ "$minKey": 2 }),
    ] {
        check_error(read(form), v8_3, 241);
    }
    check(
        rawbson!({ "$deserializeEJSON": { "input": { "$literal": { "$oid": "12" } }, "onError": "no" } }),
        rawbson!("no"),
    );
    check(
        read(rawbson!({ "$ref": "c", "$id": { "$numberInt": "1" } })),
        rawbson!({ "$ref": "c", "$id": 1 }),
    );
    check(
        rawbson!({ "$deserializeEJSON": { "input": "$nope" } }),
        RawBson::Null,
    );
    check(
        rawbson!({ "$serializeEJSON": { "input": "$nope" } }),
        RawBson::Null,
    );
    check_error(
        rawbson!({ "$serializeEJSON": { "input": 1, "relaxed": 1 } }),
        v8_3,
        9,
    );
    check_error(
        rawbson!({ "$serializeEJSON": { "relaxed": true } }),
        v8_3,
        9,
    );
    let mut deep = rawbson!(1);
    for _ in 0..pinion_bson::MAX_DEPTH {
        deep = rawbson!([deep]);
    }
    check_error(
        rawbson!({ "$serializeEJSON": { "input": { "$literal": deep } } }),
        v8_3,
        241,
    );
}
