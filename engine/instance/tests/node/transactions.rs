//! Transactions on a member of a replica set: what statements see, what is refused, and how
//! transactions end.

use pinion_bson::{Document, doc};
use pinion_clock::OpTime;
use pinion_runtime::sim::Death;
use pinion_runtime::{Duration, Queue, on_all_cores, sleep, spawn};
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::fake_set::{become_member, fake};
use crate::harness::{Client, with_member, with_node};
use crate::retryable::{SHAPES, become_primary, session_id};

/// The command as a statement of a session's transaction.
pub fn statement(session: u8, txn_number: i64, command: Document) -> Document {
    let mut command = command;
    command.insert("lsid", session_id(session));
    command.insert("txnNumber", txn_number);
    command.insert("autocommit", false);
    command
}

/// The command as the first statement.
pub fn first(session: u8, txn_number: i64, command: Document) -> Document {
    let mut command = statement(session, txn_number, command);
    command.insert("startTransaction", true);
    command
}

pub fn commit(session: u8, txn_number: i64) -> Document {
    statement(session, txn_number, doc! { "commitTransaction": 1 })
}

pub fn abort(session: u8, txn_number: i64) -> Document {
    statement(session, txn_number, doc! { "abortTransaction": 1 })
}

pub fn insert(ids: &[i32]) -> Document {
    let documents: Vec<_> = ids.iter().map(|id| doc! { "_id": id, "n": 0 }).collect();
    doc! { "insert": "c", "documents": documents }
}

pub fn all() -> Document {
    doc! { "find": "c", "sort": { "_id": 1 } }
}

/// The collections of the database, in order.
async fn names(client: &Client) -> Vec<String> {
    let reply = client
        .ok(doc! { "listCollections": 1, "nameOnly": true })
        .await;
    let batch = reply
        .get_document("cursor")
        .expect("a cursor")
        .get_array("firstBatch");
    let name = |found: &pinion_bson::Bson| {
        let found = found.as_document().expect("one");
        found.get_str("name").expect("a name").to_owned()
    };
    let mut names: Vec<String> = batch.expect("a batch").iter().map(name).collect();
    names.sort();
    names
}

pub async fn ids(client: &Client, find: Document) -> Vec<i32> {
    let reply = client.ok(find).await;
    let batch = reply
        .get_document("cursor")
        .expect("a cursor")
        .get_array("firstBatch");
    let id = |found: &pinion_bson::Bson| {
        found
            .as_document()
            .expect("one")
            .get_i32("_id")
            .expect("an id")
    };
    batch.expect("a batch").iter().map(id).collect()
}

fn committed(client: &Client, command: Document) -> impl Future<Output = Document> + use<> {
    client.at("admin").ok(command)
}

#[test]
fn a_transaction_takes_place_as_a_whole() {
    for (seed, (cores, partitions)) in (2100..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client
                .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "n": 1 }, "name": "n" }] })
                .await;
            client.ok(insert(&[1, 2, 3])).await;
            client.ok(first(1, 1, insert(&[10, 11, 12, 13]))).await;
            let update = doc! { "update": "c", "updates": [
                { "q": { "n": 0 }, "u": { "$inc": { "n": 5 } }, "multi": true },
                { "q": { "_id": 20 }, "u": { "$set": { "n": 7 } }, "upsert": true },
            ] };
            let reply = client.on(1).ok(statement(1, 1, update)).await;
            assert_eq!(reply.get_i32("n").ok(), Some(8), "{reply}");
            let delete = doc! { "delete": "c", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] };
            client.ok(statement(1, 1, delete)).await;
            let modify = doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": { "$inc": { "n": 1 } }, "new": true };
            let reply = client.on(2).ok(statement(1, 1, modify)).await;
            assert_eq!(
                reply.get_document("value").unwrap(),
                &doc! { "_id": 1, "n": 6 }
            );
            // It sees what it has written, by every way; others do not.
            let own = [1, 3, 10, 11, 12, 13, 20];
            assert_eq!(ids(&client.on(1), statement(1, 1, all())).await, own);
            let by_index = doc! { "find": "c", "filter": { "n": 5 }, "sort": { "_id": 1 } };
            assert_eq!(
                ids(&client, statement(1, 1, by_index.clone())).await,
                [3, 10, 11, 12, 13]
            );
            let counted = doc! { "aggregate": "c", "pipeline": [{ "$count": "n" }], "cursor": {} };
            let reply = client.ok(statement(1, 1, counted)).await;
            assert!(reply.to_string().contains("\"n\": 7"), "{reply}");
            let distinct = doc! { "distinct": "c", "key": "n" };
            let reply = client.ok(statement(1, 1, distinct)).await;
            assert_eq!(
                reply.get_array("values").map(Vec::len).ok(),
                Some(3),
                "{reply}"
            );
            assert_eq!(ids(&client, all()).await, [1, 2, 3]);
            committed(&client.on(1), commit(1, 1)).await;
            assert_eq!(ids(&client, all()).await, own);
            assert_eq!(ids(&client, by_index).await, [3, 10, 11, 12, 13]);
            // Sent again it is the same; a statement comes too late.
            committed(&client, commit(1, 1)).await;
            client.fails(statement(1, 1, all()), 256).await;
            client.at("admin").fails(abort(1, 1), 256).await;
            pinion_exec::forget_sessions().await;
            committed(&client, commit(1, 1)).await;
            let validated = client.ok(doc! { "validate": "c", "full": true }).await;
            assert_eq!(validated.get_bool("valid").ok(), Some(true), "{validated}");
            let records = client
                .at("config")
                .find(doc! { "find": "transactions" })
                .await;
            assert_eq!(records.len(), 1);
            assert_eq!(records[0].get_str("state").ok(), Some("committed"));
        });
    }
}

#[test]
fn an_aborted_transaction_leaves_nothing() {
    for (seed, (cores, partitions)) in (2110..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2])).await;
            client.ok(first(1, 1, insert(&[3, 4, 5]))).await;
            committed(&client, abort(1, 1)).await;
            client.fails(statement(1, 1, all()), 251).await;
            client.at("admin").fails(commit(1, 1), 251).await;
            assert_eq!(ids(&client, all()).await, [1, 2]);
            // So does one from which the session continues.
            client.ok(first(1, 2, insert(&[3]))).await;
            client.ok(first(1, 3, insert(&[3]))).await;
            client.fails(statement(1, 2, all()), 225).await;
            let mut retryable = insert(&[3]);
            retryable.insert("lsid", session_id(1));
            retryable.insert("txnNumber", 4i64);
            client.ok(retryable.clone()).await;
            client.fails(statement(1, 3, all()), 225).await;
            retryable.insert("txnNumber", 5i64);
            client.ok(first(1, 5, all())).await;
            client.fails(retryable, 217).await;
            client.fails(first(1, 5, all()), 117).await;
            committed(&client, commit(1, 5)).await;
            assert_eq!(ids(&client, all()).await, [1, 2, 3]);
            let status = client.ok(doc! { "serverStatus": 1 }).await;
            let status = status.get_document("transactions").expect("a section");
            for (name, value) in [
                ("currentOpen", 0),
                ("totalStarted", 4),
                ("totalAborted", 3),
                ("totalCommitted", 1),
            ] {
                assert_eq!(status.get_i64(name).ok(), Some(value), "{name} {status}");
            }
        });
    }
}

#[test]
fn a_transaction_reads_one_snapshot() {
    for (seed, (cores, partitions)) in (2120..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2, 3, 4])).await;
            let concern = doc! { "level": "snapshot" };
            let mut reads = first(1, 1, all());
            reads.insert("readConcern", concern.clone());
            assert_eq!(ids(&client, reads).await, [1, 2, 3, 4]);
            client.ok(insert(&[5, 6])).await;
            client
                .ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 1 }, "limit": 1 }] })
                .await;
            assert_eq!(
                ids(&client.on(1), statement(1, 1, all())).await,
                [1, 2, 3, 4]
            );
            let mut again = statement(1, 1, all());
            again.insert("readConcern", concern);
            client.fails(again, 72).await;
            let mut writes = first(3, 1, doc! { "insert": "c", "documents": [{ "_id": 70 }] });
            writes.insert("readConcern", doc! { "level": "snapshot" });
            client.ok(writes).await;
            committed(&client, abort(3, 1)).await;
            // The first writer wins, whichever transaction began first.
            let reply = client.fails(statement(1, 1, doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "n": 9 } } }] }), 112).await;
            assert!(
                reply.contains("rite conflict") || reply.contains("retry"),
                "{reply}"
            );
            client.fails(statement(1, 1, all()), 251).await;
            // What another transaction holds conflicts at once, and newest reads do not see it.
            let set = |n: i32| doc! { "update": "c", "updates": [{ "q": { "_id": 2 }, "u": { "$set": { "n": n } } }] };
            client.ok(first(1, 2, set(1))).await;
            client.fails(first(2, 1, set(2)), 112).await;
            let two = client
                .find(doc! { "find": "c", "filter": { "_id": 2 } })
                .await;
            assert_eq!(two, [doc! { "_id": 2, "n": 0 }]);
            committed(&client, commit(1, 2)).await;
            let two = client
                .find(doc! { "find": "c", "filter": { "_id": 2 } })
                .await;
            assert_eq!(two, [doc! { "_id": 2, "n": 1 }]);
        });
    }
}

#[test]
fn cursors_belong_to_their_transaction() {
    with_node(2130, 2, 3, |client| async move {
        become_primary().await;
        client.ok(insert(&[1, 2, 3, 4, 5])).await;
        let find = doc! { "find": "c", "sort": { "_id": 1 }, "batchSize": 2 };
        let reply = client.ok(first(1, 1, find.clone())).await;
        let cursor = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
        let more = doc! { "getMore": cursor, "collection": "c" };
        let mut outside = more.clone();
        outside.insert("lsid", session_id(1));
        client.fails(outside, 50740).await;
        let reply = client.on(1).ok(statement(1, 1, more.clone())).await;
        let batch = reply.get_document("cursor").unwrap().get_array("nextBatch");
        assert_eq!(batch.map(Vec::len).ok(), Some(3));
        let reply = client.ok(statement(1, 1, find)).await;
        let cursor = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
        committed(&client, commit(1, 1)).await;
        let mut gone = doc! { "getMore": cursor, "collection": "c" };
        gone.insert("lsid", session_id(1));
        client.fails(gone, 43).await;
    });
}

/// What a cursor reads beside its collection it reads in the transaction too, on whatever core it
/// continues.
#[test]
fn cursors_read_other_collections_in_their_transaction() {
    for (seed, (cores, partitions)) in (2135..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2, 3, 4])).await;
            let into =
                |n: i32| doc! { "insert": "d", "documents": [{ "_id": n, "c": [1, 2, 3, 4] }] };
            client.ok(into(1)).await;
            client.ok(first(1, 1, into(2))).await;
            let joined = |stage: Document| {
                doc! {
                    "aggregate": "c", "pipeline": [{ "$sort": { "_id": 1 } }, stage], "cursor": { "batchSize": 1 },
                }
            };
            let lookup = doc! { "$lookup": { "from": "d", "localField": "_id", "foreignField": "c", "as": "d" } };
            let union = doc! { "$unionWith": "d" };
            let mut cursors = Vec::new();
            for stage in [lookup, union] {
                let reply = client.ok(statement(1, 1, joined(stage))).await;
                cursors.push(reply.get_document("cursor").unwrap().get_i64("id").unwrap());
            }
            client.ok(into(3)).await;
            for (cursor, expected) in cursors
                .into_iter()
                .zip([[2, 2, 2].as_slice(), &[0, 0, 0, 4, 4]])
            {
                let more = doc! { "getMore": cursor, "collection": "c" };
                let reply = client.on(1).ok(statement(1, 1, more)).await;
                let batch = reply.get_document("cursor").unwrap().get_array("nextBatch");
                let count = |found: &pinion_bson::Bson| {
                    let found = found.as_document().unwrap();
                    let list = found.get_array("d").or_else(|_| found.get_array("c"));
                    list.map_or(0, Vec::len)
                };
                let found: Vec<usize> = batch.unwrap().iter().map(count).collect();
                assert_eq!(found, expected, "{reply}");
            }
            committed(&client, commit(1, 1)).await;
        });
    }
}

#[test]
fn what_is_no_part_of_a_transaction_is_refused() {
    with_node(2140, 2, 2, |client| async move {
        client.fails(first(1, 1, all()), 20).await;
        client.at("admin").fails(commit(1, 1), 20).await;
        client
            .at("admin")
            .fails(doc! { "commitTransaction": 1 }, 125)
            .await;
        become_primary().await;
        client.ok(insert(&[1])).await;
        client
            .ok(doc! { "create": "capped", "capped": true, "size": 4096 })
            .await;
        client
            .at("admin")
            .fails(doc! { "abortTransaction": 1 }, 125)
            .await;
        client
            .at("admin")
            .fails(doc! { "commitTransaction": 1, "x": 1 }, 40415)
            .await;
        client.ok(first(1, 1, all())).await;
        let pipeline =
            |stage: Document| doc! { "aggregate": "c", "pipeline": [stage], "cursor": {} };
        for (command, code) in [
            (doc! { "count": "c" }, 263),
            (doc! { "ping": 1 }, 263),
            (doc! { "drop": "c" }, 263),
            (pipeline(doc! { "$out": "d" }), 263),
            (pipeline(doc! { "$merge": { "into": "d" } }), 263),
            (pipeline(doc! { "$collStats": { "count": {} } }), 263),
            (
                doc! { "insert": "c", "documents": [{}], "writeConcern": { "w": 1 } },
                72,
            ),
            (
                doc! { "find": "c", "$readPreference": { "mode": "secondary" } },
                72,
            ),
        ] {
            client.fails(statement(1, 1, command), code).await;
        }
        client.at("config").fails(statement(1, 1, all()), 263).await;
        client.at("local").fails(statement(1, 1, all()), 263).await;
        client
            .fails(
                first(2, 1, doc! { "killCursors": "c", "cursors": [1i64] }),
                263,
            )
            .await;
        let mut available = first(2, 1, all());
        available.insert("readConcern", doc! { "level": "available" });
        client.fails(available, 72).await;
        // None of these ended it.
        client.ok(statement(1, 1, all())).await;
        client
            .fails(
                statement(1, 1, doc! { "insert": "capped", "documents": [{}] }),
                263,
            )
            .await;
        client.fails(statement(1, 1, all()), 251).await;
        // What is taken is reported in the reply, and ends it too.
        let reply = client.ok(first(1, 2, insert(&[2, 1, 3]))).await;
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        let errors = reply.get_array("writeErrors").expect("an error");
        assert_eq!(
            errors[0].as_document().unwrap().get_i32("code").ok(),
            Some(11000)
        );
        client.fails(statement(1, 2, all()), 251).await;
        assert_eq!(ids(&client, all()).await, [1]);
    });
}

#[test]
fn collections_and_indexes_are_made_for_a_transaction() {
    for (seed, (cores, partitions)) in (2150..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1])).await;
            assert_eq!(ids(&client, first(1, 1, all())).await, [1]);
            let into = |collection: &str| doc! { "insert": collection, "documents": [{ "_id": 1, "a": [1, 2] }] };
            client.ok(statement(1, 1, into("implicit"))).await;
            client
                .ok(statement(1, 1, doc! { "create": "explicit" }))
                .await;
            let index = |collection: &str| doc! { "createIndexes": collection, "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
            client.ok(statement(1, 1, index("explicit"))).await;
            client.ok(statement(1, 1, into("explicit"))).await;
            client.ok(statement(1, 1, index("indexed"))).await;
            let by_index = doc! { "find": "explicit", "filter": { "a": 2 }, "hint": "a" };
            assert_eq!(ids(&client, statement(1, 1, by_index.clone())).await, [1]);
            // No other client sees them before.
            assert_eq!(names(&client).await, ["c"]);
            assert!(ids(&client, doc! { "find": "explicit" }).await.is_empty());
            committed(&client, commit(1, 1)).await;
            assert_eq!(
                names(&client).await,
                ["c", "explicit", "implicit", "indexed"]
            );
            assert_eq!(ids(&client, by_index).await, [1]);
            assert_eq!(ids(&client, doc! { "find": "implicit" }).await, [1]);
            client.ok(first(1, 2, all())).await;
            client.fails(statement(1, 2, index("c")), 263).await;
            // What others have made since its snapshot a transaction cannot read, and it can be
            // tried again.
            client.ok(first(1, 3, all())).await;
            client.ok(index("c")).await;
            client.ok(into("later")).await;
            client
                .fails(statement(1, 3, doc! { "find": "later" }), 246)
                .await;
            client.ok(first(1, 4, all())).await;
            client.ok(into("latest")).await;
            client.fails(statement(1, 4, into("latest")), 112).await;
        });
    }
}

#[test]
fn what_a_transaction_makes_goes_with_it() {
    for (seed, (cores, partitions)) in (2151..).step_by(10).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1])).await;
            let into = |collection: &str| doc! { "insert": collection, "documents": [{ "_id": 1, "a": [1, 2] }] };
            // An abort leaves nothing.
            client.ok(first(1, 1, doc! { "create": "made" })).await;
            client.ok(statement(1, 1, into("made"))).await;
            client
                .fails(statement(1, 1, doc! { "create": "made" }), 48)
                .await;
            client.ok(first(1, 2, into("made"))).await;
            client.at("admin").ok(abort(1, 2)).await;
            assert_eq!(names(&client).await, ["c"]);
            // The first to make the name wins, with a transaction or without.
            client.ok(first(1, 3, into("made"))).await;
            client.ok(first(2, 1, into("made"))).await;
            committed(&client, commit(2, 1)).await;
            client.at("admin").fails(commit(1, 3), 112).await;
            client.ok(first(1, 4, into("other"))).await;
            client.ok(into("other")).await;
            client.at("admin").fails(commit(1, 4), 112).await;
            assert_eq!(ids(&client, doc! { "find": "other" }).await, [1]);
            // It is tried again, and alone.
            client.ok(first(1, 5, doc! { "find": "other" })).await;
            client
                .ok(statement(
                    1,
                    5,
                    doc! { "create": "capped", "capped": true, "size": 4096 },
                ))
                .await;
            committed(&client, commit(1, 5)).await;
            committed(&client, commit(1, 5)).await;
            assert_eq!(names(&client).await, ["c", "capped", "made", "other"]);
            client.ok(doc! { "drop": "made" }).await;
        });
    }
}

/// What was written is kept from changes of the catalog, whatever else the transaction does to its
/// collection.
#[test]
fn making_what_is_there_releases_nothing() {
    with_node(2156, 2, 2, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        client.ok(first(1, 1, insert(&[2]))).await;
        let there =
            doc! { "createIndexes": "c", "indexes": [{ "key": { "_id": 1 }, "name": "_id_" }] };
        client.ok(statement(1, 1, there)).await;
        let dropping = {
            let client = client.on(1);
            spawn(Queue::Foreground, async move {
                client.ok(doc! { "drop": "c" }).await
            })
        };
        sleep(Duration::from_millis(50)).await;
        client.ok(statement(1, 1, insert(&[3]))).await;
        committed(&client, commit(1, 1)).await;
        dropping.await.expect("it ends");
        assert!(ids(&client, all()).await.is_empty());
        client.ok(insert(&[1])).await;
        client.ok(first(1, 2, insert(&[2]))).await;
        client
            .fails(statement(1, 2, doc! { "create": "c" }), 48)
            .await;
        client.ok(doc! { "create": "empty" }).await;
        let index =
            doc! { "createIndexes": "empty", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
        client.ok(first(1, 3, all())).await;
        client.fails(statement(1, 3, index), 263).await;
    });
}

/// What waits for a transaction keeps writers out, and other transactions, but no reader.
#[test]
fn reads_pass_a_change_of_the_catalog_that_waits_for_a_transaction() {
    with_node(2161, 2, 2, |client| async move {
        become_primary().await;
        let index = doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
        let changes = [
            doc! { "collMod": "c", "validationLevel": "moderate" },
            doc! { "dropIndexes": "c", "index": "a" },
            doc! { "drop": "c" },
        ];
        let mut number = 0;
        for change in changes {
            for held in [insert(&[2]), all()] {
                client.run(insert(&[1])).await;
                client.run(index.clone()).await;
                number += 1;
                client.ok(first(1, number, held)).await;
                let changing = {
                    let (client, change) = (client.on(1), change.clone());
                    spawn(Queue::Foreground, async move { client.run(change).await })
                };
                sleep(Duration::from_millis(20)).await;
                assert!(!changing.is_finished(), "{change} waits");
                for core in [0, 1] {
                    let client = client.on(core);
                    let short = doc! { "find": "c", "hint": "a", "maxTimeMS": 500 };
                    assert_eq!(ids(&client, short).await, [1]);
                    let counted = client
                        .ok(doc! { "count": "c", "query": { "_id": 1 }, "maxTimeMS": 500 })
                        .await;
                    assert_eq!(counted.get_i32("n").ok(), Some(1));
                }
                client.fails(first(2, number, all()), 24).await;
                let writing = doc! { "insert": "c", "documents": [{ "_id": 3 }], "maxTimeMS": 30 };
                client.fails(writing, 50).await;
                client.at("admin").ok(abort(1, number)).await;
                changing.await.expect("it ends");
            }
        }
    });
}

#[test]
fn what_was_dropped_since_the_snapshot_cannot_be_read() {
    with_node(2157, 2, 2, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        let changes = [
            ("test", doc! { "drop": "d" }),
            (
                "admin",
                doc! { "renameCollection": "test.d", "to": "test.e" },
            ),
        ];
        for (number, (db, change)) in (1i64..).step_by(2).zip(changes) {
            client
                .ok(doc! { "insert": "d", "documents": [{ "_id": 1 }] })
                .await;
            client.ok(first(1, number, all())).await;
            client.at(db).ok(change).await;
            let gone = doc! { "find": "d" };
            client.fails(statement(1, number, gone.clone()), 246).await;
            client.ok(first(1, number + 1, all())).await;
            assert!(
                ids(&client, statement(1, number + 1, gone))
                    .await
                    .is_empty()
            );
            committed(&client, commit(1, number + 1)).await;
        }
    });
}

/// What a cursor has before it the transaction may delete.
#[test]
fn cursors_pass_over_what_their_transaction_deletes() {
    for (seed, (cores, partitions)) in (2158..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            for index in [
                doc! { "key": { "a": 1, "b": 1 }, "name": "ab" },
                doc! { "key": { "u": 1 }, "name": "u", "unique": true },
            ] {
                client
                    .ok(doc! { "createIndexes": "c", "indexes": [index] })
                    .await;
            }
            let documents: Vec<_> = (0..12)
                .map(|i| doc! { "_id": i, "a": i % 3, "b": i, "u": i })
                .collect();
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            let merged = doc! { "find": "c", "filter": { "a": { "$in": [0, 1, 2] } }, "sort": { "b": 1 }, "batchSize": 1 };
            let unique = doc! { "find": "c", "filter": { "u": { "$gte": 0 } }, "sort": { "u": 1 }, "hint": "u", "batchSize": 1 };
            for (number, find) in [(1, merged), (2, unique)] {
                let reply = client.ok(first(1, number, find)).await;
                let cursor = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
                let delete = doc! { "delete": "c", "deletes": [{ "q": { "a": 1 }, "limit": 0 }] };
                client.ok(statement(1, number, delete)).await;
                let more = doc! { "getMore": cursor, "collection": "c" };
                let reply = client.ok(statement(1, number, more)).await;
                let batch = reply
                    .get_document("cursor")
                    .unwrap()
                    .get_array("nextBatch")
                    .unwrap();
                // What was read ahead may be there still.
                assert!((7..=11).contains(&batch.len()), "{reply}");
                committed(&client, abort(1, number)).await;
            }
        });
    }
}

/// A unique value that another client has taken since the snapshot is a conflict, also when a
/// checkpoint has merged it.
#[test]
fn a_value_that_was_taken_since_the_snapshot_is_a_conflict() {
    for merged in [false, true] {
        with_node(2162, 2, 2, move |client| async move {
            become_primary().await;
            client
                .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "n": 1 }, "name": "n", "unique": true }] })
                .await;
            let with =
                |id: i32, n: i32| doc! { "insert": "c", "documents": [{ "_id": id, "n": n }] };
            client.ok(with(1, 1)).await;
            let upsert = doc! { "update": "c", "updates": [{ "q": { "n": 5 }, "u": { "$set": { "x": 1 } }, "upsert": true }] };
            for (session, write) in [(1, with(7, 5)), (2, upsert)] {
                client.ok(first(session, 1, all())).await;
                client.ok(with(i32::from(session) * 10, 5)).await;
                if merged {
                    client.at("admin").ok(doc! { "fsync": 1 }).await;
                }
                client.fails(statement(session, 1, write), 112).await;
                client
                    .ok(doc! { "delete": "c", "deletes": [{ "q": { "n": 5 }, "limit": 0 }] })
                    .await;
            }
        });
    }
}

#[test]
fn a_change_of_the_catalog_waits_for_transactions() {
    with_node(2160, 2, 2, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        client.ok(doc! { "create": "d" }).await;
        client.ok(first(1, 1, insert(&[2]))).await;
        let dropping = {
            let client = client.on(1);
            spawn(Queue::Foreground, async move {
                client.ok(doc! { "drop": "c" }).await
            })
        };
        sleep(Duration::from_millis(50)).await;
        // It is behind the gate that is closed to others.
        client.on(1).ok(statement(1, 1, insert(&[3]))).await;
        client.fails(first(2, 1, insert(&[4])), 24).await;
        committed(&client, commit(1, 1)).await;
        let dropped = dropping.await.expect("it ends");
        assert_eq!(dropped.get_f64("ok").ok(), Some(1.0));
        assert!(ids(&client, all()).await.is_empty());
    });
}

#[test]
fn transactions_end_from_outside() {
    with_node(2170, 2, 3, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        let admin = client.at("admin");
        admin
            .ok(doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 3 })
            .await;
        client.ok(first(1, 1, insert(&[2]))).await;
        // Its session is given back to its home core behind the reply.
        sleep(Duration::from_millis(1)).await;
        let ops = admin
            .ok(doc! { "aggregate": 1, "pipeline": [
                { "$currentOp": {} }, { "$match": { "type": "idleSession" } },
            ], "cursor": {} })
            .await;
        assert!(ops.to_string().contains("inactive transaction"), "{ops}");
        // A writer of the same waits for it, as long as it is open.
        client.ok(insert(&[2])).await;
        client.fails(statement(1, 1, all()), 251).await;
        client.ok(first(1, 2, insert(&[3]))).await;
        admin.ok(doc! { "killSessions": [session_id(1)] }).await;
        client.ok(insert(&[3])).await;
        client.at("admin").fails(commit(1, 2), 251).await;
        client.ok(first(1, 3, insert(&[4]))).await;
        admin.ok(doc! { "endSessions": [session_id(1)] }).await;
        client.ok(insert(&[4])).await;
        // A node that steps down aborts them all.
        client.ok(first(1, 4, insert(&[5]))).await;
        client.ok(first(2, 1, insert(&[6]))).await;
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        pinion_instance::interrupt_writers().await;
        client.fails(statement(1, 4, insert(&[7])), 10107).await;
        client.at("admin").fails(commit(2, 1), 10107).await;
        assert!(pinion_instance::no_writer_is_behind_a_gate());
        become_primary().await;
        client.ok(insert(&[5, 6])).await;
        assert_eq!(ids(&client, all()).await, [1, 2, 3, 4, 5, 6]);
    });
}

/// Waits until no core has an operation behind a gate, and nothing is open in storage.
async fn until_nothing_is_held() {
    let is_free = async || {
        let cores = on_all_cores(|_| async {
            pinion_instance::no_writer_is_behind_a_gate() && storage().stats().open_units == 0
        });
        cores.await.into_iter().all(|free| free)
    };
    for _ in 0..100 {
        if is_free().await {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("something is held after a second");
}

/// Statements that wait, for whatever, end when the node steps down, and their transactions with
/// them.
#[test]
fn a_step_down_ends_statements_that_wait() {
    for (seed, (cores, partitions)) in (2175..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1])).await;
            client
                .at("admin")
                .ok(doc! { "setParameter": 1, "maxTransactionLockRequestTimeoutMillis": -1 })
                .await;
            client.ok(first(1, 1, insert(&[2]))).await;
            client
                .ok(first(
                    3,
                    1,
                    doc! { "insert": "d", "documents": [{ "_id": 1 }] },
                ))
                .await;
            let run = |command: Document, core: u16| {
                let client = client.on(core);
                spawn(Queue::Foreground, async move { client.run(command).await })
            };
            let dropping = run(doc! { "drop": "c" }, 1);
            sleep(Duration::from_millis(20)).await;
            // One is new, one is under way: both wait for the gate that the drop has closed.
            let waiting = [
                run(first(2, 1, insert(&[3])), 0),
                run(statement(3, 1, insert(&[4])), 1),
            ];
            sleep(Duration::from_millis(20)).await;
            become_member(MemberState::Secondary, false, OpTime::NULL).await;
            pinion_instance::interrupt_writers().await;
            for waiting in waiting {
                let reply = waiting.await.expect("it ends");
                // Interrupted, or let through the gate and refused behind it.
                let code = reply.get_i32("code").ok();
                assert!(matches!(code, Some(11602 | 10107)), "{reply}");
            }
            dropping.await.expect("it ends");
            until_nothing_is_held().await;
            become_primary().await;
            for session in [1, 2, 3] {
                client.at("admin").fails(commit(session, 1), 251).await;
            }
            client.ok(insert(&[2, 3, 4])).await;
            client.ok(first(3, 2, insert(&[5]))).await;
            committed(&client, commit(3, 2)).await;
        });
    }
}

/// A commit that no client learned of is reported when it is sent again: from the record, wherever
/// the session is known.
#[test]
fn a_commit_that_was_interrupted_has_taken_place() {
    with_node(2178, 2, 2, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        client.ok(first(1, 1, insert(&[2]))).await;
        fake().refuse(Some((
            pinion_wire::ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
            "stepped down",
        )));
        let mut majority = commit(1, 1);
        majority.insert("writeConcern", doc! { "w": "majority" });
        let reply = client.at("admin").ok(majority.clone()).await;
        let failure = reply
            .get_document("writeConcernError")
            .expect("not reached");
        assert_eq!(failure.get_i32("code").ok(), Some(11602), "{reply}");
        // Of one that is not known the answer waits for what this node has too.
        let mut unknown = commit(1, 2);
        unknown.insert("writeConcern", doc! { "w": "majority" });
        let reply = client.at("admin").run(unknown).await;
        assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
        assert!(reply.get_document("writeConcernError").is_ok(), "{reply}");
        fake().refuse(None);
        pinion_exec::forget_sessions().await;
        let reply = client.at("admin").ok(majority).await;
        assert!(!reply.contains_key("writeConcernError"), "{reply}");
        assert_eq!(ids(&client, all()).await, [1, 2]);
    });
}

/// A statement that needs a change of the catalog which waits for its own transaction is not waited
/// for long.
#[test]
fn transactions_and_changes_of_the_catalog_do_not_wait_for_each_other() {
    with_node(2179, 2, 2, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        client
            .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] })
            .await;
        client.ok(first(1, 1, insert(&[2]))).await;
        let dropping = {
            let client = client.on(1);
            spawn(Queue::Foreground, async move {
                client.ok(doc! { "dropDatabase": 1 }).await
            })
        };
        sleep(Duration::from_millis(20)).await;
        // The first document with an array changes the row of its collection, whose gate is closed
        // to all others.
        let several = doc! { "insert": "c", "documents": [{ "_id": 3, "a": [1, 2] }] };
        client.ok(statement(1, 1, several)).await;
        let into = doc! { "insert": "new", "documents": [{ "_id": 1 }] };
        client.ok(statement(1, 1, into)).await;
        // The drop waits for what the transaction has written, and what it makes for the drop.
        client.at("admin").fails(commit(1, 1), 24).await;
        dropping.await.expect("it ends");
        client.at("admin").fails(commit(1, 1), 251).await;
        until_nothing_is_held().await;
    });
}

/// That nothing of a transaction stays is true once a majority has what is logged behind the
/// question, whatever weaker write concern the command has: the reply has a `writeConcernError`
/// otherwise.
#[test]
fn that_a_transaction_is_not_known_is_certain_with_a_majority() {
    with_node(2190, 2, 2, |client| async move {
        become_primary().await;
        let noop = "NoSuchTransaction error";
        let majority = "Some(Majority) j:Some(true)";
        let prepare = || statement(1, 1, doc! { "prepareTransaction": 1 });
        let commands = [commit(1, 1), abort(1, 1), prepare()];
        let concerns = [
            (None, None),
            (Some(doc! { "w": "majority" }), None),
            (Some(doc! { "w": 1 }), None),
            (Some(doc! { "w": 0 }), None),
            (Some(doc! { "w": 2 }), Some("Some(Members(2)) j:None")),
            (Some(doc! { "w": "dc" }), Some("Some(Mode(\"dc\")) j:None")),
        ];
        for (command, (concern, first_asked)) in commands
            .iter()
            .flat_map(|command| concerns.iter().map(move |concern| (command, concern)))
        {
            let mut command = command.clone();
            if let Some(concern) = concern {
                command.insert("writeConcern", concern.clone());
            }
            let asked: Vec<&str> = std::iter::once(noop)
                .chain(*first_asked)
                .chain([majority])
                .collect();
            fake().refuse(None);
            fake().take_calls();
            let reply = client.at("admin").run(command.clone()).await;
            assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
            assert!(
                !reply.contains_key("writeConcernError"),
                "{command}: {reply}"
            );
            assert_eq!(fake().take_calls(), asked, "{command}");
            let code = pinion_wire::ErrorCode::PRIMARY_STEPPED_DOWN;
            fake().refuse(Some((code, "stepped down")));
            let reply = client.at("admin").run(command.clone()).await;
            assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
            let failure = reply.get_document("writeConcernError");
            let failure = failure.expect("it is not certain");
            assert_eq!(
                failure.get_i32("code").ok(),
                Some(189),
                "{command}: {reply}"
            );
        }
        fake().refuse(None);
        // Without a timeout of its own the wait for a majority has one.
        let code = pinion_wire::ErrorCode::WRITE_CONCERN_TIMEOUT;
        fake().refuse(Some((code, "waiting for replication timed out")));
        let mut weak = commit(1, 1);
        weak.insert("writeConcern", doc! { "w": 1 });
        let reply = client.at("admin").run(weak).await;
        let failure = reply
            .get_document("writeConcernError")
            .expect("no majority");
        let concern = failure
            .get_document("errInfo")
            .and_then(|info| info.get_document("writeConcern"));
        let expected =
            doc! { "w": "majority", "wtimeout": 10_000, "provenance": "internalWriteDefault" };
        assert_eq!(concern.ok(), Some(&expected), "{reply}");
    });
}

/// What was aborted before it logged anything can be nowhere else: that is answered at once, also
/// where no majority answers.
#[test]
fn that_a_transaction_was_aborted_here_is_certain_at_once() {
    with_node(2191, 2, 2, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        client.ok(first(1, 1, insert(&[2]))).await;
        client
            .fails(statement(1, 1, doc! { "insert": "c", "documents": 1 }), 14)
            .await;
        client.ok(first(2, 1, insert(&[3]))).await;
        client.at("admin").ok(abort(2, 1)).await;
        let code = pinion_wire::ErrorCode::PRIMARY_STEPPED_DOWN;
        fake().refuse(Some((code, "stepped down")));
        fake().take_calls();
        for session in [1, 2] {
            let prepare = statement(session, 1, doc! { "prepareTransaction": 1 });
            for command in [commit(session, 1), abort(session, 1), prepare] {
                let reply = client.at("admin").run(command).await;
                assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
                assert!(!reply.contains_key("writeConcernError"), "{reply}");
            }
        }
        assert!(fake().take_calls().is_empty());
        // Another primary knows nothing of it, and asks the majority.
        pinion_exec::forget_sessions().await;
        let reply = client.at("admin").run(commit(1, 1)).await;
        assert!(reply.contains_key("writeConcernError"), "{reply}");
    });
}

#[test]
fn a_commit_survives_a_loss_of_power() {
    for (seed, (cores, partitions)) in (2180..).zip(SHAPES) {
        with_member(
            seed,
            &[cores, 2],
            partitions,
            Some(Death::PowerCut),
            |life, client| async move {
                become_primary().await;
                if life == 0 {
                    client.ok(first(1, 1, insert(&[1, 2, 3, 4, 5]))).await;
                    let delete =
                        doc! { "delete": "c", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] };
                    client.ok(statement(1, 1, delete)).await;
                    let mut journaled = commit(1, 1);
                    journaled.insert("writeConcern", doc! { "w": 1, "j": true });
                    committed(&client, journaled).await;
                    client.ok(first(2, 1, insert(&[7, 8]))).await;
                    return;
                }
                assert_eq!(ids(&client, all()).await, [1, 3, 4, 5]);
                committed(&client, commit(1, 1)).await;
                client.at("admin").fails(commit(2, 1), 251).await;
            },
        );
    }
}
