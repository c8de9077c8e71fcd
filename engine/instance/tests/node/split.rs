//! Pipelines whose parts run where the documents are: the answers do not depend on how many
//! partitions there are.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{Bson, Document, doc};

use crate::harness::{Client, with_node};

fn document(i: i32) -> Document {
    let mixed = match i % 3 {
        0 => Bson::Int32(i % 7),
        1 => Bson::Double(f64::from(i % 7)),
        _ => Bson::Int64(i64::from(i % 7)),
    };
    doc! { "_id": i, "k": i % 7, "n": i, "d": f64::from(i) / 3.0, "mixed": mixed, "l": [i % 5, "x"], "s": format!("s{}", i % 4) }
}

fn pipelines() -> Vec<Vec<Document>> {
    vec![
        vec![
            doc! { "$group": { "_id": "$k", "c": { "$sum": 1 }, "s": { "$sum": "$n" }, "a": { "$avg": "$n" }, "min": { "$min": "$n" }, "max": { "$max": "$s" } } },
        ],
        vec![
            doc! { "$match": { "n": { "$gte": 20 } } },
            doc! { "$group": { "_id": Bson::Null, "n": { "$sum": 1 } } },
        ],
        vec![
            doc! { "$match": { "n": { "$gt": 1000 } } },
            doc! { "$group": { "_id": Bson::Null, "n": { "$sum": 1 } } },
        ],
        vec![doc! { "$unwind": "$l" }, doc! { "$sortByCount": "$l" }],
        vec![doc! { "$match": { "k": 3 } }, doc! { "$count": "n" }],
        vec![
            doc! { "$unwind": "$l" },
            doc! { "$match": { "l": "x" } },
            doc! { "$count": "n" },
            doc! { "$project": { "m": "$n" } },
        ],
        // What depends on the order: last digits, the type of a key, which of equal values, arrays.
        vec![doc! { "$group": { "_id": "$k", "s": { "$sum": "$d" }, "a": { "$avg": "$d" } } }],
        vec![doc! { "$group": { "_id": "$mixed", "n": { "$sum": 1 } } }],
        vec![
            doc! { "$group": { "_id": "$s", "min": { "$min": "$mixed" }, "max": { "$max": "$mixed" } } },
        ],
        vec![
            doc! { "$group": { "_id": "$k", "all": { "$push": "$n" }, "first": { "$first": "$n" } } },
        ],
        vec![
            doc! { "$sort": { "n": -1 } },
            doc! { "$group": { "_id": "$k", "n": { "$sum": 1 }, "f": { "$first": "$n" } } },
        ],
        // The error is that of the first document that has one.
        vec![
            doc! { "$group": { "_id": { "$divide": [1, "$k"] }, "n": { "$sum": { "$toInt": "$s" } } } },
        ],
        // Stages that look at each document, in its order.
        vec![doc! { "$project": { "m": { "$multiply": ["$n", 2] } } }],
        vec![
            doc! { "$unwind": "$l" },
            doc! { "$addFields": { "m": { "$concat": ["$s", "x"] } } },
            doc! { "$skip": 3 },
            doc! { "$limit": 50 },
        ],
        vec![
            doc! { "$addFields": { "m": { "$mod": ["$n", 11] } } },
            doc! { "$sort": { "m": -1 } },
            doc! { "$skip": 7 },
            doc! { "$limit": 40 },
            doc! { "$project": { "m": 1, "t": { "$add": ["$m", "$k"] } } },
        ],
        vec![
            doc! { "$sort": { "k": 1, "n": -1 } },
            doc! { "$limit": 33 },
            doc! { "$project": { "t": { "$add": ["$n", "$k"] } } },
            doc! { "$unwind": "$t" },
        ],
        vec![
            doc! { "$unwind": "$l" },
            doc! { "$lookup": { "from": "c", "let": { "k": "$k" }, "as": "found",
            "pipeline": [{ "$match": { "n": { "$lt": 5 } } }, { "$addFields": { "same": { "$eq": ["$k", "$$k"] } } }, { "$sort": { "same": -1 } }, { "$limit": 1 }] } },
            doc! { "$limit": 20 },
        ],
        vec![
            doc! { "$match": { "n": { "$lt": 9 } } },
            doc! { "$unionWith": { "coll": "c", "pipeline": [{ "$unwind": "$l" }, { "$group": { "_id": "$l", "n": { "$sum": 1 } } }] } },
        ],
        // Only documents in front of the limit count, and the first that fails.
        vec![
            doc! { "$project": { "q": { "$divide": [1, { "$subtract": ["$n", 200] }] } } },
            doc! { "$limit": 200 },
            doc! { "$group": { "_id": Bson::Null, "all": { "$push": "$_id" } } },
        ],
        vec![
            doc! { "$project": { "q": { "$divide": [1, { "$subtract": ["$n", 200] }] }, "t": { "$toInt": { "$cond": [{ "$eq": ["$n", 201] }, "$s", "1"] } } } },
            doc! { "$sort": { "q": 1 } },
        ],
    ]
}

/// The stages that random pipelines are made of.
fn stages() -> Vec<Document> {
    vec![
        doc! { "$match": { "k": { "$gt": 2 } } },
        doc! { "$match": { "$expr": { "$ne": ["$s", "s1"] } } },
        doc! { "$project": { "k": 1, "n": 1, "l": 1 } },
        doc! { "$addFields": { "m": { "$mod": ["$n", 13] } } },
        doc! { "$addFields": { "q": { "$divide": [12, { "$subtract": ["$n", 250] }] } } },
        doc! { "$unwind": "$l" },
        doc! { "$replaceRoot": { "newRoot": { "n": "$k", "k": "$n", "l": "$l", "s": "$s" } } },
        doc! { "$sort": { "k": -1, "n": 1 } },
        doc! { "$sort": { "s": 1 } },
        doc! { "$limit": 60 },
        doc! { "$skip": 5 },
        doc! { "$group": { "_id": "$s", "f": { "$first": "$n" }, "all": { "$push": "$k" } } },
        doc! { "$group": { "_id": "$k", "n": { "$sum": "$n" }, "d": { "$avg": "$d" } } },
        doc! { "$count": "n" },
    ]
}

/// A campaign runs more: `PINION_SEEDS` says how many times as many.
fn random_pipelines() -> Vec<Vec<Document>> {
    let times: usize = std::env::var("PINION_SEEDS")
        .ok()
        .and_then(|times| times.parse().ok())
        .unwrap_or(1);
    let (stages, mut state) = (stages(), 11_u64);
    let mut next = |below: usize| {
        state = (state.wrapping_mul(6_364_136_223_846_793_005)).wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut pipeline = || {
        let length = 1 + next(5);
        (0..length)
            .map(|_| stages[next(stages.len())].clone())
            .collect()
    };
    (0..60 * times).map(|_| pipeline()).collect()
}

/// What a pipeline gives, in batches of this size; or its error.
async fn answer(client: &Client, pipeline: Vec<Document>, batch: i32) -> Document {
    let command = doc! { "aggregate": "c", "pipeline": pipeline, "cursor": { "batchSize": batch } };
    let mut reply = client.run(command).await;
    let mut found = Vec::new();
    while let Ok(cursor) = reply.get_document("cursor") {
        let batch = cursor
            .get_array("firstBatch")
            .or(cursor.get_array("nextBatch"));
        found.extend(batch.expect("a batch").iter().cloned());
        let id = cursor.get_i64("id").expect("an id");
        if id == 0 {
            return doc! { "found": found };
        }
        reply = client
            .run(doc! { "getMore": id, "collection": "c", "batchSize": 60 })
            .await;
    }
    reply
}

async fn answers(client: &Client) -> Vec<Document> {
    let mut answers = Vec::new();
    for (place, pipeline) in pipelines()
        .into_iter()
        .chain(random_pipelines())
        .enumerate()
    {
        answers.push(answer(client, pipeline, [1000, 3][place % 2]).await);
    }
    for key in ["k", "mixed", "l", "s", "d", "missing"] {
        answers.push(
            client
                .run(doc! { "distinct": "c", "key": key, "query": { "n": { "$lt": 250 } } })
                .await,
        );
    }
    answers
}

#[test]
fn answers_do_not_depend_on_the_partitions() {
    let expected: Rc<RefCell<Option<Vec<Document>>>> = Rc::default();
    for (seed, cores, partitions) in [(1, 1, 1), (2, 2, 3), (3, 3, 2), (4, 2, 7)] {
        let expected = expected.clone();
        with_node(seed, cores, partitions, move |client| {
            let expected = expected.clone();
            async move {
                let documents: Vec<Document> = (0..300).map(document).collect();
                client
                    .ok(doc! { "insert": "c", "documents": documents })
                    .await;
                let found = answers(&client).await;
                let mut expected = expected.borrow_mut();
                let expected = expected.get_or_insert_with(|| found.clone());
                for (place, (found, expected)) in found.iter().zip(&*expected).enumerate() {
                    assert_eq!(found, expected, "answer {place}");
                }
            }
        });
    }
}

/// Of many documents sums of doubles are exact, so partitions add up what they have.
#[test]
fn sums_of_many_doubles_do_not_depend_on_the_partitions() {
    let expected: Rc<RefCell<Option<Vec<Document>>>> = Rc::default();
    for (seed, cores, partitions) in [(1, 1, 1), (2, 2, 3), (3, 2, 7)] {
        let expected = expected.clone();
        with_node(seed, cores, partitions, move |client| {
            let expected = expected.clone();
            async move {
                for at in 0..3 {
                    let documents: Vec<Document> = (at * 500..(at + 1) * 500)
                        .map(|i| doc! { "_id": i, "k": i * i % 400, "d": f64::from(i * 7919 % 9973) / 100.0 })
                        .collect();
                    client
                        .ok(doc! { "insert": "c", "documents": documents })
                        .await;
                }
                let group = doc! { "$group": { "_id": "$k", "s": { "$sum": "$d" }, "a": { "$avg": "$d" }, "n": { "$sum": 1 } } };
                let whole = answer(&client, vec![group.clone()], 1000).await;
                let behind = vec![doc! { "$sort": { "d": 1 } }, group];
                let sorted = answer(&client, behind, 1000).await;
                assert_eq!(sorted, whole, "the order of the documents does not matter");
                let found = vec![whole, sorted];
                let mut expected = expected.borrow_mut();
                let expected = expected.get_or_insert_with(|| found.clone());
                assert_eq!(&found, expected, "over {partitions}");
            }
        });
    }
}

/// explain shows what the parts do of the pipeline that is run.
#[test]
fn explain_shows_the_parts() {
    with_node(6, 2, 3, |client| async move {
        let documents: Vec<Document> = (0..30).map(document).collect();
        client
            .ok(doc! { "insert": "c", "documents": documents })
            .await;
        let split_of = async |pipeline: Vec<Document>| {
            let command = doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} };
            let explained = client.ok(doc! { "explain": command }).await;
            explained.get_document("splitPipeline").ok().cloned()
        };
        let add = || doc! { "$addFields": { "m": { "$add": ["$n", "$k"] } } };
        let sort = || doc! { "$sort": { "m": 1 } };
        let limit = || doc! { "$limit": 2_i64 };
        let split = split_of(vec![add(), sort(), limit()]).await;
        let expected = doc! { "partsPart": [add(), sort()], "mergerPart": [limit()] };
        assert_eq!(split, Some(expected));
        let split = split_of(vec![doc! { "$match": { "k": 1 } }, limit()]).await;
        assert_eq!(split, None, "a find does all of it");
    });
}

/// What does not fit into the memory of the parts is grouped as a whole, and spilled.
#[test]
fn large_groups_are_spilled() {
    with_node(5, 2, 3, |client| async move {
        let documents: Vec<Document> = (0..2000).map(document).collect();
        client
            .ok(doc! { "insert": "c", "documents": documents })
            .await;
        let group = doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": "$n", "s": { "$sum": "$k" } } }], "cursor": {} };
        let expected = client.find(group.clone()).await;
        let limit = "internalQuerySlotBasedExecutionHashAggApproxMemoryUseInBytesBeforeSpill";
        let parameter = doc! { "setParameter": 1, limit: 50_000 };
        client.at("admin").ok(parameter).await;
        assert!(client.find(group.clone()).await == expected);
        let mut refused = group;
        refused.insert("allowDiskUse", false);
        client.fails(refused, 292).await;
    });
}
