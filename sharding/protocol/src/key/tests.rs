//! Patterns, keys of documents, filters and bounds.

use pinion_bson::{RawBson, Regex, bson, doc, rawdoc};

use super::*;

fn pattern(document: RawDocumentBuf) -> ShardKeyPattern {
    ShardKeyPattern::parse(&document).expect("a pattern")
}

#[test]
fn patterns() {
    for good in [
        rawdoc! { "a": 1 },
        rawdoc! { "a": 1i64, "b.c": 1.0 },
        rawdoc! { "_id": "hashed" },
        rawdoc! { "a": 1, "b": "hashed", "c": 1 },
        rawdoc! { "a.$id": 1 },
    ] {
        let found = pattern(good.clone());
        assert_eq!(pattern(found.to_bson()), found);
        assert_eq!(found.paths().len(), pinion_bson::field_count(&good));
    }
    let check = |document: RawDocumentBuf, text: &str| {
        let error = ShardKeyPattern::parse(&document).expect_err(text);
        assert_eq!(error.code.0, 2);
        assert!(error.message.contains(text), "{}", error.message);
    };
    check(rawdoc! {}, "Shard key is empty");
    check(rawdoc! { "": 1 }, "is empty");
    check(rawdoc! { "a..b": 1 }, "Field a..b contains empty parts");
    check(rawdoc! { "a.": 1 }, "contains empty parts");
    check(rawdoc! { "$a": 1 }, "contains parts that start with '$'");
    check(rawdoc! { "$id": 1 }, "contains parts that start with '$'");
    for bad in [
        rawdoc! { "a": -1 },
        rawdoc! { "a": 2 },
        rawdoc! { "a": "2d" },
        rawdoc! { "a": true },
        rawdoc! { "b": 1, "a": "text" },
    ] {
        check(bad, "Failed to parse field a");
    }
    let twice = rawdoc! { "a": "hashed", "b": "hashed" };
    check(
        twice,
        "at most one 'hashed' field, and/or multiple numerical fields",
    );
    check(rawdoc! { "a": 1, "b": 1 , "a": 1 }, "the field a twice");
    let mut wide = DocBuilder::new();
    for at in 0..33 {
        wide.append(&format!("f{at}"), 1i32);
    }
    check(wide.finish(), "33 fields");
    assert!(pattern(rawdoc! { "a": 1 }).check_unique().is_ok());
    let error = pattern(rawdoc! { "a": 1, "b": "hashed" }).check_unique();
    assert_eq!(error.expect_err("hashed").code.0, 72);
}

#[test]
fn keys_of_documents() {
    let compound = pattern(rawdoc! { "a": 1, "b.c": 1 });
    let check = |document: RawDocumentBuf, bound: RawDocumentBuf| {
        let key = compound.key_of(&document).expect("a key");
        assert_eq!(
            key,
            compound.bound(&bound).expect("a bound"),
            "{document:?}"
        );
        // Types come back too.
        assert_eq!(compound.document(&key), bound);
    };
    check(
        rawdoc! { "a": 1, "b": { "c": "x" }, "d": 1 },
        rawdoc! { "a": 1, "b.c": "x" },
    );
    check(
        rawdoc! { "b": { "c": 2.5 } },
        rawdoc! { "a": RawBson::Null, "b.c": 2.5 },
    );
    check(
        rawdoc! { "a": 7i64, "b": 3 },
        rawdoc! { "a": 7i64, "b.c": RawBson::Null },
    );
    check(
        rawdoc! { "a": { "x": [1] }, "b": { "c": RawBson::MaxKey } },
        rawdoc! { "a": { "x": [1] }, "b.c": RawBson::MaxKey },
    );
    let regex = RawBson::RegularExpression(Regex {
        pattern: pinion_bson::cstr!("x").into(),
        options: pinion_bson::cstr!("").into(),
    });
    for bad in [
        rawdoc! { "a": [1] },
        rawdoc! { "a": 1, "b": [{ "c": 1 }] },
        rawdoc! { "a": 1, "b": { "c": [] } },
        rawdoc! { "a": regex },
    ] {
        let error = compound.key_of(&bad).expect_err("no key");
        assert_eq!(error.code.0, 61, "{bad:?}");
    }
    // 1, 1.0 and NumberLong(1) are one key.
    let one = |value: RawBson| compound.key_of(&rawdoc! { "a": value }).expect("a key");
    assert_eq!(one(RawBson::Int32(1)), one(RawBson::Double(1.0)));
    assert_eq!(one(RawBson::Int32(1)), one(RawBson::Int64(1)));
    assert!(one(RawBson::Int32(1)) < one(RawBson::Double(1.5)));
}

#[test]
fn the_order_of_keys_is_that_of_values() {
    let simple = pattern(rawdoc! { "a": 1 });
    let values = [
        bson!(null),
        bson!(-5),
        bson!(2.5),
        bson!(3i64),
        bson!(""),
        bson!("a"),
        bson!("b"),
        bson!({ "x": 1 }),
        bson!(false),
        bson!(true),
    ];
    let keys: Vec<KeyBytes> = values
        .iter()
        .map(|value| {
            let document = RawDocumentBuf::try_from(&doc! { "a": value.clone() }).expect("bson");
            simple.key_of(&document).expect("a key")
        })
        .collect();
    assert!(keys.is_sorted_by(|one, other| one < other));
    assert!(simple.min() < keys[0] && keys[keys.len() - 1] < simple.max());
    let all = |value: RawBson| simple.bound(&rawdoc! { "a": value }).expect("a bound");
    assert_eq!(
        (all(RawBson::MinKey), all(RawBson::MaxKey)),
        (simple.min(), simple.max())
    );
}

#[test]
fn hashed_fields() {
    let hashed = pattern(rawdoc! { "a": 1, "b": "hashed" });
    let hash = 5_902_408_780_260_971_510i64;
    let expected = hashed
        .bound(&rawdoc! { "a": "x", "b": hash })
        .expect("a bound");
    for value in [RawBson::Int32(1), RawBson::Double(1.9)] {
        let document = rawdoc! { "a": "x", "b": value };
        assert_eq!(hashed.key_of(&document).expect("a key"), expected);
        assert_eq!(
            hashed.key_of_filter(&document, true),
            Some(expected.clone())
        );
    }
    assert_eq!(hashed.document(&expected), rawdoc! { "a": "x", "b": hash });
    assert!(hashed.bound(&rawdoc! { "a": "x", "b": 1 }).is_err());
    let (x, one) = (RawBsonRef::String("x"), RawBsonRef::Int32(1));
    use IndexedValue::{Hashed, Plain};
    let stored = Hashed(RawBsonRef::Int64(hash));
    let key = |values: &[IndexedValue<'static>]| hashed.key_of_values(values.iter().copied());
    assert_eq!(key(&[Plain(x), stored]), Some(expected.clone()));
    assert_eq!(key(&[Plain(x), Plain(one)]), Some(expected));
    assert_eq!(key(&[stored, stored]), None);
    assert_eq!(key(&[Plain(x)]), None);
    assert_eq!(key(&[Plain(x), stored, stored]), None);
}

#[test]
fn bounds_have_the_fields_of_the_pattern() {
    let compound = pattern(rawdoc! { "a": 1, "b": 1 });
    for bad in [
        rawdoc! { "a": 1 },
        rawdoc! { "b": 1, "a": 1 },
        rawdoc! { "a": 1, "b": 1, "c": 1 },
        rawdoc! {},
    ] {
        assert_eq!(compound.bound(&bad).expect_err("none").code.0, 2, "{bad:?}");
    }
}

#[test]
fn keys_of_filters() {
    let compound = pattern(rawdoc! { "a": 1, "b.c": 1 });
    let key = |a: i32, c: i32| {
        compound
            .bound(&rawdoc! { "a": a, "b.c": c })
            .expect("a bound")
    };
    let check = |filter: RawDocumentBuf, expected: Option<KeyBytes>| {
        assert_eq!(
            compound.key_of_filter(&filter, true),
            expected,
            "{filter:?}"
        );
    };
    let there = Some(key(1, 2));
    check(
        rawdoc! { "a": 1, "b.c": 2, "x": { "$gt": 1 } },
        there.clone(),
    );
    check(
        rawdoc! { "a": { "$eq": 1 }, "b": { "c": 2, "d": 3 } },
        there.clone(),
    );
    check(
        rawdoc! { "$and": [{ "a": 1 }, { "$and": [{ "b.c": { "$in": [2] } }] }] },
        there.clone(),
    );
    check(rawdoc! { "$or": [{ "a": 1, "b.c": 2 }] }, there.clone());
    check(
        rawdoc! { "a": { "$gt": 0, "$eq": 1 }, "b.c": 2 },
        there.clone(),
    );
    check(rawdoc! { "a": 1, "b.c": 2, "$and": [{ "a": 1.0 }] }, there);
    for none in [
        rawdoc! {},
        rawdoc! { "a": 1 },
        rawdoc! { "b.c": 2 },
        rawdoc! { "a": { "$gt": 1 }, "b.c": 2 },
        rawdoc! { "a": { "$in": [1, 2] }, "b.c": 2 },
        rawdoc! { "$or": [{ "a": 1, "b.c": 2 }, { "a": 2, "b.c": 2 }] },
        rawdoc! { "$nor": [{ "a": 1, "b.c": 2 }] },
        rawdoc! { "a": [1], "b.c": 2 },
        rawdoc! { "a": 1, "b": { "d": 1 } },
        rawdoc! { "a": 1, "b": 5 },
        rawdoc! { "a": 1, "b.c": 2, "$and": [{ "a": 2 }] },
        rawdoc! { "a": { "$not": { "$eq": 1 } }, "b.c": 2 },
        rawdoc! { "a": { "$elemMatch": { "$eq": 1 } }, "b.c": 2 },
    ] {
        check(none, None);
    }
    // A null is the key of documents without the field.
    let null = compound.key_of(&rawdoc! { "a": 1 }).expect("a key");
    check(rawdoc! { "a": 1, "b.c": RawBson::Null }, Some(null));
}

#[test]
fn collations_block_strings_alone() {
    let simple = pattern(rawdoc! { "a": 1 });
    let hashed = pattern(rawdoc! { "a": "hashed" });
    for pattern in [simple, hashed] {
        let found = |filter: RawDocumentBuf| pattern.key_of_filter(&filter, false).is_some();
        assert!(found(rawdoc! { "a": 1 }));
        assert!(!found(rawdoc! { "a": "x" }));
        assert!(!found(rawdoc! { "a": { "$eq": { "b": "x" } } }));
    }
}

#[test]
fn ranges_of_filters() {
    let compound = pattern(rawdoc! { "a": 1, "b": 1 });
    let range = |filter: RawDocumentBuf| compound.range_of_filter(&filter, true);
    assert_eq!(range(rawdoc! { "b": 1 }), None);
    let key = |a: i32, b: RawBson| {
        compound
            .bound(&rawdoc! { "a": a, "b": b })
            .expect("a bound")
    };
    let of_prefix = range(rawdoc! { "a": 5, "b": { "$gt": 1 } }).expect("a range");
    for inside in [RawBson::MinKey, RawBson::Int32(0), RawBson::MaxKey] {
        assert!(of_prefix.contains(&key(5, inside)));
    }
    assert!(!of_prefix.contains(&key(4, RawBson::MaxKey)));
    assert!(!of_prefix.contains(&key(6, RawBson::MinKey)));
    let of_key = range(rawdoc! { "a": 5, "b": 1 }).expect("a range");
    assert!(of_key.contains(&key(5, RawBson::Int32(1))));
    assert!(!of_key.contains(&key(5, RawBson::Double(1.5))));
}

#[test]
fn keys_of_replacements() {
    let by_id = pattern(rawdoc! { "_id": 1, "a": 1 });
    let key = |document: RawDocumentBuf| by_id.key_of(&document).expect("a key");
    let found = |filter: RawDocumentBuf, replacement: RawDocumentBuf| {
        by_id
            .key_of_replacement(&filter, &replacement)
            .expect("a key")
    };
    let expected = key(rawdoc! { "_id": 7, "a": 1 });
    assert_eq!(found(rawdoc! { "_id": 7 }, rawdoc! { "a": 1 }), expected);
    assert_eq!(
        found(rawdoc! { "_id": 8 }, rawdoc! { "_id": 7, "a": 1 }),
        expected
    );
    assert_eq!(
        found(rawdoc! { "x": 8 }, rawdoc! { "a": 1 }),
        key(rawdoc! { "a": 1 })
    );
    let error = by_id.key_of_replacement(&rawdoc! { "_id": 1 }, &rawdoc! { "a": [1] });
    assert_eq!(error.expect_err("an array").code.0, 61);
}

#[test]
fn refining() {
    let old = pattern(rawdoc! { "a": 1 });
    let new = pattern(rawdoc! { "a": 1, "b": "hashed", "c": 1 });
    assert!(new.extends(&old) && new.extends(&new) && !old.extends(&new));
    assert!(!pattern(rawdoc! { "a": "hashed", "b": 1 }).extends(&old));
    let check = |before: RawDocumentBuf, after: RawDocumentBuf| {
        let refined = new.refined_bound(&old, &old.bound(&before).expect("a bound"));
        assert_eq!(new.document(&refined), after);
    };
    let (min, max) = (RawBson::MinKey, RawBson::MaxKey);
    check(
        rawdoc! { "a": 5i64 },
        rawdoc! { "a": 5i64, "b": min.clone(), "c": min.clone() },
    );
    check(
        rawdoc! { "a": min.clone() },
        rawdoc! { "a": min.clone(), "b": min.clone(), "c": min },
    );
    check(
        rawdoc! { "a": max.clone() },
        rawdoc! { "a": max.clone(), "b": max.clone(), "c": max },
    );
}

#[test]
fn indexes_for_a_key() {
    let key = pattern(rawdoc! { "a": 1, "b": "hashed" });
    let serves = |index: RawDocumentBuf| key.is_prefix_of_index(&index);
    assert!(serves(rawdoc! { "a": 1, "b": "hashed" }));
    assert!(serves(rawdoc! { "a": 1.0, "b": "hashed", "c": -1 }));
    assert!(!serves(rawdoc! { "a": 1 }));
    assert!(!serves(rawdoc! { "a": -1, "b": "hashed" }));
    assert!(!serves(rawdoc! { "a": 1, "b": 1 }));
    assert!(!serves(rawdoc! { "b": "hashed", "a": 1 }));
    let unique = |index: RawDocumentBuf| key.is_unique_index_possible(&index);
    assert!(unique(rawdoc! { "_id": 1 }));
    assert!(unique(rawdoc! { "a": -1, "b": 1, "c": 1 }));
    assert!(!unique(rawdoc! { "a": 1, "c": 1, "b": 1 }));
    assert!(!unique(rawdoc! { "a": 1 }));
}
