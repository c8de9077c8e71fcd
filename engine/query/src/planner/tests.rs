//! Plans for filters and sorts over sets of indexes.

use pinion_bson::{ElementType, RawDocumentBuf, rawdoc};

use super::{Access, Hint, PlanRequest, plan};
use crate::index::{IndexSpec, index_keys};
use crate::matcher::Matcher;
use crate::sort::SortPattern;

fn indexes(patterns: &[RawDocumentBuf]) -> Vec<IndexSpec> {
    let mut all = vec![IndexSpec::new("_id_", &rawdoc! { "_id": 1 }).expect("a pattern")];
    for pattern in patterns {
        let name: Vec<String> = crate::value::elements(pattern)
            .map(|(name, value)| format!("{name}_{}", crate::text::value_text(value)))
            .collect();
        all.push(IndexSpec::new(name.join("_"), pattern).expect("a pattern"));
    }
    all
}

/// The plan in short: the index with its bounds and direction, and whether a sort is left.
fn describe(indexes: &[IndexSpec], filter: RawDocumentBuf, sort: RawDocumentBuf) -> String {
    let matcher = Matcher::parse(&filter).expect("the filter parses");
    let sort = SortPattern::parse_find(&sort).expect("the sort parses");
    let request = PlanRequest {
        namespace: "db.c",
        matcher: &matcher,
        sort: Some(&sort),
        projection: None,
        hint: None,
        key_bounds: None,
        reads_scores: false,
        return_key: false,
        shard_key: None,
        filter: None,
        indexes,
    };
    let plan = plan(&request).expect("a plan");
    let scan = |access: &super::IndexAccess| {
        let bounds: Vec<String> = access
            .bounds
            .iter()
            .map(|b| {
                b.0.iter()
                    .map(|i| i.text(false, pinion_keystring::Strings::Plain))
                    .collect::<Vec<_>>()
                    .join(" ")
            })
            .collect();
        let back = if access.direction == crate::sort::Direction::Backward {
            " back"
        } else {
            ""
        };
        format!("{} {}{back}", indexes[access.index].name, bounds.join("; "))
    };
    let access = match &plan.access {
        Access::Nothing => "nothing".into(),
        Access::Id(_) => "id".into(),
        Access::Collection(direction) => format!("collection {direction:?}"),
        Access::Index(access) => scan(access),
        Access::Union(branches) => branches.iter().map(scan).collect::<Vec<_>>().join(" or "),
        Access::Merge(branches) => {
            let scans: Vec<String> = branches.iter().map(|branch| scan(&branch.scan)).collect();
            scans.join(" and ")
        }
        Access::Near(access) => format!("near {}", access.index),
    };
    let sort = if plan.needs_sort(Some(&sort)) {
        " sort"
    } else {
        ""
    };
    format!("{access}{sort}")
}

#[track_caller]
fn check(
    patterns: &[RawDocumentBuf],
    filter: RawDocumentBuf,
    sort: RawDocumentBuf,
    expected: &str,
) {
    assert_eq!(describe(&indexes(patterns), filter, sort), expected);
}

#[test]
fn bounds() {
    let a = &[rawdoc! { "a": 1 }];
    let none = || rawdoc! {};
    check(a, none(), none(), "collection Forward");
    check(a, rawdoc! { "_id": 5 }, none(), "id");
    check(a, rawdoc! { "_id": 5, "a": 1 }, rawdoc! { "b": 1 }, "id");
    check(
        a,
        rawdoc! { "_id": { "$gt": 5 } },
        none(),
        "_id_ (5, inf.0]",
    );
    check(a, rawdoc! { "a": 5 }, none(), "a_1 [5, 5]");
    check(a, rawdoc! { "b": 5 }, none(), "collection Forward");
    check(
        a,
        rawdoc! { "a": { "$gt": 5, "$lte": 9 } },
        none(),
        "a_1 (5, 9]",
    );
    check(
        a,
        rawdoc! { "a": { "$lt": "x" } },
        none(),
        "a_1 [\"\", \"x\")",
    );
    check(
        a,
        rawdoc! { "a": { "$in": [3, 1, "x"] } },
        none(),
        "a_1 [1, 1] [3, 3] [\"x\", \"x\"]",
    );
    check(
        a,
        rawdoc! { "a": { "$ne": 5 } },
        none(),
        "a_1 [MinKey, 5) (5, MaxKey]",
    );
    check(a, rawdoc! { "a": null }, none(), "a_1 [null, null]");
    check(
        a,
        rawdoc! { "a": { "$exists": true } },
        none(),
        "a_1 [MinKey, MaxKey]",
    );
    check(
        a,
        rawdoc! { "a": { "$regex": "^ab" } },
        none(),
        "a_1 [\"ab\", \"ac\") [/^ab/, /^ab/]",
    );
    check(a, rawdoc! { "a": { "$gt": 5, "$lt": 3 } }, none(), "a_1 ");
    check(
        a,
        rawdoc! { "$or": [{ "a": 1 }, { "_id": { "$gt": 7 } }] },
        none(),
        "a_1 [1, 1] or _id_ (7, inf.0]",
    );
    check(
        a,
        rawdoc! { "$or": [{ "a": 1 }, { "b": 1 }] },
        none(),
        "collection Forward",
    );
}

#[test]
fn scans_are_merged_in_the_order_of_a_sort() {
    let two = &[rawdoc! { "a": 1, "c": 1 }, rawdoc! { "b": 1, "c": -1 }];
    let sort = || rawdoc! { "c": 1 };
    let either = || rawdoc! { "$or": [{ "a": 1 }, { "b": 2 }] };
    check(
        two,
        either(),
        sort(),
        "a_1_c_1 [1, 1]; [MinKey, MaxKey] and b_1_c_-1 [2, 2]; [MinKey, MaxKey] back",
    );
    check(
        two,
        rawdoc! { "a": { "$in": [1, 2] } },
        sort(),
        "a_1_c_1 [1, 1]; [MinKey, MaxKey] and a_1_c_1 [2, 2]; [MinKey, MaxKey]",
    );
    check(
        two,
        rawdoc! { "a": { "$in": [1, 2] } },
        rawdoc! { "c": -1, "a": 1 },
        "a_1_c_1 [1, 1]; [MinKey, MaxKey] back and a_1_c_1 [2, 2]; [MinKey, MaxKey] back",
    );
    check(
        two,
        rawdoc! { "$or": [{ "a": { "$in": [1, 2] } }, { "b": 2 }] },
        sort(),
        "b_1_c_-1 [2, 2]; [MinKey, MaxKey] back and \
         a_1_c_1 [1, 1]; [MinKey, MaxKey] and a_1_c_1 [2, 2]; [MinKey, MaxKey]",
    );
    // One branch is without the order, the field before it bound to a range.
    check(
        two,
        rawdoc! { "$or": [{ "a": { "$gt": 1 } }, { "b": 2 }] },
        sort(),
        "b_1_c_-1 [2, 2]; [MinKey, MaxKey] or a_1_c_1 (1, inf.0]; [MinKey, MaxKey] sort",
    );
    // Nothing can match, in any order.
    let nothing = rawdoc! { "a": { "$gt": 5, "$lt": 3 } };
    check(two, nothing, sort(), "a_1_c_1 ; [MinKey, MaxKey] sort");
    let mut many = pinion_bson::RawArrayBuf::new();
    (0..=crate::limits::MAX_EXPLODED_SCANS as i32).for_each(|value| many.push(value));
    let found = describe(&indexes(two), rawdoc! { "a": { "$in": many } }, sort());
    assert!(found.ends_with("; [MinKey, MaxKey] sort"), "{found}");
}

#[test]
fn an_array_that_is_bound_leaves_the_order_of_other_fields() {
    let mut all = indexes(&[rawdoc! { "a": 1, "c": 1 }]);
    let document = rawdoc! { "a": [1, 2], "c": 1 };
    let keys = index_keys(&document, &all[1]).expect("keys");
    all[1].merge_multikey(&keys.multikey.expect("an array"));
    let check = |filter, sort, expected: &str| assert_eq!(describe(&all, filter, sort), expected);
    let one = || rawdoc! { "a": 1 };
    let order = "a_1_c_1 [1, 1]; [MinKey, MaxKey]";
    check(one(), rawdoc! { "c": 1 }, order);
    check(one(), rawdoc! { "a": 1, "c": 1 }, &format!("{order} sort"));
    check(one(), rawdoc! { "a": 1 }, &format!("{order} sort"));
}

#[test]
fn compound_indexes_and_sorts() {
    let ab = &[rawdoc! { "a": 1, "b": -1 }];
    check(
        ab,
        rawdoc! { "a": 1, "b": { "$gt": 2 } },
        rawdoc! {},
        "a_1_b_-1 [1, 1]; (2, inf.0]",
    );
    check(ab, rawdoc! { "b": 1 }, rawdoc! {}, "collection Forward");
    check(
        ab,
        rawdoc! { "a": 1 },
        rawdoc! { "b": 1 },
        "a_1_b_-1 [1, 1]; [MinKey, MaxKey] back",
    );
    check(
        ab,
        rawdoc! { "a": 1 },
        rawdoc! { "b": -1 },
        "a_1_b_-1 [1, 1]; [MinKey, MaxKey]",
    );
    check(
        ab,
        rawdoc! {},
        rawdoc! { "a": 1, "b": -1 },
        "a_1_b_-1 [MinKey, MaxKey]; [MinKey, MaxKey]",
    );
    check(
        ab,
        rawdoc! {},
        rawdoc! { "a": -1, "b": 1 },
        "a_1_b_-1 [MinKey, MaxKey]; [MinKey, MaxKey] back",
    );
    check(
        ab,
        rawdoc! {},
        rawdoc! { "a": 1, "b": 1 },
        "collection Forward sort",
    );
    check(
        ab,
        rawdoc! {},
        rawdoc! { "_id": -1 },
        "_id_ [MinKey, MaxKey] back",
    );
    check(
        ab,
        rawdoc! {},
        rawdoc! { "$natural": -1 },
        "collection Backward",
    );
    check(
        ab,
        rawdoc! { "a": { "$in": [1, 2] } },
        rawdoc! { "b": 1 },
        "a_1_b_-1 [1, 1]; [MinKey, MaxKey] back and a_1_b_-1 [2, 2]; [MinKey, MaxKey] back",
    );
    let two = &[rawdoc! { "a": 1 }, rawdoc! { "a": 1, "b": 1 }];
    check(
        two,
        rawdoc! { "a": 1, "b": 2 },
        rawdoc! {},
        "a_1_b_1 [1, 1]; [2, 2]",
    );
    check(two, rawdoc! { "a": 1 }, rawdoc! {}, "a_1 [1, 1]");
}

#[test]
fn arrays_limit_what_is_combined() {
    let mut all = indexes(&[rawdoc! { "a": 1 }, rawdoc! { "l.x": 1, "l.y": 1 }]);
    let keys = index_keys(&rawdoc! { "a": [1, 2] }, &all[1])
        .expect("keys")
        .multikey
        .expect("multikey");
    assert!(all[1].merge_multikey(&keys));
    let document = rawdoc! { "l": [{ "x": 1, "y": 2 }] };
    let keys = index_keys(&document, &all[2])
        .expect("keys")
        .multikey
        .expect("multikey");
    assert!(all[2].merge_multikey(&keys));
    let check = |filter: RawDocumentBuf, expected: &str| {
        assert_eq!(describe(&all, filter, rawdoc! {}), expected)
    };
    check(rawdoc! { "a": { "$gt": 1, "$lt": 5 } }, "a_1 [-inf.0, 5)");
    check(
        rawdoc! { "a": { "$elemMatch": { "$gt": 1, "$lt": 5 } } },
        "a_1 (1, 5)",
    );
    check(
        rawdoc! { "a": { "$elemMatch": { "$gt": 1, "$elemMatch": {} } } },
        "a_1 (1, inf.0]",
    );
    check(
        rawdoc! { "a": { "$elemMatch": { "$elemMatch": { "$gt": 1 } } } },
        "collection Forward",
    );
    check(
        rawdoc! { "l.x": 1, "l.y": 2 },
        "l.x_1_l.y_1 [1, 1]; [MinKey, MaxKey]",
    );
    check(
        rawdoc! { "l": { "$elemMatch": { "x": 1, "y": 2 } } },
        "l.x_1_l.y_1 [1, 1]; [2, 2]",
    );
}

#[test]
fn hints() {
    let all = indexes(&[rawdoc! { "a": 1 }]);
    let matcher = Matcher::parse(&rawdoc! { "b": 1 }).expect("parses");
    let planned = |hint: Hint| {
        plan(&PlanRequest {
            namespace: "db.c",
            matcher: &matcher,
            sort: None,
            projection: None,
            hint: Some(&hint),
            key_bounds: None,
            reads_scores: false,
            return_key: false,
            shard_key: None,
            filter: None,
            indexes: &all,
        })
    };
    assert_eq!(
        planned(Hint::Name("a_1".into()))
            .expect("a plan")
            .indexes_used(),
        [1]
    );
    assert_eq!(
        planned(Hint::Pattern(rawdoc! { "a": 1.0 }))
            .expect("a plan")
            .indexes_used(),
        [1]
    );
    assert!(matches!(
        planned(Hint::Natural(crate::sort::Direction::Backward))
            .expect("a plan")
            .access,
        Access::Collection(_)
    ));
    let error = planned(Hint::Name("b_1".into())).expect_err("no such index");
    assert_eq!(error.code.0, 2);
    assert!(
        error
            .message
            .ends_with("hint provided does not correspond to an existing index"),
        "{}",
        error.message
    );
}

fn filter_holds(filter: &pinion_bson::RawDocument, operator: &str, kind: ElementType) -> bool {
    filter
        .get_document("a")
        .ok()
        .and_then(|predicate| crate::value::field(predicate, operator))
        .is_some_and(|operand| operand.element_type() == kind)
}

/// Documents with all kinds of values are found through an index exactly when a scan finds them.
#[test]
fn ranges_hold_the_keys_of_matching_documents() {
    let values = [
        rawdoc! { "a": 1 },
        rawdoc! { "a": 2.5 },
        rawdoc! { "a": f64::NAN },
        rawdoc! { "a": null },
        rawdoc! {},
        rawdoc! { "a": [] },
        rawdoc! { "a": [1, 7] },
        rawdoc! { "a": [[1, 7]] },
        rawdoc! { "a": ["x", pinion_bson::RawBson::Undefined] },
        rawdoc! { "a": [null] },
        rawdoc! { "a": "abc" },
        rawdoc! { "a": "abd" },
        rawdoc! { "a": "" },
        rawdoc! { "a": { "b": 1 } },
        rawdoc! { "a": {} },
        rawdoc! { "a": true },
        rawdoc! { "a": pinion_bson::DateTime::from_millis(5) },
        rawdoc! { "a": pinion_bson::RawBson::MinKey },
        rawdoc! { "a": pinion_bson::RawBson::MaxKey },
        rawdoc! { "a": i64::MAX },
        rawdoc! { "a": pinion_bson::RawBson::Undefined },
    ];
    let filters = |v: pinion_bson::RawBsonRef<'_>| {
        let one = |op: &str| {
            let mut out = pinion_bson::DocBuilder::new();
            out.start_document("a");
            out.append(op, v);
            out.end();
            out.finish()
        };
        ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"].map(one)
    };
    let more = [
        rawdoc! { "a": { "$type": "number" } },
        rawdoc! { "a": { "$type": ["string", "object"] } },
        rawdoc! { "a": { "$type": "array" } },
        rawdoc! { "a": { "$type": ["bool", "date", "null", "minKey", "maxKey", "undefined"] } },
        rawdoc! { "a": { "$mod": [2, 1] } },
        rawdoc! { "a": { "$size": 2 } },
        rawdoc! { "a": { "$gt": [[0]] } },
        rawdoc! { "a": { "$lt": ["x"] } },
        rawdoc! { "a": { "$gte": ["x"] } },
        rawdoc! { "a": { "$lte": [1, 8] } },
    ];
    let mut found_any = 0;
    for direction in [1, -1] {
        let mut index = IndexSpec::new("a", &rawdoc! { "a": direction }).expect("a pattern");
        for document in &values {
            if let Some(multikey) = index_keys(document, &index).expect("keys").multikey {
                index.merge_multikey(&multikey);
            }
        }
        let all = [index];
        let operands = values.iter().filter_map(|d| crate::value::field(d, "a"));
        for filter in operands
            .filter(|v| *v != pinion_bson::RawBsonRef::Undefined)
            .flat_map(filters)
            .chain(more.clone())
        {
            let matcher = Matcher::parse(&filter).expect("parses");
            let request = PlanRequest {
                namespace: "db.c",
                matcher: &matcher,
                sort: None,
                projection: None,
                hint: None,
                key_bounds: None,
                reads_scores: false,
                return_key: false,
                shard_key: None,
                filter: None,
                indexes: &all,
            };
            let access = match plan(&request).expect("a plan").access {
                Access::Index(access) => access,
                // No bounds say what does not equal an array.
                Access::Collection(_) if filter_holds(&filter, "$ne", ElementType::Array) => {
                    continue;
                }
                // Nor what is not null where there are arrays.
                Access::Collection(_) if filter_holds(&filter, "$ne", ElementType::Null) => {
                    continue;
                }
                Access::Collection(_) if filter_holds(&filter, "$size", ElementType::Int32) => {
                    continue;
                }
                other => panic!("no index scan for {filter:?}: {other:?}"),
            };
            for document in &values {
                if !matcher.matches(document).expect("matches") {
                    continue;
                }
                found_any += 1;
                let in_range = index_keys(document, &all[0])
                    .expect("keys")
                    .keys
                    .iter()
                    .any(|key| {
                        let entry = pinion_keystring::encode_index_entry(
                            &key.values(),
                            all[0].ordering,
                            pinion_bson::RawBsonRef::Int32(1),
                        );
                        access
                            .ranges
                            .iter()
                            .any(|r| r.lower[..] <= entry.key[..] && entry.key[..] < r.upper[..])
                    });
                assert!(
                    in_range,
                    "{document:?} matches {filter:?} but lies outside {:?}",
                    access.bounds
                );
            }
            assert!(
                access.ranges.windows(2).all(|w| w[0].upper <= w[1].lower),
                "{filter:?}"
            );
        }
    }
    assert!(found_any > 200);
}

/// What is left of a filter, as explain shows it, and whether the reader must look at it at all.
#[test]
fn predicates_that_the_ranges_decide_are_not_looked_at_again() {
    #[track_caller]
    fn check(indexes: &[IndexSpec], filter: RawDocumentBuf, rest: Option<RawDocumentBuf>) {
        let matcher = Matcher::parse(&filter).expect("the filter parses");
        let request = PlanRequest {
            namespace: "db.c",
            matcher: &matcher,
            sort: None,
            projection: None,
            hint: None,
            key_bounds: None,
            reads_scores: false,
            return_key: false,
            shard_key: None,
            filter: None,
            indexes,
        };
        let plan = plan(&request).expect("a plan");
        let stage = plan.explain(&request, None, None, None);
        assert_eq!(stage.name, "FETCH");
        let shown = crate::value::field(&stage.details, "filter");
        assert_eq!(
            shown,
            rest.as_deref().map(pinion_bson::RawBsonRef::Document),
            "{filter:?}"
        );
        assert_eq!(plan.filter_satisfied, rest.is_none());
    }
    let ab = indexes(&[rawdoc! { "a": 1, "b": -1 }]);
    check(&ab, rawdoc! { "a": 5 }, None);
    check(&ab, rawdoc! { "a": { "$gt": 5, "$lte": 9 } }, None);
    check(
        &ab,
        rawdoc! { "a": { "$in": [1, "x"] }, "b": { "$lt": 3 } },
        None,
    );
    check(
        &ab,
        rawdoc! { "a": 5, "c": 1 },
        Some(rawdoc! { "c": { "$eq": 1 } }),
    );
    // Behind a range nothing is decided.
    check(
        &ab,
        rawdoc! { "a": { "$gt": 5 }, "b": 3 },
        Some(rawdoc! { "b": { "$eq": 3 } }),
    );
    // Null is the key of missing fields, an array has keys of its items, a regular expression more
    // keys than matches.
    for filter in [
        rawdoc! { "a": pinion_bson::RawBson::Null },
        rawdoc! { "a": [1] },
        rawdoc! { "a": { "$in": [1, pinion_bson::RawBson::Null] } },
        rawdoc! { "a": { "$regex": "^x" } },
        rawdoc! { "a": { "$mod": [2, 1] } },
        rawdoc! { "a": { "$gte": f64::NAN } },
    ] {
        let whole = Matcher::parse(&filter).expect("parses").parsed_query();
        check(&ab, filter, Some(whole));
    }
    check(&ab, rawdoc! { "_id": { "$gte": 3 } }, None);
    let mut with_arrays = ab;
    let document = rawdoc! { "a": [1, 2] };
    let keys = index_keys(&document, &with_arrays[1]).expect("keys");
    let multikey = keys.multikey.expect("an array");
    with_arrays[1].merge_multikey(&multikey);
    check(
        &with_arrays,
        rawdoc! { "a": 5 },
        Some(rawdoc! { "a": { "$eq": 5 } }),
    );
}

/// Where the filter is not examined, every document whose key lies in the ranges matches.
#[test]
fn ranges_that_decide_hold_only_keys_of_matching_documents() {
    use pinion_bson::RawBson;
    let values = [
        RawBson::Int32(1),
        RawBson::Double(1.0),
        RawBson::Double(2.5),
        RawBson::Double(f64::NAN),
        RawBson::Double(f64::NEG_INFINITY),
        RawBson::Int64(i64::MAX),
        RawBson::Null,
        RawBson::String("abc".into()),
        RawBson::String(String::new()),
        RawBson::Document(rawdoc! { "b": 1 }),
        RawBson::Document(rawdoc! {}),
        RawBson::Boolean(true),
        RawBson::DateTime(pinion_bson::DateTime::from_millis(5)),
        RawBson::MinKey,
        RawBson::MaxKey,
    ];
    let documents: Vec<RawDocumentBuf> = values
        .iter()
        .flat_map(|a| {
            values
                .iter()
                .map(move |b| rawdoc! { "a": a.clone(), "b": b.clone() })
        })
        .chain([rawdoc! { "b": 1 }, rawdoc! { "a": 1 }])
        .collect();
    let operators = ["$eq", "$gt", "$gte", "$lt", "$lte", "$in"];
    let predicate = |operator: &str, value: &RawBson| match operator {
        "$in" => rawdoc! { "$in": [value.clone(), "abc"] },
        operator => {
            let mut out = pinion_bson::DocBuilder::new();
            out.append(operator, value.as_raw_bson_ref());
            out.finish()
        }
    };
    let mut satisfied = 0;
    for directions in [(1, 1), (1, -1), (-1, 1)] {
        let index = indexes(&[rawdoc! { "a": directions.0, "b": directions.1 }]).remove(1);
        let keys: Vec<Vec<u8>> = documents
            .iter()
            .map(|document| {
                let keys = index_keys(document, &index).expect("keys").keys;
                let entry = pinion_keystring::encode_index_entry(
                    &keys[0].values(),
                    index.ordering,
                    pinion_bson::RawBsonRef::Int32(1),
                );
                entry.key.to_vec()
            })
            .collect();
        let all = [index];
        for (first, a) in operators
            .iter()
            .flat_map(|o| values.iter().map(move |v| (o, v)))
        {
            for (second, b) in [
                ("$eq", &values[0]),
                ("$lt", &values[7]),
                ("$gte", &values[2]),
            ] {
                let filter = rawdoc! { "a": predicate(first, a), "b": predicate(second, b) };
                let matcher = Matcher::parse(&filter).expect("parses");
                let request = PlanRequest {
                    namespace: "db.c",
                    matcher: &matcher,
                    sort: None,
                    projection: None,
                    hint: None,
                    key_bounds: None,
                    reads_scores: false,
                    return_key: false,
                    shard_key: None,
                    filter: None,
                    indexes: &all,
                };
                let plan = plan(&request).expect("a plan");
                let (Access::Index(access), true) = (&plan.access, plan.filter_satisfied) else {
                    continue;
                };
                satisfied += 1;
                for (document, key) in documents.iter().zip(&keys) {
                    let mut ranges = access.ranges.iter();
                    let inside = ranges.any(|r| r.lower <= *key && *key < r.upper);
                    let matches = matcher.matches(document).expect("matches");
                    assert_eq!(inside, matches, "{document:?} and {filter:?}");
                }
            }
        }
    }
    assert!(satisfied > 100, "{satisfied}");
}

/// Lets the index know of the arrays of a document.
fn learn(index: &mut IndexSpec, document: RawDocumentBuf) {
    let found = index_keys(&document, index).expect("keys").multikey;
    index.merge_multikey(&found.expect("an array"));
}

fn listed(specs: &[RawDocumentBuf]) -> Vec<IndexSpec> {
    let parse = |spec: &RawDocumentBuf| IndexSpec::parse(spec).expect("a specification");
    let mut all = indexes(&[]);
    all.extend(specs.iter().map(parse));
    all
}

#[test]
fn hashed_indexes_serve_equality() {
    let all = listed(&[rawdoc! { "name": "h", "key": { "a": "hashed", "b": 1 } }]);
    let check = |filter, expected: &str| {
        assert_eq!(describe(&all, filter, rawdoc! {}), expected);
    };
    check(
        rawdoc! { "a": 1, "b": { "$gt": 3 } },
        "h [5902408780260971510, 5902408780260971510]; (3, inf.0]",
    );
    check(rawdoc! { "a": { "$gt": 1 } }, "collection Forward");
    check(rawdoc! { "b": 1 }, "collection Forward");
    assert_eq!(
        describe(&all, rawdoc! { "a": 1 }, rawdoc! { "b": -1 }),
        "h [5902408780260971510, 5902408780260971510]; [MinKey, MaxKey] back"
    );
    assert_eq!(
        describe(&all, rawdoc! {}, rawdoc! { "a": 1 }),
        "collection Forward sort"
    );
}

#[test]
fn wildcard_indexes_serve_the_paths_that_they_hold() {
    let mut all =
        listed(&[rawdoc! { "name": "w", "key": { "$**": 1 }, "wildcardProjection": { "x": 0 } }]);
    learn(&mut all[1], rawdoc! { "l": [{ "k": 1 }] });
    let check = |filter, sort, expected: &str| assert_eq!(describe(&all, filter, sort), expected);
    let none = || rawdoc! {};
    check(rawdoc! { "a.b": 5 }, none(), "w [\"a.b\", \"a.b\"]; [5, 5]");
    check(
        rawdoc! { "a": { "$gt": 5 } },
        rawdoc! { "a": -1 },
        "w [\"a\", \"a\"]; (5, inf.0] back",
    );
    check(
        rawdoc! { "a": { "$exists": true } },
        none(),
        "w [\"a\", \"a\"] [\"a.\", \"a/\"); [MinKey, MaxKey]",
    );
    check(rawdoc! { "a": {} }, none(), "w [\"a\", \"a\"]; [{}, {}]");
    check(
        rawdoc! { "a": [] },
        none(),
        "w [\"a\", \"a\"] [\"a.\", \"a/\"); [MinKey, MaxKey]",
    );
    check(
        rawdoc! { "l.0.k": 5 },
        none(),
        "w [\"l.0.k\", \"l.0.k\"] [\"l.k\", \"l.k\"]; [5, 5] [[], BinData(0, ))",
    );
    for filter in [
        rawdoc! { "a": null },
        rawdoc! { "a": { "$exists": false } },
        rawdoc! { "a": { "$ne": 5 } },
        rawdoc! { "a": { "b": 1 } },
        rawdoc! { "a": [1] },
        rawdoc! { "x.y": 1 },
        rawdoc! {},
    ] {
        check(filter, none(), "collection Forward");
    }
}

#[test]
fn a_hinted_wildcard_index_serves_every_branch_of_an_or_or_none() {
    let all = listed(&[rawdoc! { "name": "w", "key": { "$**": 1 } }]);
    let hint = super::Hint::Name("w".into());
    let check = |filter: RawDocumentBuf, expected: Result<usize, i32>| {
        let matcher = Matcher::parse(&filter).expect("the filter parses");
        let request = PlanRequest {
            namespace: "db.c",
            matcher: &matcher,
            sort: None,
            projection: None,
            hint: Some(&hint),
            key_bounds: None,
            reads_scores: false,
            return_key: false,
            shard_key: None,
            filter: None,
            indexes: &all,
        };
        let found = plan(&request).map(|plan| match plan.access {
            Access::Union(branches) => branches.len(),
            Access::Index(_) => 1,
            access => panic!("{access:?}"),
        });
        assert_eq!(found.map_err(|e| e.code.0), expected, "{filter:?}");
    };
    check(rawdoc! { "a": 1 }, Ok(1));
    check(rawdoc! { "$or": [{ "a": 1 }, { "b": 2 }] }, Ok(2));
    check(
        rawdoc! { "$or": [{ "a": 1 }, { "b": { "$exists": false } }] },
        Err(291),
    );
    check(rawdoc! {}, Err(291));
}

#[test]
fn compound_wildcard_indexes() {
    let all = listed(&[
        rawdoc! { "name": "w", "key": { "a": 1, "$**": 1 }, "wildcardProjection": { "a": 0 } },
    ]);
    let check = |filter, expected: &str| assert_eq!(describe(&all, filter, rawdoc! {}), expected);
    check(
        rawdoc! { "a": 1, "b": { "$gt": 5 } },
        "w [1, 1]; [\"b\", \"b\"]; (5, inf.0]",
    );
    check(
        rawdoc! { "a": 1 },
        "w [1, 1]; [MinKey, MaxKey]; [MinKey, MaxKey]",
    );
    check(rawdoc! { "b": 1 }, "collection Forward");
}

#[test]
fn partial_and_hidden_indexes() {
    let all = listed(&[
        rawdoc! { "name": "p", "key": { "a": 1 }, "partialFilterExpression": { "b": { "$gt": 5 } } },
        rawdoc! { "name": "h", "key": { "c": 1 }, "hidden": true },
    ]);
    let check = |filter, expected: &str| assert_eq!(describe(&all, filter, rawdoc! {}), expected);
    check(rawdoc! { "a": 1, "b": 6 }, "p [1, 1]");
    check(rawdoc! { "a": 1, "b": 5 }, "collection Forward");
    check(rawdoc! { "a": 1 }, "collection Forward");
    check(rawdoc! { "c": 1 }, "collection Forward");
    // A filter that holds for the whole query holds for each of its alternatives.
    check(
        rawdoc! { "b": 9, "$or": [{ "a": 1 }, { "a": { "$gt": 5 } }] },
        "p [1, 1] or p (5, inf.0]",
    );
}

#[test]
fn expressions_bound_fields() {
    let mut all = listed(&[rawdoc! { "name": "i", "key": { "a": 1 } }]);
    let expression = |operator: &str, value: pinion_bson::RawBson| {
        let mut out = pinion_bson::DocBuilder::new();
        out.start_document("$expr").start_array(operator);
        out.push("$a").push(value.as_raw_bson_ref());
        out.end();
        out.end();
        out.finish()
    };
    let check = |all: &[IndexSpec], filter, expected: &str| {
        assert_eq!(describe(all, filter, rawdoc! {}), expected);
    };
    check(
        &all,
        expression("$eq", pinion_bson::RawBson::Int32(5)),
        "i [5, 5]",
    );
    check(
        &all,
        expression("$gt", pinion_bson::RawBson::Int32(5)),
        "i (5, MaxKey]",
    );
    check(
        &all,
        expression("$lt", pinion_bson::RawBson::Int32(5)),
        "i [MinKey, 5)",
    );
    check(
        &all,
        expression("$lt", pinion_bson::RawBson::Null),
        "i [MinKey, null]",
    );
    let flipped = rawdoc! { "$expr": { "$and": [{ "$gt": [5, "$a"] }, { "$gte": ["$a", 1] }] } };
    check(&all, flipped, "i [1, 5)");
    learn(&mut all[1], rawdoc! { "a": [1] });
    check(
        &all,
        expression("$eq", pinion_bson::RawBson::Int32(5)),
        "collection Forward",
    );
}

/// An array that is empty has the key of null where the path continues, and no null in it.
#[test]
fn a_negated_null_is_not_sought_in_a_multikey_index() {
    let mut all = indexes(&[rawdoc! { "l.s": 1 }]);
    let negations = [
        rawdoc! { "l.s": { "$ne": null } },
        rawdoc! { "l.s": { "$nin": [null, 1] } },
        rawdoc! { "$nor": [{ "l.s": null }] },
        rawdoc! { "l.s": { "$not": { "$gte": null } } },
    ];
    let plans = |all: &[IndexSpec]| {
        let plans = negations.iter();
        let plans = plans.map(|filter| describe(all, filter.clone(), rawdoc! {}));
        plans.collect::<Vec<String>>()
    };
    assert!(plans(&all).iter().any(|plan| plan.starts_with("l.s_1")));
    learn(&mut all[1], rawdoc! { "l": [{ "s": 1 }] });
    for plan in plans(&all) {
        assert_eq!(plan, "collection Forward");
    }
}
