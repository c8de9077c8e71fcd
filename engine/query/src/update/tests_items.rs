//! Updates of array items by `$[identifier]`, and updates that are a pipeline.

use pinion_bson::{
    DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocumentBuf, Timestamp, rawbson, rawdoc,
};

use super::{Update, UpdateContext};
use crate::expression::Variables;
use crate::matcher::Matcher;

const CONTEXT: UpdateContext = UpdateContext {
    now_ms: 1_700_000_000_000,
    timestamp: Timestamp {
        time: 1_700_000_000,
        increment: 1,
    },
    insert: false,
    position: None,
};

fn array(value: RawBson) -> RawArrayBuf {
    match value {
        RawBson::Array(array) => array,
        _ => panic!("an array"),
    }
}

fn parse(update: &RawBson, filters: &RawBson) -> pinion_wire::Result<Update> {
    let variables = Variables {
        values: vec![("added".into(), RawBson::Int32(7))],
        ..Variables::default()
    };
    Update::parse_with(
        update.as_raw_bson_ref(),
        Some(&array(filters.clone())),
        &variables,
    )
}

#[track_caller]
fn check(old: RawDocumentBuf, update: RawBson, filters: RawBson, expected: RawDocumentBuf) {
    let made = parse(&update, &filters)
        .and_then(|update| update.apply(&old, &CONTEXT))
        .expect("the update applies");
    assert_eq!(made.unwrap_or(old), expected, "{update:?} {filters:?}");
}

#[track_caller]
fn check_error(old: RawDocumentBuf, update: RawBson, filters: RawBson, code: i32) {
    let failed = parse(&update, &filters)
        .and_then(|update| update.apply(&old, &CONTEXT))
        .expect_err("the update is refused");
    assert_eq!(failed.code.0, code, "{update:?} {filters:?}: {failed:?}");
}

#[test]
fn filtered_items() {
    check(
        rawdoc! { "_id": 1, "a": [1, 2, 3] },
        rawbson!({ "$set": { "a.$[x]": 9 } }),
        rawbson!([{ "x": { "$gte": 2 } }]),
        rawdoc! { "_id": 1, "a": [1, 9, 9] },
    );
    check(
        rawdoc! { "_id": 1, "a": [{ "b": [1, 5] }, { "b": [6] }] },
        rawbson!({ "$inc": { "a.$[].b.$[y]": 10 }, "$set": { "a.$[z].n": true } }),
        rawbson!([{ "y": { "$gt": 4 } }, { "z.b": 6 }]),
        rawdoc! { "_id": 1, "a": [{ "b": [1, 15] }, { "b": [16], "n": true }] },
    );
    // A filter with several conditions on one identifier.
    check(
        rawdoc! { "_id": 1, "a": [{ "b": 1, "c": 1 }, { "b": 1, "c": 2 }] },
        rawbson!({ "$unset": { "a.$[e].b": 1 } }),
        rawbson!([{ "$or": [{ "e.c": 2 }, { "e.b": 3 }] }]),
        rawdoc! { "_id": 1, "a": [{ "b": 1, "c": 1 }, { "c": 2 }] },
    );
    // Nothing selected, nothing changed.
    check(
        rawdoc! { "_id": 1, "a": [1] },
        rawbson!({ "$set": { "a.$[x]": 9 } }),
        rawbson!([{ "x": 5 }]),
        rawdoc! { "_id": 1, "a": [1] },
    );
    // An item that is taken out leaves null.
    check(
        rawdoc! { "_id": 1, "a": [1, 2] },
        rawbson!({ "$unset": { "a.$[x]": "" } }),
        rawbson!([{ "x": 1 }]),
        rawdoc! { "_id": 1, "a": [null, 2] },
    );
    // Two identifiers that stand for one item, at different paths below it.
    check(
        rawdoc! { "_id": 1, "a": [{ "k": 1 }] },
        rawbson!({ "$set": { "a.$[x].b.c": 1, "a.$[y].b.d": 2 } }),
        rawbson!([{ "x.k": 1 }, { "y.k": 1 }]),
        rawdoc! { "_id": 1, "a": [{ "k": 1, "b": { "c": 1, "d": 2 } }] },
    );
}

#[test]
fn filter_errors() {
    let old = || rawdoc! { "_id": 1, "a": [1, 2], "s": "x" };
    let set = |path: &str| {
        let mut update = DocBuilder::new();
        update
            .start_document("$set")
            .append(path, RawBsonRef::Int32(1));
        update.end();
        RawBson::Document(update.finish())
    };
    for (update, filters, code) in [
        (set("a.$[x]"), rawbson!([]), 2),
        (set("a.$[x]"), rawbson!([{ "x": 1 }, { "y": 1 }]), 9),
        (set("a.$[x]"), rawbson!([{ "x": 1 }, { "x": 2 }]), 9),
        (set("a.$[x]"), rawbson!([{ "x": 1, "y": 2 }]), 9),
        (set("a.$[x]"), rawbson!([{}]), 9),
        (set("a.$[X]"), rawbson!([{ "X": 1 }]), 2),
        (set("a.$[x]"), rawbson!([{ "$expr": true }]), 224),
        (
            set("a.$[x]"),
            rawbson!([{ "$text": { "$search": "x" } }]),
            2,
        ),
        (
            set("a.$[x]"),
            rawbson!([{ "x": { "$near": [0, 0] } }]),
            5626500,
        ),
        (set("a.$[x]"), rawbson!([{ "x": { "$foo": 1 } }]), 2),
        (set("s.$[x]"), rawbson!([{ "x": 1 }]), 2),
        (set("n.$[x]"), rawbson!([{ "x": 1 }]), 2),
        (set("$[x]"), rawbson!([{ "x": 1 }]), 2),
        (rawbson!({ "a": 1 }), rawbson!([{ "x": 1 }]), 9),
        (
            rawbson!([{ "$set": { "a": 1 } }]),
            rawbson!([{ "x": 1 }]),
            9,
        ),
        // Both stand for the same item.
        (
            rawbson!({ "$set": { "a.$[x]": 1 }, "$inc": { "a.$[y]": 1 } }),
            rawbson!([{ "x": 1 }, { "y": 1 }]),
            40,
        ),
        (
            rawbson!({ "$set": { "a.$[x]": 1 }, "$inc": { "a.$[x]": 1 } }),
            rawbson!([{ "x": 1 }]),
            40,
        ),
        (
            rawbson!({ "$set": { "a.$[x]": 1 }, "$inc": { "a.0": 1 } }),
            rawbson!([{ "x": 1 }]),
            40,
        ),
    ] {
        check_error(old(), update, filters, code);
    }
}

#[test]
fn pipelines() {
    check(
        rawdoc! { "_id": 1, "a": 2, "b": 3 },
        rawbson!([{ "$set": { "c": { "$add": ["$a", "$b", "$$added"] } } }, { "$unset": "a" }]),
        rawbson!([]),
        rawdoc! { "_id": 1, "b": 3, "c": 12 },
    );
    // The identity stays where the pipeline leaves it out, and an empty timestamp is no request for
    // the time.
    check(
        rawdoc! { "_id": 1, "a": 2 },
        rawbson!([{ "$replaceWith": { "x": { "$literal": (Timestamp { time: 0, increment: 0 }) } } }]),
        rawbson!([]),
        rawdoc! { "_id": 1, "x": (Timestamp { time: 0, increment: 0 }) },
    );
    // Names that stand for operators elsewhere.
    check(
        rawdoc! { "_id": 1, "$price": 5 },
        rawbson!([{ "$set": { "seen": 1 } }]),
        rawbson!([]),
        rawdoc! { "_id": 1, "$price": 5, "seen": 1 },
    );
    check(
        rawdoc! { "_id": 1, "a": 5 },
        rawbson!([{ "$replaceWith": { "$setField": { "field": { "$literal": "$b" }, "input": "$$ROOT", "value": "$a" } } }]),
        rawbson!([]),
        rawdoc! { "_id": 1, "a": 5, "$b": 5 },
    );
    for (update, code) in [
        (rawbson!([{ "$match": { "a": 1 } }]), 72),
        (rawbson!([{ "$match": 1 }]), 15959),
        (
            rawbson!([{ "$lookup": { "from": "x", "localField": "a", "foreignField": "b", "as": "c" } }]),
            72,
        ),
        (rawbson!([{ "$nosuch": {} }]), 40324),
        (rawbson!([{ "$set": { "_id": 2 } }]), 66),
        (rawbson!([{ "$replaceWith": "$a" }]), 40228),
        (rawbson!([{ "$set": { "a": "$$unknown" } }]), 17276),
    ] {
        check_error(rawdoc! { "_id": 1, "a": 1 }, update, rawbson!([]), code);
    }
}

#[test]
fn upserts_by_pipeline() {
    let update = parse(
        &rawbson!([{ "$set": { "b": { "$add": ["$a", 1] } } }]),
        &rawbson!([]),
    )
    .expect("it parses");
    let matcher =
        Matcher::parse(&rawdoc! { "_id": 5, "a": 1, "z": { "$gt": 3 } }).expect("it parses");
    assert_eq!(
        update
            .upsert(&matcher, &CONTEXT, pinion_bson::ObjectId::new())
            .expect("it inserts"),
        rawdoc! { "_id": 5, "a": 1, "b": 2 }
    );
    assert!(!update.is_replacement());
    assert!(Update::parse(RawBsonRef::Int32(1)).is_err());
}

#[test]
fn documents_nest_as_deep_as_may_be_stored() {
    use crate::limits::MAX_STORED_DEPTH;
    let nested = |depth: usize, name: &str| {
        let mut document = rawdoc! {};
        for _ in 1..depth {
            let mut outer = pinion_bson::DocBuilder::new();
            outer.append(name, pinion_bson::RawBsonRef::Document(&document));
            document = outer.finish();
        }
        document
    };
    let check = |depth: usize, name: &str, code: Option<i32>| {
        let found = super::check_storable(&nested(depth, name));
        assert_eq!(found.err().map(|e| e.code.0), code, "{depth} {name:?}");
    };
    for name in ["", "a", "a longer name"] {
        check(MAX_STORED_DEPTH, name, None);
        check(MAX_STORED_DEPTH + 1, name, Some(15));
    }
}
