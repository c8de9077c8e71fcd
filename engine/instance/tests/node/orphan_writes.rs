//! No write of a shard changes a document that the shard does not own; and what becomes of changes
//! of the shard key.

use pinion_bson::{Bson, DateTime, Document, doc};
use pinion_exec::{NodeOptions, PlantedFault};
use pinion_runtime::{Duration, sleep, wall_ms};
use pinion_storage::storage;

use crate::fake_shard::{become_shard, routed, routed_by, sent, set_since};
use crate::harness::{Client, options, with_node, with_options};
use crate::retryable::{become_primary, retryable};
use crate::transactions::{commit, first, statement};

const DOCUMENTS: i32 = 20;
const SHAPES: [(u64, usize, u16); 3] = [(3320, 1, 1), (3321, 2, 3), (3322, 3, 2)];

async fn fill(client: &Client) {
    let indexes = vec![
        doc! { "key": { "k": 1 }, "name": "k" },
        doc! { "key": { "a": 1 }, "name": "a" },
    ];
    client
        .ok(doc! { "createIndexes": "c", "indexes": indexes })
        .await;
    let document = |key: i32| doc! { "_id": key, "k": key, "a": key % 5, "n": 0 };
    let documents: Vec<Document> = (0..DOCUMENTS).map(document).collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Runs on the primary of a shard of which half of the documents are orphans.
fn on_shard<Fut: Future<Output = ()> + 'static>(test: impl Fn(Client) -> Fut + Copy + 'static) {
    for (seed, cores, partitions) in SHAPES {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            fill(&client).await;
            become_shard(doc! { "k": 1 }).await;
            test(client).await;
        });
    }
}

fn update(q: Document, u: Document, multi: bool) -> Document {
    doc! { "update": "c", "updates": [{ "q": q, "u": u, "multi": multi }] }
}

fn delete(q: Document, limit: i32) -> Document {
    doc! { "delete": "c", "deletes": [{ "q": q, "limit": limit }] }
}

/// All documents, with those that the shard does not own.
async fn all(client: &Client) -> Vec<Document> {
    client
        .find(doc! { "find": "c", "sort": { "_id": 1 } })
        .await
}

/// Of the documents as they were, those that have an odd key and are not the same now.
async fn orphans_changed(client: &Client, before: &[Document]) -> Vec<Document> {
    let now = all(client).await;
    let is_orphan = |document: &&Document| document.get_i32("k").is_ok_and(|key| key % 2 != 0);
    let orphans = before.iter().filter(is_orphan);
    orphans.filter(|one| !now.contains(one)).cloned().collect()
}

#[test]
fn no_write_changes_an_orphan() {
    on_shard(|client| async move {
        let before = all(&client).await;
        let inc = || doc! { "$inc": { "n": 1 } };
        let check = async |command: Document, expected: i32| {
            let reply = client.ok(routed(command.clone())).await;
            assert_eq!(
                reply.get_i32("n").ok(),
                Some(expected),
                "{command}: {reply}"
            );
            assert!(
                orphans_changed(&client, &before).await.is_empty(),
                "{command}"
            );
        };
        check(update(doc! {}, inc(), true), 10).await;
        check(update(doc! { "a": 3 }, inc(), true), 2).await;
        check(update(doc! { "k": { "$gt": 10 } }, inc(), true), 4).await;
        check(update(doc! { "_id": { "$in": [1, 2, 3] } }, inc(), true), 1).await;
        for id in 0..DOCUMENTS {
            let owned = (id + 1) % 2;
            check(update(doc! { "_id": id }, inc(), false), owned).await;
            check(update(doc! { "_id": id, "k": id }, inc(), true), owned).await;
            let replacement = doc! { "k": id, "a": id % 5, "n": 9 };
            check(update(doc! { "k": id }, replacement, false), owned).await;
        }
        for id in 0..DOCUMENTS {
            let found =
                doc! { "findAndModify": "c", "query": { "_id": id }, "update": inc(), "new": true };
            let reply = client.ok(routed(found)).await;
            let is_null = reply.get("value") == Some(&Bson::Null);
            assert_eq!(is_null, id % 2 != 0, "{reply}");
        }
        // The first in this order is an orphan.
        let last = doc! { "findAndModify": "c", "sort": { "k": -1 }, "update": inc() };
        let reply = client.ok(routed(last)).await;
        let value = reply.get_document("value").expect("a document");
        assert_eq!(value.get_i32("k").ok(), Some(18));
        check(update(doc! {}, inc(), false), 1).await;
        let mut bulk = doc! {
            "bulkWrite": 1,
            "ops": [
                { "update": 0, "filter": {}, "updateMods": inc(), "multi": true },
                { "update": 0, "filter": { "_id": 3 }, "updateMods": inc() },
                { "delete": 0, "filter": { "_id": 5 } },
                { "delete": 0, "filter": { "k": { "$gte": 17 } }, "multi": true },
            ],
            "nsInfo": [{ "ns": "test.c", "shardVersion": sent(1) }],
        };
        bulk.insert("ordered", true);
        let reply = client.at("admin").ok(bulk).await;
        assert_eq!(reply.get_i32("nMatched").ok(), Some(10), "{reply}");
        assert_eq!(reply.get_i32("nDeleted").ok(), Some(1), "{reply}");
        assert!(orphans_changed(&client, &before).await.is_empty());
        check(delete(doc! { "_id": 7 }, 1), 0).await;
        check(delete(doc! { "_id": 8 }, 1), 1).await;
        check(delete(doc! { "a": 1 }, 0), 2).await;
        let removed =
            doc! { "findAndModify": "c", "query": { "a": 2 }, "sort": { "k": 1 }, "remove": true };
        client.ok(routed(removed)).await;
        check(delete(doc! {}, 0), 5).await;
        assert_eq!(all(&client).await.len(), 10);
    });
}

#[test]
fn upserts_do_not_see_orphans() {
    on_shard(|client| async move {
        let upsert = |q: Document, u: Document| {
            let statement = doc! { "q": q, "u": u, "upsert": true };
            routed(doc! { "update": "c", "updates": [statement] })
        };
        // The `_id` is taken by one.
        let taken = upsert(doc! { "_id": 3 }, doc! { "$set": { "k": 2 } });
        assert_eq!(first_error(&client, taken).await, 11000);
        let made = upsert(doc! { "_id": 100, "k": 100 }, doc! { "$inc": { "n": 1 } });
        let reply = client.ok(made).await;
        assert!(reply.get_array("upserted").is_ok(), "{reply}");
        // What it makes belongs elsewhere.
        let elsewhere = upsert(doc! { "_id": 101, "k": 100 }, doc! { "$set": { "k": 101 } });
        assert_eq!(first_error(&client, elsewhere.clone()).await, 20);
        let reply = client.ok(retryable(1, 1, elsewhere)).await;
        let error = only_error(&reply);
        assert_eq!(error.get_i32("code").ok(), Some(283), "{error}");
        assert_eq!(error.get_bool("shouldUpsert").ok(), Some(true));
        let made = error.get_document("postImage").expect("a document");
        assert_eq!(*made, doc! { "_id": 101, "k": 101 });
        assert_eq!(all(&client).await.len(), 21);
    });
}

fn only_error(reply: &Document) -> &Document {
    let errors = reply.get_array("writeErrors");
    let errors = errors.unwrap_or_else(|_| panic!("no error: {reply}"));
    assert_eq!(errors.len(), 1, "{reply}");
    errors[0].as_document().expect("an error")
}

async fn first_error(client: &Client, command: Document) -> i32 {
    let reply = client.ok(command).await;
    only_error(&reply).get_i32("code").expect("a code")
}

#[test]
fn changes_of_the_shard_key() {
    on_shard(|client| async move {
        let set =
            |id: i32, key: Bson| update(doc! { "_id": id }, doc! { "$set": { "k": key } }, false);
        let before = all(&client).await;
        // What leaves it as it is is none.
        let same = client.ok(routed(set(2, Bson::from(2)))).await;
        assert_eq!(same.get_i32("n").ok(), Some(1), "{same}");
        let refused = async |command: Document, code: i32| {
            assert_eq!(
                first_error(&client, routed(command.clone())).await,
                code,
                "{command}"
            );
        };
        let many = update(doc! { "_id": 2 }, doc! { "$inc": { "k": 2 } }, true);
        refused(many.clone(), 72).await;
        let mut many = many;
        many.insert("lsid", crate::retryable::session_id(9));
        refused(many, 72).await;
        refused(set(2, Bson::from(4)), 20).await;
        refused(set(2, Bson::from(3)), 20).await;
        let array = vec![Bson::from(2)];
        refused(set(2, Bson::Array(array.clone())), 54).await;
        refused(retryable(2, 1, set(2, Bson::Array(array))), 54).await;
        refused(update(doc! { "_id": 2 }, doc! { "n": 1 }, false), 20).await;
        refused(
            update(doc! { "_id": 2 }, doc! { "$unset": { "k": 1 } }, false),
            20,
        )
        .await;
        assert_eq!(all(&client).await, before);
        // Within the shard it is an update.
        let reply = client
            .ok(routed(retryable(3, 1, set(2, Bson::from(4)))))
            .await;
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
        let reply = client
            .ok(routed(retryable(3, 2, set(4, Bson::from(5)))))
            .await;
        let error = only_error(&reply);
        assert_eq!(error.get_i32("code").ok(), Some(283), "{error}");
        let images = ["preImage", "postImage"].map(|name| {
            let image = error.get_document(name).expect("a document");
            image.get_i32("k").expect("a key")
        });
        assert_eq!(images, [4, 5]);
        assert_eq!(error.get_bool("shouldUpsert").ok(), Some(false));
        let moved =
            doc! { "findAndModify": "c", "query": { "_id": 6 }, "update": { "$set": { "k": 7 } } };
        client.fails(routed(moved.clone()), 20).await;
        let reply = client.run(routed(retryable(4, 1, moved))).await;
        assert_eq!(reply.get_i32("code").ok(), Some(283), "{reply}");
        assert!(reply.get_document("preImage").is_ok(), "{reply}");
        // In a transaction too.
        let started = first(5, 1, routed(set(8, Bson::from(10))));
        let reply = client.ok(started).await;
        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
        let reply = client
            .run(statement(5, 1, routed(set(8, Bson::from(9)))))
            .await;
        let code = reply.get_i32("code").ok();
        let code = code.or_else(|| only_error(&reply).get_i32("code").ok());
        assert_eq!(code, Some(283), "{reply}");
        // Without a version there is no rule.
        let reply = client.ok(set(10, Bson::from(11))).await;
        assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
    });
}

/// A statement of a transaction goes by what was owned at its snapshot.
#[test]
fn transactions_go_by_their_snapshot() {
    on_shard(|client| async move {
        let find = || doc! { "find": "c", "filter": { "a": { "$gte": 0 } } };
        let snapshot = doc! { "level": "snapshot" };
        let mut started = first(1, 1, routed(find()));
        started.insert("readConcern", &snapshot);
        let reply = client.ok(started).await;
        let number = |reply: &Document| {
            let cursor = reply.get_document("cursor").expect("a cursor");
            cursor.get_array("firstBatch").expect("a batch").len()
        };
        assert_eq!(number(&reply), 10);
        // What is newer than this was owned by others before.
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 500, "k": 500, "a": 1 }] })
            .await;
        set_since(storage().last_allotted()).await;
        let reply = client.ok(statement(1, 1, routed(find()))).await;
        assert_eq!(number(&reply), 20);
        let inc = doc! { "$inc": { "n": 1 } };
        let changed = statement(1, 1, routed(update(doc! { "_id": 3 }, inc, false)));
        assert_eq!(client.ok(changed).await.get_i32("n").ok(), Some(1));
        client.at("admin").ok(commit(1, 1)).await;
        let reply = client.ok(routed(find())).await;
        assert_eq!(number(&reply), 11);
    });
}

/// What expires on a shard are its own documents.
#[test]
fn orphans_do_not_expire() {
    for (seed, cores, partitions) in SHAPES {
        with_node(seed, cores, partitions, |client| async move {
            let index = doc! { "key": { "d": 1 }, "name": "d", "expireAfterSeconds": 1 };
            client
                .ok(doc! { "createIndexes": "c", "indexes": [index] })
                .await;
            become_shard(doc! { "k": 1 }).await;
            let past = DateTime::from_millis(wall_ms() - 60_000);
            let document = |key: i32| doc! { "_id": key, "k": key, "d": past };
            let documents: Vec<Document> = (0..DOCUMENTS).map(document).collect();
            client
                .ok(doc! { "insert": "c", "documents": documents })
                .await;
            client
                .at("admin")
                .ok(doc! { "setParameter": 1, "ttlMonitorSleepSecs": 1 })
                .await;
            sleep(Duration::from_millis(2500)).await;
            let left = all(&client).await;
            assert_eq!(left.len(), 10);
            assert!(
                left.iter()
                    .all(|one| one.get_i32("k").is_ok_and(|key| key % 2 != 0))
            );
        });
    }
}

#[test]
fn indexes_of_a_sharded_collection() {
    on_shard(|client| async move {
        let create = |key: Document, unique: bool| {
            let name = key.to_string();
            let index = doc! { "key": key, "name": name, "unique": unique };
            routed(doc! { "createIndexes": "c", "indexes": [index] })
        };
        for key in [
            doc! { "n": 1 },
            doc! { "n": 1, "k": 1 },
            doc! { "a": 1, "k": 1 },
        ] {
            let message = client.fails(create(key, true), 67).await;
            assert!(
                message.starts_with("cannot create unique index over {"),
                "{message}"
            );
            assert!(
                message.ends_with("with shard key pattern { k: 1 }"),
                "{message}"
            );
        }
        // Without a version too: the shard knows its own collections.
        let mut unversioned = create(doc! { "n": 1 }, true);
        unversioned.remove("shardVersion");
        client.fails(unversioned, 67).await;
        let mut stale = create(doc! { "z": 1 }, false);
        stale.remove("shardVersion");
        client.fails(routed_by(2, stale), 13388).await;
        client.ok(create(doc! { "n": 1 }, false)).await;
        let drop = |index: Bson| routed(doc! { "dropIndexes": "c", "index": index });
        let name = |name: &str| Bson::from(name);
        client.fails(drop(name("k")), 370).await;
        let hide = doc! { "collMod": "c", "index": { "name": "k", "hidden": true } };
        client.fails(routed(hide.clone()), 72).await;
        let unique = doc! { "collMod": "c", "index": { "name": "a", "prepareUnique": true } };
        client.fails(routed(unique), 72).await;
        client.ok(create(doc! { "k": 1, "_id": 1 }, true)).await;
        client.ok(create(doc! { "_id": 1, "n": 1 }, true)).await;
        client.ok(create(doc! { "k": 1, "l": 1 }, false)).await;
        client.ok(routed(hide)).await;
        client.ok(drop(name("k"))).await;
        let reply = client.ok(drop(name("*"))).await;
        let message = reply.get_str("msg").expect("a message");
        assert_eq!(
            message,
            "non-_id indexes and non-shard key indexes dropped for collection"
        );
        let kept = client.find(doc! { "listIndexes": "c" }).await;
        let keys: Vec<&Document> = kept
            .iter()
            .map(|index| index.get_document("key").expect("one"))
            .collect();
        assert_eq!(
            keys,
            [
                &doc! { "_id": 1 },
                &doc! { "k": 1, "_id": 1 },
                &doc! { "k": 1, "l": 1 }
            ]
        );
        let both = Bson::Array(
            kept[1..]
                .iter()
                .map(|index| index.get("name").cloned().expect("one"))
                .collect(),
        );
        client.fails(drop(both), 370).await;
    });
}

#[test]
fn a_write_without_its_filter_shows() {
    let faulty = NodeOptions {
        planted_fault: PlantedFault::FilterSkippedInWrites,
        ..options(3)
    };
    with_options(3330, 2, faulty, |client| async move {
        fill(&client).await;
        become_shard(doc! { "k": 1 }).await;
        for q in [doc! {}, doc! { "_id": 3 }] {
            let before = all(&client).await;
            let changed = update(q.clone(), doc! { "$inc": { "n": 1 } }, true);
            client.ok(routed(changed)).await;
            assert!(!orphans_changed(&client, &before).await.is_empty(), "{q}");
        }
    });
}
