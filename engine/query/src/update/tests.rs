//! Updates of documents, as MongoDB makes them.

use pinion_bson::{DateTime, ObjectId, RawBson, RawBsonRef, RawDocumentBuf, Timestamp, rawdoc};

use super::{Update, UpdateContext};
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

fn sample() -> RawDocumentBuf {
    rawdoc! { "_id": 1, "a": 5, "s": "x", "arr": [1, 2, 3], "o": { "b": 1 }, "nested": [{ "x": 1 }, { "x": 2 }] }
}

/// The sample with some fields changed or (`()`) taken out, new ones at the end.
fn with(changes: RawDocumentBuf) -> RawDocumentBuf {
    let mut out = pinion_bson::DocBuilder::new();
    for (name, value) in crate::value::elements(&sample()) {
        match crate::value::field(&changes, name) {
            Some(RawBsonRef::Undefined) => {}
            Some(new) => {
                out.append(name, new);
            }
            None => {
                out.append(name, value);
            }
        }
    }
    for (name, value) in crate::value::elements(&changes) {
        if crate::value::field(&sample(), name).is_none() {
            out.append(name, value);
        }
    }
    out.finish()
}

#[track_caller]
fn check(update: RawDocumentBuf, changes: RawDocumentBuf) {
    let parsed = Update::parse(RawBsonRef::Document(&update)).expect("the update parses");
    let made = parsed
        .apply(&sample(), &CONTEXT)
        .expect("the update applies");
    assert_eq!(made, Some(with(changes)), "{update:?}");
}

#[test]
fn operators_of_an_old_oplog_make_fields_in_the_order_of_their_bytes() {
    let update = rawdoc! { "$set": { "10": 1, "9": 2, "b.10": 3, "b.9": 4 } };
    let update = Update::from_logged_operators(&update).expect("the update parses");
    let made = update.apply(&rawdoc! { "_id": 1 }, &CONTEXT);
    let expected = rawdoc! { "_id": 1, "10": 1, "9": 2, "b": { "10": 3, "9": 4 } };
    assert_eq!(made.expect("the update applies"), Some(expected));
}

#[track_caller]
fn check_no_change(update: RawDocumentBuf) {
    let parsed = Update::parse(RawBsonRef::Document(&update)).expect("the update parses");
    assert_eq!(
        parsed
            .apply(&sample(), &CONTEXT)
            .expect("the update applies"),
        None,
        "{update:?}"
    );
}

#[track_caller]
fn check_error(update: RawDocumentBuf, code: i32, message: &str) {
    let result =
        Update::parse(RawBsonRef::Document(&update)).and_then(|u| u.apply(&sample(), &CONTEXT));
    let error = result.expect_err("the update is refused");
    assert_eq!(
        (error.code.0, error.message.as_str()),
        (code, message),
        "{update:?}"
    );
}

#[test]
fn fields() {
    check(rawdoc! { "$set": { "a": 6 } }, rawdoc! { "a": 6 });
    check(rawdoc! { "$set": { "a": 5.0 } }, rawdoc! { "a": 5.0 });
    check(
        rawdoc! { "$set": { "o.c": 2, "q.r": 1 } },
        rawdoc! { "o": { "b": 1, "c": 2 }, "q": { "r": 1 } },
    );
    check(
        rawdoc! { "$set": { "z": 1, "b": 2, "c.d": 4 } },
        rawdoc! { "b": 2, "c": { "d": 4 }, "z": 1 },
    );
    check(
        rawdoc! { "$set": { "10": 1, "9": 2, "b": 3 } },
        rawdoc! { "9": 2, "10": 1, "b": 3 },
    );
    check(
        rawdoc! { "$set": { "x.$y": 1 } },
        rawdoc! { "x": { "$y": 1 } },
    );
    check(
        rawdoc! { "$set": { "x.0": 1 } },
        rawdoc! { "x": { "0": 1 } },
    );
    check(
        rawdoc! { "$unset": { "a": 1, "q": 1 } },
        rawdoc! { "a": RawBson::Undefined },
    );
    check(
        rawdoc! { "$unset": { "arr.1": 1 } },
        rawdoc! { "arr": [1, null, 3] },
    );
    check(
        rawdoc! { "$inc": { "a": 2, "n.m": 1.5 } },
        rawdoc! { "a": 7, "n": { "m": 1.5 } },
    );
    check(
        rawdoc! { "$inc": { "a": 2_147_483_647 } },
        rawdoc! { "a": 2_147_483_652_i64 },
    );
    check(rawdoc! { "$inc": { "a": 0.0 } }, rawdoc! { "a": 5.0 });
    check(
        rawdoc! { "$mul": { "a": 3, "n": 2_i64 } },
        rawdoc! { "a": 15, "n": 0_i64 },
    );
    check(
        rawdoc! { "$mul": { "n": 2, "m": 2.5, "p": -2.5 } },
        rawdoc! { "m": 0.0, "n": 0, "p": -0.0 },
    );
    check(
        rawdoc! { "$min": { "a": 3, "q": 1 } },
        rawdoc! { "a": 3, "q": 1 },
    );
    check(rawdoc! { "$max": { "a": "z" } }, rawdoc! { "a": "z" });
    check(
        rawdoc! { "$currentDate": { "d": true } },
        rawdoc! { "d": pinion_bson::DateTime::from_millis(CONTEXT.now_ms) },
    );
    check(
        rawdoc! { "$currentDate": { "t": { "$type": "timestamp" } } },
        rawdoc! { "t": CONTEXT.timestamp },
    );
    check(
        rawdoc! { "$bit": { "a": { "xor": 1, "and": 6 }, "q": { "or": 5 } } },
        rawdoc! { "a": 4, "q": 5 },
    );
    check(
        rawdoc! { "$rename": { "a": "o.c" } },
        rawdoc! { "a": RawBson::Undefined, "o": { "b": 1, "c": 5 } },
    );
    check(
        rawdoc! { "$rename": { "a": "s" } },
        rawdoc! { "a": RawBson::Undefined, "s": 5 },
    );
    check(
        rawdoc! { "$rename": { "o.b": "w" } },
        rawdoc! { "o": {}, "w": 1 },
    );
    for update in [
        rawdoc! { "$set": { "a": 5 } },
        rawdoc! { "$set": { "_id": 1 } },
        rawdoc! { "$set": {} },
        rawdoc! { "$inc": { "a": 0 } },
        rawdoc! { "$min": { "a": 5.0 } },
        rawdoc! { "$setOnInsert": { "a": 9 } },
        rawdoc! { "$unset": { "a.b": 1, "arr.9": 1 } },
        rawdoc! { "$rename": { "q": "z" } },
        rawdoc! { "$push": { "arr": { "$each": [] } } },
        rawdoc! { "$addToSet": { "arr": 1.0 } },
        rawdoc! { "$pull": { "arr": {} } },
        rawdoc! { "$pull": { "q": 1 } },
        rawdoc! { "$pop": { "q.r": 1 } },
        rawdoc! { "$rename": { "$q": "z" } },
    ] {
        check_no_change(update);
    }
}

#[test]
fn arrays() {
    check(
        rawdoc! { "$set": { "arr.5": 1 } },
        rawdoc! { "arr": [1, 2, 3, null, null, 1] },
    );
    check(
        rawdoc! { "$set": { "arr.01": 9 } },
        rawdoc! { "arr": [1, 9, 3] },
    );
    check(
        rawdoc! { "$set": { "arr.$[]": 0 } },
        rawdoc! { "arr": [0, 0, 0] },
    );
    check(
        rawdoc! { "$inc": { "nested.$[].x": 1 } },
        rawdoc! { "nested": [{ "x": 2 }, { "x": 3 }] },
    );
    check(
        rawdoc! { "$push": { "arr": 4, "q": 1 } },
        rawdoc! { "arr": [1, 2, 3, 4], "q": [1] },
    );
    check(
        rawdoc! { "$push": { "q.r": { "$each": [] } } },
        rawdoc! { "q": { "r": [] } },
    );
    check(
        rawdoc! { "$addToSet": { "arr": { "$each": [1, 7, 7] } } },
        rawdoc! { "arr": [1, 2, 3, 7] },
    );
    check(
        rawdoc! { "$addToSet": { "q": { "$each": [] } } },
        rawdoc! { "q": [] },
    );
    check(rawdoc! { "$pop": { "arr": -1 } }, rawdoc! { "arr": [2, 3] });
    check(rawdoc! { "$pop": { "arr": 1 } }, rawdoc! { "arr": [1, 2] });
    check(
        rawdoc! { "$pull": { "arr": { "$gt": 1 } } },
        rawdoc! { "arr": [1] },
    );
    check(
        rawdoc! { "$pull": { "nested": { "x": 1 } } },
        rawdoc! { "nested": [{ "x": 2 }] },
    );
    check(
        rawdoc! { "$pull": { "nested": { "$or": [{ "x": 1 }] } } },
        rawdoc! { "nested": [{ "x": 2 }] },
    );
    check(
        rawdoc! { "$pullAll": { "arr": [1, 3.0] } },
        rawdoc! { "arr": [2] },
    );
}

#[test]
fn positions() {
    let update = rawdoc! { "$set": { "nested.$.x": 9 } };
    let parsed = Update::parse(RawBsonRef::Document(&update)).expect("parses");
    assert!(parsed.needs_position());
    let made = parsed
        .apply(
            &sample(),
            &UpdateContext {
                position: Some(1),
                ..CONTEXT
            },
        )
        .expect("applies");
    assert_eq!(
        made,
        Some(with(rawdoc! { "nested": [{ "x": 1 }, { "x": 9 }] }))
    );
    check_error(
        update,
        2,
        "The positional operator did not find the match needed from the query.",
    );
}

/// MongoDB counts these as changes whatever comes out.
#[test]
fn changes_that_leave_the_value() {
    let old = rawdoc! { "_id": 1, "a": [1, 2], "d": DateTime::from_millis(CONTEXT.now_ms) };
    let apply = |update: RawDocumentBuf| {
        let parsed = Update::parse(RawBsonRef::Document(&update)).expect("the update parses");
        parsed.apply(&old, &CONTEXT).expect("the update applies")
    };
    for update in [
        rawdoc! { "$push": { "a": { "$each": [3], "$slice": 2 } } },
        rawdoc! { "$push": { "a": { "$each": [], "$sort": 1 } } },
        rawdoc! { "$currentDate": { "d": true } },
    ] {
        assert_eq!(apply(update), Some(old.clone()));
    }
    for update in [
        rawdoc! { "$push": { "a": { "$each": [], "$slice": 2 } } },
        rawdoc! { "$push": { "a": { "$each": [], "$position": 0, "$slice": -9 } } },
        rawdoc! { "$addToSet": { "a": 1 } },
        rawdoc! { "$pull": { "a": 3 } },
    ] {
        assert_eq!(apply(update), None);
    }
}

#[test]
fn replacements() {
    let apply = |replacement: RawDocumentBuf| {
        Update::parse(RawBsonRef::Document(&replacement)).and_then(|u| u.apply(&sample(), &CONTEXT))
    };
    assert_eq!(
        apply(rawdoc! { "b": 2 }).unwrap(),
        Some(rawdoc! { "_id": 1, "b": 2 })
    );
    assert_eq!(
        apply(rawdoc! { "b": 2, "_id": 1.0 }).unwrap(),
        Some(rawdoc! { "_id": 1.0, "b": 2 })
    );
    assert_eq!(apply(sample()).unwrap(), None);
    assert_eq!(apply(rawdoc! {}).unwrap(), Some(rawdoc! { "_id": 1 }));
    assert_eq!(
        apply(rawdoc! { "t": Timestamp { time: 0, increment: 0 } }).unwrap(),
        Some(rawdoc! { "_id": 1, "t": CONTEXT.timestamp })
    );
    let error = apply(rawdoc! { "_id": 2 }).unwrap_err();
    assert_eq!(error.code.0, 66);
    assert_eq!(
        apply(rawdoc! { "b": 1, "$set": { "a": 1 } })
            .unwrap_err()
            .code
            .0,
        52
    );
}

#[test]
fn errors() {
    check_error(
        rawdoc! { "$set": { "a.b": 1 } },
        28,
        "Cannot create field 'b' in element {a: 5}",
    );
    check_error(
        rawdoc! { "$set": { "o.b.c": 1 } },
        28,
        "Cannot create field 'c' in element {b: 1}",
    );
    check_error(
        rawdoc! { "$set": { "arr.x": 1 } },
        28,
        "Cannot create field 'x' in element {arr: [ 1, 2, 3 ]}",
    );
    check_error(
        rawdoc! { "$set": { "arr.0.b": 1 } },
        28,
        "Cannot create field 'b' in element {0: 1}",
    );
    check_error(
        rawdoc! { "$set": { "_id.x": 1 } },
        28,
        "Cannot create field 'x' in element {_id: 1}",
    );
    check_error(
        rawdoc! { "$pull": { "a.b": 1 } },
        28,
        "Cannot use the part (b) of (a.b) to traverse the element ({a: 5})",
    );
    check_error(
        rawdoc! { "$inc": { "s": 1 } },
        14,
        "Cannot apply $inc to a value of non-numeric type. {_id: 1} has the field 's' of non-numeric type string",
    );
    check_error(
        rawdoc! { "$inc": { "a": "x" } },
        14,
        "Cannot increment with non-numeric argument: {a: \"x\"}",
    );
    check_error(
        rawdoc! { "$mul": { "a": null } },
        14,
        "Cannot multiply with non-numeric argument: {a: null}",
    );
    check_error(
        rawdoc! { "$push": { "a": 1 } },
        2,
        "The field 'a' must be an array but is of type int in document {_id: 1}",
    );
    check_error(
        rawdoc! { "$addToSet": { "a": 1 } },
        2,
        "Cannot apply $addToSet to non-array field. Field named 'a' has non-array type int",
    );
    check_error(
        rawdoc! { "$pop": { "a": 1 } },
        14,
        "Path 'a' contains an element of non-array type 'int'",
    );
    check_error(
        rawdoc! { "$pop": { "arr": 2 } },
        9,
        "$pop expects 1 or -1, found: 2",
    );
    check_error(
        rawdoc! { "$pop": { "arr": "x" } },
        9,
        "Expected a number in: arr: \"x\"",
    );
    check_error(
        rawdoc! { "$pullAll": { "arr": 1 } },
        2,
        "$pullAll requires an array argument but was given a int",
    );
    check_error(
        rawdoc! { "$bit": { "s": { "or": 1 } } },
        2,
        "Cannot apply $bit to a value of non-integral type._id: 1 has the field s of non-integer type string",
    );
    check_error(
        rawdoc! { "$rename": { "a": "a" } },
        2,
        "The source and target field for $rename must differ: a: \"a\"",
    );
    check_error(
        rawdoc! { "$rename": { "arr.0": "z" } },
        2,
        "The source field cannot be an array element, 'arr.0' in doc with _id: 1 has an array field called 'arr'",
    );
    check_error(
        rawdoc! { "$rename": { "a": "arr.0" } },
        2,
        "The destination field cannot be an array element, 'arr.0' in doc with _id: 1 has an array field called 'arr'",
    );
    check_error(
        rawdoc! { "$rename": { "a.b": "z" } },
        28,
        "cannot use the part (a of a.b) to traverse the element ({a: 5})",
    );
    check_error(
        rawdoc! { "$rename": { "a": "s.z" } },
        28,
        "Cannot create field 'z' in element {s: \"x\"}",
    );
    // Of two mistakes the one in the path, then the operand, then the conflict is reported.
    check_error(
        rawdoc! { "$pop": { ".a": 2 } },
        56,
        "The update path '.a' contains an empty field name, which is not allowed.",
    );
    check_error(
        rawdoc! { "$set": { "b": 1 }, "$rename": { "b.a": "" } },
        40,
        "Updating the path 'b.a' would create a conflict at 'b'",
    );
    check_error(
        rawdoc! { "$set": { "a": 1 }, "$pop": { "a.$[x]": 2 } },
        9,
        "$pop expects 1 or -1, found: 2",
    );
    check_error(
        rawdoc! { "$set": { "a": 1 }, "$push": { "a.$[x]": 2 } },
        40,
        "Updating the path 'a.$[x]' would create a conflict at 'a'",
    );
    check_error(
        rawdoc! { "$set": { "a.b": 1 }, "$push": { "a.$[x]": 2 } },
        40,
        "Updating the path 'a.$[x]' would create a conflict at 'a'",
    );
    check_error(
        rawdoc! { "$set": { "b": 1 }, "$push": { "a.$[x]": 2 } },
        2,
        "No array filter found for identifier 'x' in path 'a.$[x]'",
    );
    check_error(
        rawdoc! { "$set": { "": 1 } },
        56,
        "An empty update path is not valid.",
    );
    check_error(
        rawdoc! { "$set": { "a.": 1 } },
        56,
        "The update path 'a.' contains an empty field name, which is not allowed.",
    );
    check_error(
        rawdoc! { "$set": { "$a": 1 } },
        52,
        "The dollar ($) prefixed field '$a' in '$a' is not valid for storage.",
    );
    check_error(
        rawdoc! { "$set": { "a": 1, "a.b": 1 } },
        40,
        "Updating the path 'a.b' would create a conflict at 'a'",
    );
    check_error(
        rawdoc! { "$set": { "a": 1 }, "$inc": { "a": 1 } },
        40,
        "Updating the path 'a' would create a conflict at 'a'",
    );
    check_error(
        rawdoc! { "$set": { "_id": 2 } },
        66,
        "Performing an update on the path '_id' would modify the immutable field '_id'",
    );
    // Not even to an equal number of another type; and of several mistakes the first of the fields
    // is reported.
    for update in [
        rawdoc! { "$set": { "_id": 1.0 } },
        rawdoc! { "$inc": { "_id": 0i64 } },
        rawdoc! { "$set": { "_id": 2, "a.x": 1 } },
    ] {
        check_error(
            update,
            66,
            "Performing an update on the path '_id' would modify the immutable field '_id'",
        );
    }
    for update in [
        rawdoc! { "$set": { "_id": 1 } },
        rawdoc! { "$min": { "_id": 1.0 } },
        rawdoc! { "$inc": { "_id": 0 } },
    ] {
        check_no_change(update);
    }
    check_error(
        rawdoc! { "$rename": { "a": "_id" } },
        66,
        "Performing an update on the path '_id' would modify the immutable field '_id'",
    );
    check_error(
        rawdoc! { "$set": { "a": 1 }, "b": 1 },
        9,
        "Unknown modifier: b. Expected a valid update modifier or pipeline-style update specified as an array",
    );
    check_error(
        rawdoc! { "$set": 1 },
        9,
        "Modifiers operate on fields but we found type int instead. For example: {$mod: {<field>: ...}} not {$set: 1}",
    );
    check_error(
        rawdoc! { "$set": { "a.$[]": 1 } },
        2,
        "Cannot apply array updates to non-array element a: 5",
    );
    check_error(
        rawdoc! { "$set": { "zz.$[]": 1 } },
        2,
        "The path 'zz' must exist in the document in order to apply array updates.",
    );
    check_error(
        rawdoc! { "$set": { "arr.2000000": 1 } },
        34,
        "can't backfill more than 1500000 elements",
    );
}

#[test]
fn upserts() {
    let id = ObjectId::from_bytes([7; 12]);
    let upsert = |filter: RawDocumentBuf, update: RawDocumentBuf| {
        let matcher = Matcher::parse(&filter).expect("the filter parses");
        Update::parse(RawBsonRef::Document(&update)).and_then(|u| u.upsert(&matcher, &CONTEXT, id))
    };
    let check = |filter: RawDocumentBuf, update: RawDocumentBuf, expected: RawDocumentBuf| {
        assert_eq!(upsert(filter, update).expect("the upsert works"), expected);
    };
    check(
        rawdoc! { "_id": 1 },
        rawdoc! { "$set": { "a": 1 } },
        rawdoc! { "_id": 1, "a": 1 },
    );
    check(
        rawdoc! { "x": 1, "b": { "$gt": 1 }, "c.d": { "$eq": 2 } },
        rawdoc! { "$setOnInsert": { "a": 1 } },
        rawdoc! { "_id": id, "c": { "d": 2 }, "x": 1, "a": 1 },
    );
    check(
        rawdoc! { "x": 1 },
        rawdoc! { "y": 1 },
        rawdoc! { "_id": id, "y": 1 },
    );
    check(
        rawdoc! { "_id": 5, "x": 1 },
        rawdoc! { "y": 1 },
        rawdoc! { "_id": 5, "y": 1 },
    );
    check(
        rawdoc! { "$and": [{ "a": 1 }, { "b": 2 }] },
        rawdoc! { "$inc": { "a": 1 } },
        rawdoc! { "_id": id, "a": 2, "b": 2 },
    );
    check(
        rawdoc! { "x": 1 },
        rawdoc! { "$set": { "_id": 9 } },
        rawdoc! { "_id": 9, "x": 1 },
    );
    assert_eq!(
        upsert(rawdoc! { "_id": 1 }, rawdoc! { "$set": { "_id": 2 } })
            .unwrap_err()
            .code
            .0,
        66
    );
    assert_eq!(
        upsert(
            rawdoc! { "$and": [{ "a": 1 }, { "a": 2 }] },
            rawdoc! { "$set": { "b": 2 } }
        )
        .unwrap_err()
        .code
        .0,
        54
    );
    assert_eq!(
        upsert(rawdoc! { "a": 1, "a.b": 2 }, rawdoc! { "$set": { "b": 2 } })
            .unwrap_err()
            .code
            .0,
        54
    );
}

#[test]
fn a_replacement_is_the_same_only_with_its_id() {
    let apply = |replacement: RawDocumentBuf| {
        Update::parse(RawBsonRef::Document(&replacement))
            .expect("parses")
            .apply(&rawdoc! { "_id": 1, "a": 2 }, &CONTEXT)
            .expect("applies")
    };
    assert_eq!(apply(rawdoc! { "_id": 1, "a": 2 }), None);
    // The result is the same, but MongoDB counts the document as modified.
    assert_eq!(
        apply(rawdoc! { "a": 2 }),
        Some(rawdoc! { "_id": 1, "a": 2 })
    );
}

#[test]
fn what_an_update_brings_takes_a_budget() {
    let update = rawdoc! { "$set": { "a": "x".repeat(2_000_000) } };
    let update = Update::parse(RawBsonRef::Document(&update)).expect("parses");
    let small = rawdoc! { "_id": 1 };
    let apply = || update.apply(&small, &CONTEXT);
    assert!(crate::work::within(4_000_000, apply).is_none());
    let upsert = || update.upsert(&Matcher::parse(&small)?, &CONTEXT, ObjectId::new());
    assert!(crate::work::within(4_000_000, upsert).is_none());
    assert!(upsert().is_ok_and(|made| made.as_bytes().len() > 2_000_000));

    let far = rawdoc! { "$set": { "a.1400000": 1 } };
    let far = Update::parse(RawBsonRef::Document(&far)).expect("parses");
    let padded = || far.apply(&rawdoc! { "_id": 1, "a": [] }, &CONTEXT);
    assert!(crate::work::within(4_000_000, padded).is_none());
}

#[test]
fn an_upsert_refuses_a_path_beside_one_inside_of_it() {
    let conflict = |filter: RawDocumentBuf| {
        let matcher = Matcher::parse(&filter).expect("the filter parses");
        let update = rawdoc! { "$set": { "q": 1 } };
        let update = Update::parse(RawBsonRef::Document(&update)).expect("the update parses");
        let made = update.upsert(&matcher, &CONTEXT, ObjectId::new());
        made.map_err(|error| (error.code.0, error.message.to_string()))
    };
    let both = |inner: &str, outer: &str| {
        let message = format!(
            "cannot infer query fields to set, both paths '{inner}' and '{outer}' are matched"
        );
        Err((54, message))
    };
    for (filter, expected) in [
        (rawdoc! { "a": 1, "a-b": 2, "a.c": 3 }, both("a.c", "a")),
        (rawdoc! { "a.c": 3, "a-b": 2, "a": 1 }, both("a.c", "a")),
        (rawdoc! { "a.c": 1, "a.b": 1, "a": 5 }, both("a.b", "a")),
        (
            rawdoc! { "a.b": 1, "a.c": 1, "a.b.c": 1 },
            both("a.b.c", "a.b"),
        ),
    ] {
        assert_eq!(conflict(filter.clone()), expected, "{filter:?}");
    }
    let twice = conflict(rawdoc! { "a.b": 1, "$and": [{ "a.b": 1 }] });
    assert!(twice.is_err_and(|(_, message)| message.ends_with("path 'a.b' is matched twice")));

    let made = conflict(rawdoc! { "a.b.c": 1, "a-x": 2, "a.b.d": 2, "a.bb": 1, "a.b-": 2 });
    let made = made.expect("no path lies inside of another");
    let fields: Vec<_> = crate::value::elements(&made).skip(1).collect();
    let expected = rawdoc! {
        "a-x": 2, "a": { "b-": 2, "b": { "c": 1, "d": 2 }, "bb": 1 }, "q": 1
    };
    assert_eq!(
        fields,
        crate::value::elements(&expected).collect::<Vec<_>>()
    );
}

#[test]
fn new_fields_come_in_one_order_whatever_the_order_of_the_update() {
    let expected = [
        "-1",
        "0",
        "00",
        "05",
        "2",
        "10",
        "1x",
        "9z",
        "100",
        "99999999999999999999",
        "b",
    ];
    for first in 0..expected.len() {
        let mut set = pinion_bson::DocBuilder::new();
        set.start_document("$set");
        for at in 0..expected.len() {
            // Each step is coprime to their number, 11.
            set.append(
                expected[(first + at * (first % 10 + 1)) % expected.len()],
                1,
            );
        }
        set.end();
        let set = set.finish();
        let update = Update::parse(RawBsonRef::Document(&set)).expect("the update parses");
        let made = update.apply(&rawdoc! { "_id": 1 }, &CONTEXT);
        let made = made.expect("the update works").expect("a change");
        let names: Vec<_> = crate::value::elements(&made).map(|e| e.0).skip(1).collect();
        assert_eq!(names, expected);
    }
}
