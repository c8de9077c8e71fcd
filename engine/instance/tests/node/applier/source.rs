//! A node that writes in every way, and its log.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use pinion_bson::{Bson, Document, RawDocument, doc};
use pinion_clock::Timestamp;
use pinion_runtime::{Queue, Rng, random_stream, spawn};
use pinion_storage::Inspector;

use super::shared;
use super::target::{State, state_of};
use crate::harness::{Client, with_whole_log};

pub type Entries = Rc<[(Timestamp, Bytes)]>;

#[derive(Clone)]
pub struct Source {
    pub entries: Entries,
    pub state: State,
}

/// Documents of a generation of `r`, which are replaced together by a rename.
pub const GENERATION: i32 = 7;
/// The most that the capped collection `log` has.
pub const CAPPED: i32 = 9;

/// Runs the workload on a node with these numbers of cores and partitions.
pub fn recorded(seed: u64, shape: (usize, u16)) -> Source {
    let source = recording(seed, shape, |client| async move {
        workload(&client).await;
    });
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for (_, entry) in source.entries.iter() {
        *seen.entry(kind_of(entry)).or_default() += 1;
    }
    for kind in KINDS {
        assert!(
            seen.contains_key(kind),
            "seed {seed}: no {kind} in {seen:?}"
        );
    }
    source
}

/// What the workload must have in its log.
const KINDS: [&str; 15] = [
    "i",
    "u",
    "d",
    "n",
    "applyOps",
    "create",
    "drop",
    "dropDatabase",
    "renameCollection",
    "collMod",
    "createIndexes",
    "dropIndexes",
    "startIndexBuild",
    "commitIndexBuild",
    "abortIndexBuild",
];

/// The operation of an entry, or the name of its command.
fn kind_of(entry: &[u8]) -> String {
    let entry = RawDocument::from_bytes(entry).expect("a document");
    let (op, o) = (entry.get_str("op"), entry.get_document("o"));
    let first = pinion_bson::elements(o.expect("an o")).next();
    match (op.expect("an op"), first) {
        ("c", Some((name, _))) => name.to_owned(),
        (op, _) => op.to_owned(),
    }
}

/// Runs a script on a node with these numbers of cores and partitions; what its log and its
/// databases are then.
pub fn recording<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    (cores, partitions): (usize, u16),
    script: impl Fn(Client) -> Fut + 'static,
) -> Source {
    let (state, entries) = (shared::<State>(), shared::<Vec<(Timestamp, Bytes)>>());
    let run = {
        let (state, script) = (state.clone(), Rc::new(script));
        move |client: Client| {
            let (state, script) = (state.clone(), script.clone());
            async move {
                script(client.clone()).await;
                *state.borrow_mut() = state_of(&client).await;
                // What comes before it in the log is durable with it.
                let durable =
                    doc! { "insert": "last", "documents": [{}], "writeConcern": { "j": true } };
                client.at("unseen").ok(durable).await;
            }
        }
    };
    let inspect = {
        let entries = entries.clone();
        move || -> Pin<Box<dyn Future<Output = ()>>> {
            let entries = entries.clone();
            Box::pin(async move { *entries.borrow_mut() = logged().await })
        }
    };
    with_whole_log(seed, cores, partitions, run, inspect);
    Source {
        entries: entries.take().into(),
        state: state.take(),
    }
}

/// All entries of the rings in the directory that a node has left.
async fn logged() -> Vec<(Timestamp, Bytes)> {
    let inspector = Inspector::open(Path::new("/data")).await.expect("readable");
    let mut log = inspector.entries(None).await.expect("readable");
    let mut entries = Vec::new();
    while let Some(entry) = log.next().await.expect("readable") {
        entries.extend(entry.document.map(|document| (entry.ts, document)));
    }
    entries
}

pub async fn workload(client: &Client) {
    prepare(client).await;
    let writers: Vec<_> = (0..3u16)
        .map(|number| spawn(Queue::Foreground, write(client.on(number), number)))
        .collect();
    let changes = spawn(Queue::Foreground, change(client.clone()));
    for writer in writers {
        writer.await.expect("not stopped");
    }
    changes.await.expect("not stopped");
    finish(client).await;
}

async fn index(client: &Client, collection: &str, index: Document) {
    client
        .ok(doc! { "createIndexes": collection, "indexes": [index] })
        .await;
}

async fn prepare(client: &Client) {
    client
        .ok(doc! { "create": "log", "capped": true, "size": 100_000, "max": CAPPED })
        .await;
    client
        .ok(doc! { "create": "weather", "timeseries": { "timeField": "t", "metaField": "m" } })
        .await;
    client
        .ok(doc! { "create": "words", "collation": { "locale": "en", "strength": 2 } })
        .await;
    index(
        client,
        "docs",
        doc! { "key": { "u": 1 }, "name": "u", "unique": true },
    )
    .await;
    let partial =
        doc! { "key": { "n": -1 }, "name": "n", "partialFilterExpression": { "n": { "$gt": 5 } } };
    index(client, "docs", partial).await;
}

/// Writes documents of its own in random ways.
async fn write(client: Client, number: u16) {
    let mut rng = random_stream("writer");
    for _ in 0..number {
        rng.next_u64();
    }
    let base = i32::from(number) * 1000;
    for round in 0..60 {
        let id = base + rng.below(25) as i32;
        one(&client, &mut rng, id, round).await;
        let capped = doc! { "_id": base + round, "n": round };
        client
            .ok(doc! { "insert": "log", "documents": [capped] })
            .await;
        if round % 6 == 0 {
            let at = Bson::DateTime(pinion_bson::DateTime::from_millis(
                1_700_000_000_000 + i64::from(id),
            ));
            client
                .ok(doc! { "insert": "weather", "documents": [{ "t": at, "m": round % 3, "v": id }] })
                .await;
        }
    }
}

async fn one(client: &Client, rng: &mut Rng, id: i32, round: i32) {
    let update = |u: Document, upsert: bool| {
        doc! { "update": "docs", "updates": [{ "q": { "_id": id }, "u": u, "upsert": upsert }] }
    };
    let unique = id * 100 + round;
    let value = rng.below(12) as i32;
    // Those that find their values taken write nothing.
    match rng.below(10) {
        0 | 1 => {
            let document = doc! { "_id": id, "u": unique, "n": value, "tags": [value, "x"] };
            client
                .run(doc! { "insert": "docs", "documents": [document] })
                .await;
        }
        2 => {
            client
                .run(update(
                    doc! { "$set": { "u": unique, "n": value }, "$push": { "tags": round } },
                    true,
                ))
                .await;
        }
        3 => {
            client
                .ok(update(
                    doc! { "$inc": { "n": 1 }, "$unset": { "gone": 1 } },
                    false,
                ))
                .await;
        }
        4 => {
            client
                .run(update(doc! { "u": unique, "n": f64::from(value), "deep": { "a": [1, { "b": value }] } }, true))
                .await;
        }
        5 => {
            let deep =
                doc! { "$set": { "deep.a.1.b": round, "deep.new": "y".repeat(value as usize) } };
            client.run(update(deep, false)).await;
        }
        6 => {
            client
                .ok(doc! { "delete": "docs", "deletes": [{ "q": { "_id": id }, "limit": 1 }] })
                .await;
        }
        7 => {
            let some = doc! { "q": { "n": value }, "u": { "$mul": { "n": 2 } }, "multi": true };
            client
                .ok(doc! { "update": "docs", "updates": [some] })
                .await;
        }
        8 => {
            let text = ["Red", "red", "Blue"][value as usize % 3];
            client
                .run(doc! { "insert": "words", "documents": [{ "_id": format!("{text}{id}"), "w": text }] })
                .await;
        }
        _ => {
            client
                .ok(doc! { "delete": "docs", "deletes": [{ "q": { "n": { "$gt": 40 } }, "limit": 0 }] })
                .await;
            client
                .run(doc! { "findAndModify": "docs", "query": { "_id": id }, "update": { "$set": { "f": round } } })
                .await;
        }
    }
}

/// Changes the catalog while others write.
async fn change(client: Client) {
    let (admin, other) = (client.at("admin"), client.at("other"));
    for generation in 0..6 {
        let documents: Vec<Document> = (0..GENERATION)
            .map(|id| doc! { "_id": id, "generation": generation, "u": -id })
            .collect();
        client
            .ok(doc! { "insert": "next", "documents": documents })
            .await;
        index(
            &client,
            "next",
            doc! { "key": { "u": 1 }, "name": "u", "unique": true },
        )
        .await;
        admin
            .ok(doc! { "renameCollection": "test.next", "to": "test.r", "dropTarget": true })
            .await;
        // Built beside the writers, and dropped every other time.
        index(
            &client,
            "docs",
            doc! { "key": { "tags": 1 }, "name": "tags" },
        )
        .await;
        // Several documents have no such field.
        let taken = doc! { "key": { "none": 1 }, "name": "none", "unique": true };
        client
            .run(doc! { "createIndexes": "docs", "indexes": [taken] })
            .await;
        if generation % 2 == 0 {
            client
                .ok(doc! { "dropIndexes": "docs", "index": "tags" })
                .await;
        }
        other
            .ok(doc! { "insert": "short", "documents": [{ "_id": generation }, { "a": [1, 2] }] })
            .await;
        index(&other, "short", doc! { "key": { "a": 1 }, "name": "a" }).await;
        client
            .ok(doc! { "create": "v", "viewOn": "docs", "pipeline": [{ "$match": { "n": generation } }] })
            .await;
        match generation % 3 {
            0 => {
                client.ok(doc! { "drop": "v" }).await;
                other.ok(doc! { "drop": "short" }).await;
            }
            1 => {
                client
                    .ok(doc! { "collMod": "v", "viewOn": "r", "pipeline": [] })
                    .await;
                client.ok(doc! { "drop": "v" }).await;
                other.ok(doc! { "dropDatabase": 1 }).await;
            }
            _ => {
                client.ok(doc! { "drop": "v" }).await;
                admin
                    .ok(doc! { "renameCollection": "other.short", "to": format!("other.kept{generation}") })
                    .await;
            }
        }
    }
}

/// This needs the absence of other writers.
async fn finish(client: &Client) {
    client
        .ok(doc! { "collMod": "words", "validator": { "w": { "$exists": true } } })
        .await;
    client
        .ok(doc! { "collMod": "docs", "index": { "name": "n", "hidden": true } })
        .await;
    index(
        client,
        "r",
        doc! { "key": { "generation": 1, "_id": 1 }, "name": "g" },
    )
    .await;
    client
        .ok(doc! { "collMod": "r", "index": { "name": "g", "prepareUnique": true } })
        .await;
    client
        .ok(doc! { "collMod": "r", "index": { "name": "g", "unique": true } })
        .await;
    client
        .ok(doc! { "create": "ordered", "clusteredIndex": { "key": { "_id": 1 }, "unique": true } })
        .await;
    let documents: Vec<Document> = (0..20)
        .map(|id| doc! { "_id": id, "s": "z".repeat(id as usize) })
        .collect();
    for name in ["ordered", "few"] {
        client
            .ok(doc! { "insert": name, "documents": documents.clone() })
            .await;
    }
    client
        .ok(doc! { "convertToCapped": "few", "size": 4096 })
        .await;
    client
        .ok(doc! { "create": "view", "viewOn": "docs", "pipeline": [{ "$match": { "n": 1 } }] })
        .await;
}
