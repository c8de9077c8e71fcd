//! Projections of documents, as MongoDB makes them.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf, rawdoc};

use super::Projection;
use crate::expression::{MetaKind, Metadata, Subject, Variables};
use crate::matcher::Matcher;
use crate::value::elements;

fn sample() -> RawDocumentBuf {
    rawdoc! {
        "_id": 1, "a": 1, "b": { "c": 2, "d": 3 }, "l": [1, 2, 3, 4],
        "n": [{ "x": 1, "y": [1, 2] }, { "x": 2 }, 5, [{ "x": 7 }]]
    }
}

#[track_caller]
fn check(spec: RawDocumentBuf, expected: RawDocumentBuf) {
    let projection =
        Projection::parse_find(&spec, &Variables::default()).expect("the projection parses");
    assert_eq!(
        projection.apply(&sample(), None).expect("it applies"),
        expected,
        "{spec:?}"
    );
}

#[track_caller]
fn check_error(spec: RawDocumentBuf, find: i32, aggregation: i32) {
    let variables = Variables::default();
    let code = |result: pinion_wire::Result<Projection>| match result {
        Ok(projection) => projection
            .apply(&sample(), None)
            .err()
            .map_or(0, |e| e.code.0),
        Err(error) => error.code.0,
    };
    assert_eq!(
        code(Projection::parse_find(&spec, &variables)),
        find,
        "find {spec:?}"
    );
    assert_eq!(
        code(Projection::parse_aggregation(&spec, &variables)),
        aggregation,
        "$project {spec:?}"
    );
}

#[track_caller]
fn check_position(
    spec: RawDocumentBuf,
    filter: RawDocumentBuf,
    expected: Result<RawDocumentBuf, i32>,
) {
    let projection =
        Projection::parse_find(&spec, &Variables::default()).expect("the projection parses");
    assert!(projection.needs_position());
    let position = Matcher::parse(&filter)
        .expect("parses")
        .matches_with_position(&sample())
        .expect("matches");
    let made = projection.apply(
        &sample(),
        position.expect("the document matches").array_index,
    );
    assert_eq!(made.map_err(|e| e.code.0), expected, "{spec:?} {filter:?}");
}

#[test]
fn inclusion_and_exclusion() {
    check(rawdoc! {}, sample());
    check(rawdoc! { "a": 1 }, rawdoc! { "_id": 1, "a": 1 });
    check(rawdoc! { "_id": 1 }, rawdoc! { "_id": 1 });
    check(rawdoc! { "a": 1, "_id": 0 }, rawdoc! { "a": 1 });
    check(
        rawdoc! { "a": 1, "c": 1, "b": true },
        rawdoc! { "_id": 1, "a": 1, "b": { "c": 2, "d": 3 } },
    );
    check(rawdoc! { "b.c": 1 }, rawdoc! { "_id": 1, "b": { "c": 2 } });
    check(
        rawdoc! { "b": { "c": 1 } },
        rawdoc! { "_id": 1, "b": { "c": 2 } },
    );
    check(
        rawdoc! { "n.x": 1 },
        rawdoc! { "_id": 1, "n": [{ "x": 1 }, { "x": 2 }, [{ "x": 7 }]] },
    );
    check(rawdoc! { "q.r": 1 }, rawdoc! { "_id": 1 });
    check(rawdoc! { "l.0": 1 }, rawdoc! { "_id": 1, "l": [] });
    check(
        rawdoc! { "n": 0, "l": 0, "b": 0 },
        rawdoc! { "_id": 1, "a": 1 },
    );
    check(
        rawdoc! { "n.x": 0, "l": 0, "_id": 0 },
        rawdoc! { "a": 1, "b": { "c": 2, "d": 3 }, "n": [{ "y": [1, 2] }, {}, 5, [{}]] },
    );
    check(
        rawdoc! { "n": 0, "l": 0, "b.c": 0, "_id": 1 },
        rawdoc! { "_id": 1, "a": 1, "b": { "d": 3 } },
    );
}

#[test]
fn computed_fields() {
    check(rawdoc! { "a": "$b.c" }, rawdoc! { "_id": 1, "a": 2 });
    check(
        rawdoc! { "z": "x", "a": 1 },
        rawdoc! { "_id": 1, "a": 1, "z": "x" },
    );
    check(
        rawdoc! { "z": ["$a", 1] },
        rawdoc! { "_id": 1, "z": [1, 1] },
    );
    check(
        rawdoc! { "n.z": "$a" },
        rawdoc! { "_id": 1, "n": [{ "z": 1 }, { "z": 1 }, { "z": 1 }, [{ "z": 1 }]] },
    );
    check(
        rawdoc! { "q.r": "$a" },
        rawdoc! { "_id": 1, "q": { "r": 1 } },
    );
    check(
        rawdoc! { "b": { "z": "$a", "c": 1 } },
        rawdoc! { "_id": 1, "b": { "c": 2, "z": 1 } },
    );
    check(rawdoc! { "_id": 0, "a": "$$REMOVE" }, rawdoc! {});
    check(
        rawdoc! { "z": { "$literal": 1 } },
        rawdoc! { "_id": 1, "z": 1 },
    );
}

#[test]
fn find_operators() {
    check(
        rawdoc! { "l": { "$slice": 2 }, "a": 1 },
        rawdoc! { "_id": 1, "a": 1, "l": [1, 2] },
    );
    check(
        rawdoc! { "l": { "$slice": -2 }, "n": 0, "b": 0 },
        rawdoc! { "_id": 1, "a": 1, "l": [3, 4] },
    );
    check(
        rawdoc! { "_id": 1, "l": { "$slice": [1, 2] } },
        rawdoc! { "_id": 1, "l": [2, 3] },
    );
    check(
        rawdoc! { "_id": 1, "l": { "$slice": [-3, 2] } },
        rawdoc! { "_id": 1, "l": [2, 3] },
    );
    check(
        rawdoc! { "n": { "$elemMatch": { "x": 2 } } },
        rawdoc! { "_id": 1, "n": [{ "x": 2 }] },
    );
    check(
        rawdoc! { "n": { "$elemMatch": { "x": 2 } }, "_id": 0 },
        rawdoc! { "n": [{ "x": 2 }] },
    );
    check(
        rawdoc! { "l": { "$elemMatch": { "$gt": 2 } }, "a": 1 },
        rawdoc! { "_id": 1, "a": 1, "l": [3] },
    );
    check(
        rawdoc! { "n": { "$elemMatch": { "x": 9 } } },
        rawdoc! { "_id": 1 },
    );
    check_position(
        rawdoc! { "l.$": 1 },
        rawdoc! { "l": 3 },
        Ok(rawdoc! { "_id": 1, "l": [3] }),
    );
    check_position(
        rawdoc! { "l.$": 1, "a": 1 },
        rawdoc! { "l": { "$gt": 2 } },
        Ok(rawdoc! { "_id": 1, "a": 1, "l": [3] }),
    );
    check_position(
        rawdoc! { "n.x.$": 1 },
        rawdoc! { "n.x": 2 },
        Ok(rawdoc! { "_id": 1, "n": [{ "x": 2 }] }),
    );
    check_position(rawdoc! { "l.$": 1 }, rawdoc! { "a": 1 }, Err(51246));
    check_position(
        rawdoc! { "a.$": 1 },
        rawdoc! { "a": 1 },
        Ok(rawdoc! { "_id": 1, "a": 1 }),
    );
}

#[test]
fn errors() {
    check_error(rawdoc! { "a": 1, "b": 0 }, 31254, 31254);
    check_error(rawdoc! { "a": 0, "b": 1 }, 31253, 31253);
    check_error(rawdoc! { "b": 1, "b.c": 1 }, 31249, 31249);
    check_error(rawdoc! { "b.c": 1, "b": 1 }, 31250, 31250);
    check_error(rawdoc! { "a": 0, "b": "x" }, 31310, 31310);
    check_error(rawdoc! { "z": "$a", "a": 0 }, 31254, 31254);
    check_error(rawdoc! { "a": {} }, 51270, 51270);
    check_error(rawdoc! {}, 0, 51272);
    check_error(rawdoc! { "n": { "$elemMatch": 1 } }, 31274, 168);
    check_error(
        rawdoc! { "n.y": { "$elemMatch": { "$gt": 1 } } },
        31275,
        168,
    );
    check_error(rawdoc! { "l.$": 1 }, 51246, 31324);
    check_error(rawdoc! { "$a": 1 }, 16410, 16410);
    check_error(rawdoc! { "": 1 }, 40352, 40352);
    check_error(rawdoc! { "a.": 1 }, 40353, 40353);
    check_error(rawdoc! { "a..b": 1 }, 15998, 15998);
    check_error(rawdoc! { "a": { "$foo": 1 } }, 31325, 31325);
    check_error(rawdoc! { "b": { "c": 1, "$foo": 1 } }, 16410, 16410);
    check_error(rawdoc! { "l.$": 1, "n.$": 1 }, 31276, 31324);
    check_error(rawdoc! { "l.$": 0 }, 31395, 31324);
    check_error(rawdoc! { "n.$.x": 1 }, 31394, 31394);
    check_error(
        rawdoc! { "l.$": 1, "n": { "$elemMatch": { "x": 1 } } },
        31255,
        31324,
    );
    check_error(
        rawdoc! { "n": { "$elemMatch": { "x": 1 } }, "l.$": 1 },
        31256,
        168,
    );
    check_error(rawdoc! { "l.$": "x" }, 31308, 31324);
    check_error(rawdoc! { "a": 0, "b": { "$not": [1] } }, 31252, 31252);
    let collision =
        Projection::parse_find(&rawdoc! { "b": 1, "b.c": 1 }, &Variables::default()).unwrap_err();
    assert_eq!(
        collision.message,
        "Path collision at b.c remaining portion c"
    );
}

#[test]
fn additions() {
    let check = |spec: RawDocumentBuf, document: RawDocumentBuf, expected: RawDocumentBuf| {
        let projection = Projection::parse_addition(&spec, &Variables::default()).expect("parses");
        assert_eq!(
            projection.apply(&document, None).expect("applies"),
            expected,
            "{spec:?}"
        );
    };
    check(
        rawdoc! { "b": 1, "c": "$a" },
        rawdoc! { "_id": 1, "a": 2 },
        rawdoc! { "_id": 1, "a": 2, "b": 1, "c": 2 },
    );
    check(
        rawdoc! { "a": 5 },
        rawdoc! { "_id": 1, "a": 2, "z": 1 },
        rawdoc! { "_id": 1, "a": 5, "z": 1 },
    );
    check(
        rawdoc! { "a.x": 5 },
        rawdoc! { "a": 2 },
        rawdoc! { "a": { "x": 5 } },
    );
    check(
        rawdoc! { "a": { "x": 5 } },
        rawdoc! { "a": [1, { "y": 2 }] },
        rawdoc! { "a": [{ "x": 5 }, { "y": 2, "x": 5 }] },
    );
    check(
        rawdoc! { "a": "$$REMOVE" },
        rawdoc! { "a": 2, "b": 1 },
        rawdoc! { "b": 1 },
    );
}

/// A specification that gives `value` to each of forty fields.
fn of_forty(value: RawBsonRef<'_>) -> DocBuilder {
    let mut spec = DocBuilder::new();
    for at in 0..40 {
        spec.append(&format!("f{at}"), value);
    }
    spec
}

#[test]
fn projections_of_many_fields_are_as_those_of_few() {
    let document = rawdoc! { "_id": 1, "f3": 3, "x": 7, "f39": { "y": 1 }, "f20": [1] };
    let project = |spec: DocBuilder| {
        let projection =
            Projection::parse_aggregation(&spec.finish(), &Variables::default()).expect("parsed");
        projection.apply(&document, None).expect("projected")
    };
    assert_eq!(
        project(of_forty(RawBsonRef::Int32(1))),
        rawdoc! { "_id": 1, "f3": 3, "f39": { "y": 1 }, "f20": [1] }
    );
    assert_eq!(
        project(of_forty(RawBsonRef::Int32(0))),
        rawdoc! { "_id": 1, "x": 7 }
    );
    let mut twice = of_forty(RawBsonRef::Int32(1));
    twice.append("f3.y", RawBsonRef::Int32(1));
    let error = Projection::parse_aggregation(&twice.finish(), &Variables::default())
        .expect_err("a field and one within it");
    assert_eq!(error.code.0, 31249);

    // Fields that are there are computed in their place, the others behind.
    let spec = of_forty(RawBsonRef::String("$x")).finish();
    let addition = Projection::parse_addition(&spec, &Variables::default()).expect("parsed");
    let added = addition.apply(&document, None).expect("added");
    let names: Vec<&str> = elements(&added).map(|(name, _)| name).collect();
    assert_eq!(names[..6], ["_id", "f3", "x", "f39", "f20", "f0"]);
    assert_eq!(names.len(), 42);
    assert!(
        elements(&added)
            .skip(1)
            .all(|(_, value)| value == RawBsonRef::Int32(7))
    );
}

#[test]
fn a_constant_that_is_copied_takes_a_budget() {
    let text = "x".repeat(2_000_000);
    let apply = |spec: RawDocumentBuf, document: &RawDocumentBuf| {
        let projection = Projection::parse_aggregation(&spec, &Variables::default());
        let projection = projection.expect("the projection parses");
        crate::work::within(4_000_000, || projection.apply(document, None))
            .map(|made| made.expect("it applies").as_bytes().len())
    };
    // Also in the place of a field that is there, and in a document that there was not.
    for document in [rawdoc! { "_id": 1 }, rawdoc! { "_id": 1, "a": 1 }] {
        for spec in [
            rawdoc! { "a": { "$literal": &*text } },
            rawdoc! { "a": { "b": { "$literal": &*text } } },
        ] {
            assert_eq!(apply(spec, &document), None);
        }
    }
    assert!(apply(rawdoc! { "a": { "$literal": &text[..1000] } }, &sample()).is_some());
}

/// What mongos of MongoDB 4.4 merges by comes with what its client wants.
#[test]
fn what_mongos_merges_by_stands_beside_every_projection() {
    let metadata = Metadata::default()
        .with(MetaKind::SortKey, rawdoc! { "k": 1 })
        .with(MetaKind::GeoNearDistance, 2.5);
    let document = rawdoc! { "_id": 1, "a": 3, "b": 4 };
    let check = |own: RawDocumentBuf, kind: &str, expected: RawDocumentBuf| {
        let mut spec = DocBuilder::new();
        spec.append_all(&own);
        spec.append_all(&rawdoc! { "$sortKey": { "$meta": kind } });
        let projection = Projection::parse_find_of_mongos(&spec.finish(), &Variables::default());
        let subject = Subject {
            document: &document,
            metadata: &metadata,
        };
        let projected = projection.expect("it parses").apply(subject, None);
        assert_eq!(projected.expect("it applies"), expected, "{own:?} {kind}");
    };
    let key = || rawdoc! { "k": 1 };
    check(
        rawdoc! {},
        "sortKey",
        rawdoc! { "_id": 1, "a": 3, "b": 4, "$sortKey": key() },
    );
    check(
        rawdoc! { "a": 1 },
        "sortKey",
        rawdoc! { "_id": 1, "a": 3, "$sortKey": key() },
    );
    check(
        rawdoc! { "a": 1, "_id": 0 },
        "sortKey",
        rawdoc! { "a": 3, "$sortKey": key() },
    );
    check(
        rawdoc! { "a": 0 },
        "sortKey",
        rawdoc! { "_id": 1, "b": 4, "$sortKey": key() },
    );
    check(
        rawdoc! { "b": 1 },
        "geoNearDistance",
        rawdoc! { "_id": 1, "b": 4, "$sortKey": 2.5 },
    );
    let variables = Variables::default();
    let distance = rawdoc! { "a": 1, "$sortKey": { "$meta": "geoNearDistance" } };
    assert!(Projection::parse_find(&distance, &variables).is_err());
    let text = rawdoc! { "$sortKey": { "$meta": "textScore" } };
    assert!(Projection::parse_find_of_mongos(&text, &variables).is_err());
    let alone =
        |spec: RawDocumentBuf| Projection::of_merge_key(&spec, &variables).expect("it parses");
    let alone_of_key = alone(distance).expect("it is there");
    assert!(alone_of_key.reads_meta(MetaKind::GeoNearDistance));
    assert!(!alone_of_key.is_inclusion());
    assert!(alone(rawdoc! { "a": 1 }).is_none());
}
