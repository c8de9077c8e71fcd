//! Specifications: what is refused, what is stored, which are the same.

use pinion_bson::{RawDocumentBuf, rawdoc};

use super::*;

/// The stored form of a specification, or the code of the error.
fn stored(spec: &RawDocument) -> Result<RawDocumentBuf> {
    let listed = parse_index_spec(spec, false)?;
    check_index_specs(std::slice::from_ref(&listed))?;
    normal_form(&listed)
}

#[track_caller]
fn refused(key: RawDocumentBuf, options: RawDocumentBuf, code: i32) {
    let mut spec = DocBuilder::new();
    spec.append("key", &*key)
        .append("name", "i")
        .append_all(&options);
    let spec = spec.finish();
    match stored(&spec) {
        Ok(stored) => panic!("{spec:?} is stored as {stored:?}"),
        Err(error) => assert_eq!(error.code.0, code, "{spec:?}: {}", error.message),
    }
}

#[track_caller]
fn check(key: RawDocumentBuf, options: RawDocumentBuf, expected: RawDocumentBuf) {
    let mut spec = DocBuilder::new();
    spec.append("key", &*key)
        .append("name", "i")
        .append_all(&options);
    let found = stored(&spec.finish()).expect("a specification");
    let mut rest = DocBuilder::new();
    for (field, value) in pinion_bson::elements(&found) {
        if field != "v" && field != "name" {
            rest.append_raw(field, value);
        }
    }
    assert_eq!(rest.finish(), expected);
}

#[test]
fn key_patterns() {
    let none = || rawdoc! {};
    refused(rawdoc! {}, none(), 67);
    refused(rawdoc! { "a": 0 }, none(), 67);
    refused(rawdoc! { "a": f64::NAN }, none(), 67);
    refused(rawdoc! { "a": true }, none(), 67);
    refused(rawdoc! { "a": "abc" }, none(), 67);
    refused(rawdoc! { "a": "wildcard" }, none(), 7_246_202);
    refused(rawdoc! { "a": "text", "b": "2dsphere" }, none(), 67);
    refused(rawdoc! { "a": "hashed", "b": "hashed" }, none(), 31_303);
    refused(rawdoc! { "$a": 1 }, none(), 67);
    refused(rawdoc! { "a..b": 1 }, none(), 67);
    refused(rawdoc! { "": 1 }, none(), 67);
    refused(rawdoc! { "$**": 1, "b.$**": 1 }, none(), 67);
    refused(rawdoc! { "$**": 1, "a": 1 }, none(), 67);
    refused(rawdoc! { "a": 1, "loc": "2d" }, none(), 13_023);
    check(
        rawdoc! { "a.$id": 1 },
        none(),
        rawdoc! { "key": { "a.$id": 1 } },
    );
    check(
        rawdoc! { "a.$**": -1 },
        none(),
        rawdoc! { "key": { "a.$**": -1 } },
    );
}

#[test]
fn options() {
    let a = || rawdoc! { "a": 1 };
    refused(a(), rawdoc! { "hidden": 1 }, 14);
    refused(a(), rawdoc! { "unique": "x" }, 14);
    refused(a(), rawdoc! { "expireAfterSeconds": "x" }, 67);
    refused(a(), rawdoc! { "expireAfterSeconds": -1 }, 67);
    refused(a(), rawdoc! { "expireAfterSeconds": 2_147_483_648i64 }, 67);
    refused(
        rawdoc! { "a": 1, "b": 1 },
        rawdoc! { "expireAfterSeconds": 1 },
        67,
    );
    refused(
        a(),
        rawdoc! { "sparse": true, "partialFilterExpression": { "a": 1 } },
        67,
    );
    refused(
        a(),
        rawdoc! { "partialFilterExpression": { "a": { "$ne": 1 } } },
        67,
    );
    refused(a(), rawdoc! { "partialFilterExpression": 1 }, 14);
    refused(
        a(),
        rawdoc! { "partialFilterExpression": { "$expr": { "$lte": ["$a", "$$NOW"] } } },
        224,
    );
    refused(a(), rawdoc! { "wildcardProjection": { "b": 1 } }, 2);
    refused(a(), rawdoc! { "weights": { "a": 1 } }, 67);
    refused(a(), rawdoc! { "nonsense": 1 }, 197);
    check(
        a(),
        rawdoc! { "unique": 1, "sparse": false, "hidden": true, "expireAfterSeconds": 3.7 },
        rawdoc! { "unique": true, "key": { "a": 1 }, "sparse": false, "hidden": true, "expireAfterSeconds": 3.7 },
    );
    let zero: pinion_bson::Decimal128 = "0".parse().expect("a decimal");
    check(
        a(),
        rawdoc! { "sparse": 12345i64, "unique": zero, "prepareUnique": false, "background": 1.0, "dropDups": true },
        rawdoc! { "key": { "a": 1 }, "sparse": 12345i64, "background": 1.0 },
    );
    refused(a(), rawdoc! { "background": "x" }, 14);
    refused(a(), rawdoc! { "dropDups": "x" }, 14);
    check(
        rawdoc! { "a": "2d" },
        rawdoc! { "min": 5.5, "bits": 16.578 },
        rawdoc! { "key": { "a": "2d" }, "min": 5.5, "bits": 16.578 },
    );
}

#[test]
fn options_of_kinds() {
    let all = || rawdoc! { "$**": 1 };
    refused(all(), rawdoc! { "unique": true }, 67);
    refused(all(), rawdoc! { "sparse": true }, 67);
    refused(all(), rawdoc! { "expireAfterSeconds": 1 }, 67);
    refused(
        all(),
        rawdoc! { "wildcardProjection": { "a": 1, "b": 0 } },
        31_254,
    );
    refused(all(), rawdoc! { "wildcardProjection": {} }, 9);
    refused(
        rawdoc! { "a.$**": 1 },
        rawdoc! { "wildcardProjection": { "b": 1 } },
        9,
    );
    refused(
        rawdoc! { "a": "hashed" },
        rawdoc! { "unique": true },
        16_764,
    );
    refused(rawdoc! { "a": "2d" }, rawdoc! { "bits": 33 }, 72);
    refused(rawdoc! { "a": "2d" }, rawdoc! { "min": 5, "max": 5 }, 72);
    refused(
        rawdoc! { "a": "2dsphere" },
        rawdoc! { "2dsphereIndexVersion": 0 },
        67,
    );
    check(
        rawdoc! { "a": "2dsphere" },
        rawdoc! {},
        rawdoc! { "key": { "a": "2dsphere" }, "2dsphereIndexVersion": 3 },
    );
}

#[test]
fn text_indexes() {
    let a = || rawdoc! { "a": "text" };
    refused(a(), rawdoc! { "weights": 1 }, 14);
    refused(a(), rawdoc! { "weights": "hello" }, 67);
    refused(a(), rawdoc! { "weights": { "a": 0 } }, 67);
    refused(a(), rawdoc! { "weights": { "a": "x" } }, 67);
    refused(a(), rawdoc! { "default_language": "klingon" }, 67);
    refused(a(), rawdoc! { "language_override": "" }, 67);
    refused(a(), rawdoc! { "weights": { "a": 100_000 } }, 67);
    refused(a(), rawdoc! { "weights": { "a..b": 1 } }, 67);
    refused(a(), rawdoc! { "textIndexVersion": 4 }, 67);
    refused(rawdoc! { "a": "text", "b": 1, "c": "text" }, rawdoc! {}, 67);
    refused(rawdoc! { "a": "text", "_ftsx": 1 }, rawdoc! {}, 67);
    let terms = || rawdoc! { "_fts": "text", "_ftsx": 1 };
    refused(terms(), rawdoc! {}, 67);
    refused(
        rawdoc! { "_fts": "text", "b": 1 },
        rawdoc! { "weights": { "a": 1 } },
        67,
    );
    check(
        terms(),
        rawdoc! { "weights": { "a": 1 }, "default_language": "klingon", "textIndexVersion": 1 },
        rawdoc! {
            "key": { "_fts": "text", "_ftsx": 1 },
            "weights": { "a": 1 },
            "default_language": "klingon",
            "textIndexVersion": 1,
            "language_override": "language",
        },
    );
    check(
        rawdoc! { "x": 1, "b": "text", "a": "text", "y": -1 },
        rawdoc! { "weights": { "c": 5.0 } },
        rawdoc! {
            "key": { "x": 1, "_fts": "text", "_ftsx": 1, "y": -1 },
            "weights": { "a": 1, "b": 1, "c": 5 },
            "default_language": "english",
            "language_override": "language",
            "textIndexVersion": 3,
        },
    );
}
