//! Expiry, over one and more partitions: what goes, what stays, and what is reported of it.

use pinion_bson::{Bson, DateTime, Document, doc};
use pinion_runtime::{Duration, sleep, wall_ms};

use crate::harness::{Client, column, with_crashes, with_node};

/// A date `secs` seconds ago.
fn ago(secs: i64) -> DateTime {
    DateTime::from_millis(wall_ms() - secs * 1000)
}

async fn every_second(client: &Client) {
    client
        .at("admin")
        .ok(doc! { "setParameter": 1, "ttlMonitorSleepSecs": 1 })
        .await;
}

/// Long enough for a pass.
async fn one_pass() {
    sleep(Duration::from_millis(2500)).await;
}

async fn create(client: &Client, key: Document, options: Document) {
    let mut index = doc! { "key": key, "name": "ttl" };
    index.extend(options);
    client
        .ok(doc! { "createIndexes": "c", "indexes": [index] })
        .await;
}

async fn insert(client: &Client, documents: Vec<Document>) {
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

async fn ids(client: &Client) -> Vec<Bson> {
    column(
        &client
            .find(doc! { "find": "c", "sort": { "_id": 1 } })
            .await,
        "_id",
    )
}

async fn counter(client: &Client, name: &str) -> i64 {
    let status = client.ok(doc! { "serverStatus": 1 }).await;
    let metrics = status.get_document("metrics").expect("metrics");
    let ttl = metrics.get_document("ttl").expect("a section");
    ttl.get_i64(name).expect("a counter")
}

/// Over 1, 2 and 3 partitions, and fewer cores: the documents that an index with these options
/// leaves of those that are given.
fn check(key: Document, options: Document, documents: fn() -> Vec<Document>, left: &[&str]) {
    for (seed, cores, partitions) in [(901, 1, 1), (902, 2, 2), (903, 2, 3)] {
        let (key, options) = (key.clone(), options.clone());
        let left: Vec<Bson> = left.iter().map(|id| Bson::from(*id)).collect();
        with_node(seed, cores, partitions, move |client| {
            let (key, options, left) = (key.clone(), options.clone(), left.clone());
            async move {
                every_second(&client).await;
                let all = documents().len();
                insert(&client, documents()).await;
                create(&client, key, options).await;
                one_pass().await;
                assert_eq!(ids(&client).await, left);
                let deleted = counter(&client, "deletedDocuments").await;
                assert_eq!(deleted, (all - left.len()) as i64);
                // Their index entries went with them.
                let reply = client.ok(doc! { "validate": "c", "full": true }).await;
                assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
            }
        });
    }
}

#[test]
fn dates_expire_and_nothing_else() {
    let documents = || {
        vec![
            doc! { "_id": "old", "at": ago(100) },
            doc! { "_id": "young", "at": ago(5) },
            doc! { "_id": "to come", "at": ago(-100) },
            doc! { "_id": "an old one of several", "at": [ago(5), 3, ago(100), "x"] },
            doc! { "_id": "several", "at": [ago(5), ago(-5)] },
            doc! { "_id": "number", "at": 3 },
            doc! { "_id": "text", "at": "1970-01-01" },
            doc! { "_id": "null", "at": null },
            doc! { "_id": "before 1970", "at": DateTime::from_millis(-1) },
            doc! { "_id": "without" },
        ]
    };
    let left = [
        "null", "number", "several", "text", "to come", "without", "young",
    ];
    let after = || doc! { "expireAfterSeconds": 60 };
    check(doc! { "at": 1 }, after(), documents, &left);
    check(doc! { "at": -1 }, after(), documents, &left);
    let mut hidden = after();
    hidden.insert("hidden", true);
    check(doc! { "at": 1 }, hidden, documents, &left);
    let mut sparse = after();
    sparse.insert("sparse", true);
    check(doc! { "at": 1 }, sparse, documents, &left);
    // No document has a date under this name, and none can have one under its hash.
    let all = [
        "an old one of several",
        "before 1970",
        "null",
        "number",
        "old",
        "several",
        "text",
        "to come",
        "without",
        "young",
    ];
    check(doc! { "other": 1 }, after(), documents, &all);
}

#[test]
fn a_partial_index_deletes_only_what_it_holds() {
    let documents = || {
        vec![
            doc! { "_id": "in", "at": { "t": ago(1) }, "done": true },
            doc! { "_id": "out", "at": { "t": ago(1) }, "done": false },
            doc! { "_id": "young", "at": { "t": ago(-9) }, "done": true },
        ]
    };
    let options = doc! { "expireAfterSeconds": 0, "partialFilterExpression": { "done": true } };
    check(doc! { "at.t": 1 }, options, documents, &["out", "young"]);
}

#[test]
fn a_unique_index_expires_too() {
    let documents = || {
        let of = |secs: i64| doc! { "_id": format!("{secs:03}"), "at": ago(secs) };
        (0..40).map(|i| of(i * 10)).collect()
    };
    let options = doc! { "expireAfterSeconds": 25, "unique": true };
    check(doc! { "at": 1 }, options, documents, &["000", "010", "020"]);
}

#[test]
fn clustered_collections_expire_by_their_ids() {
    for (seed, cores, partitions) in [(911, 1, 1), (912, 2, 3)] {
        with_node(seed, cores, partitions, |client| async move {
            every_second(&client).await;
            client
                .ok(doc! {
                    "create": "c",
                    "clusteredIndex": { "key": { "_id": 1 }, "unique": true },
                    "expireAfterSeconds": 60,
                })
                .await;
            let (young, later) = (ago(5), ago(30));
            insert(
                &client,
                vec![
                    doc! { "_id": 1 },
                    doc! { "_id": ago(100) },
                    doc! { "_id": young },
                    doc! { "_id": later },
                ],
            )
            .await;
            one_pass().await;
            let left = |dates: &[DateTime]| {
                let dates = dates.iter().map(|date| Bson::DateTime(*date));
                std::iter::once(Bson::Int32(1))
                    .chain(dates)
                    .collect::<Vec<Bson>>()
            };
            assert_eq!(ids(&client).await, left(&[later, young]));
            client
                .ok(doc! { "collMod": "c", "expireAfterSeconds": 20 })
                .await;
            one_pass().await;
            assert_eq!(ids(&client).await, left(&[young]));
            client
                .ok(doc! { "collMod": "c", "expireAfterSeconds": "off" })
                .await;
            sleep(Duration::from_secs(60)).await;
            assert_eq!(ids(&client).await, left(&[young]));
        });
    }
}

#[test]
fn an_index_is_given_an_expiry_and_another_one() {
    with_node(921, 2, 3, |client| async move {
        every_second(&client).await;
        create(&client, doc! { "at": 1 }, doc! {}).await;
        let documents = [5, 50, 500].map(|secs| doc! { "_id": secs, "at": ago(secs) });
        insert(&client, documents.to_vec()).await;
        let modify = async |secs: i32| {
            let index = doc! { "name": "ttl", "expireAfterSeconds": secs };
            client.ok(doc! { "collMod": "c", "index": index }).await
        };
        let reply = modify(100).await;
        assert_eq!(reply.get_i64("expireAfterSeconds_new").ok(), Some(100));
        assert!(reply.get("expireAfterSeconds_old").is_none(), "{reply}");
        one_pass().await;
        assert_eq!(ids(&client).await, [Bson::Int64(5), Bson::Int64(50)]);
        let reply = modify(20).await;
        assert_eq!(reply.get_i64("expireAfterSeconds_old").ok(), Some(100));
        one_pass().await;
        assert_eq!(ids(&client).await, [Bson::Int64(5)]);
    });
}

/// Two collections with many expired documents, and visits of few: each gets its turn, in several
/// sub-passes of one pass.
#[test]
fn expiry_is_fair() {
    with_node(931, 2, 3, |client| async move {
        let admin = client.at("admin");
        admin
            .ok(doc! {
                "setParameter": 1, "ttlMonitorEnabled": false, "ttlIndexDeleteTargetDocs": 10,
                "ttlMonitorSubPassTargetSecs": 1, "ttlMonitorSleepSecs": 1,
            })
            .await;
        for name in ["a", "b"] {
            let index = doc! { "key": { "at": 1 }, "name": "ttl", "expireAfterSeconds": 0 };
            client
                .ok(doc! { "createIndexes": name, "indexes": [index] })
                .await;
            let documents: Vec<Document> =
                (0..500).map(|i| doc! { "_id": i, "at": ago(9) }).collect();
            client
                .ok(doc! { "insert": name, "documents": documents })
                .await;
        }
        sleep(Duration::from_secs(5)).await;
        assert_eq!(counter(&client, "passes").await, 0);
        admin
            .ok(doc! { "setParameter": 1, "ttlMonitorEnabled": true })
            .await;
        let mut furthest = 0;
        loop {
            let left = async |name: &str| {
                let counted = client.ok(doc! { "count": name }).await;
                counted.get_i32("n").expect("a count")
            };
            let (a, b) = (left("a").await, left("b").await);
            if a + b == 0 {
                break;
            }
            furthest = furthest.max((a - b).abs());
            sleep(Duration::from_micros(300)).await;
        }
        assert!((1..=30).contains(&furthest), "one is ahead by {furthest}");
        sleep(Duration::from_millis(10)).await;
        assert_eq!(counter(&client, "deletedDocuments").await, 1000);
        assert_eq!(counter(&client, "passes").await, 1);
    });
}

/// While the node is locked nothing expires, and the lock is not kept waiting.
#[test]
fn a_locked_node_expires_nothing() {
    with_node(941, 2, 2, |client| async move {
        every_second(&client).await;
        create(&client, doc! { "at": 1 }, doc! { "expireAfterSeconds": 0 }).await;
        let documents = (0..50).map(|i| doc! { "_id": i, "at": ago(-1) }).collect();
        insert(&client, documents).await;
        let admin = client.at("admin");
        admin.ok(doc! { "fsync": 1, "lock": true }).await;
        sleep(Duration::from_secs(10)).await;
        assert_eq!(ids(&client).await.len(), 50);
        admin.ok(doc! { "fsyncUnlock": 1 }).await;
        one_pass().await;
        assert_eq!(ids(&client).await.len(), 0);
    });
}

/// What has expired stays gone, and what was not reached goes in the next life.
#[test]
fn deletions_are_durable() {
    for seed in 0..8 {
        with_crashes(950 + seed, &[2, 1, 2], 3, move |life, client| async move {
            if life == 0 {
                create(&client, doc! { "at": 1 }, doc! { "expireAfterSeconds": 30 }).await;
                let documents = (0..400).map(|i| doc! { "_id": i, "at": ago(100), "n": i });
                insert(&client, documents.collect()).await;
                insert(&client, vec![doc! { "_id": "kept", "at": 1 }]).await;
            }
            every_second(&client).await;
            sleep(Duration::from_micros(1_000_000 + seed * 700)).await;
            if life == 2 {
                one_pass().await;
                assert_eq!(ids(&client).await, [Bson::from("kept")]);
            }
            let reply = client.ok(doc! { "validate": "c", "full": true }).await;
            assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
        });
    }
}
