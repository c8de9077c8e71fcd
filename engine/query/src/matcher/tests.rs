//! Filters against documents, as MongoDB answers them.

use pinion_bson::testing::Rng;
use pinion_bson::{CString, RawArrayBuf, RawDocumentBuf, rawdoc};

use super::Matcher;
use crate::expression::Variables;
use crate::field_walk::tests::{document, times};

#[track_caller]
fn check(filter: RawDocumentBuf, document: RawDocumentBuf, expected: bool) {
    let matcher = Matcher::parse(&filter).expect("the filter parses");
    assert_eq!(
        matcher.matches(&document).expect("matching does not fail"),
        expected,
        "{filter:?} on {document:?}"
    );
}

#[track_caller]
fn check_all(document: RawDocumentBuf, cases: Vec<(RawDocumentBuf, bool)>) {
    for (filter, expected) in cases {
        check(filter, document.clone(), expected);
    }
}

#[track_caller]
fn check_error(filter: RawDocumentBuf, code: i32, message: &str) {
    let error = Matcher::parse(&filter).expect_err("the filter is refused");
    assert_eq!(
        (error.code.0, error.message.as_str()),
        (code, message),
        "{filter:?}"
    );
}

#[track_caller]
fn check_position(filter: RawDocumentBuf, document: RawDocumentBuf, expected: Option<u32>) {
    let matcher = Matcher::parse(&filter).expect("the filter parses");
    let position = matcher
        .matches_with_position(&document)
        .expect("matching does not fail");
    assert_eq!(
        position.expect("the document matches").array_index,
        expected,
        "{filter:?} on {document:?}"
    );
}

#[test]
fn paths_through_arrays() {
    check_all(
        rawdoc! { "a": [{ "b": 1 }] },
        vec![
            (rawdoc! { "a.0.b": null }, true),
            (rawdoc! { "a.0.b": { "$exists": false } }, false),
            (rawdoc! { "a.0.b": 1 }, true),
            (rawdoc! { "a.b": null }, false),
            (rawdoc! { "a.1.b": null }, true),
            (rawdoc! { "a.1": null }, true),
            (rawdoc! { "a.1": { "$exists": false } }, true),
        ],
    );
    check_all(
        rawdoc! { "a": [] },
        vec![
            (rawdoc! { "a.b": null }, false),
            (rawdoc! { "a.b": { "$exists": false } }, true),
            (rawdoc! { "a": null }, false),
            (rawdoc! { "a.b": { "$ne": null } }, true),
            (rawdoc! { "a": [] }, true),
        ],
    );
    check_all(
        rawdoc! { "a": [[{ "b": 1 }]] },
        vec![
            (rawdoc! { "a.b": 1 }, false),
            (rawdoc! { "a.0.b": 1 }, true),
            (rawdoc! { "a.0.0.b": 1 }, true),
            (rawdoc! { "a.b": null }, false),
            (rawdoc! { "a.0.b": null }, false),
            (rawdoc! { "a.0.1": null }, true),
        ],
    );
    check_all(
        rawdoc! { "a": [[1, 2], [3]] },
        vec![
            (rawdoc! { "a.0": 1 }, false),
            (rawdoc! { "a.0": [1, 2] }, true),
            (rawdoc! { "a.0.1": 2 }, true),
            (rawdoc! { "a.1": { "$size": 1 } }, true),
            (rawdoc! { "a": { "$size": 2 } }, true),
            (rawdoc! { "a.0": { "$elemMatch": { "$gt": 1 } } }, true),
            (
                rawdoc! { "a": { "$elemMatch": { "$elemMatch": { "$gt": 2 } } } },
                true,
            ),
            (rawdoc! { "a": { "$elemMatch": { "0": 3 } } }, true),
            (rawdoc! { "a": [1, 2] }, true),
            (rawdoc! { "a": [[1, 2], [3]] }, true),
            (rawdoc! { "a": { "$gt": [2] } }, true),
        ],
    );
    check_all(
        rawdoc! { "a": [{ "b": [1, 2] }, { "b": 3 }] },
        vec![
            (rawdoc! { "a.b": [1, 2] }, true),
            (rawdoc! { "a.b": { "$size": 2 } }, true),
            (rawdoc! { "a.b": 2 }, true),
            (rawdoc! { "a.1.b": 3 }, true),
            (rawdoc! { "a.b.1": 2 }, true),
            (rawdoc! { "a.0.b.1": 2 }, true),
            (rawdoc! { "a.b": { "$elemMatch": { "$gt": 1 } } }, true),
        ],
    );
    check_all(
        rawdoc! { "a": [1, { "b": null }] },
        vec![
            (rawdoc! { "a.b": null }, true),
            (rawdoc! { "a.b": { "$exists": true } }, true),
            (rawdoc! { "a.b": { "$type": 10 } }, true),
        ],
    );
}

#[test]
fn comparisons_stay_within_their_class() {
    check_all(
        rawdoc! { "a": 5, "s": "m", "n": f64::NAN, "z": null, "arr": [1, 20] },
        vec![
            (rawdoc! { "a": 5.0 }, true),
            (rawdoc! { "a": 5_i64 }, true),
            (rawdoc! { "a": { "$gt": "a" } }, false),
            (rawdoc! { "a": { "$lt": "a" } }, false),
            (
                rawdoc! { "a": { "$gt": pinion_bson::RawBson::MinKey } },
                true,
            ),
            (
                rawdoc! { "a": { "$lt": pinion_bson::RawBson::MaxKey } },
                true,
            ),
            (
                rawdoc! { "missing": { "$gt": pinion_bson::RawBson::MinKey } },
                true,
            ),
            (rawdoc! { "missing": { "$lte": null } }, true),
            (rawdoc! { "missing": { "$gt": null } }, false),
            (rawdoc! { "missing": { "$in": [null] } }, true),
            (rawdoc! { "z": { "$in": [null, 1] } }, true),
            (rawdoc! { "missing": null }, true),
            (rawdoc! { "missing": { "$ne": null } }, false),
            (rawdoc! { "s": { "$gte": "m", "$lt": "n" } }, true),
            (rawdoc! { "n": f64::NAN }, true),
            (rawdoc! { "n": { "$gte": f64::NAN } }, true),
            (rawdoc! { "n": { "$lt": 5 } }, false),
            (rawdoc! { "n": { "$gt": 5 } }, false),
            (rawdoc! { "a": { "$gt": f64::NAN } }, false),
            (rawdoc! { "arr": { "$gt": 10, "$lt": 5 } }, true),
            (rawdoc! { "arr": { "$not": { "$gt": 10 } } }, false),
            (rawdoc! { "arr": { "$nin": [1] } }, false),
            (rawdoc! { "a": { "$nin": [1, "5"] } }, true),
            (rawdoc! { "a": { "$in": [] } }, false),
            (rawdoc! { "a": { "$eq": true } }, false),
        ],
    );
}

/// Null stands for null and missing; undefined is another value, alone and in arrays.
#[test]
fn null_is_not_undefined() {
    let undefined = || pinion_bson::RawBson::Undefined;
    check_all(
        rawdoc! { "u": undefined(), "arr": ["x", undefined()], "in": [{ "b": undefined() }] },
        vec![
            (rawdoc! { "u": null }, false),
            (rawdoc! { "u": { "$gte": null } }, false),
            (rawdoc! { "u": { "$lte": null } }, false),
            (rawdoc! { "u": { "$in": [null, 5] } }, false),
            (rawdoc! { "u": { "$ne": null } }, true),
            (rawdoc! { "u": { "$nin": [null] } }, true),
            (rawdoc! { "u": { "$not": { "$gte": null } } }, true),
            (rawdoc! { "u": { "$type": "undefined" } }, true),
            (rawdoc! { "u": { "$exists": true } }, true),
            (rawdoc! { "arr": null }, false),
            (rawdoc! { "arr": { "$all": [null] } }, false),
            (rawdoc! { "arr": { "$elemMatch": { "$eq": null } } }, false),
            (rawdoc! { "arr": { "$elemMatch": { "$ne": null } } }, true),
            (rawdoc! { "arr": { "$ne": null } }, true),
            (rawdoc! { "in.b": null }, false),
            (rawdoc! { "in.c": null }, true),
            (rawdoc! { "$expr": { "$eq": ["$u", null] } }, false),
        ],
    );
}

#[test]
fn logic() {
    check_all(
        rawdoc! { "a": 1, "b": 2 },
        vec![
            (rawdoc! {}, true),
            (rawdoc! { "$and": [{ "a": 1 }, { "b": 2 }] }, true),
            (rawdoc! { "$or": [{ "a": 2 }, { "b": 2 }] }, true),
            (rawdoc! { "$or": [{ "a": 2 }, { "b": 3 }] }, false),
            (rawdoc! { "$nor": [{ "a": 2 }, { "b": 3 }] }, true),
            (rawdoc! { "$nor": [{ "a": 1 }] }, false),
            (rawdoc! { "a": { "$not": { "$gt": 5 } } }, true),
            (rawdoc! { "$alwaysTrue": 1 }, true),
            (rawdoc! { "$alwaysFalse": 1.0 }, false),
            (rawdoc! { "$comment": 1, "a": 1 }, true),
            (rawdoc! { "$expr": { "$eq": ["$a", 1] } }, true),
            (rawdoc! { "$expr": { "$gt": ["$a", "$b"] } }, false),
            (rawdoc! { "$expr": "$c" }, false),
        ],
    );
}

#[test]
fn element_and_array_operators() {
    check_all(
        rawdoc! { "a": [{ "b": 1, "c": 2 }], "e": [], "x": "x\ny", "d": 9.7 },
        vec![
            (
                rawdoc! { "a": { "$elemMatch": { "$or": [{ "b": 1 }], "c": 2 } } },
                true,
            ),
            (
                rawdoc! { "a": { "$elemMatch": { "b": 1, "$or": [{ "c": 3 }] } } },
                false,
            ),
            (
                rawdoc! { "a": { "$elemMatch": { "$not": { "$gt": 5 } } } },
                true,
            ),
            (rawdoc! { "a": { "$elemMatch": {} } }, true),
            (rawdoc! { "e": { "$elemMatch": {} } }, false),
            (
                rawdoc! { "a": { "$elemMatch": { "$in": [{ "b": 1, "c": 2 }] } } },
                true,
            ),
            (
                rawdoc! { "a": { "$all": [{ "$elemMatch": { "b": 1 } }, { "$elemMatch": { "c": 2 } }] } },
                true,
            ),
            (rawdoc! { "a": { "$all": [{ "b": 1, "c": 2 }] } }, true),
            (rawdoc! { "a": { "$all": [] } }, false),
            (
                rawdoc! { "a": { "$not": { "$elemMatch": { "b": 1 } } } },
                false,
            ),
            (rawdoc! { "a": { "$elemMatch": { "$ref": 1 } } }, false),
            (rawdoc! { "a": { "$type": "array" } }, true),
            (rawdoc! { "a": { "$type": ["int", 3] } }, true),
            (rawdoc! { "d": { "$type": "number" } }, true),
            (rawdoc! { "e": { "$size": 0 } }, true),
            (rawdoc! { "d": { "$mod": [4, 1] } }, true),
            (rawdoc! { "d": { "$mod": [4.9, 1.9] } }, true),
            (rawdoc! { "x": { "$regex": "^y" } }, false),
            (rawdoc! { "x": { "$regex": "^y", "$options": "m" } }, true),
            (rawdoc! { "x": { "$not": { "$regex": "z" } } }, true),
        ],
    );
}

#[test]
fn bits() {
    check_all(
        rawdoc! { "a": 5, "neg": -1, "f": 5.5, "arr": [2, 8] },
        vec![
            (rawdoc! { "a": { "$bitsAllSet": [0, 2] } }, true),
            (rawdoc! { "a": { "$bitsAllSet": 7 } }, false),
            (rawdoc! { "a": { "$bitsAnySet": 7 } }, true),
            (rawdoc! { "a": { "$bitsAllClear": 10 } }, true),
            (rawdoc! { "a": { "$bitsAnyClear": 7 } }, true),
            (rawdoc! { "neg": { "$bitsAllSet": [0, 63, 200] } }, true),
            (rawdoc! { "f": { "$bitsAllSet": 0 } }, false),
            (rawdoc! { "a": { "$bitsAnySet": 0 } }, false),
            (rawdoc! { "arr": { "$bitsAllSet": 8 } }, true),
        ],
    );
}

#[test]
fn errors() {
    for (filter, message) in [
        (
            rawdoc! { "a": { "$elemMatch": { "$expr": 1 } } },
            "$expr can only be applied to the top-level document",
        ),
        (rawdoc! { "a": { "$foo": 1 } }, "unknown operator: $foo"),
        (rawdoc! { "a": { "$gt": 1, "b": 1 } }, "unknown operator: b"),
        (rawdoc! { "$and": 1 }, "$and must be an array"),
        (
            rawdoc! { "$or": [] },
            "$and/$or/$nor must be a nonempty array",
        ),
        (
            rawdoc! { "$nor": [1] },
            "$or/$and/$nor entries need to be full objects",
        ),
        (rawdoc! { "a": { "$in": 1 } }, "$in needs an array"),
        (rawdoc! { "a": { "$nin": 1 } }, "$nin needs an array"),
        (
            rawdoc! { "a": { "$in": [{ "$gt": 1 }] } },
            "cannot nest $ under $in",
        ),
        (
            rawdoc! { "a": { "$not": 1 } },
            "$not needs a regex or a document",
        ),
        (rawdoc! { "a": { "$not": {} } }, "$not cannot be empty"),
        (
            rawdoc! { "a": { "$mod": 1 } },
            "malformed mod, needs to be an array",
        ),
        (
            rawdoc! { "a": { "$mod": [1] } },
            "malformed mod, not enough elements",
        ),
        (
            rawdoc! { "a": { "$mod": [1, 2, 3] } },
            "malformed mod, too many elements",
        ),
        (
            rawdoc! { "a": { "$mod": ["a", 1] } },
            "malformed mod, divisor not a number",
        ),
        (
            rawdoc! { "a": { "$mod": [1, "a"] } },
            "malformed mod, remainder not a number",
        ),
        (rawdoc! { "a": { "$mod": [0, 1] } }, "divisor cannot be 0"),
        (rawdoc! { "a": { "$all": 1 } }, "$all needs an array"),
        (
            rawdoc! { "a": { "$all": [{ "$gt": 1 }] } },
            "no $ expressions in $all",
        ),
        (
            rawdoc! { "a": { "$elemMatch": 1 } },
            "$elemMatch needs an Object",
        ),
        (
            rawdoc! { "a": { "$regex": 1 } },
            "$regex has to be a string",
        ),
        (
            rawdoc! { "a": { "$regex": "a", "$options": 1 } },
            "$options has to be a string",
        ),
        (
            rawdoc! { "a": { "$options": "i" } },
            "$options needs a $regex",
        ),
        (
            rawdoc! { "a": { "$type": "foo" } },
            "Unknown type name alias: foo",
        ),
        (
            rawdoc! { "a": { "$type": 200 } },
            "Invalid numerical type code: 200",
        ),
        (
            rawdoc! { "a": { "$where": "1" } },
            "$where cannot be applied to a field",
        ),
        (rawdoc! { "a": { "$ref": 1 } }, "unknown operator: $ref"),
    ] {
        check_error(filter, 2, message);
    }
    check_error(
        rawdoc! { "a": { "$bitsAllSet": -1 } },
        9,
        "Expected a positive number in: $bitsAllSet: -1",
    );
    check_error(
        rawdoc! { "a": { "$bitsAllSet": 1.5 } },
        9,
        "Expected an integer: $bitsAllSet: 1.5",
    );
    check_error(
        rawdoc! { "a": { "$type": [] } },
        9,
        "a must match at least one type",
    );
    check_error(
        rawdoc! { "a": { "$type": {} } },
        14,
        "type must be represented as a number or a string",
    );
    check_error(
        rawdoc! { "$expr": { "$foo": 1 } },
        168,
        "Unrecognized expression '$foo'",
    );
    check_error(
        rawdoc! { "$where": "1" },
        2,
        "$where is not allowed in this context",
    );
    check_error(
        rawdoc! { "$text": { "$search": "a" } },
        2,
        "$text is not allowed in this context",
    );
    let of_a_collection = Matcher::parse_with(&rawdoc! { "$where": "1" }, &Variables::default());
    let refused = of_a_collection.expect_err("there is no JavaScript");
    assert!(refused.message.contains("no globalScriptEngine"));
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: usize| {
        (0..levels).fold(rawdoc! { "a": 1 }, |inner, _| rawdoc! { "$and": [inner] })
    };
    assert!(Matcher::parse(&nested(99)).is_ok());
    assert_eq!(Matcher::parse(&nested(101)).unwrap_err().code.0, 2);
}

#[test]
fn positions() {
    check_position(rawdoc! { "a": 2 }, rawdoc! { "a": [1, 2] }, Some(1));
    check_position(
        rawdoc! { "a.b": 2 },
        rawdoc! { "a": [{ "b": [2] }] },
        Some(0),
    );
    check_position(
        rawdoc! { "a": { "$elemMatch": { "$gt": 1 } } },
        rawdoc! { "a": [1, 2] },
        Some(1),
    );
    check_position(rawdoc! { "a": 1 }, rawdoc! { "a": 1 }, None);
    check_position(
        rawdoc! { "a": 1, "b": 3 },
        rawdoc! { "a": [1], "b": [0, 3] },
        Some(1),
    );
    check_position(
        rawdoc! { "$or": [{ "a": 1 }] },
        rawdoc! { "a": [0, 1] },
        Some(1),
    );
    check_position(
        rawdoc! { "$or": [{ "a": 1 }, { "b": 5 }] },
        rawdoc! { "a": [0, 1] },
        None,
    );
    check_position(
        rawdoc! { "$or": [{ "a": 1 }, { "a": 5 }] },
        rawdoc! { "a": [0, 1] },
        Some(1),
    );
    check_position(rawdoc! { "a.1": 7 }, rawdoc! { "a": [5, 7] }, None);
    check_position(
        rawdoc! { "$and": [{ "a": { "$gt": 1 } }, { "a": { "$lt": 5 } }] },
        rawdoc! { "a": [1, 2, 3] },
        Some(1),
    );
    check_position(
        rawdoc! { "a": { "$all": [3, 5] } },
        rawdoc! { "a": [1, 3, 5] },
        Some(2),
    );
}

#[test]
fn identity_look_ups() {
    let id = |filter: RawDocumentBuf| {
        let matcher = Matcher::parse(&filter).expect("parses");
        (
            matcher.id_equality().is_some(),
            matcher.id_equality_alone().is_some(),
        )
    };
    assert_eq!(id(rawdoc! { "_id": 1 }), (true, true));
    assert_eq!(id(rawdoc! { "_id": { "$eq": 1 } }), (true, true));
    assert_eq!(id(rawdoc! { "_id": 1, "a": 1 }), (true, false));
    assert_eq!(id(rawdoc! { "_id": { "$gt": 1 } }), (false, false));
    assert_eq!(id(rawdoc! { "_id": [1] }), (false, false));
    assert_eq!(id(rawdoc! { "_id": null }), (false, false));
    assert_eq!(id(rawdoc! {}), (false, false));
}

#[test]
fn a_sample_of_documents() {
    let matched = |rate: f64| {
        let matcher = Matcher::parse(&rawdoc! { "$sampleRate": rate }).expect("parses");
        let document = rawdoc! { "a": 1 };
        let matches = |_: &i32| matcher.matches(&document).expect("it matches or not");
        (0..1000).filter(matches).count()
    };
    assert_eq!(matched(0.0), 0);
    assert_eq!(matched(1.0), 1000);
    assert!((200..400).contains(&matched(0.3)), "{}", matched(0.3));
    let nested = rawdoc! { "$and": [{ "a": 1 }, { "$sampleRate": 1 }] };
    check(nested, rawdoc! { "a": 1 }, true);
    for rate in [
        pinion_bson::rawbson!(1.5),
        pinion_bson::rawbson!(-0.1),
        pinion_bson::rawbson!(f64::NAN),
    ] {
        check_error(
            rawdoc! { "$sampleRate": rate },
            2,
            "numeric argument to $sampleRate must be in [0, 1]",
        );
    }
    check_error(
        rawdoc! { "$sampleRate": "x" },
        2,
        "argument to $sampleRate must be a numeric type",
    );
    check_error(
        rawdoc! { "a": { "$elemMatch": { "$sampleRate": 0.5 } } },
        2,
        "$sampleRate can only be applied to the top-level document",
    );
}

/// Several predicates share one walk through a document, and one alone makes none.
#[test]
fn predicates_together_find_what_each_finds() {
    let predicates = [
        rawdoc! { "a": { "$gt": 1 } },
        rawdoc! { "a": null },
        rawdoc! { "a.b": { "$lte": 2 } },
        rawdoc! { "a.0": { "$exists": true } },
        rawdoc! { "b": { "$in": ["x", 1, null] } },
        rawdoc! { "b": { "$not": { "$type": "string" } } },
        rawdoc! { "b.a.b": { "$exists": false } },
        rawdoc! { "c": { "$regex": "x" } },
        rawdoc! { "c": { "$elemMatch": { "$gt": 0 } } },
        rawdoc! { "c": { "$elemMatch": { "a": 1, "b": { "$ne": 2 } } } },
        rawdoc! { "d": { "$size": 2 } },
        rawdoc! { "d": { "$ne": 2 } },
        rawdoc! { "long name": { "$mod": [2, 0] } },
        rawdoc! { "none": null },
        rawdoc! { "$expr": { "$gt": ["$a", "$b"] } },
    ];
    let (mut rng, mut met) = (Rng::new(3), 0);
    for _ in 0..20_000 * times() {
        let chosen: Vec<&RawDocumentBuf> = (0..2 + rng.below(3))
            .map(|_| &predicates[rng.below(predicates.len() as u64) as usize])
            .collect();
        let document = document(&mut rng);
        let each = |filter: &RawDocumentBuf| {
            let matcher = Matcher::parse(filter).expect("it parses");
            matcher.matches(&document).expect("it matches or not")
        };
        let alone: Vec<bool> = chosen.iter().map(|filter| each(filter)).collect();
        let all = alone.iter().all(|matches| *matches);
        let any = alone.iter().any(|matches| *matches);
        for (operator, expected) in [("$and", all), ("$or", any), ("$nor", !any)] {
            let parts: RawArrayBuf = chosen.iter().map(|filter| (*filter).clone()).collect();
            let mut filter = RawDocumentBuf::new();
            filter.append(CString::try_from(operator).expect("no zero byte"), parts);
            assert_eq!(each(&filter), expected, "{filter:?} on {document:?}");
        }
        met += usize::from(all);
    }
    assert!(met > 1000, "{met} documents met all predicates");
}
