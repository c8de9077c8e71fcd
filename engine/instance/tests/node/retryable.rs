//! Retryable writes on a member of a replica set: what is answered when a command is sent again,
//! and what is refused.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{Binary, BinarySubtype, Bson, Document, doc};
use pinion_clock::OpTime;
use pinion_runtime::{Queue, join_all, spawn};
use pinion_wire::MemberState;

use crate::fake_set::become_member;
use crate::harness::{Client, with_node};

/// Cores and partitions.
pub const SHAPES: [(usize, u16); 4] = [(1, 1), (2, 3), (3, 2), (1, 4)];

pub async fn become_primary() {
    become_member(MemberState::Primary, true, OpTime::NULL).await;
}

pub fn session_id(number: u8) -> Document {
    doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes: vec![number; 16] } }
}

/// The command as a session's retryable write.
pub fn retryable(session: u8, txn_number: i64, command: Document) -> Document {
    let mut command = command;
    command.insert("lsid", session_id(session));
    command.insert("txnNumber", txn_number);
    command
}

/// The reply to a command without the times that every reply of a member has.
pub async fn answer(client: &Client, command: Document) -> Document {
    let mut reply = client.run(command).await;
    for name in ["$clusterTime", "operationTime"] {
        assert!(reply.remove(name).is_some(), "{reply}");
    }
    reply
}

/// Sends a command twice and compares both replies.
async fn check(client: &Client, command: Document, first: Document, again: Document) {
    let shown = command.to_string();
    assert_eq!(answer(client, command.clone()).await, first, "{shown}");
    assert_eq!(answer(&client.on(1), command).await, again, "{shown}");
}

#[test]
fn a_statement_that_is_sent_again_is_not_executed_again() {
    for (seed, (cores, partitions)) in (1100..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            let documents: Vec<_> = (0..5).map(|i| doc! { "_id": i, "n": 0 }).collect();
            check(
                &client,
                retryable(1, 1, doc! { "insert": "c", "documents": documents }),
                doc! { "n": 5, "ok": 1.0 },
                doc! { "n": 5, "retriedStmtIds": [0, 1, 2, 3, 4], "ok": 1.0 },
            )
            .await;
            let update = doc! { "update": "c", "updates": [
                { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } },
                { "q": { "_id": 77 }, "u": { "$inc": { "n": 1 } } },
                { "q": { "_id": 9 }, "u": { "$inc": { "n": 1 } }, "upsert": true },
            ] };
            check(
                &client,
                retryable(1, 2, update),
                doc! { "n": 2, "upserted": [{ "index": 2, "_id": 9 }], "nModified": 1, "ok": 1.0 },
                doc! { "n": 2, "upserted": [{ "index": 2, "_id": 9 }], "nModified": 1,
                "retriedStmtIds": [0, 2], "ok": 1.0 },
            )
            .await;
            let delete = doc! { "delete": "c", "deletes": [
                { "q": { "_id": 2 }, "limit": 1 },
                { "q": { "_id": { "$gte": 3 } }, "limit": 1 },
            ] };
            check(
                &client,
                retryable(1, 3, delete),
                doc! { "n": 2, "ok": 1.0 },
                doc! { "n": 2, "retriedStmtIds": [0, 1], "ok": 1.0 },
            )
            .await;
            let left = client.find(doc! { "find": "c" }).await;
            let expected = [(0, 0), (1, 1), (4, 0), (9, 1)];
            let expected = expected.map(|(id, n)| doc! { "_id": id, "n": n });
            assert_eq!(left, expected);
        });
    }
}

#[test]
fn the_rest_of_a_command_is_executed_when_it_is_sent_again() {
    with_node(1110, 2, 3, |client| async move {
        become_primary().await;
        let insert = |ids: &[i32], stmt_ids: &[i32]| {
            let documents: Vec<_> = ids.iter().map(|id| doc! { "_id": id }).collect();
            doc! { "insert": "c", "documents": documents, "stmtIds": stmt_ids.to_vec() }
        };
        let first = retryable(1, 5, insert(&[1, 2], &[10, 12]));
        assert_eq!(answer(&client, first).await, doc! { "n": 2, "ok": 1.0 });
        let all = retryable(1, 5, insert(&[1, 3, 2], &[10, 11, 12]));
        let expected = doc! { "n": 3, "retriedStmtIds": [10, 12], "ok": 1.0 };
        assert_eq!(answer(&client, all).await, expected);
        let mut one = doc! { "insert": "c", "documents": [{ "_id": 4 }], "stmtId": 13 };
        one = retryable(1, 5, one);
        check(
            &client,
            one,
            doc! { "n": 1, "ok": 1.0 },
            doc! { "n": 1, "retriedStmtIds": [13], "ok": 1.0 },
        )
        .await;
        let ids = client.find(doc! { "find": "c" }).await;
        assert_eq!(ids.len(), 4);
        // A statement that did nothing is executed again, and may do something then.
        let update =
            doc! { "update": "c", "updates": [{ "q": { "_id": 8 }, "u": { "$set": { "a": 1 } } }] };
        let update = retryable(1, 6, update);
        assert_eq!(
            answer(&client, update.clone()).await,
            doc! { "n": 0, "nModified": 0, "ok": 1.0 }
        );
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 8 }] })
            .await;
        assert_eq!(
            answer(&client, update).await,
            doc! { "n": 1, "nModified": 1, "ok": 1.0 }
        );
        // So is one that has failed.
        let taken = retryable(2, 1, doc! { "insert": "c", "documents": [{ "_id": 4 }] });
        let reply = answer(&client, taken.clone()).await;
        assert_eq!(reply.get_array("writeErrors").map(Vec::len).ok(), Some(1));
        client
            .ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 4 }, "limit": 1 }] })
            .await;
        assert_eq!(answer(&client, taken).await, doc! { "n": 1, "ok": 1.0 });
    });
}

#[test]
fn a_find_and_modify_that_is_sent_again_shows_the_same_document() {
    for (seed, (cores, partitions)) in (1120..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            let documents: Vec<_> = (0..4).map(|i| doc! { "_id": i, "n": 0 }).collect();
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            let run = async |txn, mut command: Document, mut reply: Document| {
                command.insert("findAndModify", "c");
                // The name of a command comes first.
                let mut named = doc! { "findAndModify": "c" };
                named.extend(command);
                let command = retryable(3, txn, named);
                reply.insert("ok", 1.0);
                let found = answer(&client, command.clone()).await;
                assert_eq!(found, reply, "{command}");
                let touched = doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "later": txn } }, "multi": true }] };
                client.ok(touched).await;
                reply.remove("ok");
                reply.insert("retriedStmtId", 0);
                reply.insert("ok", 1.0);
                assert_eq!(
                    answer(&client.on(1), command.clone()).await,
                    reply,
                    "{command}"
                );
                pinion_exec::forget_sessions().await;
                assert_eq!(answer(&client, command.clone()).await, reply, "{command}");
            };
            run(
                1,
                doc! { "query": { "_id": 0 }, "update": { "$inc": { "n": 1 } } },
                doc! { "lastErrorObject": { "n": 1, "updatedExisting": true }, "value": { "_id": 0, "n": 0 } },
            )
            .await;
            run(
                2,
                doc! { "query": { "_id": 0 }, "update": { "$inc": { "n": 1 } }, "new": true, "fields": { "n": 1, "_id": 0 } },
                doc! { "lastErrorObject": { "n": 1, "updatedExisting": true }, "value": { "n": 2 } },
            )
            .await;
            run(
                3,
                doc! { "query": { "_id": 1 }, "remove": true, "fields": { "later": 0 } },
                doc! { "lastErrorObject": { "n": 1 }, "value": { "_id": 1, "n": 0 } },
            )
            .await;
            run(
                4,
                doc! { "query": { "_id": 50 }, "update": { "$inc": { "n": 5 } }, "upsert": true },
                doc! { "lastErrorObject": { "n": 1, "updatedExisting": false, "upserted": 50 }, "value": null },
            )
            .await;
            // There was nothing to show before it: the image is still that of the write before.
            let images = client
                .at("config")
                .find(doc! { "find": "image_collection" })
                .await;
            assert_eq!(images.len(), 1, "{images:?}");
            assert_eq!(images[0].get_i64("txnNum").ok(), Some(3));
            assert_eq!(images[0].get_bool("invalidated").ok(), Some(false));
            run(
                5,
                doc! { "query": { "_id": 51 }, "update": { "$inc": { "n": 5 } }, "upsert": true, "new": true },
                doc! { "lastErrorObject": { "n": 1, "updatedExisting": false, "upserted": 51 }, "value": { "_id": 51, "n": 5 } },
            )
            .await;
            // Asked for otherwise than it was.
            let other = doc! { "findAndModify": "c", "query": { "_id": 51 }, "remove": true };
            client.fails(retryable(3, 5, other), 40608).await;
        });
    }
}

#[test]
fn bulk_writes_are_retryable() {
    with_node(1130, 2, 3, |client| async move {
        become_primary().await;
        let admin = client.at("admin");
        let bulk = |ops: Vec<Document>| {
            let command = doc! { "bulkWrite": 1, "ops": ops, "nsInfo": [{ "ns": "test.a" }, { "ns": "test.b" }] };
            retryable(1, 1, command)
        };
        let ops = vec![
            doc! { "insert": 0, "document": { "_id": 1 } },
            doc! { "insert": 0, "document": { "_id": 2 } },
            doc! { "insert": 1, "document": { "_id": 3 } },
            doc! { "update": 0, "filter": { "_id": 1 }, "updateMods": { "$inc": { "n": 1 } } },
            doc! { "update": 1, "filter": { "_id": 4 }, "updateMods": { "$inc": { "n": 1 } }, "upsert": true },
            doc! { "delete": 0, "filter": { "_id": 2 } },
        ];
        let (first, second) = (ops[..2].to_vec(), ops.clone());
        admin.ok(bulk(first)).await;
        let reply = admin.ok(bulk(second)).await;
        let retried = |reply: &Document| reply.get_array("retriedStmtIds").ok().cloned();
        assert_eq!(retried(&reply), Some(vec![0.into(), 1.into()]));
        let counts = |reply: &Document| {
            [
                "nErrors",
                "nInserted",
                "nMatched",
                "nModified",
                "nUpserted",
                "nDeleted",
            ]
            .map(|name| reply.get_i32(name).unwrap_or(-1))
        };
        assert_eq!(counts(&reply), [0, 3, 1, 1, 1, 1]);
        let batch = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"));
        let results = batch.expect("results").clone();
        let again = admin.ok(bulk(ops)).await;
        assert_eq!(counts(&again), [0, 3, 1, 1, 1, 1]);
        assert_eq!(retried(&again).map(|ids| ids.len()), Some(6));
        let batch = again
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"));
        assert_eq!(batch.ok(), Some(&results));
        assert_eq!(
            client.find(doc! { "find": "a" }).await,
            [doc! { "_id": 1, "n": 1 }]
        );
        let multi = doc! { "delete": 0, "filter": {}, "multi": true };
        let multi = doc! { "bulkWrite": 1, "ops": [multi], "nsInfo": [{ "ns": "test.a" }] };
        let reply = admin.ok(retryable(1, 2, multi)).await;
        assert_eq!(counts(&reply)[0], 1, "{reply}");
    });
}

#[test]
fn what_is_refused() {
    with_node(1140, 2, 3, |client| async move {
        let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
        // A standalone has no use for transaction numbers.
        let standalone = "Transaction numbers are only allowed on a replica set member or mongos";
        let message = client.fails(retryable(1, 1, insert.clone()), 20).await;
        assert_eq!(message, standalone);
        become_primary().await;
        client.ok(retryable(1, 22, insert.clone())).await;
        let message = client.fails(retryable(1, 21, insert.clone()), 225).await;
        assert_eq!(
            message,
            "Retryable write with txnNumber 21 is prohibited on session 01010101-0101-0101-0101-010101010101 - \
             47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= -  -  because a newer retryable write with txnNumber 22 has \
             already started on this session."
        );
        let check = async |command: Document, message: &str| {
            let reply = client.ok(command).await;
            let expected = doc! { "index": 0, "code": 72, "errmsg": message };
            assert_eq!(
                reply.get_array("writeErrors").ok(),
                Some(&vec![Bson::Document(expected)])
            );
        };
        let update = doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "a": 1 } }, "multi": true }] };
        let message = "Cannot use (or request) retryable writes with multi=true";
        check(retryable(1, 23, update), message).await;
        let delete = doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] };
        let message = "Cannot use (or request) retryable writes with limit=0";
        check(retryable(1, 24, delete), message).await;
        let mut ids = insert.clone();
        ids.insert("stmtIds", [1, 2]);
        client.fails(retryable(1, 25, ids), 16).await;
        let message = client
            .fails(retryable(1, 25, doc! { "find": "c" }), 50768)
            .await;
        assert_eq!(
            message,
            "txnNumber may only be provided for multi-document transactions and retryable write commands. \
             autocommit:false was not provided, and find is not a retryable write command."
        );
        let mut in_transaction = retryable(1, 26, insert.clone());
        in_transaction.insert("autocommit", false);
        let message = client.fails(in_transaction.clone(), 251).await;
        assert_eq!(
            message,
            "Given transaction number 26 does not match any in-progress transactions. The active transaction number is 24"
        );
        in_transaction.insert("startTransaction", true);
        client.ok(in_transaction).await;
        // Only retryable writes write there.
        let config = client.at("config");
        for name in ["transactions", "image_collection"] {
            config
                .fails(doc! { "insert": name, "documents": [{ "_id": 1 }] }, 20)
                .await;
        }
    });
}

/// Several clients send the same command at once, as one does that has lost its connection, or
/// several that share a session by mistake.
#[test]
fn a_command_that_is_sent_twice_at_once_is_executed_once() {
    for (seed, (cores, partitions)) in (1150..).zip(SHAPES.into_iter().cycle().take(12)) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client
                .ok(doc! { "insert": "c", "documents": [{ "_id": 1, "n": 0 }] })
                .await;
            for txn in 0..20i64 {
                let seen = Rc::new(RefCell::new(Vec::new()));
                let clients = (0..5).map(|number| {
                    let (client, seen) = (client.on(number), seen.clone());
                    spawn(Queue::Foreground, async move {
                        let update = doc! { "update": "c", "updates": [
                            { "q": { "n": { "$gte": 0 } }, "u": { "$inc": { "n": 1 } } },
                            { "q": { "_id": format!("{txn}") }, "u": { "$inc": { "n": -1000 } }, "upsert": true },
                        ] };
                        let reply = client.ok(retryable(9, txn, update)).await;
                        assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
                        seen.borrow_mut().push(reply.get_array("retriedStmtIds").is_ok());
                    })
                });
                join_all(clients.collect::<Vec<_>>()).await;
                let firsts = seen.borrow().iter().filter(|retried| !**retried).count();
                assert_eq!(firsts, 1, "seed {seed}, {txn}");
            }
            let one = doc! { "find": "c", "filter": { "_id": 1 } };
            assert_eq!(
                client.find(one).await,
                [doc! { "_id": 1, "n": 20 }],
                "seed {seed}"
            );
            assert_eq!(
                client.ok(doc! { "count": "c" }).await.get_i32("n").ok(),
                Some(21)
            );
        });
    }
}

#[test]
fn capped_collections_and_series_take_retryable_writes() {
    for (seed, (cores, partitions)) in (1170..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client
                .ok(doc! { "create": "log", "capped": true, "size": 4096, "max": 3 })
                .await;
            let documents: Vec<_> = (0..5).map(|i| doc! { "_id": i }).collect();
            check(
                &client,
                retryable(1, 1, doc! { "insert": "log", "documents": documents }),
                doc! { "n": 5, "ok": 1.0 },
                doc! { "n": 5, "retriedStmtIds": [0, 1, 2, 3, 4], "ok": 1.0 },
            )
            .await;
            let kept = client.find(doc! { "find": "log" }).await;
            assert_eq!(kept, [2, 3, 4].map(|id| doc! { "_id": id }));
            client
                .ok(doc! { "create": "s", "timeseries": { "timeField": "t", "metaField": "m" } })
                .await;
            let at =
                |secs: i64| pinion_bson::DateTime::from_millis(1_700_000_000_000 + secs * 1000);
            let measured = |range: std::ops::Range<i64>| {
                let documents: Vec<_> = range
                    .map(|i| doc! { "t": at(i), "m": i % 2, "v": i })
                    .collect();
                retryable(1, 2, doc! { "insert": "s", "documents": documents })
            };
            client.ok(measured(0..3)).await;
            let expected = doc! { "n": 6, "retriedStmtIds": [0, 1, 2], "ok": 1.0 };
            assert_eq!(answer(&client, measured(0..6)).await, expected);
            pinion_exec::forget_sessions().await;
            let expected = doc! { "n": 6, "retriedStmtIds": [0, 1, 2, 3, 4, 5], "ok": 1.0 };
            assert_eq!(answer(&client, measured(0..6)).await, expected);
            let found = client.find(doc! { "find": "s", "sort": { "v": 1 } }).await;
            assert_eq!(found.len(), 6, "{found:?}");
        });
    }
}
