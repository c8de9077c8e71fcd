//! What retryable writes leave behind: in the log, in `config.transactions`, after a crash, and on members that apply them.

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;

use pinion_bson::{Binary, BinarySubtype, Bson, Document, RawDocument, doc};
use pinion_clock::Timestamp;
use pinion_exec::{Applier, ApplyMode};
use pinion_storage::storage;

use crate::applier::source::recording;
use crate::applier::target::log;
use crate::harness::{Client, with_crashes, with_lives, with_node};
use crate::retryable::{SHAPES, become_primary, retryable};

/// SHA-256 of nothing.
const NO_USER: [u8; 32] = [
    0xe3, 0xb0, 0xc4, 0x42, 0x98, 0xfc, 0x1c, 0x14, 0x9a, 0xfb, 0xf4, 0xc8, 0x99, 0x6f, 0xb9, 0x24,
    0x27, 0xae, 0x41, 0xe4, 0x64, 0x9b, 0x93, 0x4c, 0xa4, 0x95, 0x99, 0x1b, 0x78, 0x52, 0xb8, 0x55,
];

fn lsid(number: u8) -> Document {
    let binary = |subtype, bytes| Binary { subtype, bytes };
    doc! {
        "id": binary(BinarySubtype::Uuid, vec![number; 16]),
        "uid": binary(BinarySubtype::Generic, NO_USER.to_vec()),
    }
}

/// Writes of three sessions, in every way that is retryable.
fn writes() -> Vec<Document> {
    let documents: Vec<_> = (0..6).map(|i| doc! { "_id": i, "n": 0 }).collect();
    vec![
        retryable(1, 1, doc! { "insert": "c", "documents": documents }),
        retryable(
            1,
            2,
            doc! { "update": "c", "updates": [
                { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } },
                { "q": { "_id": 7 }, "u": { "$inc": { "n": 1 } }, "upsert": true },
            ] },
        ),
        retryable(
            2,
            4,
            doc! { "findAndModify": "c", "query": { "_id": 2 }, "update": { "$inc": { "n": 1 } } },
        ),
        retryable(
            3,
            1,
            doc! { "findAndModify": "c", "query": { "_id": 3 }, "update": { "n": "x" }, "new": true },
        ),
        retryable(
            4,
            9,
            doc! { "findAndModify": "c", "query": { "_id": 4 }, "remove": true },
        ),
        retryable(
            5,
            9,
            doc! { "delete": "c", "deletes": [{ "q": { "_id": 5 }, "limit": 1 }] },
        ),
        retryable(
            6,
            1,
            doc! { "findAndModify": "c", "query": { "_id": 8 }, "update": { "$inc": { "n": 1 } }, "upsert": true, "new": true },
        ),
    ]
}

/// The writes whose session has not gone on.
fn latest() -> Vec<Document> {
    writes().split_off(1)
}

fn without_retried(reply: &Document) -> Document {
    let mut reply = reply.clone();
    for name in [
        "retriedStmtIds",
        "retriedStmtId",
        "$clusterTime",
        "operationTime",
    ] {
        reply.remove(name);
    }
    reply
}

/// Sends the writes again and compares the replies with those that they had first.
async fn check_again(client: &Client, first: &[Document]) {
    for (command, reply) in latest().into_iter().zip(first) {
        let again = client.ok(command.clone()).await;
        assert!(
            again.contains_key("retriedStmtIds") || again.contains_key("retriedStmtId"),
            "{command}: {again}"
        );
        assert_eq!(without_retried(&again), *reply, "{command}");
    }
}

/// Waits until everything that was written survives a crash.
async fn be_durable() {
    let written = storage().last_allotted();
    (storage().wait_durable(written).await).expect("storage serves");
}

async fn write_all(client: &Client) -> Vec<Document> {
    become_primary().await;
    let mut replies = Vec::new();
    for command in writes() {
        replies.push(without_retried(&client.ok(command).await));
    }
    replies.split_off(1)
}

#[test]
fn a_statement_happens_once_whatever_the_node_dies_of() {
    for (seed, (cores, partitions)) in (1200..).zip(SHAPES) {
        let first: Rc<RefCell<Vec<Document>>> = Rc::default();
        let life = {
            let first = first.clone();
            move |life: usize, client: Client| {
                let first = first.clone();
                async move {
                    if life == 0 {
                        let replies = write_all(&client).await;
                        *first.borrow_mut() = replies;
                        be_durable().await;
                        return;
                    }
                    become_primary().await;
                    let replies = first.borrow().clone();
                    check_again(&client, &replies).await;
                    assert_eq!(
                        client.ok(doc! { "count": "c" }).await.get_i32("n").ok(),
                        Some(6)
                    );
                }
            }
        };
        let shapes = [cores, 1 + cores % 3, 2];
        with_lives(seed, &shapes, partitions, life.clone());
        with_crashes(seed, &shapes, partitions, life);
    }
}

/// Power is cut at any moment of a stream of increments, each of which is sent again afterwards.
#[test]
fn increments_that_may_have_happened_are_sent_again() {
    for (seed, (cores, partitions)) in (1220..).zip(SHAPES.into_iter().cycle().take(8)) {
        let sent: Rc<RefCell<i64>> = Rc::default();
        let lives = [cores, cores, 2, 1];
        with_crashes(seed, &lives, partitions, move |life, client| {
            let sent = sent.clone();
            async move {
                become_primary().await;
                let increment = |txn: i64| {
                    let id = txn % 7;
                    let update =
                        doc! { "q": { "_id": id }, "u": { "$inc": { "n": 1 } }, "upsert": true };
                    retryable(1, txn, doc! { "update": "c", "updates": [update] })
                };
                if life > 0 {
                    // The last ones may be lost, and with them the numbers that were used: as a driver does, only what was
                    // not acknowledged is sent again, here the last.
                    let last = *sent.borrow();
                    client.ok(increment(last)).await;
                }
                let more = 5 + seed as i64 % 11;
                for _ in 0..more {
                    let next = *sent.borrow() + 1;
                    *sent.borrow_mut() = next;
                    client.ok(increment(next)).await;
                    be_durable().await;
                }
                // Not waited for: it may be lost.
                let next = *sent.borrow() + 1;
                *sent.borrow_mut() = next;
                client.ok(increment(next)).await;
                if life == 3 {
                    let sum = doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": null, "n": { "$sum": "$n" } } }], "cursor": {} };
                    let found = client.find(sum).await;
                    assert_eq!(
                        found,
                        [doc! { "_id": null, "n": next as i32 }],
                        "seed {seed}"
                    );
                }
            }
        });
    }
}

fn timestamp(ts: Timestamp) -> Bson {
    Bson::Timestamp(pinion_bson::Timestamp {
        time: ts.secs(),
        increment: ts.inc(),
    })
}

/// The entries of documents of `test.c`.
fn entries_of_c(entries: &[(Timestamp, Bytes)]) -> Vec<Document> {
    let entries = entries.iter().map(|(ts, bytes)| {
        let entry = RawDocument::from_bytes(bytes).expect("a document");
        let entry = Document::try_from(entry).expect("a document");
        assert_eq!(entry.get("ts"), Some(&timestamp(*ts)));
        entry
    });
    entries
        .filter(|entry| entry.get_str("ns").ok() == Some("test.c"))
        .collect()
}

#[test]
fn entries_name_the_session_and_the_write_before() {
    for (seed, shape) in (1240..).zip(SHAPES) {
        let source = recording(seed, shape, |client| async move {
            write_all(&client).await;
            be_durable().await;
        });
        let found = entries_of_c(&source.entries);
        let null = doc! { "ts": timestamp(Timestamp::MIN), "t": -1i64 };
        let mut previous: Option<(u8, i64, Bson)> = None;
        let mut expect = |found: &Document,
                          (op, o, o2): (&str, Document, Option<Document>),
                          (session, txn, stmt): (u8, i64, i32),
                          image: Option<&str>| {
            let linked = match &previous {
                Some((before, number, ts)) if *before == session && *number == txn => {
                    doc! { "ts": ts.clone(), "t": -1i64 }
                }
                _ => null.clone(),
            };
            let ts = found.get("ts").expect("a ts").clone();
            let mut expected = doc! {
                "ts": ts.clone(), "t": -1i64, "prevOpTime": linked, "v": 2i64, "op": op, "ns": "test.c",
                "ui": found.get("ui").expect("a ui").clone(), "o": o,
            };
            if let Some(o2) = o2 {
                expected.insert("o2", o2);
            }
            expected.insert("wall", found.get("wall").expect("a wall").clone());
            expected.insert("lsid", lsid(session));
            expected.insert("txnNumber", txn);
            expected.insert("stmtId", stmt);
            if let Some(image) = image {
                expected.insert("needsRetryImage", image);
            }
            assert_eq!(*found, expected, "seed {seed}");
            previous = Some((session, txn, ts));
        };
        assert_eq!(found.len(), 13, "seed {seed}: {found:?}");
        for (i, entry) in found[..6].iter().enumerate() {
            let i = i as i32;
            expect(
                entry,
                ("i", doc! { "_id": i, "n": 0 }, None),
                (1, 1, i),
                None,
            );
        }
        expect(
            &found[6],
            ("u", doc! { "_id": 1, "n": 1 }, Some(doc! { "_id": 1 })),
            (1, 2, 0),
            None,
        );
        expect(
            &found[7],
            ("i", doc! { "_id": 7, "n": 1 }, None),
            (1, 2, 1),
            None,
        );
        expect(
            &found[8],
            ("u", doc! { "_id": 2, "n": 1 }, Some(doc! { "_id": 2 })),
            (2, 4, 0),
            Some("preImage"),
        );
        let replaced = found[9].get_document("o").expect("an o").clone();
        expect(
            &found[9],
            ("u", replaced, Some(doc! { "_id": 3 })),
            (3, 1, 0),
            Some("postImage"),
        );
        expect(
            &found[10],
            ("d", doc! { "_id": 4 }, None),
            (4, 9, 0),
            Some("preImage"),
        );
        expect(&found[11], ("d", doc! { "_id": 5 }, None), (5, 9, 0), None);
        expect(
            &found[12],
            ("i", doc! { "_id": 8, "n": 1 }, None),
            (6, 1, 0),
            Some("postImage"),
        );
    }
}

#[test]
fn config_transactions_shows_the_last_write_of_each_session() {
    for (seed, (cores, partitions)) in (1260..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            write_all(&client).await;
            let config = client.at("config");
            let shown = config.find(doc! { "find": "transactions" }).await;
            assert_eq!(shown.len(), 6, "{shown:?}");
            let expected = [(1, 2), (2, 4), (3, 1), (4, 9), (5, 9), (6, 1)];
            let mut last = None;
            for (found, (session, txn)) in shown.iter().zip(expected) {
                let names: Vec<_> = found.keys().map(String::as_str).collect();
                assert_eq!(names, ["_id", "txnNum", "lastWriteOpTime", "lastWriteDate"]);
                assert_eq!(found.get_document("_id").ok(), Some(&lsid(session)));
                assert_eq!(found.get_i64("txnNum").ok(), Some(txn));
                let op_time = found.get_document("lastWriteOpTime").expect("an optime");
                assert_eq!(op_time.get_i64("t").ok(), Some(-1));
                let ts = op_time.get_timestamp("ts").expect("a ts");
                let ts = Some((ts.time, ts.increment));
                assert!(last < ts, "{last:?} {found}");
                last = ts;
            }
            let counted = config.ok(doc! { "count": "transactions" }).await;
            assert_eq!(counted.get_i32("n").ok(), Some(6));
            let one = doc! { "find": "transactions", "filter": { "_id": lsid(3) } };
            assert_eq!(config.find(one).await, [shown[2].clone()]);
            let images = config.find(doc! { "find": "image_collection" }).await;
            let kinds: Vec<_> = images
                .iter()
                .map(|image| {
                    let kind = image.get_str("imageKind").expect("a kind");
                    let image = image.get_document("image").expect("an image");
                    (kind, image.clone())
                })
                .collect();
            assert_eq!(
                kinds,
                [
                    ("preImage", doc! { "_id": 2, "n": 0 }),
                    ("postImage", doc! { "_id": 3, "n": "x" }),
                    ("preImage", doc! { "_id": 4, "n": 0 }),
                    ("postImage", doc! { "_id": 8, "n": 1 }),
                ]
            );
            for name in ["transactions", "image_collection"] {
                let valid = config.ok(doc! { "validate": name, "full": true }).await;
                assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
            }
        });
    }
}

/// What `config` holds, as clients see it.
async fn config_of(client: &Client) -> Vec<Document> {
    let config = client.at("config");
    let mut hash = config.ok(doc! { "dbHash": 1 }).await;
    for name in ["timeMillis", "$clusterTime", "operationTime"] {
        hash.remove(name);
    }
    let mut all = vec![hash];
    for name in ["transactions", "image_collection"] {
        all.extend(config.find(doc! { "find": name }).await);
    }
    all
}

#[test]
fn a_member_that_has_applied_a_write_answers_for_it() {
    for (seed, (shape, target)) in
        (1280..).zip(SHAPES.into_iter().zip([(2, 3), (1, 1), (2, 2), (3, 4)]))
    {
        let shown: Rc<RefCell<(Vec<Document>, Vec<Document>)>> = Rc::default();
        let source = {
            let shown = shown.clone();
            recording(seed, shape, move |client| {
                let shown = shown.clone();
                async move {
                    let replies = write_all(&client).await;
                    *shown.borrow_mut() = (replies, config_of(&client).await);
                    be_durable().await;
                }
            })
        };
        let (replies, config) = shown.take();
        let (cores, partitions) = target;
        with_node(seed, cores, partitions, move |client| {
            let (entries, replies, config) =
                (source.entries.clone(), replies.clone(), config.clone());
            async move {
                let applier = Applier::new(ApplyMode::Secondary);
                storage().follow().await.expect("storage serves");
                for (ts, bytes) in entries.iter() {
                    log(*ts, bytes).await;
                    applier.apply(*ts, bytes.clone()).await.expect("applies");
                }
                applier.barrier().await.expect("applied");
                storage().set_applied(applier.applied());
                storage().lead().await;
                become_primary().await;
                pinion_exec::forget_sessions().await;
                assert_eq!(config_of(&client).await, config, "seed {seed}");
                check_again(&client, &replies).await;
                assert_eq!(config_of(&client).await, config, "seed {seed}");
            }
        });
    }
}
