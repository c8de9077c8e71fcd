//! Which commands have the same shape, and how it looks.

use pinion_bson::{RawDocumentBuf, rawdoc};

use super::*;

fn shape(command: &RawDocumentBuf) -> RawDocumentBuf {
    let shape = command_shape(command, "db").expect("without a bound");
    shape.expect("a command that reads")
}

#[track_caller]
fn check(command: RawDocumentBuf, expected: RawDocumentBuf) {
    let mut whole = DocBuilder::new();
    let (name, _) = first(&command).expect("a name");
    whole
        .start_document("cmdNs")
        .append("db", "db")
        .append("coll", "c")
        .end()
        .append("command", name)
        .append_all(&expected);
    assert_eq!(shape(&command), whole.finish(), "{command:?}");
}

#[track_caller]
fn check_same(a: RawDocumentBuf, b: RawDocumentBuf, expected: bool) {
    assert_eq!(shape(&a) == shape(&b), expected, "{a:?} {b:?}");
}

#[test]
fn finds() {
    check(rawdoc! { "find": "c" }, rawdoc! { "filter": {} });
    check(
        rawdoc! { "find": "c", "filter": { "a": 1, "b": { "$gt": "x", "$in": [1, 2.5] } }, "sort": { "a": -1 } },
        rawdoc! { "filter": { "a": { "$eq": "?number" }, "b": { "$gt": "?string", "$in": "?array<?number>" } }, "sort": { "a": -1 } },
    );
    check(
        rawdoc! { "find": "c", "filter": { "$or": [{ "a": null }, { "a": { "$exists": true } }] }, "limit": 5, "skip": 0 },
        rawdoc! { "filter": { "$or": [{ "a": { "$eq": "?null" } }, { "a": { "$exists": true } }] }, "limit": "?number" },
    );
    check(
        rawdoc! { "find": "c", "filter": { "a": { "$elemMatch": { "b": 1 } } }, "projection": { "a": 1, "b": "$c", "d": "text" } },
        rawdoc! { "filter": { "a": { "$elemMatch": { "b": { "$eq": "?number" } } } }, "projection": { "a": true, "b": "$c", "d": "?string" } },
    );
}

#[test]
fn what_asks_for_the_same_has_the_same_shape() {
    let of = |filter: RawDocumentBuf| rawdoc! { "find": "c", "filter": filter };
    check_same(
        of(rawdoc! { "a": 1 }),
        of(rawdoc! { "a": { "$eq": 2i64 } }),
        true,
    );
    check_same(of(rawdoc! { "a": 1 }), of(rawdoc! { "a": "x" }), false);
    check_same(of(rawdoc! { "a": [1, 2] }), of(rawdoc! { "a": [3] }), true);
    check_same(
        of(rawdoc! { "a": { "b": 1 } }),
        of(rawdoc! { "a": { "c": "x" } }),
        true,
    );
    let hinted = rawdoc! { "find": "c", "filter": { "a": 1 }, "hint": "a_1", "batchSize": 5, "comment": "x" };
    check_same(of(rawdoc! { "a": 7 }), hinted, true);
    check_same(of(rawdoc! {}), rawdoc! { "find": "d", "filter": {} }, false);
    check_same(
        of(rawdoc! {}),
        rawdoc! { "find": "c", "collation": { "locale": "fr" } },
        false,
    );
}

#[test]
fn pipelines() {
    check(
        rawdoc! { "aggregate": "c", "pipeline": [
            { "$match": { "a": 1 } },
            { "$lookup": { "from": "d", "localField": "a", "foreignField": "b", "as": "x", "pipeline": [{ "$match": { "c": true } }] } },
            { "$group": { "_id": "$a", "n": { "$sum": 1 }, "top": { "$top": { "sortBy": { "b": -1 }, "output": "$b" } } } },
            { "$sort": { "n": 1 } },
            { "$limit": 3 },
        ] },
        rawdoc! { "pipeline": [
            { "$match": { "a": { "$eq": "?number" } } },
            { "$lookup": { "from": "d", "localField": "a", "foreignField": "b", "as": "x", "pipeline": [{ "$match": { "c": { "$eq": "?bool" } } }] } },
            { "$group": { "_id": "$a", "n": { "$sum": "?number" }, "top": { "$top": { "sortBy": { "b": -1 }, "output": "$b" } } } },
            { "$sort": { "n": 1 } },
            { "$limit": "?number" },
        ] },
    );
    check(
        rawdoc! { "distinct": "c", "key": "k", "query": { "a": { "$not": { "$lt": 1 } } } },
        rawdoc! { "key": "k", "query": { "a": { "$not": { "$lt": "?number" } } } },
    );
}

#[test]
fn commands_that_have_none() {
    assert_eq!(
        command_shape(&rawdoc! { "count": "c" }, "db").expect("small"),
        None
    );
    assert_eq!(command_shape(&rawdoc! {}, "db").expect("small"), None);
}

#[test]
fn finds_by_one_id() {
    let is = |filter: RawDocumentBuf| find_of_one_id(&rawdoc! { "find": "c", "filter": filter });
    assert!(is(rawdoc! { "_id": 1 }) && is(rawdoc! { "_id": { "$eq": 1 } }));
    assert!(
        !is(rawdoc! { "_id": { "$gt": 1 } })
            && !is(rawdoc! { "_id": 1, "a": 1 })
            && !is(rawdoc! {})
    );
}
