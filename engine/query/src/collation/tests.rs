//! Collation documents and their errors, and everything that compares strings in a collation.

use super::*;
use pinion_bson::{RawArrayBuf, RawDocumentBuf, Timestamp, rawbson, rawdoc};

use crate::expression::{Expression, Variables};
use crate::matcher::Matcher;
use crate::pipeline::Pipeline;
use crate::pipeline::tests::outputs;
use crate::sort::SortPattern;
use crate::update::{Update, UpdateContext};

fn check(spec: RawDocumentBuf, expected: std::result::Result<Option<&str>, (i32, &str)>) {
    let found = parse_collation(&spec).map_err(|e| (e.code.0, e.message.clone()));
    let found = match &found {
        Ok(collation) => Ok(collation.as_ref().map(|c| c.settings().locale)),
        Err((code, message)) => Err((*code, message.as_str())),
    };
    assert_eq!(found, expected, "{}", document_text(&spec));
}

#[test]
fn collations_are_read() {
    check(rawdoc! { "locale": "simple" }, Ok(None));
    check(
        rawdoc! { "locale": "simple", "normalization": true },
        Ok(None),
    );
    check(rawdoc! { "locale": "en" }, Ok(Some("en")));
    check(
        rawdoc! { "locale": "en", "strength": 2.0, "caseFirst": null },
        Ok(Some("en")),
    );
    check(
        rawdoc! { "locale": "en", "strength": 2_i64, "version": "57.1" },
        Ok(Some("en")),
    );
    check(
        rawdoc! { "locale": "de@collation=phonebook", "maxVariable": "space" },
        Ok(Some("de@collation=phonebook")),
    );
}

#[test]
fn invalid_collations_are_refused() {
    check(
        rawdoc! { "strength": 2 },
        Err((
            40414,
            "BSON field 'collation.locale' is missing but a required field",
        )),
    );
    check(
        rawdoc! { "locale": "en", "x": 1 },
        Err((40415, "BSON field 'collation.x' is an unknown field.")),
    );
    check(
        rawdoc! { "locale": 1 },
        Err((
            14,
            "BSON field 'collation.locale' is the wrong type 'int', expected type 'string'",
        )),
    );
    check(
        rawdoc! { "locale": "en", "strength": 6 },
        Err((
            2,
            "Enumeration value '6' for field 'collation.strength' is not a valid value.",
        )),
    );
    check(
        rawdoc! { "locale": "en", "caseFirst": "up" },
        Err((
            2,
            "Enumeration value 'up' for field 'collation.caseFirst' is not a valid value.",
        )),
    );
    check(
        rawdoc! { "locale": "en", "caseLevel": 1 },
        Err((
            14,
            "BSON field 'collation.caseLevel' is the wrong type 'int', expected type 'bool'",
        )),
    );
    check(
        rawdoc! { "locale": "xx" },
        Err((2, "Field 'locale' is invalid in: { locale: \"xx\" }")),
    );
    check(
        rawdoc! { "locale": "en_GB" },
        Err((
            2,
            "Field 'locale' is invalid in: { locale: \"en_GB\" }. Did you mean 'en'?",
        )),
    );
    check(
        rawdoc! { "locale": "" },
        Err((
            2,
            "Field 'locale' cannot be the empty string in: { locale: \"\" }",
        )),
    );
    check(
        rawdoc! { "locale": "de@collation=search" },
        Err((
            238,
            "The variant of the locale is not supported by this server in: { locale: \"de@collation=search\" }",
        )),
    );
    check(
        rawdoc! { "locale": "fr", "backwards": true, "strength": 1 },
        Err((
            2,
            "'backwards' is invalid with 'strength' of 1 in: { locale: \"fr\", backwards: true, strength: 1 }",
        )),
    );
    check(
        rawdoc! { "locale": "fr", "caseFirst": "upper", "strength": 2 },
        Err((
            2,
            "'caseFirst' is invalid unless 'caseLevel' is on or 'strength' is greater than 2 in: { locale: \"fr\", caseFirst: \"upper\", strength: 2 }",
        )),
    );
}

/// Case does not count.
fn variables() -> Variables {
    Variables {
        collation: parse_collation(&rawdoc! { "locale": "en", "strength": 2 })
            .expect("a collation"),
        ..Variables::default()
    }
}

#[test]
fn filters_compare_in_the_collation() {
    let check = |filter: RawDocumentBuf, document: RawDocumentBuf, expected: bool| {
        let matcher = Matcher::parse_with(&filter, &variables()).expect("a filter");
        assert_eq!(
            matcher.matches(&document).expect("matches"),
            expected,
            "{filter:?}"
        );
    };
    let word = || rawdoc! { "a": "Word" };
    check(rawdoc! { "a": "word" }, word(), true);
    check(rawdoc! { "a": "wörd" }, word(), false);
    check(rawdoc! { "a": { "$ne": "WORD" } }, word(), false);
    check(rawdoc! { "a": { "$gt": "word" } }, word(), false);
    check(
        rawdoc! { "a": { "$gte": "word", "$lt": "x" } },
        word(),
        true,
    );
    check(
        rawdoc! { "a": { "$in": ["x", "B", "wORD", "a"] } },
        word(),
        true,
    );
    check(rawdoc! { "a": { "$nin": ["WORD"] } }, word(), false);
    check(
        rawdoc! { "$or": [{ "a": "WORD" }, { "a": "b" }] },
        word(),
        true,
    );
    check(rawdoc! { "a": { "$regex": "^word" } }, word(), false);
    check(rawdoc! { "a": { "$regex": "^Word" } }, word(), true);
    check(rawdoc! { "$expr": { "$eq": ["$a", "word"] } }, word(), true);
    let list = || rawdoc! { "a": ["Word", { "b": "X" }] };
    check(rawdoc! { "a": "word" }, list(), true);
    check(rawdoc! { "a": { "$all": ["WORD"] } }, list(), true);
    check(
        rawdoc! { "a": { "$elemMatch": { "b": "x" } } },
        list(),
        true,
    );
    check(
        rawdoc! { "a": { "$elemMatch": { "$eq": "word" } } },
        list(),
        true,
    );
    check(rawdoc! { "a": { "b": "x" } }, list(), true);
    check(rawdoc! { "a": ["word", { "b": "x" }] }, list(), true);
    check(rawdoc! { "a": ["word", { "B": "x" }] }, list(), false);
}

/// MongoDB looks a field up in a constant array by bytes, in filters alone.
#[test]
fn an_expression_of_a_filter_looks_a_field_up_by_bytes() {
    let check = |expression: RawBson, expected: bool| {
        let mut filter = pinion_bson::DocBuilder::new();
        filter.append("$expr", expression.as_raw_bson_ref());
        let matcher = Matcher::parse_with(&filter.finish(), &variables()).expect("a filter");
        let document = rawdoc! { "a": "Word", "l": ["Word"] };
        assert_eq!(
            matcher.matches(&document).expect("matches"),
            expected,
            "{expression:?}"
        );
    };
    check(rawbson!({ "$in": ["$a", ["word"]] }), false);
    check(rawbson!({ "$in": ["$a", ["Word"]] }), true);
    check(rawbson!({ "$and": [{ "$in": ["$a", ["word"]] }] }), false);
    check(rawbson!({ "$in": ["word", "$l"] }), true);
    check(rawbson!({ "$in": ["word", ["WORD"]] }), true);
    check(
        rawbson!({ "$and": [{ "$in": ["$a", ["Word"]] }, { "$eq": ["$a", "word"] }] }),
        true,
    );
}

#[test]
fn expressions_compare_in_the_collation() {
    let check = |expression: RawBson, expected: RawBson| {
        let parsed = Expression::parse(expression.as_raw_bson_ref(), &variables()).expect("parses");
        let document = rawdoc! { "a": "Word", "l": ["b", "A", "a", "B"] };
        let value = parsed.evaluate(&document).expect("evaluates");
        assert_eq!(
            value.as_ref().map(RawBson::from),
            Some(expected),
            "{expression:?}"
        );
    };
    check(rawbson!({ "$eq": ["$a", "word"] }), true.into());
    check(rawbson!({ "$ne": ["$a", "word"] }), false.into());
    check(rawbson!({ "$cmp": ["b", "A"] }), 1.into());
    check(rawbson!({ "$lt": ["a", "B"] }), true.into());
    check(rawbson!({ "$in": ["$a", ["word"]] }), true.into());
    check(rawbson!({ "$indexOfArray": ["$l", "a"] }), 1.into());
    check(rawbson!({ "$indexOfCP": ["$a", "w"] }), (-1).into());
    check(
        rawbson!({ "$setUnion": ["$l", ["C", "c"]] }),
        rawbson!(["A", "b", "C"]),
    );
    check(
        rawbson!({ "$setIntersection": ["$l", ["B"]] }),
        rawbson!(["b"]),
    );
    check(
        rawbson!({ "$setDifference": ["$l", ["a"]] }),
        rawbson!(["b"]),
    );
    check(rawbson!({ "$setEquals": ["$l", ["a", "b"]] }), true.into());
    check(rawbson!({ "$setIsSubset": [["a"], "$l"] }), true.into());
    check(
        rawbson!({ "$sortArray": { "input": "$l", "sortBy": 1 } }),
        rawbson!(["A", "a", "b", "B"]),
    );
    check(rawbson!({ "$max": "$l" }), "b".into());
    check(rawbson!({ "$min": ["$a", "b", "a", "A"] }), "a".into());
    check(
        rawbson!({ "$minN": { "n": 2, "input": "$l" } }),
        rawbson!(["A", "a"]),
    );
    check(
        rawbson!({ "$switch": { "branches": [{ "case": { "$eq": ["$a", "WORD"] }, "then": 1 }], "default": 2 } }),
        1.into(),
    );
    check(
        rawbson!({ "$filter": { "input": "$l", "cond": { "$eq": ["$$this", "A"] } } }),
        rawbson!(["A", "a"]),
    );
}

#[test]
fn pipelines_group_and_sort_in_the_collation() {
    let check = |stages: RawArrayBuf, expected: Vec<RawDocumentBuf>| {
        let pipeline = Pipeline::parse(&stages, &variables()).expect("parses");
        let words = ["b", "A", "a", "B", "á"];
        let documents = words.map(|word| rawdoc! { "_id": word, "w": word });
        let (found, _) = outputs(pipeline, documents.into(), u64::MAX).expect("runs");
        assert_eq!(found, expected);
    };
    let stages = |stages: RawBson| match stages {
        RawBson::Array(stages) => stages,
        other => panic!("no array: {other:?}"),
    };
    check(
        stages(rawbson!([
            { "$group": { "_id": "$w", "all": { "$addToSet": "$w" }, "least": { "$min": "$w" } } }
        ])),
        vec![
            rawdoc! { "_id": "A", "all": ["A"], "least": "A" },
            rawdoc! { "_id": "á", "all": ["á"], "least": "á" },
            rawdoc! { "_id": "b", "all": ["b"], "least": "b" },
        ],
    );
    check(
        stages(rawbson!([{ "$sort": { "w": 1 } }, { "$project": { "_id": 0 } }])),
        ["A", "a", "á", "b", "B"]
            .map(|word| rawdoc! { "w": word })
            .into(),
    );
    let boundaries = rawbson!([{ "$bucket": { "groupBy": "$w", "boundaries": ["a", "A"] } }]);
    let error = Pipeline::parse(&stages(boundaries), &variables()).expect_err("equal boundaries");
    assert_eq!(error.code.0, 40194);
}

#[test]
fn sort_keys_put_equal_strings_together() {
    let sort = SortPattern::parse(&rawdoc! { "a": -1 })
        .expect("parses")
        .with_collation(variables().collation);
    let key = |word: &str| sort.value_key(&rawdoc! { "a": word }).expect("a key");
    assert_eq!(key("Word"), key("wORD"));
    assert!(key("b") < key("A"));
}

#[test]
fn updates_compare_in_the_collation() {
    let check = |update: RawBson, filters: RawBson, expected: RawDocumentBuf| {
        let filters = match &filters {
            RawBson::Array(filters) => Some(&**filters),
            _ => None,
        };
        let parsed =
            Update::parse_with(update.as_raw_bson_ref(), filters, &variables()).expect("parses");
        let context = UpdateContext {
            now_ms: 0,
            timestamp: Timestamp {
                time: 1,
                increment: 1,
            },
            insert: false,
            position: None,
        };
        let old = rawdoc! { "_id": 1, "a": "m", "l": ["B", "a", "A"] };
        let new = parsed.apply(&old, &context).expect("applies");
        assert_eq!(new.unwrap_or(old), expected, "{update:?}");
    };
    let with = |word: &str, list: RawBson| {
        let mut out = pinion_bson::DocBuilder::new();
        out.append("_id", 1i32).append("a", word);
        out.append("l", list.as_raw_bson_ref());
        out.finish()
    };
    let same = || with("m", rawbson!(["B", "a", "A"]));
    check(
        rawbson!({ "$pull": { "l": "A" } }),
        RawBson::Null,
        with("m", rawbson!(["B"])),
    );
    check(
        rawbson!({ "$pull": { "l": { "$gt": "A" } } }),
        RawBson::Null,
        with("m", rawbson!(["a", "A"])),
    );
    check(
        rawbson!({ "$pullAll": { "l": ["b"] } }),
        RawBson::Null,
        with("m", rawbson!(["a", "A"])),
    );
    check(
        rawbson!({ "$addToSet": { "l": "b" } }),
        RawBson::Null,
        same(),
    );
    check(
        rawbson!({ "$addToSet": { "l": { "$each": ["C", "c"] } } }),
        RawBson::Null,
        with("m", rawbson!(["B", "a", "A", "C"])),
    );
    check(
        rawbson!({ "$push": { "l": { "$each": [], "$sort": 1 } } }),
        RawBson::Null,
        with("m", rawbson!(["a", "A", "B"])),
    );
    check(rawbson!({ "$max": { "a": "M" } }), RawBson::Null, same());
    check(
        rawbson!({ "$max": { "a": "N" } }),
        RawBson::Null,
        with("N", rawbson!(["B", "a", "A"])),
    );
    check(rawbson!({ "$min": { "a": "N" } }), RawBson::Null, same());
    check(
        rawbson!({ "$set": { "l.$[x]": "-" } }),
        rawbson!([{ "x": "a" }]),
        with("m", rawbson!(["B", "-", "-"])),
    );
    let replaced = Update::parse_with(
        rawbson!({ "_id": "A" }).as_raw_bson_ref(),
        None,
        &variables(),
    );
    let context = UpdateContext {
        now_ms: 0,
        timestamp: Timestamp {
            time: 1,
            increment: 1,
        },
        insert: false,
        position: None,
    };
    let error = replaced
        .expect("parses")
        .apply(&rawdoc! { "_id": "a" }, &context)
        .expect_err("an _id is kept by its bytes");
    assert_eq!(error.code.0, 66);
}

/// Comparisons of long strings are accounted for.
#[test]
fn long_comparisons_take_a_budget() {
    let long = "x".repeat(1 << 20);
    let filter = rawdoc! { "a": format!("{long}y") };
    let matcher = Matcher::parse_with(&filter, &variables()).expect("a filter");
    let document = rawdoc! { "a": long };
    assert!(work::within(10_000_000, || matcher.matches(&document)).is_none());
    assert!(!matcher.matches(&document).expect("it is compared"));
}
