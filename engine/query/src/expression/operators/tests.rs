//! Expressions and what they evaluate to.

use pinion_bson::{RawBson, RawDocumentBuf, rawbson, rawdoc};

use crate::expression::{Expression, Variables};

fn sample() -> RawDocumentBuf {
    rawdoc! { "_id": 1, "s": "x", "i": 5, "d": 2.5, "z": null, "arr": [1, 2, 3], "o": [{ "a": 1 }, { "a": [2] }, 3], "l": 1_i64 << 62 }
}

fn evaluate(expression: &RawBson) -> pinion_wire::Result<Option<RawBson>> {
    let variables = Variables {
        now_ms: Some(5),
        values: vec![("v".into(), rawbson!({ "w": 7 }))],
        ..Variables::default()
    };
    let expression = Expression::parse(expression.as_raw_bson_ref(), &variables)?;
    let sample = sample();
    let value = expression.evaluate(&sample)?;
    Ok(value.as_ref().map(RawBson::from))
}

fn decimal(text: &str) -> RawBson {
    RawBson::Decimal128(text.parse::<pinion_bson::Decimal128>().expect("a decimal"))
}

#[track_caller]
fn check(cases: Vec<(RawBson, RawBson)>) {
    for (expression, expected) in cases {
        assert_eq!(
            evaluate(&expression).expect("it evaluates"),
            Some(expected),
            "{expression:?}"
        );
    }
}

#[track_caller]
fn check_errors(cases: Vec<(RawBson, i32)>) {
    for (expression, code) in cases {
        let found = evaluate(&expression).map_err(|e| e.code.0);
        assert_eq!(found, Err(code), "{expression:?}");
    }
}

#[test]
fn paths_and_variables() {
    check(vec![
        (rawbson!("$i"), rawbson!(5)),
        (rawbson!("$o.a"), rawbson!([1, [2]])),
        (rawbson!("$$ROOT.i"), rawbson!(5)),
        (rawbson!("$$CURRENT.s"), rawbson!("x")),
        (rawbson!("$$v.w"), rawbson!(7)),
        (
            rawbson!("$$NOW"),
            RawBson::DateTime(pinion_bson::DateTime::from_millis(5)),
        ),
        (
            rawbson!({ "a": "$i", "b": ["$nope"], "c": "$nope" }),
            rawbson!({ "a": 5, "b": [null] }),
        ),
        (
            rawbson!({ "$let": { "vars": { "q": "$i" }, "in": { "$add": ["$$q", 1] } } }),
            rawbson!(6),
        ),
        (
            rawbson!({ "$map": { "input": "$arr", "as": "n", "in": { "$multiply": ["$$n", 2] } } }),
            rawbson!([2, 4, 6]),
        ),
        (
            rawbson!({ "$filter": { "input": "$arr", "cond": { "$gt": ["$$this", 1] } } }),
            rawbson!([2, 3]),
        ),
        (
            rawbson!({ "$reduce": { "input": "$arr", "initialValue": 0, "in": { "$add": ["$$value", "$$this"] } } }),
            rawbson!(6),
        ),
        (rawbson!({ "$getField": "s" }), rawbson!("x")),
        (
            rawbson!({ "$literal": { "$add": 1 } }),
            rawbson!({ "$add": 1 }),
        ),
    ]);
    assert_eq!(evaluate(&rawbson!("$nope")).expect("missing"), None);
    assert_eq!(evaluate(&rawbson!("$$REMOVE")).expect("missing"), None);
    check_errors(vec![
        (rawbson!("$$nope"), 17276),
        (rawbson!("$"), 16872),
        (rawbson!("$a."), 40353),
        (rawbson!("$a..b"), 15998),
        (rawbson!({ "$foo": 1 }), 168),
        (rawbson!({ "$add": 1, "$sum": 1 }), 15983),
        (rawbson!({ "a.b": 1 }), 16412),
    ]);
}

#[test]
fn arithmetic() {
    check(vec![
        (rawbson!({ "$add": [] }), rawbson!(0)),
        (rawbson!({ "$add": ["$i", 1.5] }), rawbson!(6.5)),
        (rawbson!({ "$add": ["$z", 1] }), RawBson::Null),
        (rawbson!({ "$subtract": ["$i", 7] }), rawbson!(-2)),
        (rawbson!({ "$multiply": [2, 3] }), rawbson!(6)),
        (rawbson!({ "$divide": [6, 2] }), rawbson!(3.0)),
        (rawbson!({ "$mod": [-5, 3] }), rawbson!(-2)),
        (rawbson!({ "$mod": [5.5, 2] }), rawbson!(1.5)),
        (rawbson!({ "$mod": ["$l", 3] }), rawbson!(1_i64)),
        (rawbson!({ "$ceil": 1.2 }), rawbson!(2.0)),
        (rawbson!({ "$floor": 5 }), rawbson!(5)),
        (rawbson!({ "$round": [2.5] }), rawbson!(2.0)),
        (rawbson!({ "$round": [2.567, 2] }), rawbson!(2.57)),
        (rawbson!({ "$round": [1234, -2] }), rawbson!(1200)),
        (rawbson!({ "$trunc": [-2.7] }), rawbson!(-2.0)),
        (rawbson!({ "$trunc": [2.567, 2] }), rawbson!(2.56)),
        (rawbson!({ "$sqrt": 4 }), rawbson!(2.0)),
        (rawbson!({ "$pow": [2, 3] }), rawbson!(8)),
        (rawbson!({ "$pow": [2, -1] }), rawbson!(0.5)),
        (
            rawbson!({ "$pow": [2, 64] }),
            rawbson!(1.8446744073709552e19),
        ),
        (rawbson!({ "$log": [8, 2] }), rawbson!(3.0)),
        (rawbson!({ "$sum": [1, 2, "x"] }), rawbson!(3)),
        (rawbson!({ "$avg": "$arr" }), rawbson!(2.0)),
        (rawbson!({ "$max": ["$arr", 5] }), rawbson!([1, 2, 3])),
    ]);
    check_errors(vec![
        (rawbson!({ "$add": ["$s", 1] }), 14),
        (rawbson!({ "$divide": [1, 0] }), 2),
        (rawbson!({ "$mod": [5, 0] }), 16610),
        (rawbson!({ "$abs": "$s" }), 28765),
        (rawbson!({ "$round": ["x", 1] }), 51081),
        (rawbson!({ "$round": [1.5, 200] }), 51083),
        (
            rawbson!({ "$round": [1.5, (i64::from(i32::MAX) + 1)] }),
            51082,
        ),
        (rawbson!({ "$sqrt": -1 }), 28714),
        (rawbson!({ "$ln": 0 }), 28766),
        (rawbson!({ "$pow": [0, -1] }), 28764),
        (rawbson!({ "$eq": [1] }), 16020),
    ]);
}

#[test]
fn strings() {
    check(vec![
        (rawbson!({ "$concat": ["a", "$s"] }), rawbson!("ax")),
        (rawbson!({ "$concat": ["a", null] }), RawBson::Null),
        (rawbson!({ "$toUpper": 5 }), rawbson!("5")),
        (
            rawbson!({ "$substrBytes": ["hello", 1, -1] }),
            rawbson!("ello"),
        ),
        (rawbson!({ "$substrCP": ["héllo", 1, 2] }), rawbson!("él")),
        (
            rawbson!({ "$substrBytes": ["hello", (decimal("0.5")), (decimal("1.5"))] }),
            rawbson!("he"),
        ),
        (
            rawbson!({ "$substr": ["hello", (decimal("1.5")), (decimal("2.5"))] }),
            rawbson!("ll"),
        ),
        (rawbson!({ "$strLenCP": "é" }), rawbson!(1)),
        (rawbson!({ "$split": ["a,b", ","] }), rawbson!(["a", "b"])),
        (rawbson!({ "$indexOfBytes": ["hello", "l"] }), rawbson!(2)),
        (
            rawbson!({ "$indexOfBytes": ["hello", "l", 3, 2] }),
            rawbson!(-1),
        ),
        (rawbson!({ "$indexOfCP": ["héllo", "l"] }), rawbson!(2)),
        (rawbson!({ "$strcasecmp": ["a", "B"] }), rawbson!(-1)),
        (rawbson!({ "$trim": { "input": " a " } }), rawbson!("a")),
        (
            rawbson!({ "$trim": { "input": "xax", "chars": "x" } }),
            rawbson!("a"),
        ),
        (
            rawbson!({ "$replaceOne": { "input": "aab", "find": "a", "replacement": "x" } }),
            rawbson!("xab"),
        ),
        (
            rawbson!({ "$regexMatch": { "input": "abc", "regex": "b" } }),
            rawbson!(true),
        ),
        (
            rawbson!({ "$regexFind": { "input": "abcb", "regex": "(b)(x)?" } }),
            rawbson!({ "match": "b", "idx": 1, "captures": ["b", null] }),
        ),
    ]);
    check_errors(vec![
        (rawbson!({ "$concat": ["a", 1] }), 16702),
        (rawbson!({ "$strLenBytes": 1 }), 34473),
        (rawbson!({ "$substrBytes": ["hello", -1, 2] }), 50752),
        (
            rawbson!({ "$substrBytes": ["hello", (decimal("Infinity")), 2] }),
            50752,
        ),
        (rawbson!({ "$substrCP": ["héllo", -1, 2] }), 34455),
        (rawbson!({ "$split": ["a", ""] }), 40087),
        (rawbson!({ "$indexOfBytes": ["hello", "l", -1] }), 40097),
        (rawbson!({ "$trim": { "input": 1 } }), 50699),
        (rawbson!({ "$trim": "x" }), 50696),
    ]);
}

#[test]
fn arrays_and_conditions() {
    check(vec![
        (rawbson!({ "$size": "$arr" }), rawbson!(3)),
        (rawbson!({ "$arrayElemAt": ["$arr", -1] }), rawbson!(3)),
        (
            rawbson!({ "$concatArrays": ["$arr", ["x"]] }),
            rawbson!([1, 2, 3, "x"]),
        ),
        (rawbson!({ "$in": [1, "$arr"] }), rawbson!(true)),
        (rawbson!({ "$slice": ["$arr", -2] }), rawbson!([2, 3])),
        (rawbson!({ "$slice": ["$arr", 1, 1] }), rawbson!([2])),
        (rawbson!({ "$reverseArray": "$arr" }), rawbson!([3, 2, 1])),
        (rawbson!({ "$range": [5, 0, -2] }), rawbson!([5, 3, 1])),
        (rawbson!({ "$indexOfArray": ["$arr", 2] }), rawbson!(1)),
        (
            rawbson!({ "$arrayToObject": [[["a", 1], ["b", 2]]] }),
            rawbson!({ "a": 1, "b": 2 }),
        ),
        (
            rawbson!({ "$objectToArray": { "a": 1 } }),
            rawbson!([{ "k": "a", "v": 1 }]),
        ),
        (
            rawbson!({ "$setUnion": [[3, 1], [2, 1]] }),
            rawbson!([1, 2, 3]),
        ),
        (
            rawbson!({ "$setDifference": [[1, 2, 2], [2, 3]] }),
            rawbson!([1]),
        ),
        (
            rawbson!({ "$setEquals": [[1, 2], [2, 1, 1]] }),
            rawbson!(true),
        ),
        (
            rawbson!({ "$mergeObjects": [{ "a": 1 }, { "b": 2 }] }),
            rawbson!({ "a": 1, "b": 2 }),
        ),
        (
            rawbson!({ "$cond": [{ "$gt": ["$i", 3] }, "y", "n"] }),
            rawbson!("y"),
        ),
        (rawbson!({ "$ifNull": ["$z", "$nope", 3] }), rawbson!(3)),
        (
            rawbson!({ "$switch": { "branches": [{ "case": false, "then": 1 }], "default": 2 } }),
            rawbson!(2),
        ),
        (
            rawbson!({ "$and": [1, "$s", { "$not": [0] }] }),
            rawbson!(true),
        ),
        (rawbson!({ "$cmp": ["$i", 9] }), rawbson!(-1)),
        (rawbson!({ "$type": "$nope" }), rawbson!("missing")),
    ]);
    check_errors(vec![
        (rawbson!({ "$size": "$s" }), 17124),
        (rawbson!({ "$arrayElemAt": ["$arr", 1.5] }), 28691),
        (rawbson!({ "$in": [1, 1] }), 40081),
        (rawbson!({ "$slice": ["$arr", 1, 0] }), 28729),
        (rawbson!({ "$range": [0, 5, 0] }), 34449),
        (rawbson!({ "$cond": [true, 1] }), 16020),
        (rawbson!({ "$switch": { "branches": [] } }), 40068),
    ]);
}

#[test]
fn conversions() {
    check(vec![
        (rawbson!({ "$toString": 1.0 }), rawbson!("1")),
        (rawbson!({ "$toString": 2.5e30 }), rawbson!("2.5e+30")),
        (rawbson!({ "$toInt": "12" }), rawbson!(12)),
        (rawbson!({ "$toInt": 1.9 }), rawbson!(1)),
        (rawbson!({ "$toBool": "x" }), rawbson!(true)),
        (
            rawbson!({ "$toDate": "1970-01-01T00:00:01Z" }),
            RawBson::DateTime(pinion_bson::DateTime::from_millis(1000)),
        ),
        (
            rawbson!({ "$convert": { "input": "x", "to": "int", "onError": "e" } }),
            rawbson!("e"),
        ),
        (
            rawbson!({ "$convert": { "input": null, "to": "int", "onNull": "n" } }),
            rawbson!("n"),
        ),
        (
            rawbson!({ "$year": { "$toDate": "2020-05-01" } }),
            rawbson!(2020),
        ),
        (
            rawbson!({ "$dateToString": { "date": null, "onNull": "n" } }),
            rawbson!("n"),
        ),
    ]);
    check_errors(vec![
        (rawbson!({ "$toInt": "x" }), 241),
        (rawbson!({ "$toDecimal": "+" }), 241),
        (rawbson!({ "$toDecimal": "." }), 241),
        (rawbson!({ "$toDecimal": "1E+6145" }), 241),
        (rawbson!({ "$toDecimal": "1E-6177" }), 241),
        // The expression and its options are read before the input.
        (
            rawbson!({ "$regexMatch": { "input": 5, "regex": { "$const": "a" }, "options": "q" } }),
            51108,
        ),
        (
            rawbson!({ "$regexMatch": { "input": null, "regex": "a", "options": "q" } }),
            51108,
        ),
        (
            rawbson!({ "$switch": { "branches": [{ "case": false, "then": 1 }, { "case": 0, "then": 2 }] } }),
            40069,
        ),
        (rawbson!({ "$toInt": 3e10 }), 241),
        (rawbson!({ "$toDate": 0 }), 241),
        (rawbson!({ "$convert": { "input": "x", "to": "foo" } }), 2),
        (rawbson!({ "$year": "x" }), 16006),
        (rawbson!({ "$dateToString": { "format": "%Y" } }), 18628),
    ]);
}

#[test]
fn sequences() {
    check(vec![
        (
            rawbson!({ "$zip": { "inputs": ["$arr", ["a", "b"]] } }),
            rawbson!([[1, "a"], [2, "b"]]),
        ),
        (
            rawbson!({ "$zip": { "inputs": ["$arr", ["a"]], "useLongestLength": true, "defaults": [0, "$s"] } }),
            rawbson!([[1, "a"], [2, "x"], [3, "x"]]),
        ),
        (
            rawbson!({ "$zip": { "inputs": ["$arr", "$nope"] } }),
            rawbson!(null),
        ),
        (
            rawbson!({ "$sortArray": { "input": "$arr", "sortBy": -1 } }),
            rawbson!([3, 2, 1]),
        ),
        (
            rawbson!({ "$sortArray": { "input": [{ "a": 2, "b": 1 }, { "a": 1 }, { "a": 2, "b": 0 }], "sortBy": { "a": -1, "b": 1 } } }),
            rawbson!([{ "a": 2, "b": 0 }, { "a": 2, "b": 1 }, { "a": 1 }]),
        ),
        (
            rawbson!({ "$firstN": { "n": 2, "input": "$arr" } }),
            rawbson!([1, 2]),
        ),
        (
            rawbson!({ "$lastN": { "n": 5, "input": "$arr" } }),
            rawbson!([1, 2, 3]),
        ),
        (
            rawbson!({ "$maxN": { "n": 2, "input": [null, 5, "x", 7] } }),
            rawbson!(["x", 7]),
        ),
        (
            rawbson!({ "$minN": { "n": 2, "input": [null, 5, "x", 7] } }),
            rawbson!([5, 7]),
        ),
        (
            rawbson!({ "$setField": { "field": "a.b", "input": { "x": 1 }, "value": "$i" } }),
            rawbson!({ "x": 1, "a.b": 5 }),
        ),
        (
            rawbson!({ "$setField": { "field": "x", "input": { "x": 1, "y": 2 }, "value": "$$REMOVE" } }),
            rawbson!({ "y": 2 }),
        ),
        (
            rawbson!({ "$unsetField": { "field": { "$const": "$y" }, "input": { "y": 2 } } }),
            rawbson!({ "y": 2 }),
        ),
    ]);
    check_errors(vec![
        (rawbson!({ "$zip": 1 }), 34460),
        (rawbson!({ "$zip": {} }), 34465),
        (rawbson!({ "$zip": { "inputs": ["$s"] } }), 34468),
        (
            rawbson!({ "$zip": { "inputs": [[1]], "defaults": [1] } }),
            34466,
        ),
        (
            rawbson!({ "$sortArray": { "input": "$s", "sortBy": 1 } }),
            2942504,
        ),
        (
            rawbson!({ "$sortArray": { "input": [], "sortBy": {} } }),
            2942505,
        ),
        (
            rawbson!({ "$sortArray": { "input": [], "sortBy": 2 } }),
            2942506,
        ),
        (
            rawbson!({ "$sortArray": { "input": [], "sortBy": "a" } }),
            2942507,
        ),
        (rawbson!({ "$firstN": { "n": 1, "input": "$s" } }), 5788200),
        (rawbson!({ "$firstN": { "n": 0, "input": [] } }), 5787908),
        (rawbson!({ "$firstN": 0 }), 5787801),
        (rawbson!({ "$lastN": [] }), 5787801),
        (rawbson!({ "$minN": 0 }), 5787900),
        (rawbson!({ "$median": 0 }), 7436201),
        (rawbson!({ "$percentile": 0 }), 7436200),
        (
            rawbson!({ "$setField": { "field": "$s", "input": {}, "value": 1 } }),
            4161108,
        ),
        (
            rawbson!({ "$setField": { "field": 1, "input": {}, "value": 1 } }),
            4161107,
        ),
        (
            rawbson!({ "$unsetField": { "field": "a", "input": 3 } }),
            4161105,
        ),
    ]);
}

#[test]
fn values_as_text() {
    let at = pinion_bson::Timestamp {
        time: 1_707_000_000,
        increment: 1,
    };
    check(vec![
        (
            rawbson!({ "$toLower": (at) }),
            rawbson!("feb  3 22:40:00:1"),
        ),
        (
            rawbson!({ "$substrCP": [f64::NEG_INFINITY, 0, 9] }),
            rawbson!("-inf"),
        ),
        (rawbson!({ "$toLower": f64::NAN }), rawbson!("nan")),
        (
            rawbson!({ "$toString": f64::INFINITY }),
            rawbson!("Infinity"),
        ),
        (
            rawbson!({ "$toString": { "$toDecimal": "1.00000000000000000000000000000000099999" } }),
            rawbson!("1.000000000000000000000000000000000"),
        ),
        (rawbson!({ "$year": { "date": "$_id2" } }), rawbson!(null)),
        (
            rawbson!({ "$dayOfMonth": { "date": (pinion_bson::ObjectId::from_bytes([0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])), "timezone": "UTC" } }),
            rawbson!(13),
        ),
        (
            rawbson!({ "$hour": { "date": { "$toDate": "2020-01-01T12:00:00Z" }, "timezone": "America/New_York" } }),
            rawbson!(7),
        ),
    ]);
}

#[test]
fn bits_and_angles() {
    check(vec![
        (rawbson!({ "$bitAnd": [7, "$i"] }), rawbson!(5)),
        (rawbson!({ "$bitOr": [] }), rawbson!(0)),
        (rawbson!({ "$bitAnd": [] }), rawbson!(-1)),
        (rawbson!({ "$bitXor": [1, 3_i64] }), rawbson!(2_i64)),
        (rawbson!({ "$bitNot": "$i" }), rawbson!(-6)),
        (rawbson!({ "$bitOr": [1, "$z"] }), rawbson!(null)),
        (rawbson!({ "$sin": 0 }), rawbson!(0.0)),
        (rawbson!({ "$acos": 1 }), rawbson!(0.0)),
        (rawbson!({ "$atan2": [0, 1] }), rawbson!(0.0)),
        (
            rawbson!({ "$degreesToRadians": 180 }),
            rawbson!(std::f64::consts::PI),
        ),
        (rawbson!({ "$sigmoid": 0 }), rawbson!(0.5)),
        (
            rawbson!({ "$tsSecond": (pinion_bson::Timestamp { time: 7, increment: 2 }) }),
            rawbson!(7_i64),
        ),
        (rawbson!({ "$tsIncrement": "$z" }), rawbson!(null)),
    ]);
    check_errors(vec![
        (rawbson!({ "$bitAnd": [1, 2.5] }), 14),
        (rawbson!({ "$bitNot": "$d" }), 14),
        (rawbson!({ "$bitNot": "$s" }), 28765),
        (rawbson!({ "$acos": 2 }), 50989),
        (rawbson!({ "$sin": f64::INFINITY }), 50989),
        (rawbson!({ "$cosh": "x" }), 28765),
        (rawbson!({ "$tsSecond": 1 }), 5687301),
    ]);
}

#[test]
fn decimals_are_rounded_to_their_place() {
    let wide = decimal("1.000000000000000000000000000000000E+34");
    check(vec![
        (rawbson!({ "$round": (decimal("1E+34")) }), wide.clone()),
        (rawbson!({ "$trunc": (decimal("1E+34")) }), wide),
        (
            rawbson!({ "$exp": (decimal("-1E+6144")) }),
            decimal("0E-6176"),
        ),
        (
            rawbson!({ "$round": [(decimal("2.015")), 2] }),
            decimal("2.02"),
        ),
        (rawbson!({ "$round": [(decimal("-0.5"))] }), decimal("-0")),
        (
            rawbson!({ "$trunc": [(decimal("1.1")), 3] }),
            decimal("1.100"),
        ),
        (
            rawbson!({ "$trunc": [(decimal("155")), -1] }),
            decimal("1.5E+2"),
        ),
        (rawbson!({ "$ceil": (decimal("1.20")) }), decimal("2")),
        (
            rawbson!({ "$floor": (decimal("Infinity")) }),
            decimal("NaN"),
        ),
    ]);
}

#[test]
fn searching_and_replacing_text() {
    let replaced = |find: &str, replacement: &str| rawbson!({ "$replaceAll": { "input": "abcab", "find": find, "replacement": replacement } });
    check(vec![
        (replaced("ab", "-"), rawbson!("-c-")),
        (replaced("", "-"), rawbson!("-a-b-c-a-b-")),
        (replaced("abcabc", "-"), rawbson!("abcab")),
        (
            rawbson!({ "$replaceOne": { "input": "é", "find": "", "replacement": "-" } }),
            rawbson!("-é"),
        ),
        (
            rawbson!({ "$split": ["aXbX", "X"] }),
            rawbson!(["a", "b", ""]),
        ),
        (rawbson!({ "$split": ["a", "aa"] }), rawbson!(["a"])),
        (rawbson!({ "$indexOfBytes": ["a", "aa"] }), rawbson!(-1)),
        (rawbson!({ "$indexOfBytes": ["aa", "", 2] }), rawbson!(2)),
        (
            rawbson!({ "$regexFindAll": { "input": "éaéa", "regex": "a" } }),
            rawbson!([{ "match": "a", "idx": 1, "captures": [] }, { "match": "a", "idx": 3, "captures": [] }]),
        ),
    ]);
}

/// What grows stops at its bound, before it has taken the memory.
#[test]
fn values_are_bounded() {
    let text = "a".repeat(crate::limits::MAX_STRING_BYTES - 1);
    let doubled = |twice: RawBson, seed: RawBson| rawbson!({ "$reduce": { "input": { "$range": [0, 60] }, "initialValue": seed, "in": twice } });
    check_errors(vec![
        (rawbson!({ "$concat": [&text[..], "ab"] }), 16493),
        (
            rawbson!({ "$replaceAll": { "input": &text[..], "find": "a", "replacement": &text[..] } }),
            16493,
        ),
        (RawBson::String(format!("{text}a")), 16493),
        (
            doubled(
                rawbson!({ "$concat": ["$$value", "$$value"] }),
                rawbson!("ab"),
            ),
            16493,
        ),
        (
            doubled(
                rawbson!({ "$concatArrays": ["$$value", "$$value"] }),
                rawbson!([1, 2]),
            ),
            146,
        ),
        (
            rawbson!({ "$zip": { "inputs": [{ "$range": [0, 2_000_000] }, [], [], [], [], [], [], [], [], [], [], [], [], [], [], [], [], []], "useLongestLength": true } }),
            146,
        ),
        (
            rawbson!({ "$let": { "vars": { "a": { "$range": [0, 2_000_000] } }, "in": ["$$a", "$$a", "$$a", "$$a", "$$a"] } }),
            146,
        ),
    ]);
}

#[test]
fn quantiles_and_hashes() {
    let percentile = |input: RawBson| rawbson!({ "$percentile": { "input": input, "p": [0.5, 1], "method": "approximate" } });
    let median =
        |input: RawBson| rawbson!({ "$median": { "input": input, "method": "approximate" } });
    check(vec![
        (percentile(rawbson!("$arr")), rawbson!([2.0, 3.0])),
        (percentile(rawbson!([3, "x", 1])), rawbson!([1.0, 3.0])),
        (percentile(rawbson!("$s")), rawbson!([null, null])),
        (median(rawbson!("$i")), rawbson!(5.0)),
        (median(rawbson!("$nope")), RawBson::Null),
        (
            rawbson!({ "$toHashedIndexKey": "hello" }),
            rawbson!(5_347_277_839_332_858_538_i64),
        ),
    ]);
    check_errors(vec![
        (median(rawbson!({ "$foo": 1 })), 168),
        (
            rawbson!({ "$median": { "input": "$arr", "method": "continuous" } }),
            2,
        ),
        (rawbson!({ "$toHashedIndexKey": [1, 2] }), 16020),
    ]);
}

#[test]
fn random_numbers_differ_wherever_they_stand() {
    let rand = || rawbson!({ "$rand": {} });
    check(vec![
        (rawbson!({ "$lt": [(rand()), 1] }), rawbson!(true)),
        (rawbson!({ "$ne": [(rand()), (rand())] }), rawbson!(true)),
        (rawbson!({ "$type": { "$rand": [] } }), rawbson!("double")),
        (
            rawbson!({ "$let": { "vars": { "r": (rand()) }, "in": { "$eq": ["$$r", "$$r"] } } }),
            rawbson!(true),
        ),
    ]);
    let expression = rand();
    let variables = Variables::default();
    let parse = || Expression::parse(expression.as_raw_bson_ref(), &variables).expect("parses");
    let sample = sample();
    let value = |expression: &Expression| format!("{:?}", expression.evaluate(&sample));
    let (one, other) = (parse(), parse());
    assert_ne!(value(&one), value(&one), "each time another");
    assert_ne!(value(&one), value(&other));
    assert_ne!(value(&one.clone()), value(&one.clone()));
    check_errors(vec![
        (rawbson!({ "$rand": 1 }), 10065),
        (rawbson!({ "$rand": { "a": 1 } }), 3_040_501),
        (rawbson!({ "$rand": [1] }), 3_040_501),
    ]);
}
