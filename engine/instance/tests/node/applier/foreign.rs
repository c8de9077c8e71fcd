//! Entries as MongoDB's members write them, and those of a member whose collections have other
//! numbers: a member that applies them has the same documents, collections and indexes.

use std::collections::BTreeMap;

use bytes::Bytes;
use pinion_bson::{Binary, BinarySubtype, Bson, Document, RawDocument, RawDocumentBuf, doc};
use pinion_catalog::{ApplyMode, OplogFormat};
use pinion_clock::Timestamp;

use super::SHAPES;
use super::source::{Source, recording};
use super::target::{Replayed, follow, state_of};
use crate::harness::{Client, with_node};

/// The greatest number of documents in the capped collection.
const CAPPED: i32 = 5;

async fn index(client: &Client, collection: &str, index: Document) {
    client
        .ok(doc! { "createIndexes": collection, "indexes": [index] })
        .await;
}

/// All that MongoDB 4.4 has too.
async fn script(client: &Client) {
    let (admin, other) = (client.at("admin"), client.at("other"));
    client
        .ok(doc! { "create": "log", "capped": true, "size": 100_000, "max": CAPPED })
        .await;
    for n in 0..20 {
        client
            .ok(doc! { "insert": "log", "documents": [{ "_id": n, "n": n }] })
            .await;
    }
    client
        .ok(doc! { "update": "log", "updates": [{ "q": { "_id": 17 }, "u": { "$set": { "n": -1 } } }] })
        .await;
    client
        .ok(doc! { "create": "words", "collation": { "locale": "en", "strength": 2 } })
        .await;
    index(
        client,
        "words",
        doc! { "key": { "w": 1 }, "name": "w", "unique": true },
    )
    .await;
    let text = doc! { "key": { "t": "text" }, "name": "t", "collation": { "locale": "simple" } };
    index(client, "words", text).await;
    client
        .ok(doc! { "insert": "words", "documents": [{ "_id": "A", "w": "Red", "t": "some words" }, { "_id": "b", "w": "blue" }] })
        .await;
    let documents: Vec<Document> = (0..50)
        .map(|id| doc! { "_id": id, "u": -id, "tags": [id, "x"], "deep": { "a": [{ "b": id }] }, "at": [id, 1] })
        .collect();
    client
        .ok(doc! { "insert": "docs", "documents": documents })
        .await;
    for made in [
        doc! { "key": { "u": 1 }, "name": "u", "unique": true },
        doc! { "key": { "tags": 1, "u": -1 }, "name": "tags" },
        doc! { "key": { "deep.$**": 1 }, "name": "wild" },
        doc! { "key": { "_id": "hashed" }, "name": "hash" },
        doc! { "key": { "u": -1 }, "name": "some", "partialFilterExpression": { "u": { "$gt": -9 } } },
        doc! { "key": { "at": "2d" }, "name": "plane", "min": 0, "max": 100 },
    ] {
        index(client, "docs", made).await;
    }
    client
        .ok(doc! { "update": "docs", "updates": [
            { "q": { "_id": 3 }, "u": { "$push": { "tags": { "$each": [7, 8] } } } },
            { "q": { "_id": 4 }, "u": { "u": -4, "whole": true } },
            { "q": { "_id": 5 }, "u": [{ "$set": { "v": { "$add": ["$u", 1] } } }] },
        ] })
        .await;
    client
        .ok(doc! { "delete": "docs", "deletes": [{ "q": { "u": { "$lt": -40 } }, "limit": 0 }] })
        .await;
    client
        .run(doc! { "createIndexes": "docs", "indexes": [{ "key": { "none": 1 }, "name": "none", "unique": true }] })
        .await;
    client
        .ok(doc! { "dropIndexes": "docs", "index": "some" })
        .await;
    client
        .ok(doc! { "collMod": "docs", "index": { "name": "tags", "hidden": true } })
        .await;
    client
        .ok(doc! { "collMod": "words", "validator": { "w": { "$exists": true } }, "validationLevel": "moderate" })
        .await;
    for name in ["v", "gone"] {
        client
            .ok(doc! { "create": name, "viewOn": "docs", "pipeline": [{ "$match": { "u": 1 } }] })
            .await;
    }
    client
        .ok(doc! { "collMod": "v", "viewOn": "words", "pipeline": [] })
        .await;
    client.ok(doc! { "drop": "gone" }).await;
    client
        .ok(doc! { "insert": "next", "documents": [{ "_id": 1 }] })
        .await;
    client
        .ok(doc! { "insert": "target", "documents": [{ "_id": 2 }] })
        .await;
    admin
        .ok(doc! { "renameCollection": "test.next", "to": "test.target", "dropTarget": true })
        .await;
    other
        .ok(doc! { "insert": "short", "documents": [{ "_id": 1, "a": [1, 2] }] })
        .await;
    index(
        &other,
        "short",
        doc! { "key": { "a": 1 }, "name": "a", "expireAfterSeconds": 3600 },
    )
    .await;
    other
        .ok(doc! { "collMod": "short", "index": { "keyPattern": { "a": 1 }, "expireAfterSeconds": 7200 } })
        .await;
    client.ok(doc! { "drop": "words" }).await;
    client
        .ok(doc! { "insert": "words", "documents": [{ "_id": "anew" }] })
        .await;
    let third = client.at("third");
    third.ok(doc! { "insert": "c", "documents": [{}] }).await;
    third.ok(doc! { "dropDatabase": 1 }).await;
}

fn source(seed: u64, shape: (usize, u16)) -> Source {
    recording(seed, shape, |client| async move { script(&client).await })
}

type Logged = Vec<(Timestamp, Bytes)>;

/// The entries as a member of MongoDB's has them: without rows and numbers of records, and with
/// views as documents.
fn as_mongodb_logs(entries: &[(Timestamp, Bytes)]) -> Logged {
    let mut holders: BTreeMap<String, Bson> = BTreeMap::new();
    let mut out = Logged::new();
    for (ts, bytes) in entries {
        let whole = RawDocument::from_bytes(bytes).expect("an entry is a document");
        let whole = Document::try_from(whole).expect("an entry is a document");
        for entry in rewritten(whole, &mut holders) {
            let bytes = RawDocumentBuf::try_from(&entry).expect("a document");
            out.push((*ts, bytes.into_bytes().into()));
        }
    }
    out
}

fn rewritten(mut entry: Document, holders: &mut BTreeMap<String, Bson>) -> Vec<Document> {
    entry.remove("rid");
    if let Some(list) = entry
        .get_document_mut("o")
        .ok()
        .and_then(|o| o.get_array_mut("applyOps").ok())
    {
        for operation in list.iter_mut() {
            operation
                .as_document_mut()
                .expect("an operation")
                .remove("rid");
        }
        return vec![entry];
    }
    let has_rows = entry
        .get_document("o2")
        .is_ok_and(|o2| o2.contains_key("rows"));
    if !has_rows {
        return vec![entry];
    }
    let o2 = entry.remove("o2").expect("seen");
    let o2 = o2.as_document().expect("a document");
    let db = entry
        .get_str("ns")
        .unwrap()
        .split('.')
        .next()
        .unwrap()
        .to_owned();
    let mut made = Vec::new();
    for row in o2.get_array("rows").unwrap() {
        let row = row.as_document().expect("a row");
        let ns = row.get_str("ns").unwrap();
        if ns.ends_with(".system.views") && !holders.contains_key(&db) {
            let uuid = row
                .get_document("md")
                .unwrap()
                .get_document("options")
                .unwrap();
            let uuid = uuid.get("uuid").unwrap().clone();
            holders.insert(db.clone(), uuid.clone());
            let mut create = entry.clone();
            create.insert("o", doc! { "create": "system.views", "idIndex": { "v": 2, "key": { "_id": 1 }, "name": "_id_" } });
            create.insert("ui", uuid);
            made.push(create);
        }
    }
    let documents = o2.get_array("documents").unwrap();
    if documents.is_empty() {
        return vec![entry];
    }
    for written in documents {
        let written = written.as_document().expect("a document");
        let id = written.get_str("id").unwrap();
        let mut write = entry.clone();
        write.insert("ns", format!("{db}.system.views"));
        write.insert("ui", holders[&db].clone());
        let is_change = entry.get_document("o").unwrap().contains_key("collMod");
        let (op, o) = match written.get_document("document") {
            Ok(document) => (if is_change { "u" } else { "i" }, document.clone()),
            Err(_) => ("d", doc! { "_id": id }),
        };
        write.insert("op", op);
        write.insert("o", o);
        if is_change {
            write.insert("o2", doc! { "_id": id });
        }
        made.push(write);
    }
    made
}

/// Entries of collections whose numbers here are those that the collections of the other entries
/// have where they come from.
fn others() -> Logged {
    let made = |number: u8| {
        let uuid = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![number; 16],
        };
        let entry = doc! { "op": "c", "ns": "mine.$cmd", "ui": uuid, "o": { "create": format!("c{number}") } };
        let bytes = RawDocumentBuf::try_from(&entry).expect("a document");
        (Timestamp::MIN, bytes.into_bytes().into())
    };
    (0..7).map(made).collect()
}

fn check(
    seeds: u64,
    as_logged: fn(&[(Timestamp, Bytes)]) -> Logged,
    mode: ApplyMode,
    with_others: bool,
) {
    for (seed, [from, (cores, partitions)]) in (seeds..).zip(SHAPES) {
        let Source { entries, state } = source(seed, from);
        with_node(seed, cores, partitions, move |client| {
            let (entries, state) = (as_logged(&entries), state.clone());
            async move {
                let before = if with_others { others() } else { Logged::new() };
                let replayed = Replayed::new(&[before, entries].concat(), mode);
                let applied = follow(&client, seed, vec![replayed], false).await;
                applied.expect("applies");
                assert_eq!(state_of(&client).await, state, "seed {seed}");
            }
        });
    }
}

#[test]
fn what_mongodb_has_logged_is_applied() {
    check(880, as_mongodb_logs, ApplyMode::Secondary, false);
}

#[test]
fn what_mongodb_has_logged_is_applied_by_recovery() {
    check(890, as_mongodb_logs, ApplyMode::Recovery, false);
}

/// A member that has copied MongoDB's collections has given out numbers of its own, and so has each
/// other one.
#[test]
fn entries_with_other_numbers_are_applied() {
    let as_they_are = |entries: &[(Timestamp, Bytes)]| entries.to_vec();
    check(900, as_they_are, ApplyMode::Secondary, true);
}

#[test]
fn what_mongodb_has_logged_converges_with_newer_documents() {
    for (seed, [from, (cores, partitions)]) in (910..).zip(SHAPES) {
        let Source { entries, state } = source(seed, from);
        with_node(seed, cores, partitions, move |client| {
            let (entries, mut expected) = (as_mongodb_logs(&entries), state.clone());
            async move {
                let mut rng = pinion_runtime::random_stream("points");
                let all = entries.len() as u64;
                let cloned = rng.between(1, all) as usize;
                let first = rng.below(cloned as u64) as usize;
                let passes = vec![
                    Replayed::new(&entries[..cloned], ApplyMode::Secondary),
                    Replayed::new(&entries[first..], ApplyMode::InitialSync),
                ];
                follow(&client, seed, passes, false).await.expect("applies");
                let mut found = state_of(&client).await;
                found.sort_indexes();
                expected.sort_indexes();
                assert_eq!(
                    found, expected,
                    "seed {seed}: {cloned} of {all}, again from {first}"
                );
            }
        });
    }
}

/// What an entry of MongoDB 4.4's oplog may have; it refuses one with more.
const KNOWN_FIELDS: [&str; 13] = [
    "ts",
    "t",
    "v",
    "op",
    "ns",
    "ui",
    "o",
    "o2",
    "wall",
    "lsid",
    "txnNumber",
    "stmtId",
    "prevOpTime",
];

fn check_known(entry: &Document) {
    for (name, _) in entry {
        assert!(KNOWN_FIELDS.contains(&name.as_str()), "{name} in {entry}");
    }
    let o = entry.get_document("o").expect("an o");
    assert!(!o.contains_key("diff"), "{entry}");
    for operation in o.get_array("applyOps").into_iter().flatten() {
        check_known(operation.as_document().expect("an operation"));
    }
}

#[test]
fn what_members_of_mongodb_may_follow_is_logged_plainly() {
    for (seed, [from, (cores, partitions)]) in (920..).zip(SHAPES) {
        let source = recording(seed, from, |client| async move {
            // An old name of the batch's size, which members of MongoDB 4.4 use.
            let find = doc! { "find": "docs", "ntoreturn": 2 };
            client.fails(find.clone(), 40415).await;
            pinion_catalog::set_oplog_format(OplogFormat::V44).await;
            script(&client).await;
            let found = client.ok(find).await;
            let cursor = found.get_document("cursor").expect("a cursor");
            let batch = cursor.get_array("firstBatch").expect("a batch");
            assert_eq!(batch.len(), 2, "{found}");
            let clustered = doc! { "key": { "_id": 1 }, "unique": true };
            for refused in [
                doc! { "create": "s", "timeseries": { "timeField": "t" } },
                doc! { "create": "s", "clusteredIndex": clustered },
                doc! { "create": "s", "changeStreamPreAndPostImages": { "enabled": true } },
                doc! { "collMod": "log", "cappedMax": 9 },
                doc! { "collMod": "docs", "index": { "name": "u", "prepareUnique": true } },
                doc! { "createIndexes": "docs", "indexes": [{ "key": { "z": 1 }, "name": "z", "prepareUnique": true }] },
                doc! { "createIndexes": "docs", "indexes": [{ "key": { "u": 1 }, "name": "u2", "sparse": true }] },
                doc! { "createIndexes": "docs", "indexes": [{ "key": { "z": 1 }, "name": "z", "partialFilterExpression": { "z": { "$in": [1] } } }] },
                doc! { "collMod": "docs", "index": { "name": "u", "expireAfterSeconds": 5 } },
                doc! { "collMod": "docs", "validator": { "$expr": { "$eq": [{ "$getField": "a" }, 1] } } },
                doc! { "create": "s", "validator": { "$expr": { "$eq": [{ "$getField": "a" }, 1] } } },
            ] {
                client.fails(refused, 72).await;
            }
            // The first views of a database, beside one another.
            let views = (0..6).map(|number| {
                let client = client.at("viewed");
                async move {
                    let view = format!("v{number}");
                    let create = doc! { "create": view, "viewOn": "c", "pipeline": [] };
                    client.ok(create).await;
                }
            });
            pinion_runtime::join_all(views.collect::<Vec<_>>()).await;
            let empty = doc! { "q": { "_id": 3 }, "u": { "$set": { "ts": pinion_bson::Timestamp { time: 0, increment: 0 } } } };
            let empty = client
                .run(doc! { "update": "docs", "updates": [empty] })
                .await;
            assert!(empty.to_string().contains("an empty timestamp"), "{empty}");
            let delete = doc! { "q": { "_id": 17 }, "limit": 1 };
            let delete = client
                .run(doc! { "delete": "log", "deletes": [delete] })
                .await;
            assert!(
                delete
                    .to_string()
                    .contains("cannot remove from a capped collection"),
                "{delete}"
            );
            let grow = doc! { "q": { "_id": 17 }, "u": { "$set": { "more": 1 } } };
            let grow = client
                .run(doc! { "update": "log", "updates": [grow] })
                .await;
            assert!(
                grow.to_string().contains("Cannot change the size"),
                "{grow}"
            );
        });
        let Source { entries, state } = source;
        for (_, bytes) in entries.iter() {
            let entry = RawDocument::from_bytes(bytes).expect("an entry is a document");
            check_known(&Document::try_from(entry).expect("an entry is a document"));
        }
        with_node(seed, cores, partitions, move |client| {
            let (entries, state) = (entries.clone(), state.clone());
            async move {
                let replayed = Replayed::new(&entries, ApplyMode::Secondary);
                let applied = follow(&client, seed, vec![replayed], false).await;
                applied.expect("applies");
                assert_eq!(state_of(&client).await, state, "seed {seed}");
            }
        });
    }
}
