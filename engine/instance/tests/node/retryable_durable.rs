//! What retryable writes leave behind: in the log, in `config.transactions`, after a crash, and on
//! members that apply them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use pinion_apply::Applier;
use pinion_bson::{Binary, BinarySubtype, Bson, Document, RawDocument, doc};
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Queue, sleep, spawn};
use pinion_storage::storage;
use pinion_wire::ErrorCode;
use pinion_wire::idl::Lsid;

use crate::applier::source::recording;
use crate::applier::target::log;
use crate::fake_shard::{become_shard, listed, set_listed};
use crate::harness::{Client, column, with_crashes, with_lives, with_node};
use crate::retryable::{SHAPES, become_primary, retryable, session_id};

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
                    // The last ones may be lost, and with them the numbers that were used: as a
                    // driver does, only what was not acknowledged is sent again, here the last.
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

/// Power is cut in the middle of a command, at any moment. What was not acknowledged as durable is
/// sent again.
#[test]
fn a_command_that_was_cut_off_is_sent_again() {
    let mut cut_off = 0;
    for (seed, (cores, partitions)) in (1350..).zip(SHAPES.into_iter().cycle().take(24)) {
        // The numbers of the last command that was sent, and of the last that is durable.
        let (sent, durable): (Rc<Cell<i64>>, Rc<Cell<i64>>) = Default::default();
        let resent: Rc<Cell<u32>> = Rc::default();
        let life = {
            let resent = resent.clone();
            move |life: usize, client: Client| {
                let (sent, durable, resent) = (sent.clone(), durable.clone(), resent.clone());
                async move {
                    become_primary().await;
                    if sent.get() > durable.get() {
                        let reply = client.ok(increments(sent.get())).await;
                        resent.set(resent.get() + u32::from(reply.contains_key("retriedStmtIds")));
                        be_durable().await;
                        durable.set(sent.get());
                    }
                    let sum = doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": null, "n": { "$sum": "$n" } } }], "cursor": {} };
                    let found = client.find(sum).await;
                    let expected =
                        (sent.get() > 0).then(|| doc! { "_id": null, "n": 3 * sent.get() as i32 });
                    assert_eq!(found, Vec::from_iter(expected), "seed {seed}, life {life}");
                    let mut rng = pinion_runtime::random_stream("moment");
                    let until = Duration::from_micros(rng.below(9000));
                    drop(spawn(Queue::Foreground, async move {
                        loop {
                            sent.set(sent.get() + 1);
                            client.ok(increments(sent.get())).await;
                            be_durable().await;
                            durable.set(sent.get());
                        }
                    }));
                    sleep(until).await;
                }
            }
        };
        with_crashes(seed, &[cores, cores, 2, 1, 3], partitions, life);
        cut_off += resent.get();
    }
    assert!(
        cut_off > 10,
        "{cut_off} commands were cut off behind a write"
    );
}

/// Three statements, each on another document.
fn increments(txn: i64) -> Document {
    let updates: Vec<_> = (0..3)
        .map(|i| {
            let id = 3 * (txn % 5) + i;
            doc! { "q": { "_id": id }, "u": { "$inc": { "n": 1 } }, "upsert": true }
        })
        .collect();
    retryable(1, txn, doc! { "update": "c", "updates": updates })
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
        // What operators change is logged as a difference, however small the document.
        let set_n = doc! { "$v": 2, "diff": { "u": { "n": 1 } } };
        for (i, entry) in found[..6].iter().enumerate() {
            let i = i as i32;
            expect(
                entry,
                ("i", doc! { "_id": i, "n": 0 }, Some(doc! { "_id": i })),
                (1, 1, i),
                None,
            );
        }
        expect(
            &found[6],
            ("u", set_n.clone(), Some(doc! { "_id": 1 })),
            (1, 2, 0),
            None,
        );
        expect(
            &found[7],
            ("i", doc! { "_id": 7, "n": 1 }, Some(doc! { "_id": 7 })),
            (1, 2, 1),
            None,
        );
        expect(
            &found[8],
            ("u", set_n.clone(), Some(doc! { "_id": 2 })),
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
            ("i", doc! { "_id": 8, "n": 1 }, Some(doc! { "_id": 8 })),
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

/// Applies entries as a secondary does, and leads then.
pub async fn follow(entries: &[(Timestamp, Bytes)]) {
    let applier = Applier::new(ApplyMode::Secondary);
    storage().follow().await.expect("storage serves");
    for (ts, bytes) in entries {
        log(*ts, bytes).await;
        applier.apply(*ts, bytes.clone()).await.expect("applies");
    }
    applier.barrier().await.expect("applied");
    storage().set_applied(applier.applied());
    storage().lead().await;
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
                follow(&entries).await;
                become_primary().await;
                pinion_exec::forget_sessions().await;
                assert_eq!(config_of(&client).await, config, "seed {seed}");
                check_again(&client, &replies).await;
                assert_eq!(config_of(&client).await, config, "seed {seed}");
            }
        });
    }
}

/// A session's document in `config.system.sessions`.
async fn known_sessions(client: &Client) -> Vec<Bson> {
    let known = client
        .at("config")
        .find(doc! { "find": "system.sessions" })
        .await;
    column(&known, "_id")
}

/// A node writes in sessions, and what these leave behind goes when they are over; what is in the
/// log is enough for others.
#[test]
fn sessions_that_are_over_leave_nothing_behind() {
    for (seed, (shape, target)) in
        (1300..).zip(SHAPES.into_iter().zip([(2, 3), (1, 2), (2, 2), (3, 1)]))
    {
        let source = recording(seed, shape, |client| async move {
            write_all(&client).await;
            // One with many records.
            let documents: Vec<_> = (0..1200).map(|i| doc! { "_id": 1000 + i }).collect();
            let many = retryable(7, 1, doc! { "insert": "many", "documents": documents });
            client.ok(many).await;
            let admin = client.at("admin");
            admin.ok(doc! { "refreshLogicalSessionCacheNow": 1 }).await;
            assert_eq!(known_sessions(&client).await.len(), 7);
            let indexes = client
                .at("config")
                .ok(doc! { "listIndexes": "system.sessions" })
                .await;
            let cursor = indexes.get_document("cursor").expect("a cursor");
            let listed = cursor.get_array("firstBatch").expect("a batch")[1].as_document();
            assert_eq!(
                listed,
                Some(
                    &doc! { "v": 2, "key": { "lastUse": 1 }, "name": "lsidTTLIndex", "expireAfterSeconds": 1800 }
                )
            );
            // One is ended, one is used on, and the others are not.
            admin.ok(doc! { "endSessions": [session_id(3)] }).await;
            sleep(Duration::from_secs(20 * 60)).await;
            client.ok(with_session(2, doc! { "ping": 1 })).await;
            admin.ok(doc! { "refreshLogicalSessionCacheNow": 1 }).await;
            assert_eq!(known_sessions(&client).await.len(), 6);
            sleep(Duration::from_secs(15 * 60)).await;
            let write = retryable(5, 10, doc! { "insert": "c", "documents": [{ "_id": 50 }] });
            client.ok(write).await;
            admin.ok(doc! { "refreshLogicalSessionCacheNow": 1 }).await;
            assert_eq!(
                known_sessions(&client).await,
                [2, 5].map(|id| Bson::Document(lsid(id)))
            );
            admin.ok(doc! { "reapLogicalSessionCacheNow": 1 }).await;
            let config = client.at("config");
            let left = config.find(doc! { "find": "transactions" }).await;
            assert_eq!(
                column(&left, "_id"),
                [2, 5].map(|id| Bson::Document(lsid(id)))
            );
            let images = config.find(doc! { "find": "image_collection" }).await;
            assert_eq!(column(&images, "_id"), [Bson::Document(lsid(2))]);
            let valid = config.ok(doc! { "validate": "transactions" }).await;
            assert_eq!(
                valid
                    .get_i64("nrecords")
                    .or(valid.get_i32("nrecords").map(i64::from))
                    .ok(),
                Some(2),
                "{valid}"
            );
            be_durable().await;
        });
        let (cores, partitions) = target;
        with_node(seed, cores, partitions, move |client| {
            let entries = source.entries.clone();
            async move {
                follow(&entries).await;
                become_primary().await;
                let config = client.at("config");
                let left = config.find(doc! { "find": "transactions" }).await;
                assert_eq!(
                    column(&left, "_id"),
                    [2, 5].map(|id| Bson::Document(lsid(id)))
                );
                let images = config.find(doc! { "find": "image_collection" }).await;
                assert_eq!(column(&images, "_id"), [Bson::Document(lsid(2))]);
            }
        });
    }
}

/// A shard goes by the list of its config servers, and has none of its own.
#[test]
fn a_shard_removes_what_the_config_servers_do_not_list() {
    let named = |number: u8| Lsid::of_client([number; 16], Some(NO_USER));
    for (seed, (cores, partitions)) in (1340..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_shard(doc! { "_id": 1 }).await;
            write_all(&client).await;
            let (admin, config) = (client.at("admin"), client.at("config"));
            let (refresh, reap) = (
                doc! { "refreshLogicalSessionCacheNow": 1 },
                doc! { "reapLogicalSessionCacheNow": 1 },
            );
            let away = ErrorCode::HOST_UNREACHABLE.0;
            admin.fails(refresh.clone(), away).await;
            set_listed(Some(BTreeSet::new())).await;
            admin.ok(refresh.clone()).await;
            assert_eq!(listed().await, Some((1..=6).map(named).collect()));
            admin.ok(doc! { "endSessions": [session_id(3)] }).await;
            admin.ok(refresh).await;
            let left = listed().await.expect("they answer");
            assert!(!left.contains(&named(3)) && left.len() == 5);
            assert!(known_sessions(&client).await.is_empty());
            // Nothing goes while they do not answer, also of session 3.
            set_listed(None).await;
            // Between two rounds of the node's own, which publishes what was used in this moment.
            sleep(Duration::from_secs(42 * 60)).await;
            admin.fails(reap.clone(), away).await;
            let find = || doc! { "find": "transactions" };
            assert_eq!(config.find(find()).await.len(), 6);
            set_listed(Some([2, 5].map(named).into())).await;
            admin.ok(reap).await;
            let left = config.find(find()).await;
            assert_eq!(
                column(&left, "_id"),
                [2, 5].map(|id| Bson::Document(lsid(id)))
            );
        });
    }
}

fn with_session(number: u8, mut command: Document) -> Document {
    command.insert("lsid", session_id(number));
    command
}

#[test]
fn what_retryable_writes_rely_on_stays() {
    with_node(1320, 2, 3, |client| async move {
        write_all(&client).await;
        let (config, admin) = (client.at("config"), client.at("admin"));
        config.fails(doc! { "drop": "transactions" }, 20).await;
        config.fails(doc! { "dropDatabase": 1 }, 20).await;
        let rename = doc! { "renameCollection": "config.transactions", "to": "config.other" };
        admin.fails(rename, 20).await;
        let index = doc! { "createIndexes": "transactions", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
        config.fails(index, 20).await;
        let delete = doc! { "delete": "transactions", "deletes": [{ "q": {}, "limit": 0 }] };
        config.fails(delete, 20).await;
    });
}

/// What was copied from another member's view names no statements, so whether one was executed is
/// not known.
#[test]
fn a_copied_history_is_incomplete() {
    with_node(1330, 2, 3, |client| async move {
        write_all(&client).await;
        let catalog = pinion_catalog::core_catalog().current();
        let uuid = |name: &str| catalog.get_full(name).expect("there").uuid;
        let mut copied = config_of(&client).await[1].clone();
        copied.insert("_id", lsid(8));
        copied.insert("txnNum", 3i64);
        let entry = doc! {
            "op": "i", "ns": "config.transactions", "ui": Binary { subtype: BinarySubtype::Uuid, bytes: uuid("config.transactions").0.to_vec() }, "o": copied,
        };
        let entry = pinion_bson::RawDocumentBuf::try_from(&entry).expect("a document");
        let ts = storage().last_allotted().next();
        follow(&[(ts, Bytes::from(entry.into_bytes()))]).await;
        become_primary().await;
        pinion_exec::forget_sessions().await;
        let insert = |txn| retryable(8, txn, doc! { "insert": "c", "documents": [{ "_id": 70 }] });
        client.fails(insert(2), 225).await;
        let message = client.fails(insert(3), 217).await;
        assert_eq!(
            message,
            "Incomplete history detected for transaction 3 on session 08080808-0808-0808-0808-080808080808 - \
             47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= -  - "
        );
        client.ok(insert(4)).await;
    });
}
