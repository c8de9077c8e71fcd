//! What is known of expressions before there is a document.

use pinion_bson::{DateTime, RawBson, RawDocumentBuf, rawbson, rawdoc};

use super::{Expression, Variables};

fn variables() -> Variables {
    Variables {
        now_ms: Some(5),
        ..Variables::default()
    }
}

/// The code of the error with which an expression is refused, whatever the document is; 0 where it
/// is not.
#[track_caller]
fn check(expression: RawBson, code: i32) {
    let parsed = Expression::parse(expression.as_raw_bson_ref(), &variables());
    let found = parsed.map_or_else(|e| e.code.0, |_| 0);
    assert_eq!(found, code, "{expression:?}");
}

#[track_caller]
fn check_value(expression: RawBson, document: RawDocumentBuf, expected: Result<RawBson, i32>) {
    let parsed = Expression::parse(expression.as_raw_bson_ref(), &variables());
    let parsed = parsed.expect("it is parsed");
    let value = parsed.evaluate(&document).map_err(|e| e.code.0);
    let value = value.map(|v| RawBson::from(v.or_null()));
    assert_eq!(value, expected, "{expression:?}");
}

#[test]
fn errors_of_constants_come_before_any_document() {
    check(rawbson!({ "$divide": [1, 0] }), 2);
    check(rawbson!({ "$ifNull": ["$a", { "$divide": [1, 0] }] }), 2);
    check(rawbson!({ "$cond": [true, 1, { "$divide": [1, 0] }] }), 2);
    check(rawbson!({ "$concat": ["$a", "x", 1] }), 16702);
    check(rawbson!({ "$add": ["x", 1, "$a"] }), 14);
    check(rawbson!({ "$add": ["$a", "x", 1] }), 0);
    check(
        rawbson!({ "$convert": { "input": "$a", "to": "int", "onError": { "$divide": [1, 0] } } }),
        2,
    );
    // Errors of the syntax come first, wherever they stand.
    check(rawbson!([{ "$divide": [1, 0] }, { "$nope": 1 }]), 168);
    check(
        rawbson!({ "$setField": { "field": { "$concat": ["a"] }, "input": {}, "value": 1 } }),
        4_161_106,
    );
    // Time is not a constant.
    check(rawbson!({ "$divide": ["$$NOW", 0] }), 0);
}

#[test]
fn what_is_out_of_reach_is_not_looked_at() {
    let error = rawbson!({ "$divide": [1, 0] });
    check(
        rawbson!({ "$switch": { "branches": [
            { "case": false, "then": error.clone() },
            { "case": true, "then": 1 },
            { "case": error.clone(), "then": error.clone() },
        ] } }),
        0,
    );
    check(
        rawbson!({ "$switch": { "branches": [{ "case": false, "then": 1 }] } }),
        40069,
    );
    let divided = rawbson!({ "$divide": [1, "$x"] });
    let document = || rawdoc! { "x": 0 };
    check_value(
        rawbson!({ "$or": [divided.clone(), true] }),
        document(),
        Ok(rawbson!(true)),
    );
    check_value(
        rawbson!({ "$and": [divided.clone(), false] }),
        document(),
        Ok(rawbson!(false)),
    );
    check_value(
        rawbson!({ "$and": [5, "$x"] }),
        document(),
        Ok(rawbson!(false)),
    );
    check_value(
        rawbson!({ "$and": [divided.clone(), "$x"] }),
        document(),
        Err(2),
    );
    check_value(
        rawbson!({ "$convert": { "input": "1", "to": "int", "onError": divided.clone(), "onNull": divided } }),
        document(),
        Ok(rawbson!(1)),
    );
}

#[test]
fn constant_arguments_are_read_early() {
    let date = || rawbson!("$d");
    check(
        rawbson!({ "$dateAdd": { "startDate": date(), "unit": "week", "amount": 1 } }),
        0,
    );
    check(
        rawbson!({ "$dateAdd": { "startDate": date(), "unit": "eon", "amount": 1 } }),
        9,
    );
    check(
        rawbson!({ "$year": { "date": date(), "timezone": "Nowhere" } }),
        40485,
    );
    check(
        rawbson!({ "$regexMatch": { "input": "$a", "regex": "[" } }),
        51111,
    );
    let document = || rawdoc! { "d": DateTime::from_millis(0) };
    check_value(
        rawbson!({ "$dateTrunc": { "date": "$d", "unit": "day", "startOfWeek": null } }),
        document(),
        Ok(RawBson::Null),
    );
    check_value(
        rawbson!({ "$dateTrunc": { "date": DateTime::from_millis(1), "unit": "day", "startOfWeek": null } }),
        document(),
        Ok(RawBson::DateTime(DateTime::from_millis(0))),
    );
}

#[test]
fn constants_that_stand_together_are_joined() {
    check_value(
        rawbson!({ "$concat": ["a", { "$concat": ["b", "$s"] }, "d", "e"] }),
        rawdoc! { "s": "c" },
        Ok(rawbson!("abcde")),
    );
    check_value(
        rawbson!({ "$add": [1, { "$literal": 2 }, "$x", 3] }),
        rawdoc! { "x": 1 },
        Ok(rawbson!(7)),
    );
}
