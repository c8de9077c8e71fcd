//! Random reads, and their answers compared with those of the model.

use std::collections::BTreeMap;
use std::ops::Range;

use pinion_bson::{
    DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, get, rawdoc,
};
use pinion_query::document_text;
use pinion_runtime::Rng;
use pinion_wire::idl::i64_exact;

use super::cluster::Client;
use super::local::Local;

/// What collections are sharded by.
pub fn keys() -> [RawDocumentBuf; 4] {
    [
        rawdoc! { "a": 1 },
        rawdoc! { "a": "hashed" },
        rawdoc! { "a": 1, "b": 1 },
        rawdoc! { "_id": "hashed" },
    ]
}

pub fn below(rng: &mut Rng, n: u64) -> i32 {
    rng.below(n) as i32
}

fn value(rng: &mut Rng) -> RawBson {
    match rng.below(6) {
        0 => RawBson::Null,
        1 => RawBson::String(["a", "A", "b", "ä", "B"][rng.below(5) as usize].to_owned()),
        2 => RawBson::Double(f64::from(below(rng, 40)) / 2.0),
        _ => RawBson::Int32(below(rng, 20)),
    }
}

/// Documents of these numbers.
pub fn documents(rng: &mut Rng, ids: Range<i32>) -> Vec<RawDocumentBuf> {
    ids.map(|id| {
        let mut out = DocBuilder::new();
        out.append("_id", id);
        out.append_raw("a", value(rng).as_raw_bson_ref());
        out.append("b", below(rng, 6));
        if rng.below(4) > 0 {
            out.append_raw("s", value(rng).as_raw_bson_ref());
        }
        out.start_array("list");
        (0..rng.below(4)).for_each(|_| {
            out.push(below(rng, 8));
        });
        out.end();
        out.finish()
    })
    .collect()
}

pub fn filter(rng: &mut Rng) -> RawDocumentBuf {
    let one = value(rng);
    match rng.below(10) {
        0 => rawdoc! { "a": one },
        1 => rawdoc! { "a": { "$gte": below(rng, 20) } },
        2 => rawdoc! { "a": { "$in": [one, value(rng), 7] } },
        3 => rawdoc! { "$or": [{ "a": one }, { "b": below(rng, 6) }] },
        4 => rawdoc! { "$or": [{ "a": one }, { "a": { "$lt": below(rng, 9) } }] },
        5 => rawdoc! { "_id": below(rng, 40) },
        6 => rawdoc! { "a": one, "b": { "$gt": below(rng, 6) } },
        7 => rawdoc! { "s": { "$ne": one }, "list": below(rng, 8) },
        8 => rawdoc! { "$expr": { "$gt": ["$b", below(rng, 6)] } },
        _ => rawdoc! {},
    }
}

/// An order of all documents.
pub fn sort(rng: &mut Rng) -> RawDocumentBuf {
    let direction = |rng: &mut Rng| if rng.below(2) == 0 { 1 } else { -1 };
    let last = direction(rng);
    match rng.below(5) {
        0 => rawdoc! { "_id": last },
        1 => rawdoc! { "a": direction(rng), "_id": last },
        2 => rawdoc! { "b": direction(rng), "s": direction(rng), "_id": last },
        3 => rawdoc! { "list": direction(rng), "_id": last },
        _ => rawdoc! { "s": direction(rng), "_id": last },
    }
}

fn projection(rng: &mut Rng) -> Option<RawDocumentBuf> {
    match rng.below(6) {
        0 => Some(rawdoc! { "a": 1 }),
        1 => Some(rawdoc! { "_id": 0, "b": 1, "s": 1 }),
        2 => Some(rawdoc! { "list": 0 }),
        3 => Some(rawdoc! { "x": { "$add": ["$b", 1] }, "list": { "$slice": 1 } }),
        _ => None,
    }
}

pub fn with_collation(rng: &mut Rng, out: &mut DocBuilder) {
    if rng.below(4) == 0 {
        let german = rawdoc! { "locale": "de", "strength": 2 };
        out.append("collation", &*german);
    }
}

fn find(rng: &mut Rng, name: &str) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append("find", name).append("filter", &*filter(rng));
    if rng.below(3) > 0 {
        out.append("sort", &*sort(rng));
        if rng.below(2) == 0 {
            out.append("skip", below(rng, 12));
        }
        if rng.below(2) == 0 {
            out.append("limit", below(rng, 30));
        }
    }
    if let Some(projection) = projection(rng) {
        out.append("projection", &*projection);
    }
    if rng.below(2) == 0 {
        out.append("batchSize", below(rng, 12));
    }
    with_collation(rng, &mut out);
    out.finish()
}

/// The stages of a pipeline, and whether their documents come in an order.
fn stages(rng: &mut Rng, other: &str) -> (Vec<RawDocumentBuf>, bool) {
    let matched = rawdoc! { "$match": filter(rng) };
    let sorted = rawdoc! { "$sort": sort(rng) };
    let by_id = || rawdoc! { "$sort": { "_id": 1 } };
    let mean = rawdoc! { "$avg": "$_id" };
    let whole = rawdoc! {
        "$group": { "_id": { "b": "$b" }, "n": { "$sum": 2 }, "least": { "$min": "$_id" } },
    };
    let group = match rng.below(3) {
        0 => whole,
        1 => rawdoc! { "$group": { "_id": null, "n": { "$count": {} } } },
        _ => rawdoc! {
        "$group": {
            "_id": "$b", "n": { "$sum": 1 }, "most": { "$max": "$_id" }, "mean": mean,
        },
        },
    };
    let lookup = rawdoc! {
        "$lookup": {
            "from": other, "let": { "b": "$b" }, "as": "found",
            "pipeline": [
                { "$match": { "$expr": { "$eq": ["$b", "$$b"] } } },
                { "$sort": { "_id": 1 } }, { "$limit": 3 }, { "$project": { "a": 1 } },
            ],
        },
    };
    let joined = rawdoc! {
        "$lookup": { "from": other, "localField": "a", "foreignField": "a", "as": "found" },
    };
    let graph = rawdoc! {
        "$graphLookup": {
            "from": other, "startWith": "$b", "connectFromField": "b", "connectToField": "_id",
            "as": "found", "maxDepth": 2,
        },
    };
    let union =
        rawdoc! { "$unionWith": { "coll": other, "pipeline": [{ "$match": filter(rng) }] } };
    let facet = rawdoc! {
        "$facet": {
            "n": [{ "$count": "n" }], "few": [{ "$sort": { "_id": 1 } }, { "$limit": 2 }],
        },
    };
    let count_found = rawdoc! { "$addFields": { "found": { "$size": "$found" } } };
    match rng.below(12) {
        0 => (vec![matched], false),
        1 => (
            vec![matched, sorted, rawdoc! { "$limit": 1 + below(rng, 9) }],
            true,
        ),
        2 => {
            let fields = rawdoc! { "$addFields": { "c": { "$add": ["$b", 1] } } };
            let skip = rawdoc! { "$skip": below(rng, 9) };
            (
                vec![matched, fields, sorted, skip, rawdoc! { "$limit": 7 }],
                true,
            )
        }
        3 => (vec![matched, group, by_id()], true),
        4 => {
            let counts = rawdoc! { "$sort": { "count": -1, "_id": 1 } };
            let by_count = rawdoc! { "$sortByCount": "$list" };
            (vec![rawdoc! { "$unwind": "$list" }, by_count, counts], true)
        }
        5 => (vec![matched, lookup, sorted], true),
        6 => (
            vec![sorted, rawdoc! { "$limit": 8 }, joined, count_found],
            true,
        ),
        7 => (
            vec![
                matched,
                by_id(),
                rawdoc! { "$limit": 5 },
                graph,
                count_found,
            ],
            true,
        ),
        8 => (
            vec![matched, union, rawdoc! { "$project": { "list": 0 } }],
            false,
        ),
        9 => (vec![matched, facet], true),
        10 => (vec![matched, rawdoc! { "$count": "n" }], true),
        _ => {
            let unwind = rawdoc! { "$unwind": "$list" };
            let order = rawdoc! { "$sort": { "list": -1, "_id": 1 } };
            (vec![unwind, matched, order, rawdoc! { "$limit": 9 }], true)
        }
    }
}

fn aggregate(rng: &mut Rng, name: &str) -> (RawDocumentBuf, bool) {
    let other = ["c", "other", "plain"][rng.below(3) as usize];
    let (stages, is_ordered) = stages(rng, other);
    let mut pipeline = RawArrayBuf::new();
    stages
        .into_iter()
        .for_each(|stage| pipeline.push(RawBson::Document(stage)));
    let mut out = DocBuilder::new();
    out.append("aggregate", name).append("pipeline", &*pipeline);
    out.start_document("cursor");
    if rng.below(2) == 0 {
        out.append("batchSize", below(rng, 12));
    }
    out.end();
    with_collation(rng, &mut out);
    (out.finish(), is_ordered)
}

fn model(client: &Client) -> Local {
    let world = client.world.borrow();
    let names = world.names().into_iter();
    let all: BTreeMap<String, Vec<RawDocumentBuf>> = names
        .map(|name| (name.clone(), world.documents(&name)))
        .collect();
    Local::new(all)
}

/// Texts of documents; where they come in no order, in one that is theirs.
fn texts(documents: &[RawDocumentBuf], is_ordered: bool) -> Vec<String> {
    let mut texts: Vec<String> = documents.iter().map(|d| document_text(d)).collect();
    if !is_ordered {
        texts.sort_unstable();
    }
    texts
}

#[track_caller]
fn compare(
    command: &RawDocument,
    found: &[RawDocumentBuf],
    expected: &[RawDocumentBuf],
    is_ordered: bool,
) {
    let (found, expected) = (texts(found, is_ordered), texts(expected, is_ordered));
    assert_eq!(found, expected, "{}", document_text(command));
}

/// Runs one read through the router and by the model.
pub async fn check_one(client: &Client, rng: &mut Rng) {
    let name = ["c", "c", "c", "other", "plain"][rng.below(5) as usize];
    let batch_size = 1 + i64::from(below(rng, 20));
    match rng.below(5) {
        0 | 1 => {
            let command = find(rng, name);
            let found = client
                .read(&command, batch_size)
                .await
                .expect("it is answered");
            let expected = model(client).find(&command).expect("it can be done");
            compare(&command, &found, &expected, get(&command, "sort").is_some());
        }
        2 => {
            let mut out = DocBuilder::new();
            out.append("count", name).append("query", &*filter(rng));
            if rng.below(2) == 0 {
                out.append("skip", below(rng, 9));
            }
            if rng.below(2) == 0 {
                out.append("limit", below(rng, 20) - 5);
            }
            let command = out.finish();
            let reply = client.expect(&command).await;
            let expected = model(client).count(&command).expect("it can be done");
            let found = get(&reply, "n").and_then(i64_exact);
            assert_eq!(found, Some(expected as i64), "{}", document_text(&command));
        }
        3 => {
            let mut out = DocBuilder::new();
            let key = ["a", "b", "s"][rng.below(3) as usize];
            out.append("distinct", name).append("key", key);
            out.append("query", &*filter(rng));
            let is_collated = rng.below(3) == 0;
            if is_collated {
                let german = rawdoc! { "locale": "de", "strength": 2 };
                out.append("collation", &*german);
            }
            let command = out.finish();
            let reply = client.expect(&command).await;
            let expected = model(client).distinct(&command).expect("it can be done");
            let list = |document: &RawDocumentBuf| -> Vec<String> {
                let Some(RawBsonRef::Array(values)) = get(document, "values") else {
                    panic!("values are an array");
                };
                // Which of equal values is shown is not said.
                let show = |value| {
                    let text = pinion_query::value_text(value).to_lowercase();
                    text.trim_end_matches(".0").to_owned()
                };
                pinion_bson::values(values).map(show).collect()
            };
            let (found, expected) = (list(&reply), list(&expected));
            match is_collated {
                true => assert_eq!(found.len(), expected.len(), "{}", document_text(&command)),
                false => assert_eq!(found, expected, "{}", document_text(&command)),
            }
        }
        _ => {
            let (command, is_ordered) = aggregate(rng, name);
            let found = client
                .read(&command, batch_size)
                .await
                .expect("it is answered");
            let expected = model(client)
                .aggregate(&command)
                .await
                .expect("it can be done");
            compare(&command, &found, &expected, is_ordered);
        }
    }
}
