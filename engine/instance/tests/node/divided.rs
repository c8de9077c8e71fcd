//! Pipelines that partitions run over their own documents: the answers do not depend on how many
//! there are.

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
    ]
}

async fn answers(client: &Client) -> Vec<Document> {
    let mut answers = Vec::new();
    for pipeline in pipelines() {
        let command =
            doc! { "aggregate": "c", "pipeline": pipeline, "cursor": { "batchSize": 1000 } };
        let mut reply = client.run(command).await;
        if let Ok(cursor) = reply.get_document("cursor") {
            reply = doc! { "found": cursor.get_array("firstBatch").expect("a batch").clone() };
        }
        answers.push(reply);
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
