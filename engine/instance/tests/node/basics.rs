//! Inserts, finds, updates, deletes, cursors, indexes.

use pinion_bson::{Bson, doc};

use crate::harness::{column, with_crashes, with_lives, with_node};

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<Bson> {
    values.into_iter().map(Bson::Int32).collect()
}

#[test]
fn what_is_inserted_is_found() {
    for (seed, cores, partitions) in [(1, 1, 1), (2, 2, 3), (3, 3, 2)] {
        with_node(seed, cores, partitions, |client| async move {
            let documents: Vec<_> = (0..20).map(|i| doc! { "_id": i, "a": i % 5 }).collect();
            let reply = client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            assert_eq!(reply.get_i32("n").ok(), Some(20));
            let found = client.find(doc! { "find": "c", "batchSize": 3 }).await;
            assert_eq!(column(&found, "_id"), ints(0..20));
            let found = client
                .find(doc! { "find": "c", "filter": { "_id": 7 } })
                .await;
            assert_eq!(found, [doc! { "_id": 7, "a": 2 }]);
            let found = client.find(doc! { "find": "c", "filter": { "a": 2 }, "sort": { "_id": -1 }, "projection": { "a": 0 } }).await;
            assert_eq!(column(&found, "_id"), ints([17, 12, 7, 2]));
            let found = client
                .find(doc! { "find": "c", "sort": { "a": 1, "_id": -1 }, "skip": 2, "limit": 4 })
                .await;
            assert_eq!(column(&found, "_id"), ints([5, 0, 16, 11]));
            let reply = client
                .ok(doc! { "count": "c", "query": { "a": { "$gte": 3 } } })
                .await;
            assert_eq!(reply.get_i32("n").ok(), Some(8));
            let reply = client.ok(doc! { "distinct": "c", "key": "a" }).await;
            assert_eq!(reply.get_array("values").unwrap(), &ints(0..5));
        });
    }
}

#[test]
fn duplicates_are_refused() {
    with_node(4, 2, 3, |client| async move {
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] })
            .await;
        let reply = client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 2 }, { "_id": 1 }, { "_id": 3 }] })
            .await;
        assert_eq!(reply.get_i32("n").ok(), Some(1));
        let errors = reply.get_array("writeErrors").unwrap();
        assert_eq!(errors.len(), 1);
        let error = errors[0].as_document().unwrap();
        assert_eq!(
            (error.get_i32("index").ok(), error.get_i32("code").ok()),
            (Some(1), Some(11000))
        );
        assert_eq!(
            error.get_str("errmsg").ok(),
            Some("E11000 duplicate key error collection: test.c index: _id_ dup key: { _id: 1 }")
        );
        assert_eq!(
            error.get_document("keyValue").ok(),
            Some(&doc! { "_id": 1 })
        );
        let reply = client
            .ok(doc! { "insert": "c", "ordered": false, "documents": [{ "_id": 4 }, { "_id": 4 }, { "_id": 1 }, { "_id": 5 }] })
            .await;
        assert_eq!(reply.get_i32("n").ok(), Some(2));
        let indexes: Vec<_> = reply
            .get_array("writeErrors")
            .unwrap()
            .iter()
            .map(|e| e.as_document().unwrap().get_i32("index").unwrap())
            .collect();
        assert_eq!(indexes, [1, 2]);
    });
}

#[test]
fn updates_and_deletes() {
    with_node(5, 2, 4, |client| async move {
        let documents: Vec<_> = (0..10).map(|i| doc! { "_id": i, "a": i }).collect();
        client
            .ok(doc! { "insert": "c", "documents": documents })
            .await;
        let reply = client
            .ok(doc! { "update": "c", "updates": [
                { "q": { "_id": 3 }, "u": { "$set": { "b": 1 } } },
                { "q": { "a": { "$gte": 5 } }, "u": { "$inc": { "a": 100 } }, "multi": true },
                { "q": { "_id": 99 }, "u": { "$set": { "b": 2 } }, "upsert": true },
                { "q": { "a": 0 }, "u": { "_id": 0, "a": 0 } },
                // A replacement without the `_id` counts as a change even where it leaves
                // everything as it was.
                { "q": { "a": 1 }, "u": { "a": 1 } },
            ] })
            .await;
        assert_eq!(
            (reply.get_i32("n").ok(), reply.get_i32("nModified").ok()),
            (Some(9), Some(7)),
            "{reply}"
        );
        assert_eq!(
            reply.get_array("upserted").unwrap(),
            &[Bson::Document(doc! { "index": 2, "_id": 99 })]
        );
        let found = client
            .find(doc! { "find": "c", "filter": { "a": { "$gt": 100 } } })
            .await;
        assert_eq!(column(&found, "_id"), ints(5..10));
        // What is no stage at all fails the command, before any of its statements.
        let updates = [
            doc! { "q": { "_id": 3 }, "u": { "$set": { "b": 9 } } },
            doc! { "q": { "_id": 4 }, "u": [{ "$nothing": true }] },
        ];
        client
            .fails(doc! { "update": "c", "updates": updates.to_vec() }, 40324)
            .await;
        let nine = doc! { "find": "c", "filter": { "b": 9 } };
        assert!(client.find(nine).await.is_empty());
        let reply = client.ok(doc! { "delete": "c", "deletes": [{ "q": { "a": { "$gt": 106 } }, "limit": 0 }, { "q": {}, "limit": 1 }] }).await;
        assert_eq!(reply.get_i32("n").ok(), Some(4));
        let found = client.find(doc! { "find": "c" }).await;
        assert_eq!(column(&found, "_id"), ints([1, 2, 3, 4, 5, 6, 99]));
        let reply = client
            .ok(doc! { "findAndModify": "c", "query": { "a": { "$gt": 1 } }, "sort": { "a": -1 }, "update": { "$set": { "z": 1 } }, "new": true })
            .await;
        assert_eq!(
            reply.get_document("value").ok(),
            Some(&doc! { "_id": 6, "a": 106, "z": 1 })
        );
        let reply = client
            .ok(doc! { "findAndModify": "c", "query": { "_id": 6 }, "remove": true })
            .await;
        assert_eq!(
            reply.get_document("lastErrorObject").ok(),
            Some(&doc! { "n": 1 })
        );
        client
            .fails(doc! { "findAndModify": "c", "query": { "_id": 6 } }, 9)
            .await;
    });
}

#[test]
fn indexes_serve_and_forbid() {
    for (seed, cores, partitions) in [(6, 1, 1), (7, 3, 4)] {
        with_node(seed, cores, partitions, |client| async move {
            let documents: Vec<_> = (0..30)
                .map(|i| doc! { "_id": i, "a": i % 6, "u": 100 - i, "tags": [i % 3, 10 + i % 2] })
                .collect();
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            let reply = client
                .ok(doc! { "createIndexes": "c", "indexes": [
                    { "key": { "a": 1 }, "name": "a_1" },
                    { "key": { "u": -1 }, "name": "u_-1", "unique": true },
                    { "key": { "tags": 1, "a": -1 }, "name": "tags" },
                ] })
                .await;
            assert_eq!(
                (
                    reply.get_i32("numIndexesBefore").ok(),
                    reply.get_i32("numIndexesAfter").ok()
                ),
                (Some(1), Some(4))
            );
            let found = client
                .find(doc! { "find": "c", "filter": { "a": 2 }, "batchSize": 2 })
                .await;
            assert_eq!(column(&found, "_id"), ints([2, 8, 14, 20, 26]));
            let found = client
                .find(doc! { "find": "c", "filter": { "u": { "$lte": 75 } }, "sort": { "u": -1 } })
                .await;
            assert_eq!(column(&found, "_id"), ints(25..30));
            let found = client
                .find(doc! { "find": "c", "filter": { "u": 90 } })
                .await;
            assert_eq!(column(&found, "_id"), ints([10]));
            let found = client
                .find(doc! { "find": "c", "filter": { "tags": 2 }, "sort": { "_id": 1 } })
                .await;
            assert_eq!(column(&found, "_id"), ints((0..10).map(|i| i * 3 + 2)));
            let found = client
                .find(doc! { "find": "c", "filter": { "tags": { "$gte": 0 } }, "hint": "tags" })
                .await;
            assert_eq!(found.len(), 30);
            let reply = client
                .ok(doc! { "insert": "c", "documents": [{ "_id": 50, "u": 90 }] })
                .await;
            let error = reply.get_array("writeErrors").unwrap()[0]
                .as_document()
                .unwrap()
                .clone();
            assert_eq!(
                error.get_str("errmsg").ok(),
                Some(
                    "E11000 duplicate key error collection: test.c index: u_-1 dup key: { u: 90 }"
                )
            );
            assert_eq!(
                (
                    error.get_document("keyPattern").ok(),
                    error.get_document("keyValue").ok()
                ),
                (Some(&doc! { "u": -1 }), Some(&doc! { "u": 90 }))
            );
            let reply = client.ok(doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "u": 90 } } }] }).await;
            assert_eq!(reply.get_array("writeErrors").unwrap().len(), 1);
            client.ok(doc! { "update": "c", "updates": [{ "q": { "_id": 10 }, "u": { "$set": { "u": 5000 } } }] }).await;
            client.ok(doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "u": 90 } } }] }).await;
            let found = client
                .find(doc! { "find": "c", "filter": { "u": 90 } })
                .await;
            assert_eq!(column(&found, "_id"), ints([1]));
            let message = client.fails(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1, "_id": 1 }, "name": "x", "unique": true }, { "key": { "a": 1, "x": 1 }, "name": "y", "unique": true }] }, 11000).await;
            assert!(message.contains("E11000 duplicate key error collection: test.c index: y dup key: { a: 0, x: null }"), "{message}");
            let validated = client.ok(doc! { "validate": "c", "full": true }).await;
            assert_eq!(validated.get_bool("valid").ok(), Some(true), "{validated}");
            client
                .ok(doc! { "dropIndexes": "c", "index": "tags" })
                .await;
            let reply = client.ok(doc! { "listIndexes": "c" }).await;
            assert_eq!(
                reply
                    .get_document("cursor")
                    .unwrap()
                    .get_array("firstBatch")
                    .unwrap()
                    .len(),
                3
            );
        });
    }
}

#[test]
fn a_node_that_was_closed_has_everything() {
    with_lives(8, &[2, 1, 3], 3, |life, client| async move {
        if life == 0 {
            let documents: Vec<_> = (0..40)
                .map(|i| doc! { "_id": i, "a": i % 4, "u": i })
                .collect();
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            client.ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "u": 1 }, "name": "u", "unique": true }] }).await;
            client.ok(doc! { "create": "empty" }).await;
        }
        let found = client
            .find(doc! { "find": "c", "filter": { "u": { "$gte": 10 } } })
            .await;
        assert_eq!(column(&found, "_id"), ints(10..40));
        let reply = client
            .ok(doc! { "listCollections": 1, "nameOnly": true })
            .await;
        assert_eq!(
            reply
                .get_document("cursor")
                .unwrap()
                .get_array("firstBatch")
                .unwrap()
                .len(),
            2
        );
    });
}

#[test]
fn a_killed_node_has_what_was_journaled() {
    for seed in 9..14 {
        with_crashes(seed, &[2, 3, 1, 2], 3, |life, client| async move {
            let journaled = doc! { "w": 1, "j": true };
            let base = life as i32 * 100;
            for before in 0..life as i32 {
                let found = client
                    .find(doc! { "find": "c", "filter": { "life": before } })
                    .await;
                let expected: Vec<_> = (before * 100..before * 100 + 30)
                    .filter(|i| i % 7 != 0)
                    .collect();
                assert_eq!(column(&found, "_id"), ints(expected), "life {life}");
            }
            let validated = if life > 0 {
                Some(client.ok(doc! { "validate": "c", "full": true }).await)
            } else {
                None
            };
            assert!(validated.is_none_or(|v| v.get_bool("valid").ok() == Some(true)));
            let documents: Vec<_> = (base..base + 30)
                .map(|i| doc! { "_id": i, "life": -1, "u": i, "t": [i, -i] })
                .collect();
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            if life == 0 {
                client
                    .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "u": 1 }, "name": "u", "unique": true }, { "key": { "t": 1 }, "name": "t" }] })
                    .await;
            }
            client
                .ok(doc! { "update": "c", "updates": [{ "q": { "life": -1 }, "u": { "$set": { "life": life as i32 } }, "multi": true }], "writeConcern": journaled.clone() })
                .await;
            for i in (base..base + 30).filter(|i| i % 7 == 0) {
                client.on(i as u16).ok(doc! { "delete": "c", "deletes": [{ "q": { "u": i }, "limit": 1 }], "writeConcern": journaled.clone() }).await;
            }
        });
    }
}

#[test]
fn pipelines_and_plans() {
    with_node(20, 2, 3, |client| async move {
        let documents: Vec<_> = (0..20)
            .map(|i| doc! { "_id": i, "a": i % 4, "b": i })
            .collect();
        client
            .ok(doc! { "insert": "c", "documents": documents })
            .await;
        client
            .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] })
            .await;
        let pipeline = vec![
            doc! { "$match": { "a": { "$gte": 2 } } },
            doc! { "$group": { "_id": "$a", "n": { "$sum": 1 }, "total": { "$sum": "$b" } } },
            doc! { "$sort": { "_id": 1 } },
        ];
        let found = client.find(doc! { "aggregate": "c", "pipeline": pipeline.clone(), "cursor": { "batchSize": 1 } }).await;
        assert_eq!(
            found,
            [
                doc! { "_id": 2, "n": 5, "total": 50 },
                doc! { "_id": 3, "n": 5, "total": 55 }
            ]
        );
        let found = client
            .find(doc! { "aggregate": "nope", "pipeline": [{ "$match": {} }], "cursor": {} })
            .await;
        assert!(found.is_empty());
        let found = client.find(doc! { "aggregate": "c", "pipeline": [{ "$collStats": { "count": {}, "storageStats": {} } }], "cursor": {} }).await;
        assert_eq!(found[0].get_i32("count").ok(), Some(20));
        let plan = client.ok(doc! { "explain": { "find": "c", "filter": { "a": 2 } }, "verbosity": "executionStats" }).await;
        let winning = plan
            .get_document("queryPlanner")
            .unwrap()
            .get_document("winningPlan")
            .unwrap();
        assert_eq!(winning.get_str("stage").ok(), Some("FETCH"));
        assert_eq!(
            winning
                .get_document("inputStage")
                .unwrap()
                .get_str("indexName")
                .ok(),
            Some("a_1")
        );
        let stats = plan.get_document("executionStats").unwrap();
        assert_eq!(
            (
                stats.get_i32("nReturned").ok(),
                stats.get_i32("totalKeysExamined").ok()
            ),
            (Some(5), Some(5))
        );
        for inner in [
            doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} },
            doc! { "count": "c", "query": { "a": 1 } },
            doc! { "distinct": "c", "key": "a" },
            doc! { "update": "c", "updates": [{ "q": { "a": 1 }, "u": { "$set": { "z": 1 } }, "multi": true }] },
            doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] },
            doc! { "findAndModify": "c", "query": { "a": 1 }, "remove": true },
            doc! { "find": "nope" },
        ] {
            client
                .ok(doc! { "explain": inner, "verbosity": "allPlansExecution" })
                .await;
        }
        assert_eq!(client.find(doc! { "find": "c" }).await.len(), 20);
    });
}

#[test]
fn conversation_and_diagnostics() {
    with_node(21, 2, 2, |client| async move {
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 1 }, { "_id": 2 }] })
            .await;
        let admin = client.at("admin");
        for command in [
            doc! { "hello": 1 },
            doc! { "isMaster": 1, "helloOk": true },
            doc! { "ping": 1 },
            doc! { "buildInfo": 1 },
            doc! { "hostInfo": 1 },
            doc! { "connectionStatus": 1, "showPrivileges": true },
            doc! { "whatsmyuri": 1 },
            doc! { "getCmdLineOpts": 1 },
            doc! { "getLog": "startupWarnings" },
            doc! { "getLog": "*" },
            doc! { "listCommands": 1 },
            doc! { "serverStatus": 1 },
            doc! { "top": 1 },
            doc! { "currentOp": 1 },
            doc! { "killOp": 1, "op": 77 },
            doc! { "listDatabases": 1 },
            doc! { "fsync": 1 },
            doc! { "getParameter": "*" },
            doc! { "getParameter": 1, "featureCompatibilityVersion": 1 },
            doc! { "setParameter": 1, "cursorTimeoutMillis": 1000 },
            doc! { "startSession": 1 },
        ] {
            admin.ok(command).await;
        }
        for command in [
            doc! { "dbStats": 1 },
            doc! { "collStats": "c" },
            doc! { "dataSize": "test.c" },
            doc! { "listIndexes": "c" },
        ] {
            client.ok(command).await;
        }
        client.fails(doc! { "atlasVersion": 1 }, 59).await;
        client.fails(doc! { "find": "c", "foo": 1 }, 40415).await;
        client.fails(doc! { "find": "c", "limit": "x" }, 14).await;
        client
            .fails(
                doc! { "find": "c", "collation": { "locale": "de@collation=search" } },
                238,
            )
            .await;
        client
            .fails(
                doc! { "insert": "c", "documents": [{}], "writeConcern": { "w": 2 } },
                2,
            )
            .await;
        client
            .fails(doc! { "getMore": 12345i64, "collection": "c" }, 43)
            .await;
        let status = admin.ok(doc! { "serverStatus": 1 }).await;
        let opcounters = status.get_document("opcounters").unwrap();
        assert_eq!(opcounters.get_i64("insert").ok(), Some(2));
        let lsid = doc! { "id": pinion_bson::Uuid::from_bytes([7; 16]) };
        let reply = client
            .ok(doc! { "find": "c", "batchSize": 1, "lsid": lsid.clone() })
            .await;
        let id = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
        client
            .fails(doc! { "getMore": id, "collection": "c" }, 50737)
            .await;
        client
            .on(1)
            .ok(doc! { "endSessions": [lsid.clone()] })
            .await;
        client
            .fails(doc! { "getMore": id, "collection": "c", "lsid": lsid }, 43)
            .await;
    });
}

/// A failed build left entries in its tree, and the next collection was given the tree's number:
/// its scans met entries that were no documents.
#[test]
fn numbers_of_failed_builds_are_not_used_again() {
    with_crashes(22, &[2, 2], 2, |life, client| async move {
        if life == 0 {
            client.ok(doc! { "insert": "c", "documents": [{ "_id": 1, "a": 1 }, { "_id": 2, "a": 1 }] }).await;
            client.fails(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a", "unique": true }] }, 11000).await;
        }
        let name = format!("d{life}");
        client.ok(doc! { "insert": &name, "documents": [{ "_id": 7, "a": 1 }], "writeConcern": { "j": true } }).await;
        client
            .ok(doc! { "createIndexes": &name, "indexes": [{ "key": { "a": 1 }, "name": "a" }] })
            .await;
        assert_eq!(client.find(doc! { "find": &name }).await.len(), 1);
        let validated = client.ok(doc! { "validate": &name, "full": true }).await;
        assert_eq!(validated.get_bool("valid").ok(), Some(true));
    });
}
