//! What finds report about the indexes they use: bounds by keys, keys in place of documents, uses
//! counted.

use pinion_bson::{Bson, Document, doc};

use crate::harness::{Client, column, with_node};

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<Bson> {
    values.into_iter().map(Bson::Int32).collect()
}

/// Twenty documents `{_id, a, b, u, t}`: `a` and `b` with a compound index, `u` with a unique one,
/// `t` an array.
async fn fill(client: &Client) {
    let documents: Vec<_> = (0..20)
        .map(|i| doc! { "_id": i, "a": i % 5, "b": i, "u": 100 - i, "t": [i, i + 50] })
        .collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
    client
        .ok(doc! { "createIndexes": "c", "indexes": [
            { "key": { "a": 1 }, "name": "a_1" },
            { "key": { "a": 1, "b": -1 }, "name": "ab" },
            { "key": { "u": 1 }, "name": "u_1", "unique": true },
            { "key": { "t": 1 }, "name": "t_1" },
        ] })
        .await;
}

#[test]
fn min_and_max_bound_the_keys_of_the_hinted_index() {
    for (seed, cores, partitions) in [(301, 1, 1), (302, 2, 3)] {
        with_node(seed, cores, partitions, |client| async move {
            fill(&client).await;
            let ids = |options: Document, expected: Vec<i32>| {
                let client = client.clone();
                async move {
                    let mut command = doc! { "find": "c" };
                    command.extend(options.clone());
                    let found = client.find(command).await;
                    assert_eq!(column(&found, "_id"), ints(expected), "{options}");
                }
            };
            ids(
                doc! { "hint": "a_1", "min": { "a": 3 } },
                vec![3, 8, 13, 18, 4, 9, 14, 19],
            )
            .await;
            ids(
                doc! { "hint": { "a": 1 }, "max": { "a": 1 } },
                vec![0, 5, 10, 15],
            )
            .await;
            ids(
                doc! { "hint": "a_1", "min": { "a": 1 }, "max": { "a": 2 }, "filter": { "b": { "$gt": 5 } } },
                vec![6, 11, 16],
            )
            .await;
            ids(
                doc! { "hint": "ab", "min": { "a": 3, "b": 8 }, "max": { "a": 4, "b": 9 } },
                vec![8, 3, 19, 14],
            )
            .await;
            ids(
                doc! { "hint": "a_1", "min": { "a": 3 }, "sort": { "a": -1 }, "limit": 2 },
                vec![19, 14],
            )
            .await;
            ids(
                doc! { "hint": "a_1", "min": { "a": 4 }, "sort": { "b": 1 } },
                vec![4, 9, 14, 19],
            )
            .await;
            ids(
                doc! { "hint": { "_id": 1 }, "min": { "_id": 15 }, "max": { "_id": 17 } },
                vec![15, 16],
            )
            .await;
            ids(doc! { "hint": "u_1", "max": { "u": 83 } }, vec![19, 18]).await;
            // The keys 5 and 55 of one document; each document comes once.
            ids(
                doc! { "hint": "t_1", "min": { "t": 18 }, "max": { "t": 52 } },
                vec![18, 19, 0, 1],
            )
            .await;
            // With an array the order of the sort is that of its least item, whatever part of the
            // keys is read.
            ids(
                doc! { "hint": "t_1", "min": { "t": 18 }, "max": { "t": 52 }, "sort": { "t": 1 } },
                vec![0, 1, 18, 19],
            )
            .await;
            for (options, code) in [
                (doc! { "min": { "a": 3 } }, 51173),
                (doc! { "hint": { "$natural": 1 }, "min": { "a": 3 } }, 291),
                (doc! { "hint": "a_1", "min": { "b": 3 } }, 51174),
                (doc! { "hint": "ab", "min": { "a": 3 } }, 51174),
                (doc! { "hint": "ab", "min": { "b": 3, "a": 1 } }, 51174),
                (
                    doc! { "hint": "a_1", "min": { "a": 3 }, "max": { "a": 3 } },
                    51175,
                ),
                (
                    doc! { "hint": "a_1", "min": { "a": 3 }, "max": { "b": 3 } },
                    51176,
                ),
                (doc! { "hint": "a_1", "min": 3 }, 14),
            ] {
                let mut command = doc! { "find": "c" };
                command.extend(options);
                client.fails(command, code).await;
            }
        });
    }
}

#[test]
fn keys_come_in_place_of_documents() {
    for (seed, cores, partitions) in [(311, 1, 1), (312, 2, 3)] {
        with_node(seed, cores, partitions, |client| async move {
            fill(&client).await;
            for (options, expected) in [
                (doc! { "limit": 2 }, vec![doc! {}, doc! {}]),
                (doc! { "filter": { "_id": 3 } }, vec![doc! { "_id": 3 }]),
                (
                    doc! { "hint": "a_1", "limit": 2 },
                    vec![doc! { "a": 0 }, doc! { "a": 0 }],
                ),
                (
                    doc! { "filter": { "a": 3, "b": { "$lt": 9 } }, "hint": "ab", "projection": { "u": 1 } },
                    vec![doc! { "a": 3, "b": 8 }, doc! { "a": 3, "b": 3 }],
                ),
                (
                    doc! { "hint": "a_1", "sort": { "b": -1 }, "limit": 2 },
                    vec![doc! { "a": 4 }, doc! { "a": 3 }],
                ),
                (doc! { "filter": { "u": 98 } }, vec![doc! { "u": 98 }]),
                (
                    doc! { "filter": { "t": { "$gt": 67 } } },
                    vec![doc! { "t": 68 }, doc! { "t": 69 }],
                ),
            ] {
                let mut command = doc! { "find": "c", "returnKey": true };
                command.extend(options.clone());
                assert_eq!(client.find(command).await, expected, "{options}");
            }
        });
    }
}

#[test]
fn the_key_of_the_collection_is_shown_beside_the_document() {
    with_node(321, 2, 2, |client| async move {
        fill(&client).await;
        let mut seen = Vec::new();
        for options in [
            doc! {},
            doc! { "sort": { "b": 1 } },
            doc! { "projection": { "_id": 0, "b": 1 }, "hint": "ab", "sort": { "b": 1 } },
        ] {
            let mut command = doc! { "find": "c", "showRecordId": true };
            command.extend(options);
            let found = client.find(command).await;
            assert_eq!(column(&found, "b"), ints(0..20));
            seen.push(column(&found, "$recordId"));
        }
        assert!(matches!(&seen[0][0], Bson::Binary(_)), "{:?}", seen[0]);
        assert!(seen.iter().all(|ids| *ids == seen[0]));
        let mut distinct = seen[0].iter().map(Bson::to_string).collect::<Vec<_>>();
        distinct.dedup();
        assert_eq!(distinct.len(), 20);
    });
}

#[test]
fn uses_of_indexes_are_counted() {
    with_node(331, 2, 2, |client| async move {
        fill(&client).await;
        let uses = || {
            let client = client.clone();
            async move {
                let found = client
                    .find(doc! { "aggregate": "c", "pipeline": [{ "$indexStats": {} }, { "$sort": { "name": 1 } }], "cursor": {} })
                    .await;
                let names = column(&found, "name");
                let ops = found
                    .iter()
                    .map(|index| {
                        let accesses = index.get_document("accesses").unwrap();
                        assert!(accesses.get_datetime("since").is_ok());
                        let spec = index.get_document("spec").unwrap();
                        assert_eq!(spec.get("key"), index.get("key"));
                        accesses.get_i64("ops").unwrap()
                    })
                    .collect::<Vec<_>>();
                (names, ops)
            }
        };
        let (names, ops) = uses().await;
        let named = ["_id_", "a_1", "ab", "t_1", "u_1"].map(|name| Bson::String(name.into()));
        assert_eq!(names, named);
        assert_eq!(ops, [0, 0, 0, 0, 0]);
        client.find(doc! { "find": "c" }).await;
        client
            .find(doc! { "find": "c", "filter": { "u": 98 } })
            .await;
        client
            .find(doc! { "find": "c", "filter": { "_id": 5 } })
            .await;
        client
            .find(doc! { "find": "c", "filter": { "$or": [{ "u": 98 }, { "t": 3 }] } })
            .await;
        client
            .ok(doc! { "update": "c", "updates": [{ "q": { "a": 1 }, "u": { "$inc": { "n": 1 } }, "hint": "a_1" }] })
            .await;
        assert_eq!(uses().await.1, [1, 1, 0, 1, 2]);
        client.ok(doc! { "dropIndexes": "c", "index": "a_1" }).await;
        client
            .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] })
            .await;
        assert_eq!(uses().await.1, [1, 0, 0, 1, 2]);
        client
            .fails(doc! { "aggregate": "c", "pipeline": [{ "$indexStats": { "a": 1 } }], "cursor": {} }, 28803)
            .await;
        client
            .fails(
                doc! { "aggregate": 1, "pipeline": [{ "$indexStats": {} }], "cursor": {} },
                73,
            )
            .await;
        client
            .fails(doc! { "aggregate": "c", "pipeline": [{ "$match": {} }, { "$indexStats": {} }], "cursor": {} }, 40602)
            .await;
    });
}
