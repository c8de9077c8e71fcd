//! `validate`: nothing is found where nothing is wrong, be it beside writers, and each kind of
//! damage is found, reported and repaired.
//!
//! Damage is made by writes past all that keeps documents and indexes together.

use std::cell::Cell;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{DocBuilder, Document, RawDocument, RawDocumentBuf, doc};
use pinion_catalog::{Collection, core_catalog};
use pinion_runtime::{Duration, Queue, sleep, spawn, submit_to};
use pinion_storage::{
    CATALOG_TREE, Counts, Direction, Expect, Key, KeyRange, Op, PartitionId, ReadAt, Statement,
    TreeId, Write, storage,
};
use pinion_wire::idl::Namespace;

use crate::harness::{Client, options, with_crashes, with_node, with_options};

const PARTITIONS: u16 = 3;
const DOCUMENTS: i32 = 60;

/// A record of a tree, and where it is.
#[derive(Clone, Debug)]
struct Record {
    partition: PartitionId,
    tree: TreeId,
    key: Key,
    value: Bytes,
}

impl Record {
    fn write(&self, op: Op) -> Write {
        Write {
            partition: self.partition,
            tree: self.tree,
            key: self.key.clone(),
            op,
            expect: Expect::Any,
        }
    }

    fn put(&self) -> Write {
        self.write(Op::Put(self.value.clone()))
    }

    fn delete(&self) -> Write {
        self.write(Op::Delete)
    }

    fn elsewhere(&self) -> Record {
        let partition = PartitionId((self.partition.0 + 1) % PARTITIONS);
        Record {
            partition,
            ..self.clone()
        }
    }
}

fn collection(name: &str) -> Arc<Collection> {
    let ns = Namespace::new("test", name).unwrap();
    core_catalog().get(&ns).expect("a collection")
}

async fn records(tree: TreeId) -> Vec<Record> {
    let mut all = Vec::new();
    for partition in (0..storage().partition_count()).map(PartitionId) {
        let owner = storage().owner(partition);
        all.extend(
            submit_to(owner, Queue::Foreground, move || async move {
                let owned = storage().partition(partition).unwrap();
                let (range, forward) = (KeyRange::all(), Direction::Forward);
                let mut cursor = owned.cursor(tree, range, forward, ReadAt::Newest);
                let mut found = Vec::new();
                while let Some((key, read)) = cursor.next().await.unwrap() {
                    found.push(Record {
                        partition,
                        tree,
                        key,
                        value: read.value,
                    });
                }
                found
            })
            .await,
        );
    }
    all
}

/// The entries of an index of `c`, by its name.
async fn entries(index: &str) -> Vec<Record> {
    records(collection("c").index(index).expect("an index").tree).await
}

async fn documents() -> Vec<Record> {
    records(collection("c").tree()).await
}

async fn bare(writes: Vec<Write>) {
    let statement = Statement {
        writes,
        entry: None,
    };
    let outcomes = storage().execute(vec![statement], true).await;
    assert!(outcomes[0].is_ok(), "{outcomes:?}");
}

fn raw(document: Document) -> RawDocumentBuf {
    RawDocumentBuf::try_from(&document).unwrap()
}

fn bytes(document: &RawDocument) -> Bytes {
    Bytes::copy_from_slice(document.as_bytes())
}

/// A document of `c` where it belongs.
fn document(document: Document) -> Record {
    let (document, collection) = (raw(document), collection("c"));
    let id = pinion_bson::get(&document, "_id").expect("an _id");
    let key = collection.id_key(id);
    Record {
        partition: pinion_catalog::partition_of(&collection, &key),
        tree: collection.tree(),
        key,
        value: bytes(&document),
    }
}

/// Makes `c` with documents and indexes.
async fn fill(client: &Client) {
    client.ok(doc! { "create": "c" }).await;
    let index = |name: &str, unique: bool| {
        let mut index = doc! { "key": { name: 1 }, "name": name };
        if unique {
            index.insert("unique", true);
        }
        index
    };
    let indexes = [
        index("a", false),
        index("b", false),
        index("u", true),
        index("t", false),
    ];
    client
        .ok(doc! { "createIndexes": "c", "indexes": indexes.to_vec() })
        .await;
    let one = |n: i32| doc! { "_id": n, "a": n, "b": n + 1000, "u": n, "t": [n + 1, -n - 1] };
    let mut documents: Vec<Document> = (0..DOCUMENTS).map(one).collect();
    documents[7].insert("a", 7i64);
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

async fn validate(client: &Client, options: Document) -> Document {
    let mut command = doc! { "validate": "c" };
    command.extend(options);
    client.ok(command).await
}

#[track_caller]
fn assert_valid(reply: &Document) {
    assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
    for list in [
        "errors",
        "extraIndexEntries",
        "missingIndexEntries",
        "corruptRecords",
    ] {
        assert!(reply.get_array(list).unwrap().is_empty(), "{reply}");
    }
}

/// What a damage is found as.
#[derive(Clone, Debug, Default)]
struct Expected {
    missing: usize,
    extra: usize,
    invalid: i32,
    /// Part of an error.
    error: &'static str,
    /// A repair leaves something.
    stays: bool,
}

type Damage = fn() -> Pin<Box<dyn Future<Output = ()>>>;

fn count(reply: &Document, list: &str) -> usize {
    reply.get_array(list).unwrap().len()
}

/// Makes a damage, looks for it, and has it mended.
fn check(damage: Damage, expected: Expected) {
    for (seed, cores) in [(71, 1), (72, 3)] {
        let expected = expected.clone();
        with_node(seed, cores, PARTITIONS, move |client| {
            let expected = expected.clone();
            async move {
                fill(&client).await;
                assert_valid(&validate(&client, doc! {}).await);
                damage().await;
                let reply = validate(&client, doc! {}).await;
                assert_eq!(reply.get_bool("valid").ok(), Some(false), "{reply}");
                let found = Expected {
                    missing: count(&reply, "missingIndexEntries"),
                    extra: count(&reply, "extraIndexEntries"),
                    invalid: reply.get_i32("nInvalidDocuments").unwrap(),
                    ..expected.clone()
                };
                let numbers = |it: &Expected| (it.missing, it.extra, it.invalid);
                assert_eq!(numbers(&found), numbers(&expected), "{reply}");
                assert_eq!(count(&reply, "corruptRecords") as i32, expected.invalid);
                let errors = reply.get_array("errors").unwrap();
                let says =
                    |error: &pinion_bson::Bson| error.as_str().unwrap().contains(expected.error);
                assert!(
                    expected.error.is_empty() || errors.iter().any(says),
                    "{reply}"
                );
                let mended = validate(&client, doc! { "repair": true }).await;
                let again = validate(&client, doc! { "full": true }).await;
                if expected.stays {
                    assert_eq!(again.get_bool("valid").ok(), Some(false), "{again}");
                    return;
                }
                assert_eq!(mended.get_bool("repaired").ok(), Some(true), "{mended}");
                assert_valid(&mended);
                assert_valid(&again);
                assert!(!mended.get_array("warnings").unwrap().is_empty());
            }
        });
    }
}

#[test]
fn an_entry_that_is_gone() {
    let damage = || -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(async { bare(vec![entries("a").await[5].delete()]).await })
    };
    check(
        damage,
        Expected {
            missing: 1,
            ..Default::default()
        },
    );
}

#[test]
fn as_many_entries_as_there_should_be_but_not_the_same() {
    check(
        || {
            Box::pin(async {
                let (a, b) = (entries("a").await, entries("b").await);
                // A key of the other index has the form of one of this index.
                let wrong = Record {
                    tree: a[0].tree,
                    ..b[9].clone()
                };
                bare(vec![a[3].delete(), wrong.put()]).await;
            })
        },
        Expected {
            missing: 1,
            extra: 1,
            ..Default::default()
        },
    );
}

#[test]
fn an_entry_in_another_partition() {
    check(
        || {
            Box::pin(async {
                let entry = entries("a").await.swap_remove(11);
                bare(vec![entry.delete(), entry.elsewhere().put()]).await;
            })
        },
        Expected {
            missing: 1,
            extra: 1,
            error: "in another partition",
            ..Default::default()
        },
    );
}

#[test]
fn an_entry_of_another_type() {
    check(
        || {
            Box::pin(async {
                let all = entries("a").await;
                let long = all.iter().find(|entry| entry.value != all[0].value);
                let long = long.or(all.first()).expect("entries");
                let int = all.iter().find(|entry| entry.value != long.value);
                let int = int.expect("an entry of another type");
                let wrong = Record {
                    value: int.value.clone(),
                    ..long.clone()
                };
                bare(vec![wrong.put()]).await;
            })
        },
        Expected {
            missing: 1,
            extra: 1,
            ..Default::default()
        },
    );
}

#[test]
fn a_key_that_is_no_key() {
    check(
        || {
            Box::pin(async {
                let entry = entries("a").await.swap_remove(0);
                let broken = Record {
                    key: Key::from_slice(b"\xff\xff"),
                    ..entry
                };
                bare(vec![broken.put()]).await;
            })
        },
        Expected {
            extra: 1,
            error: "no key of it",
            ..Default::default()
        },
    );
}

#[test]
fn two_entries_of_a_unique_key() {
    check(
        || {
            Box::pin(async {
                let index = collection("c").index("u").unwrap().clone();
                let all = entries("u").await;
                let length =
                    |entry: &Record| pinion_catalog::prefix_len(&index, &entry.key).unwrap();
                let mut key = Key::from_slice(&all[0].key[..length(&all[0])]);
                key.extend_from_slice(&all[1].key[length(&all[1])..]);
                let second = Record {
                    key,
                    ..all[0].clone()
                };
                bare(vec![second.put()]).await;
            })
        },
        Expected {
            extra: 1,
            error: "has duplicate key: { u: ",
            ..Default::default()
        },
    );
}

#[test]
fn a_document_that_is_gone() {
    check(
        || Box::pin(async { bare(vec![documents().await[4].delete()]).await }),
        Expected {
            extra: 4 + 1,
            ..Default::default()
        },
    );
}

#[test]
fn a_document_without_entries() {
    check(
        || {
            Box::pin(async {
                let new = document(doc! { "_id": 500, "a": 500, "b": 1500, "u": 500, "t": 3 });
                bare(vec![new.put()]).await;
            })
        },
        Expected {
            missing: 4,
            ..Default::default()
        },
    );
}

#[test]
fn a_document_whose_unique_key_another_has_goes_to_the_lost_and_found() {
    with_node(73, 2, PARTITIONS, |client| async move {
        fill(&client).await;
        let second = document(doc! { "_id": 500, "a": 500, "b": 1500, "u": 9, "t": 3 });
        bare(vec![second.put()]).await;
        assert_eq!(
            count(&validate(&client, doc! {}).await, "missingIndexEntries"),
            4
        );
        let mended = validate(&client, doc! { "repair": true }).await;
        assert_valid(&mended);
        assert_eq!(
            mended.get_i32("numDocumentsMovedToLostAndFound").ok(),
            Some(1),
            "{mended}"
        );
        assert!(
            client
                .find(doc! { "find": "c", "filter": { "_id": 500 } })
                .await
                .is_empty()
        );
        let lost = format!("lost_and_found.{}", collection("c").uuid);
        let found = client.at("local").find(doc! { "find": lost }).await;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].get_i32("u").ok(), Some(9));
    });
}

#[test]
fn an_array_that_an_index_does_not_know_of() {
    check(
        || {
            Box::pin(async {
                let new = document(doc! { "_id": 500, "a": [1, 2], "b": 1500, "u": 500, "t": 3 });
                bare(vec![new.put()]).await;
            })
        },
        Expected {
            missing: 5,
            error: "Index a is not multikey but has more than one key",
            ..Default::default()
        },
    );
}

#[test]
fn a_document_that_is_none() {
    check(
        || {
            Box::pin(async {
                let mut broken = documents().await.swap_remove(8);
                broken.value = Bytes::from_static(b"no document");
                bare(vec![broken.put()]).await;
            })
        },
        Expected {
            extra: 5,
            invalid: 1,
            error: "Detected one or more invalid documents",
            ..Default::default()
        },
    );
}

#[test]
fn a_document_where_it_does_not_belong() {
    check(
        || {
            Box::pin(async {
                let found = documents().await.swap_remove(8);
                bare(vec![found.elsewhere().put()]).await;
            })
        },
        // Those of the unique index are where the key says, wherever the document is.
        Expected {
            missing: 4,
            error: "is not where it belongs",
            stays: true,
            ..Default::default()
        },
    );
}

#[test]
fn documents_that_do_not_conform_are_counted() {
    with_node(74, 2, PARTITIONS, |client| async move {
        client.ok(doc! { "create": "c" }).await;
        let mut twice = DocBuilder::new();
        twice.append("_id", 1).append("q", 1).append("q", 2);
        let mut there = document(doc! { "_id": 1 });
        there.value = bytes(&twice.finish());
        bare(vec![there.put()]).await;
        let check = |reply: &Document, expected: i32| {
            assert_valid(reply);
            let found = reply.get_i32("nNonCompliantDocuments");
            assert_eq!(found.ok(), Some(expected), "{reply}");
            assert_eq!(
                count(reply, "warnings"),
                usize::from(expected > 0),
                "{reply}"
            );
        };
        check(&validate(&client, doc! {}).await, 0);
        check(
            &validate(&client, doc! { "checkBSONConformance": true }).await,
            1,
        );
        check(&validate(&client, doc! { "full": true }).await, 1);
        client
            .ok(doc! { "collMod": "c", "validator": { "q": 7 } })
            .await;
        check(&validate(&client, doc! {}).await, 1);
        client
            .ok(doc! { "collMod": "c", "validator": { "q": 1 } })
            .await;
        check(&validate(&client, doc! {}).await, 0);
    });
}

#[test]
fn a_bucket_that_its_measurements_did_not_make() {
    with_node(75, 2, PARTITIONS, |client| async move {
        let series = doc! { "timeField": "t", "metaField": "m" };
        client
            .ok(doc! { "create": "c", "timeseries": series })
            .await;
        let at = |secs: i64| pinion_bson::DateTime::from_millis(1_700_000_000_000 + secs * 1000);
        let measurement = |n: i64| doc! { "t": at(n * 40), "m": n % 3, "v": n };
        let measurements: Vec<Document> = (0..50).map(measurement).collect();
        client
            .ok(doc! { "insert": "c", "documents": measurements })
            .await;
        assert_valid(&validate(&client, doc! { "full": true }).await);
        let mut bucket = records(collection("system.buckets.c").tree())
            .await
            .swap_remove(0);
        let mut changed =
            Document::try_from(RawDocument::from_bytes(&bucket.value).unwrap()).unwrap();
        let control = changed.get_document_mut("control").unwrap();
        control
            .get_document_mut("max")
            .unwrap()
            .insert("v", 1000i64);
        bucket.value = bytes(&raw(changed));
        bare(vec![bucket.put()]).await;
        let reply = validate(&client, doc! {}).await;
        assert_eq!(reply.get_bool("valid").ok(), Some(false), "{reply}");
        assert_eq!(
            reply.get_i32("nNonCompliantDocuments").ok(),
            Some(1),
            "{reply}"
        );
    });
}

#[test]
fn a_row_that_is_not_what_the_catalog_knows() {
    with_node(76, 2, PARTITIONS, |client| async move {
        fill(&client).await;
        let metadata = doc! { "metadata": true };
        assert_valid(&validate(&client, metadata.clone()).await);
        let known = collection("c");
        let rows = records(CATALOG_TREE).await;
        let is_row = |row: &&Record| *row.key == known.number.to_be_bytes();
        let row = rows.iter().find(is_row).expect("a row");
        let other = known.with_multikey(&[(
            known.index("a").unwrap().tree,
            pinion_query::MultikeyPaths::Anywhere,
        )]);
        let wrong = Record {
            value: bytes(&other.to_row()),
            ..row.clone()
        };
        bare(vec![wrong.put()]).await;
        let reply = validate(&client, metadata.clone()).await;
        assert_eq!(reply.get_bool("valid").ok(), Some(false), "{reply}");
        let error = reply.get_array("errors").unwrap()[0]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(error.contains("index 'a'"), "{error}");
        bare(vec![row.put()]).await;
        assert_valid(&validate(&client, metadata).await);
    });
}

#[test]
fn what_an_index_knows_of_arrays_is_adjusted_where_that_is_asked_for() {
    with_node(77, 2, PARTITIONS, |client| async move {
        fill(&client).await;
        let tags = || collection("c").index("t").unwrap().spec.is_multikey();
        assert!(tags());
        client
            .ok(doc! { "update": "c", "updates": [{ "q": {}, "u": { "$set": { "t": 1 } }, "multi": true }] })
            .await;
        let reply = validate(&client, doc! {}).await;
        assert_valid(&reply);
        assert!(tags() && reply.get_array("warnings").unwrap().is_empty());
        let reply = validate(&client, doc! { "fixMultikey": true }).await;
        assert_eq!(reply.get_bool("repaired").ok(), Some(true), "{reply}");
        assert_eq!(reply.get_str("repairMode").ok(), Some("AdjustMultikey"));
        assert_eq!(
            reply.get_array("warnings").unwrap()[0].as_str(),
            Some("Unset index multikey metadata: t")
        );
        assert!(!tags());
        let reply = validate(&client, doc! { "fixMultikey": true }).await;
        assert_eq!(reply.get_bool("repaired").ok(), Some(false), "{reply}");
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 900, "u": 900, "t": [1, 2] }] })
            .await;
        assert!(tags());
        assert_valid(&validate(&client, doc! { "full": true }).await);
    });
}

#[test]
fn what_was_mended_stays_so() {
    with_crashes(78, &[2, 3], PARTITIONS, |life, client| async move {
        if life == 0 {
            fill(&client).await;
            let (a, d) = (entries("a").await, documents().await);
            let broken = Record {
                value: Bytes::from_static(b"none"),
                ..d[20].clone()
            };
            bare(vec![a[0].delete(), broken.put(), d[30].delete()]).await;
            let mended = validate(&client, doc! { "repair": true }).await;
            assert_valid(&mended);
            assert_eq!(
                mended.get_i32("numRemovedCorruptRecords").ok(),
                Some(1),
                "{mended}"
            );
        }
        let reply = validate(&client, doc! { "full": true, "enforceFastCount": true }).await;
        assert_valid(&reply);
        assert_eq!(
            reply.get_i32("nrecords").ok(),
            Some(DOCUMENTS - 2),
            "{reply}"
        );
    });
}

/// Writes to `c` until it is stopped: inserts, updates and deletes, of arrays too.
async fn keep_writing(client: Client, ids: Range<i32>, ends: Rc<Cell<bool>>) {
    let mut round = 0;
    while !ends.get() {
        round += 1;
        let one = |n: i32| doc! { "_id": n, "a": n * round, "b": "text", "u": n + round * 10_000, "t": [n, round] };
        let documents: Vec<Document> = ids.clone().map(one).collect();
        client
            .ok(doc! { "insert": "c", "documents": documents })
            .await;
        let within = doc! { "_id": { "$gte": ids.start, "$lt": ids.end } };
        let change = doc! { "$inc": { "a": 1, "t.0": round }, "$set": { "b": [round, "b"] } };
        client
            .ok(doc! { "update": "c", "updates": [{ "q": within.clone(), "u": change, "multi": true }] })
            .await;
        client
            .ok(doc! { "delete": "c", "deletes": [{ "q": within, "limit": 0 }] })
            .await;
        sleep(Duration::from_micros(50)).await;
    }
}

#[test]
fn nothing_is_found_beside_writers() {
    for (seed, cores) in [(80, 1), (81, 2), (82, 3)] {
        with_node(seed, cores, PARTITIONS, |client| async move {
            fill(&client).await;
            let ends = Rc::new(Cell::new(false));
            let writers: Vec<_> = [(0, 1000..1010), (1, 2000..2030)]
                .into_iter()
                .map(|(core, ids)| {
                    let writing = keep_writing(client.on(core), ids, ends.clone());
                    spawn(Queue::Foreground, writing)
                })
                .collect();
            for round in 0..12 {
                let options = match round % 4 {
                    0 => doc! {},
                    1 => doc! { "full": true },
                    2 => doc! { "background": true },
                    _ => doc! { "enforceFastCount": true },
                };
                let reply = validate(&client.on(round), options).await;
                assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
                sleep(Duration::from_micros(300)).await;
            }
            ends.set(true);
            for writer in writers {
                writer.await.unwrap();
            }
            assert_valid(&validate(&client, doc! { "full": true }).await);
        });
    }
}

#[test]
fn what_is_not_replicated_is_compared_while_it_is_written() {
    with_node(83, 2, PARTITIONS, |client| async move {
        let client = client.at("local");
        fill(&client).await;
        let ends = Rc::new(Cell::new(false));
        let writing = keep_writing(client.on(1), 1000..1040, ends.clone());
        let writer = spawn(Queue::Foreground, writing);
        for _ in 0..10 {
            let reply = validate(&client, doc! {}).await;
            assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
            sleep(Duration::from_micros(300)).await;
        }
        ends.set(true);
        writer.await.unwrap();
        let ns = Namespace::new("local", "c").unwrap();
        let tree = core_catalog().get(&ns).unwrap().index("a").unwrap().tree;
        bare(vec![records(tree).await[3].delete()]).await;
        let reply = validate(&client, doc! {}).await;
        assert_eq!(count(&reply, "missingIndexEntries"), 1, "{reply}");
        assert_valid(&validate(&client, doc! { "repair": true }).await);
    });
}

#[test]
fn every_kind_of_index_and_collection_is_compared() {
    for (seed, cores, partitions) in [(84, 1, 1), (85, 2, 4)] {
        with_node(seed, cores, partitions, |client| async move {
            let kinds = [
                doc! { "key": { "$**": 1 }, "name": "wildcard" },
                doc! { "key": { "a": "hashed" }, "name": "hashed" },
                doc! { "key": { "text": "text" }, "name": "text", "collation": { "locale": "simple" } },
                doc! { "key": { "place": "2dsphere" }, "name": "sphere" },
                doc! { "key": { "xy": "2d" }, "name": "plane", "collation": { "locale": "simple" } },
                doc! { "key": { "s": 1 }, "name": "sparse", "sparse": true },
                doc! { "key": { "p": 1 }, "name": "partial", "partialFilterExpression": { "p": { "$gt": 3 } } },
                doc! { "key": { "text": 1 }, "name": "collated", "collation": { "locale": "en", "strength": 2 } },
                doc! { "key": { "a": 1, "tags.x": -1 }, "name": "compound", "unique": true },
            ];
            let one = |n: i32| {
                doc! {
                    "_id": n, "a": n, "text": format!("Some words {n}"), "s": n % 2, "p": n % 7,
                    "place": { "type": "Point", "coordinates": [n % 90, n % 45] },
                    "xy": [n % 20, n % 30], "tags": [{ "x": n }, { "x": n + 1 }],
                }
            };
            let documents: Vec<Document> = (0..80).map(one).collect();
            for (name, options) in [
                ("plain", doc! {}),
                (
                    "clustered",
                    doc! { "clusteredIndex": { "key": { "_id": 1 }, "unique": true } },
                ),
                (
                    "folded",
                    doc! { "collation": { "locale": "de", "strength": 1 } },
                ),
                ("capped", doc! { "capped": true, "size": 1 << 20 }),
            ] {
                let mut create = doc! { "create": name };
                create.extend(options);
                client.ok(create).await;
                let insert = doc! { "insert": name, "documents": documents.clone() };
                client.ok(insert).await;
                let create = doc! { "createIndexes": name, "indexes": kinds.to_vec() };
                client.ok(create).await;
                let update = doc! { "q": { "a": { "$mod": [5, 2] } }, "u": { "$set": { "p": 9, "s": [1, 2] } }, "multi": true };
                client
                    .ok(doc! { "update": name, "updates": [update] })
                    .await;
                for options in [
                    doc! {},
                    doc! { "full": true },
                    doc! { "enforceFastCount": true },
                ] {
                    let mut command = doc! { "validate": name };
                    command.extend(options);
                    let reply = client.ok(command).await;
                    assert_valid(&reply);
                    assert_eq!(reply.get_i32("nrecords").ok(), Some(80), "{reply}");
                    let keys = reply.get_document("keysPerIndex").unwrap();
                    assert!(keys.values().all(|keys| keys.as_i32() > Some(0)), "{reply}");
                }
            }
        });
    }
}

/// Has a partition count more records and bytes of `c` than there are.
async fn miscount() {
    let (partition, tree) = (PartitionId(PARTITIONS - 1), collection("c").tree());
    let owner = storage().owner(partition);
    submit_to(owner, Queue::Foreground, move || async move {
        let owned = storage().partition(partition).unwrap();
        let kept = owned.settled_counts(tree).expect("no unit");
        let wrong = Counts {
            records: kept.counts.records + 7,
            value_bytes: kept.counts.value_bytes + 1000,
            ..kept.counts
        };
        assert!(storage().correct_counts(partition, tree, kept, wrong));
    })
    .await;
}

/// How many documents and bytes are said to be in `c`.
async fn kept(client: &Client) -> (i32, f64) {
    let count = client.ok(doc! { "count": "c" }).await;
    let stats = client.ok(doc! { "collStats": "c" }).await;
    let size = stats.get("size").expect("a size");
    let size = (size.as_i32().map(f64::from)).or(size.as_i64().map(|size| size as f64));
    let size = size.or(stats.get_f64("size").ok()).expect("a number");
    (count.get_i32("n").unwrap(), size)
}

#[test]
fn wrong_counts_are_reported_or_corrected() {
    for (seed, cores) in [(86, 1), (87, 3)] {
        with_node(seed, cores, PARTITIONS, |client| async move {
            fill(&client).await;
            let right = kept(&client).await;
            assert_eq!(right.0, DOCUMENTS);
            miscount().await;
            let wrong = kept(&client).await;
            assert_eq!(wrong, (DOCUMENTS + 7, right.1 + 1000.0));
            let reply = validate(&client, doc! { "enforceFastCount": true }).await;
            assert_eq!(reply.get_bool("valid").ok(), Some(false), "{reply}");
            assert_eq!(
                reply.get_array("errors").unwrap()[0].as_str(),
                Some(
                    "fast count (67) does not match number of records (60) for collection 'test.c'"
                )
            );
            for passes_over in ["background", "metadata"] {
                assert_valid(&validate(&client, doc! { passes_over: true }).await);
                assert_eq!(kept(&client).await, wrong, "{passes_over}");
            }
            for options in [
                doc! {},
                doc! { "full": true },
                doc! { "repair": true },
                doc! { "fixMultikey": true },
            ] {
                let reply = validate(&client, options.clone()).await;
                assert_valid(&reply);
                assert_eq!(kept(&client).await, right, "{options}");
                // That is no repair, and nothing is said of it.
                assert_eq!(reply.get_bool("repaired").ok(), Some(false), "{reply}");
                assert_eq!(count(&reply, "warnings"), 0, "{reply}");
                miscount().await;
            }
        });
    }
}

#[test]
fn wrong_counts_are_corrected_beside_writers_and_once() {
    with_node(88, 3, PARTITIONS, |client| async move {
        fill(&client).await;
        miscount().await;
        let ends = Rc::new(Cell::new(false));
        let writer = spawn(Queue::Foreground, {
            let (client, ends) = (client.on(1), ends.clone());
            async move {
                while !ends.get() {
                    let one = |n: i32| doc! { "_id": 1000 + n, "a": n, "u": 1000 + n };
                    let documents: Vec<Document> = (0..20).map(one).collect();
                    client
                        .ok(doc! { "insert": "c", "documents": documents })
                        .await;
                    let delete = doc! { "q": { "_id": { "$gte": 1000 } }, "limit": 0 };
                    client.ok(doc! { "delete": "c", "deletes": [delete] }).await;
                    sleep(Duration::from_micros(50)).await;
                }
            }
        });
        let others: Vec<_> = (0..3)
            .map(|core| {
                let client = client.on(core);
                spawn(Queue::Foreground, async move {
                    let reply = validate(&client, doc! { "repair": true }).await;
                    assert_valid(&reply);
                })
            })
            .collect();
        for other in others {
            other.await.unwrap();
        }
        ends.set(true);
        writer.await.unwrap();
        assert_eq!(kept(&client).await.0, DOCUMENTS);
        assert_valid(&validate(&client, doc! { "enforceFastCount": true }).await);
    });
}

/// Has a validation wait where `data` says, removes what it has seen and writes other documents
/// with the same unique keys until its snapshot is lost, and lets it continue.
fn check_lost_snapshot(seed: u64, data: Document) {
    let mut options = options(1);
    options.storage.history_bytes = 0;
    with_options(seed, 1, options, move |client| {
        let data = data.clone();
        async move {
            fill(&client).await;
            let point = "pauseCollectionValidationWithLock";
            let admin = client.at("admin");
            let hold = doc! { "configureFailPoint": point, "mode": "alwaysOn", "data": data };
            admin.ok(hold).await;
            let validating = spawn(Queue::Foreground, {
                let client = client.clone();
                async move { validate(&client, doc! { "background": true }).await }
            });
            let wait = doc! { "waitForFailPoint": point, "timesEntered": 1, "maxTimeMS": 60_000 };
            admin.ok(wait).await;
            // The keys are those of the documents before, behind whose entries they stand.
            let one = |n: i32| doc! { "_id": 1000 + n, "a": -n, "b": [n, -1], "u": n, "t": n };
            let documents: Vec<Document> = (0..DOCUMENTS).map(one).collect();
            client
                .ok(doc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] })
                .await;
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            for round in 0..20 {
                let change = doc! { "$inc": { "a": 1, "b.0": 1 }, "$set": { "t": [round, 1] } };
                let update = doc! { "q": {}, "u": change, "multi": true };
                client.ok(doc! { "update": "c", "updates": [update] }).await;
                admin.ok(doc! { "fsync": 1 }).await;
            }
            admin
                .ok(doc! { "configureFailPoint": point, "mode": "off" })
                .await;
            let reply = validating.await.unwrap();
            assert_valid(&reply);
            let warnings = reply.get_array("warnings").unwrap();
            let says = |warning: &pinion_bson::Bson| {
                warning
                    .as_str()
                    .unwrap()
                    .contains("newer snapshots were read")
            };
            assert!(warnings.iter().any(says), "no snapshot was lost: {reply}");
            assert!(!reply.contains_key("readTimestamp"), "{reply}");
        }
    });
}

#[test]
fn no_fault_is_reported_where_a_snapshot_is_lost() {
    check_lost_snapshot(89, doc! {});
    for entries in [1, 7, 30] {
        check_lost_snapshot(90, doc! { "indexName": "u", "entries": entries });
    }
}
