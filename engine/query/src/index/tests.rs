//! Keys of documents in indexes of each kind.

use super::*;
use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocumentBuf, rawbson, rawdoc};

fn index(listed: RawDocumentBuf) -> IndexSpec {
    IndexSpec::parse(&listed).expect("a specification")
}

fn as_array(key: &IndexKey<'_>) -> RawBson {
    let mut out = DocBuilder::new();
    out.start_array("k");
    key.values().iter().for_each(|value| {
        out.push(*value);
    });
    out.end();
    crate::value::field(&out.finish(), "k")
        .expect("written")
        .into()
}

#[test]
fn keys_of_a_long_array_take_a_budget() {
    let index = IndexSpec::new("i", &rawdoc! { "a": 1 }).expect("a pattern");
    let mut out = DocBuilder::new();
    out.append("_id", 1i32).start_array("a");
    (0..20_000i32).for_each(|item| {
        out.push(item);
    });
    out.end();
    let document = out.finish();
    // Its bytes alone would be within the budget.
    assert!(document.as_bytes().len() < 250_000);
    assert!(crate::work::within(4_000_000, || index_keys(&document, &index)).is_none());
    let found = index_keys(&document, &index).expect("keys");
    assert_eq!(found.keys.len(), 20_000);
}

#[track_caller]
fn check(
    pattern: RawDocumentBuf,
    document: RawDocumentBuf,
    expected: Vec<RawBson>,
    multikey: Option<&[&[u16]]>,
) {
    let index = IndexSpec::new("i", &pattern).expect("a pattern");
    let found = index_keys(&document, &index).expect("keys");
    assert_eq!(
        found.keys.iter().map(as_array).collect::<Vec<_>>(),
        expected,
        "{document:?} in {pattern:?}"
    );
    let multikey =
        multikey.map(|paths| MultikeyPaths::Fields(paths.iter().map(|p| p.to_vec()).collect()));
    assert_eq!(found.multikey, multikey, "{document:?} in {pattern:?}");
}

#[test]
fn single_keys() {
    check(
        rawdoc! { "a": 1 },
        rawdoc! { "a": 5 },
        vec![rawbson!([5])],
        None,
    );
    check(
        rawdoc! { "a": 1 },
        rawdoc! { "b": 5 },
        vec![rawbson!([null])],
        None,
    );
    check(
        rawdoc! { "a.b": 1, "c": -1 },
        rawdoc! { "a": { "b": 1 }, "c": "x" },
        vec![rawbson!([1, "x"])],
        None,
    );
    check(
        rawdoc! { "a.b": 1 },
        rawdoc! { "a": 1 },
        vec![rawbson!([null])],
        None,
    );
    check(
        rawdoc! { "a": 1 },
        rawdoc! { "a": { "b": [1, 2] } },
        vec![rawbson!([{ "b": [1, 2] }])],
        None,
    );
}

#[test]
fn multikey() {
    check(
        rawdoc! { "a": 1 },
        rawdoc! { "a": [2, 1, 2] },
        vec![rawbson!([1]), rawbson!([2])],
        Some(&[&[0]]),
    );
    check(
        rawdoc! { "a": 1 },
        rawdoc! { "a": [] },
        vec![RawBson::Array(undefined())],
        Some(&[&[0]]),
    );
    check(
        rawdoc! { "a": 1 },
        rawdoc! { "a": [[1, 2]] },
        vec![rawbson!([[1, 2]])],
        Some(&[&[0]]),
    );
    check(
        rawdoc! { "a.b": 1 },
        rawdoc! { "a": [{ "b": 1 }, { "b": [3, 4] }, 7] },
        vec![
            rawbson!([null]),
            rawbson!([1]),
            rawbson!([3]),
            rawbson!([4]),
        ],
        Some(&[&[0, 1]]),
    );
    check(
        rawdoc! { "a.b": 1, "a.c": 1 },
        rawdoc! { "a": [{ "b": 1, "c": 2 }, { "b": 3 }] },
        vec![rawbson!([1, 2]), rawbson!([3, null])],
        Some(&[&[0], &[0]]),
    );
    check(
        rawdoc! { "a": 1, "b": 1 },
        rawdoc! { "a": [1, 2], "b": 3 },
        vec![rawbson!([1, 3]), rawbson!([2, 3])],
        Some(&[&[0], &[]]),
    );
    check(
        rawdoc! { "a.0": 1 },
        rawdoc! { "a": [5, 6] },
        vec![rawbson!([5])],
        None,
    );
    check(
        rawdoc! { "a.0": 1 },
        rawdoc! { "a": [[5, 6]] },
        vec![rawbson!([[5, 6]])],
        None,
    );
    check(
        rawdoc! { "a.0.b": 1 },
        rawdoc! { "a": [{ "b": 1 }, { "b": 2 }] },
        vec![rawbson!([1])],
        None,
    );
    check(
        rawdoc! { "a.b": 1 },
        rawdoc! { "a": [] },
        vec![rawbson!([null])],
        Some(&[&[0]]),
    );
}

fn undefined() -> pinion_bson::RawArrayBuf {
    let mut array = pinion_bson::RawArrayBuf::new();
    array.push(RawBsonRef::Undefined);
    array
}

#[test]
fn sparse_and_errors() {
    let sparse = index(rawdoc! { "name": "i", "key": { "a": 1, "b": 1 }, "sparse": true });
    assert_eq!(
        index_keys(&rawdoc! { "c": 1 }, &sparse)
            .expect("keys")
            .keys
            .len(),
        0
    );
    assert_eq!(
        index_keys(&rawdoc! { "b": 1 }, &sparse)
            .expect("keys")
            .keys
            .len(),
        1
    );
    let both = IndexSpec::new("i", &rawdoc! { "a": 1, "b": 1 }).expect("a pattern");
    let error = index_keys(&rawdoc! { "a": [1], "b": [2] }, &both).expect_err("parallel");
    assert_eq!(
        (error.code.0, error.message.as_str()),
        (171, "cannot index parallel arrays [b] [a]")
    );
    let positional = IndexSpec::new("i", &rawdoc! { "a.0": 1 }).expect("a pattern");
    let error = index_keys(&rawdoc! { "a": [{ "0": 1 }] }, &positional).expect_err("ambiguous");
    assert_eq!(error.code.0, 16746);
}

#[test]
fn a_filter_leaves_documents_out() {
    let partial = index(rawdoc! {
        "name": "i", "key": { "a": 1 }, "partialFilterExpression": { "b": { "$gt": 5 } },
    });
    let count =
        |document: RawDocumentBuf| index_keys(&document, &partial).expect("keys").keys.len();
    assert_eq!(count(rawdoc! { "a": 1, "b": 6 }), 1);
    assert_eq!(count(rawdoc! { "a": 1, "b": 5 }), 0);
    assert_eq!(count(rawdoc! { "b": [1, 9] }), 1);
}

#[test]
fn what_is_known_of_arrays_grows() {
    let fields =
        |paths: &[&[u16]]| MultikeyPaths::Fields(paths.iter().map(|path| path.to_vec()).collect());
    let mut index = IndexSpec::new("i", &rawdoc! { "a": 1, "b.c": 1 }).expect("a pattern");
    assert!(!index.is_multikey());
    assert!(index.merge_multikey(&fields(&[&[], &[1]])));
    assert!(!index.merge_multikey(&fields(&[&[], &[1]])));
    assert!(index.merge_multikey(&fields(&[&[0], &[0]])));
    assert_eq!(index.multikey, Some(fields(&[&[0], &[0, 1]])));
    assert!(index.merge_multikey(&MultikeyPaths::Anywhere));
    assert!(index.knows_multikey(&fields(&[&[0], &[0, 1]])));
}

/// The keys of a document in a wildcard index as `path: value`.
#[track_caller]
fn check_wildcard(listed: RawDocumentBuf, document: RawDocumentBuf, expected: &[&str]) {
    let index = index(listed);
    let found = index_keys(&document, &index).expect("keys");
    let mut keys: Vec<String> = found
        .keys
        .iter()
        .map(|key| {
            let values = key.values();
            let texts = values.iter().map(|value| crate::text::value_text(*value));
            texts.collect::<Vec<_>>().join(" ").replace('"', "")
        })
        .collect();
    keys.sort();
    assert_eq!(keys, expected, "{document:?} in {:?}", index.key);
}

#[test]
fn wildcard_keys() {
    let all = || rawdoc! { "name": "i", "key": { "$**": 1 } };
    check_wildcard(
        all(),
        rawdoc! { "_id": 1, "a": 5, "b": { "c": "x", "d": {} }, "e.f": 1 },
        &["a 5", "b.c x", "b.d {}"],
    );
    check_wildcard(
        all(),
        rawdoc! { "a": [1, { "b": 2 }, [3], []], "c": [] },
        &["a 1", "a [ 3 ]", "a []", "a.b 2", "c undefined"],
    );
    let below = rawdoc! { "name": "i", "key": { "a.$**": 1 } };
    check_wildcard(
        below,
        rawdoc! { "a": { "b": 1, "c": { "d": 2 } }, "ab": 3 },
        &["a.b 1", "a.c.d 2"],
    );
}

#[test]
fn wildcard_projections() {
    let with = |projection: RawDocumentBuf| {
        rawdoc! { "name": "i", "key": { "$**": 1 }, "wildcardProjection": projection }
    };
    let document = || rawdoc! { "_id": 7, "a": { "b": 1, "c": 2 }, "d": 3, "e": { "b": 4 } };
    check_wildcard(
        with(rawdoc! { "a.b": 1, "d": true }),
        document(),
        &["a.b 1", "d 3"],
    );
    check_wildcard(with(rawdoc! { "_id": 1 }), document(), &["_id 7"]);
    check_wildcard(
        with(rawdoc! { "_id": 1, "a": 1 }),
        document(),
        &["_id 7", "a.b 1", "a.c 2"],
    );
    check_wildcard(
        with(rawdoc! { "a": { "b": 0 }, "e.b": 0 }),
        document(),
        &["a.c 2", "d 3", "e {}"],
    );
    check_wildcard(
        with(rawdoc! { "_id": 1, "a": 0 }),
        document(),
        &["_id 7", "d 3", "e.b 4"],
    );
}

#[test]
fn compound_wildcard_keys() {
    let both = || {
        rawdoc! {
            "name": "i", "key": { "a": 1, "$**": -1, "z": 1 }, "wildcardProjection": { "a": 0, "z": 0 },
        }
    };
    check_wildcard(
        both(),
        rawdoc! { "a": 1, "b": 2, "c": 3 },
        &["1 b 2 null", "1 c 3 null"],
    );
    check_wildcard(both(), rawdoc! { "a": 1, "z": 5 }, &["1 MinKey MinKey 5"]);
    let index = index(both());
    assert_eq!(index.components(), 4);
    assert_eq!(
        index.component_names().collect::<Vec<_>>(),
        ["a", "$_path", "$**", "z"]
    );
    assert_eq!(index.ordering.bits(), 0b100);
    let error = index_keys(&rawdoc! { "a": [1], "b": 2 }, &index).expect_err("an array");
    assert_eq!(error.code.0, 7_246_301);
    let overlap = |pattern: RawDocumentBuf| super::check_wildcard_overlap(&pattern, None);
    assert!(overlap(rawdoc! { "a": 1, "$**": 1 }).is_err());
    assert!(overlap(rawdoc! { "a": 1, "b.$**": 1 }).is_ok());
    assert!(overlap(rawdoc! { "b.c": 1, "b.$**": 1 }).is_err());
}
