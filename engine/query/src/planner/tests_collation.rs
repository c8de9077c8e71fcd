//! Plans where indexes and queries compare strings in a collation, alike or otherwise.

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, rawbson, rawdoc};
use pinion_keystring::encode_index_entry_in;

use super::{Access, IndexAccess, Plan, PlanRequest, plan};
use crate::collation::parse_collation;
use crate::expression::Variables;
use crate::index::{IndexSpec, index_keys};
use crate::matcher::Matcher;
use crate::sort::SortPattern;

/// The simple collation, one to which case says nothing, and one to which accents say nothing
/// either.
fn collations() -> [Option<RawDocumentBuf>; 3] {
    [
        None,
        Some(rawdoc! { "locale": "en", "strength": 2 }),
        Some(rawdoc! { "locale": "en", "strength": 1 }),
    ]
}

fn variables(collation: Option<&RawDocument>) -> Variables {
    Variables {
        collation: collation.and_then(|spec| parse_collation(spec).expect("a collation")),
        ..Variables::default()
    }
}

fn index(key: RawDocumentBuf, collation: Option<&RawDocument>) -> IndexSpec {
    let mut listed = DocBuilder::new();
    listed.append("name", "i").append("key", &*key);
    if let Some(collation) = collation {
        listed.append("collation", collation);
    }
    IndexSpec::parse(&listed.finish()).expect("a specification")
}

fn planned(indexes: &[IndexSpec], matcher: &Matcher, sort: Option<&SortPattern>) -> Plan {
    let request = PlanRequest {
        namespace: "db.c",
        matcher,
        sort,
        projection: None,
        hint: None,
        key_bounds: None,
        reads_scores: false,
        return_key: false,
        shard_key: None,
        filter: None,
        indexes,
    };
    plan(&request).expect("a plan")
}

fn keys_of(document: &RawDocument, index: &IndexSpec) -> Vec<Vec<u8>> {
    let found = index_keys(document, index).expect("keys");
    let entry = |key: &crate::index::IndexKey<'_>| {
        let strings = |component| index.strings(component);
        let id = RawBsonRef::Int32(1);
        encode_index_entry_in(&key.values(), index.ordering, strings, id, None)
            .key
            .to_vec()
    };
    found.keys.iter().map(entry).collect()
}

fn holds(access: &IndexAccess, keys: &[Vec<u8>]) -> bool {
    let inside = |key: &Vec<u8>| {
        access
            .ranges
            .iter()
            .any(|r| r.lower <= *key && *key < r.upper)
    };
    keys.iter().any(inside)
}

/// Whatever the collations of index and query, every document that matches lies in the ranges; and
/// where the filter is not examined, no other does.
#[test]
fn ranges_hold_the_keys_of_matching_documents() {
    let values: Vec<RawBson> = vec![
        "a".into(),
        "A".into(),
        "á".into(),
        "b".into(),
        "B".into(),
        "".into(),
        "a b".into(),
        1.into(),
        RawBson::Null,
        RawBson::MaxKey,
        rawbson!({ "x": "a" }),
        rawbson!({ "x": "A" }),
        rawbson!({ "X": "a" }),
    ];
    let lists = [rawbson!(["a", "B"]), rawbson!([["A"]]), rawbson!([])];
    let filters = |value: &RawBson| {
        let one = |operator: &str, operand: RawBsonRef<'_>| {
            let mut out = DocBuilder::new();
            out.start_document("a");
            out.append(operator, operand);
            out.end();
            out.finish()
        };
        let pair = RawBson::Array([value.clone(), "B".into()].into_iter().collect());
        let mut all: Vec<RawDocumentBuf> = ["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]
            .map(|operator| one(operator, value.as_raw_bson_ref()))
            .into();
        all.push(one("$in", pair.as_raw_bson_ref()));
        all.push(one("$nin", pair.as_raw_bson_ref()));
        all
    };
    let more = [
        rawdoc! { "a": { "$regex": "^a" } },
        rawdoc! { "a": { "$type": "string" } },
    ];
    let (mut scans, mut decided) = (0, 0);
    for with_lists in [false, true] {
        let lists = lists.iter().filter(|_| with_lists);
        let documents: Vec<RawDocumentBuf> = values
            .iter()
            .chain(lists)
            .map(|value| rawdoc! { "a": value.clone() })
            .chain([rawdoc! {}])
            .collect();
        for (of_index, of_query, direction) in collations()
            .iter()
            .flat_map(|i| collations().map(|q| (i.clone(), q)))
            .flat_map(|(i, q)| [(i.clone(), q.clone(), 1), (i, q, -1)])
        {
            let mut index = index(rawdoc! { "a": direction }, of_index.as_deref());
            for document in &documents {
                if let Some(multikey) = index_keys(document, &index).expect("keys").multikey {
                    index.merge_multikey(&multikey);
                }
            }
            let keys: Vec<_> = documents.iter().map(|d| keys_of(d, &index)).collect();
            let all = [index];
            for filter in values.iter().flat_map(filters).chain(more.clone()) {
                let variables = variables(of_query.as_deref());
                let matcher = Matcher::parse_with(&filter, &variables).expect("parses");
                let plan = planned(&all, &matcher, None);
                let Access::Index(access) = &plan.access else {
                    continue;
                };
                scans += 1;
                decided += usize::from(plan.filter_satisfied);
                for (document, keys) in documents.iter().zip(&keys) {
                    let matches = matcher.matches(document).expect("matches");
                    let inside = holds(access, keys);
                    assert!(
                        inside == matches || (inside && !plan.filter_satisfied),
                        "{document:?}, {filter:?}, {of_index:?}, {of_query:?}: {:?}",
                        access.bounds
                    );
                }
            }
        }
    }
    assert!(scans > 1000 && decided > 300, "{scans} {decided}");
}

#[track_caller]
fn check(
    (of_index, of_query): (Option<&RawDocument>, Option<&RawDocument>),
    filter: RawDocumentBuf,
    sort: RawDocumentBuf,
    expected: &str,
) {
    let mut id = index(rawdoc! { "_id": 1 }, of_index);
    id.name = "_id_".into();
    let indexes = [id, index(rawdoc! { "a": 1, "b": 1 }, of_index)];
    let variables = variables(of_query);
    let matcher = Matcher::parse_with(&filter, &variables).expect("parses");
    let sort = SortPattern::parse(&sort)
        .expect("parses")
        .with_collation(variables.collation);
    let plan = planned(&indexes, &matcher, Some(&sort));
    let access = match &plan.access {
        Access::Id(_) => "id".to_owned(),
        Access::Collection(_) => "collection".to_owned(),
        Access::Index(access) => {
            let index = &indexes[access.index];
            let first = &access.bounds[0].0;
            let bounds: Vec<String> = first
                .iter()
                .map(|i| i.text(false, index.bound_strings(0)))
                .collect();
            format!("{} {}", index.name, bounds.join(" "))
        }
        other => panic!("{other:?}"),
    };
    let sorted = if sort.is_empty() || plan.sort_provided {
        ""
    } else {
        ", sort"
    };
    assert_eq!(format!("{access}{sorted}"), expected, "{filter:?}");
}

#[test]
fn an_index_serves_queries_that_compare_strings_as_it_does() {
    let [_, case, accents] = collations();
    let (case, accents) = (case.as_deref(), accents.as_deref());
    let none = || rawdoc! {};
    let by_a = || rawdoc! { "a": 1 };
    check(
        (case, case),
        rawdoc! { "a": "B" },
        none(),
        "i [CollationKey(0x2d0105), CollationKey(0x2d0105)]",
    );
    check(
        (case, case),
        rawdoc! { "a": { "$gte": "b" } },
        by_a(),
        "i [CollationKey(0x2d0105), {})",
    );
    check((case, case), none(), by_a(), "i [MinKey, MaxKey]");
    check((case, case), rawdoc! { "_id": "x" }, none(), "id");
    check(
        (None, None),
        rawdoc! { "a": "B" },
        none(),
        "i [\"B\", \"B\"]",
    );
    for unlike in [(None, case), (case, None), (case, accents)] {
        check(unlike, rawdoc! { "a": "b" }, none(), "collection");
        check(
            unlike,
            rawdoc! { "a": { "$in": [1, "b"] } },
            none(),
            "collection",
        );
        check(unlike, rawdoc! { "a": { "b": 1 } }, none(), "collection");
        check(unlike, rawdoc! { "a": 1 }, none(), "i [1, 1]");
        check(unlike, none(), by_a(), "collection, sort");
        check(
            unlike,
            rawdoc! { "a": { "$gt": 1 } },
            by_a(),
            "i (1, inf.0]",
        );
        check(
            unlike,
            rawdoc! { "a": { "$gt": 1 } },
            rawdoc! { "a": 1, "b": 1 },
            "i (1, inf.0], sort",
        );
        check(
            unlike,
            rawdoc! { "a": 1 },
            rawdoc! { "b": 1 },
            "i [1, 1], sort",
        );
        check(
            unlike,
            rawdoc! { "a": 1, "b": { "$gt": 1 } },
            rawdoc! { "b": 1 },
            "i [1, 1]",
        );
        check(unlike, rawdoc! { "_id": 5 }, none(), "id");
        check(unlike, rawdoc! { "_id": "x" }, none(), "collection");
    }
}

#[test]
fn a_partial_index_holds_what_a_filter_alike_implies() {
    let [_, case, _] = collations();
    let check = |of_query: Option<&RawDocument>, filter: RawDocumentBuf, used: bool| {
        let listed = rawdoc! {
            "name": "i", "key": { "n": 1 }, "collation": { "locale": "en", "strength": 2 },
            "partialFilterExpression": { "a": { "$gte": "m" } },
        };
        let indexes = [IndexSpec::parse(&listed).expect("a specification")];
        let matcher = Matcher::parse_with(&filter, &variables(of_query)).expect("parses");
        let plan = planned(&indexes, &matcher, None);
        assert_eq!(matches!(plan.access, Access::Index(_)), used, "{filter:?}");
    };
    check(case.as_deref(), rawdoc! { "n": 1, "a": "N" }, true);
    check(case.as_deref(), rawdoc! { "n": 1, "a": "L" }, false);
    check(None, rawdoc! { "n": 1, "a": "n" }, false);
}
