//! Capped collections: the order of insertion, the bounds, tailing, and what a crash leaves.

use std::future::Future;

use pinion_bson::{Bson, Document, doc};
use pinion_runtime::{Duration, Queue, now, sleep, spawn};

use crate::harness::{Client, column, with_crashes, with_node};

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<Bson> {
    values.into_iter().map(Bson::Int32).collect()
}

async fn create(client: &Client, bounds: Document) {
    let mut command = doc! { "create": "c", "capped": true };
    command.extend(bounds);
    client.ok(command).await;
}

async fn insert(client: &Client, ids: impl IntoIterator<Item = i32>) {
    let documents: Vec<Document> = ids
        .into_iter()
        .map(|id| doc! { "_id": id, "n": id % 3, "u": -id })
        .collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

async fn ids(client: &Client, options: Document) -> Vec<Bson> {
    let mut command = doc! { "find": "c" };
    command.extend(options);
    column(&client.find(command).await, "_id")
}

async fn is_valid(client: &Client) {
    let reply = client.ok(doc! { "validate": "c", "full": true }).await;
    assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
}

/// Runs a script over 1, 2 and 3 partitions.
fn check<Fut: Future<Output = ()> + 'static>(script: impl Fn(Client) -> Fut + Copy + 'static) {
    for (seed, cores, partitions) in [(601, 1, 1), (602, 2, 2), (603, 2, 3)] {
        with_node(seed, cores, partitions, script);
    }
}

#[test]
fn documents_stay_in_the_order_in_which_they_came() {
    check(|client| async move {
        create(&client, doc! { "size": 100_000 }).await;
        let order = [5, 2, 8, 1, 9, 3];
        insert(&client, order[..4].to_vec()).await;
        insert(&client.on(1), order[4..].to_vec()).await;
        assert_eq!(ids(&client, doc! {}).await, ints(order));
        let backward = ids(&client, doc! { "sort": { "$natural": -1 } }).await;
        assert_eq!(backward, ints(order.into_iter().rev()));
        let sorted = ids(&client, doc! { "sort": { "_id": 1 } }).await;
        assert_eq!(sorted, ints([1, 2, 3, 5, 8, 9]));
        let some = doc! { "filter": { "n": 2 }, "hint": { "$natural": 1 } };
        assert_eq!(ids(&client, some).await, ints([5, 2, 8]));
        // By `_id`, with an index of its own, and changed in their places.
        let one = ids(&client, doc! { "filter": { "_id": 8 } }).await;
        assert_eq!(one, ints([8]));
        let several = doc! { "filter": { "_id": { "$in": [9, 1, 7] } } };
        assert_eq!(ids(&client, several).await, ints([1, 9]));
        client.fails_to_insert(doc! { "_id": 2 }, 11000).await;
        let longer = doc! { "q": { "_id": 2 }, "u": { "$set": { "text": "longer" } } };
        client.ok(doc! { "update": "c", "updates": [longer] }).await;
        client
            .ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 8 }, "limit": 1 }] })
            .await;
        assert_eq!(ids(&client, doc! {}).await, ints([5, 2, 1, 9, 3]));
        insert(&client, [8]).await;
        assert_eq!(ids(&client, doc! {}).await, ints([5, 2, 1, 9, 3, 8]));
        let shown = client
            .find(doc! { "find": "c", "showRecordId": true })
            .await;
        let records: Vec<i64> = shown
            .iter()
            .map(|document| document.get_i64("$recordId").expect("a number"))
            .collect();
        assert!(records.is_sorted(), "{records:?}");
        is_valid(&client).await;
    });
}

#[test]
fn the_oldest_go() {
    check(|client| async move {
        create(&client, doc! { "size": 100_000, "max": 5 }).await;
        let indexes = [
            doc! { "key": { "n": 1 }, "name": "n" },
            doc! { "key": { "u": 1 }, "name": "u", "unique": true },
        ];
        client
            .ok(doc! { "createIndexes": "c", "indexes": indexes.to_vec() })
            .await;
        insert(&client, 0..12).await;
        assert_eq!(ids(&client, doc! {}).await, ints(7..12));
        insert(&client.on(1), [3]).await;
        assert_eq!(ids(&client, doc! {}).await, ints([8, 9, 10, 11, 3]));
        let by_index = doc! { "filter": { "n": 0 }, "hint": "n" };
        assert_eq!(ids(&client, by_index).await, ints([9, 3]));
        // What is gone may come again; what is there may not.
        insert(&client, [0]).await;
        client
            .fails_to_insert(doc! { "_id": 77, "u": -3 }, 11000)
            .await;
        assert_eq!(ids(&client, doc! {}).await, ints([9, 10, 11, 3, 0]));
        let counted = client.ok(doc! { "count": "c" }).await;
        assert_eq!(counted.get_i32("n").ok(), Some(5));
        is_valid(&client).await;
        // Smaller bounds count from the next insert on.
        client.ok(doc! { "collMod": "c", "cappedMax": 2 }).await;
        assert_eq!(ids(&client, doc! {}).await.len(), 5);
        insert(&client, [50]).await;
        assert_eq!(ids(&client, doc! {}).await, ints([0, 50]));
        client
            .ok(doc! { "collMod": "c", "cappedMax": 0, "cappedSize": 1 })
            .await;
        insert(&client, [51, 52]).await;
        assert_eq!(ids(&client, doc! {}).await, ints([52]), "the newest stays");
        is_valid(&client).await;
    });
}

#[test]
fn the_bytes_are_bounded() {
    check(|client| async move {
        create(&client, doc! { "size": 4096 }).await;
        for id in 0..60 {
            let document = doc! { "_id": id, "text": "x".repeat(300) };
            client
                .ok(doc! { "insert": "c", "documents": [document] })
                .await;
        }
        let left = client.find(doc! { "find": "c" }).await;
        let bytes: usize = left
            .iter()
            .map(|document| pinion_bson::RawDocumentBuf::try_from(document).unwrap())
            .map(|document| document.as_bytes().len())
            .sum();
        assert!((3700..=4096).contains(&bytes), "{bytes} bytes are left");
        let newest = 60 - left.len() as i32..60;
        assert_eq!(column(&left, "_id"), ints(newest));
        let stats = client.ok(doc! { "collStats": "c" }).await;
        assert_eq!(stats.get_bool("capped").ok(), Some(true));
        assert_eq!(stats.get_i32("maxSize").ok(), Some(4096));
    });
}

#[test]
fn a_tail_continues() {
    check(|client| async move {
        let tailing = doc! { "find": "c", "tailable": true, "batchSize": 2 };
        client.ok(doc! { "create": "plain" }).await;
        client
            .fails(doc! { "find": "plain", "tailable": true }, 2)
            .await;
        create(&client, doc! { "size": 100_000, "max": 10 }).await;
        let empty = client.ok(tailing.clone()).await;
        let cursor = empty.get_document("cursor").expect("a cursor");
        assert_eq!(cursor.get_i64("id").ok(), Some(0));
        insert(&client, 0..3).await;
        let (id, found) = first(&client, tailing.clone()).await;
        assert_eq!(found, ints([0, 1]));
        assert_eq!(more(&client, id, None).await, ints([2]));
        assert_eq!(more(&client.on(1), id, None).await, ints([]));
        insert(&client, [5, 4]).await;
        assert_eq!(more(&client, id, None).await, ints([5, 4]));
        let waiting = doc! { "getMore": id, "collection": "c", "maxTimeMS": 100 };
        client.fails(waiting, 2).await;
        // Its place is lost when the document there goes.
        insert(&client, 10..25).await;
        let lost = doc! { "getMore": id, "collection": "c" };
        client.fails(lost.clone(), 136).await;
        client.fails(lost, 43).await;
        let (id, _) = first(&client, tailing).await;
        client.ok(doc! { "drop": "c" }).await;
        client
            .fails(doc! { "getMore": id, "collection": "c" }, 175)
            .await;
    });
}

#[test]
fn a_tail_waits_for_what_comes() {
    check(|client| async move {
        create(&client, doc! { "size": 100_000 }).await;
        insert(&client, [1]).await;
        let tailing =
            doc! { "find": "c", "filter": { "n": 1 }, "tailable": true, "awaitData": true };
        let (id, found) = first(&client, tailing).await;
        assert_eq!(found, ints([1]));
        let began = now();
        assert_eq!(more(&client, id, None).await, ints([]));
        let waited = began.elapsed();
        assert!((1000..1100).contains(&waited.as_millis()), "{waited:?}");
        let began = now();
        assert_eq!(more(&client, id, Some(300)).await, ints([]));
        let waited = began.elapsed();
        assert!((300..400).contains(&waited.as_millis()), "{waited:?}");
        let other = client.on(1);
        let inserting = spawn(Queue::Foreground, async move {
            for id in [2, 3, 4] {
                sleep(Duration::from_millis(200)).await;
                insert(&other, [id]).await;
            }
        });
        let began = now();
        // Those in between do not match.
        assert_eq!(more(&client, id, Some(5000)).await, ints([4]));
        let waited = began.elapsed();
        assert!((600..700).contains(&waited.as_millis()), "{waited:?}");
        inserting.await.expect("it ends by itself");
        let other = client.on(1);
        spawn(Queue::Foreground, async move {
            sleep(Duration::from_millis(50)).await;
            other.ok(doc! { "drop": "c" }).await;
        });
        let waiting = doc! { "getMore": id, "collection": "c", "maxTimeMS": 60_000 };
        client.fails(waiting, 175).await;
    });
}

async fn first(client: &Client, command: Document) -> (i64, Vec<Bson>) {
    let reply = client.ok(command).await;
    let cursor = reply.get_document("cursor").expect("a cursor");
    let id = cursor.get_i64("id").expect("an id");
    assert_ne!(id, 0, "{reply}");
    (id, ids_of(cursor, "firstBatch"))
}

/// The next batch of a cursor that stays.
async fn more(client: &Client, id: i64, max_time_ms: Option<i32>) -> Vec<Bson> {
    let mut command = doc! { "getMore": id, "collection": "c" };
    if let Some(ms) = max_time_ms {
        command.insert("maxTimeMS", ms);
    }
    let reply = client.ok(command).await;
    let cursor = reply.get_document("cursor").expect("a cursor");
    assert_eq!(cursor.get_i64("id").ok(), Some(id), "{reply}");
    ids_of(cursor, "nextBatch")
}

fn ids_of(cursor: &Document, batch: &str) -> Vec<Bson> {
    let documents = cursor.get_array(batch).expect("a batch");
    let id = |value: &Bson| value.as_document().expect("a document").get("_id").cloned();
    documents
        .iter()
        .map(|value| id(value).expect("an _id"))
        .collect()
}

#[test]
fn collections_become_capped() {
    check(|client| async move {
        let documents: Vec<Document> = (0..40)
            .map(|id| doc! { "_id": id, "text": "x".repeat(100) })
            .collect();
        client
            .ok(doc! { "insert": "from", "documents": documents })
            .await;
        client
            .ok(doc! { "createIndexes": "from", "indexes": [{ "key": { "a": 1 }, "name": "a" }] })
            .await;
        let cloning =
            doc! { "cloneCollectionAsCapped": "from", "toCollection": "c", "size": 1_000_000 };
        client.ok(cloning.clone()).await;
        client.fails(cloning, 48).await;
        assert_eq!(ids(&client, doc! {}).await, ints(0..40));
        client
            .ok(doc! { "convertToCapped": "c", "size": 1000 })
            .await;
        let left = ids(&client, doc! {}).await;
        assert!((5..10).contains(&left.len()), "{left:?}");
        assert_eq!(left, ints(40 - left.len() as i32..40));
        insert(&client, [100]).await;
        assert_eq!(ids(&client, doc! {}).await.last(), Some(&Bson::Int32(100)));
        is_valid(&client).await;
        client
            .ok(doc! { "convertToCapped": "from", "size": 1000 })
            .await;
        let listed = client.ok(doc! { "listIndexes": "from" }).await;
        let cursor = listed.get_document("cursor").expect("a cursor");
        assert_eq!(cursor.get_array("firstBatch").expect("a batch").len(), 1);
        client
            .fails(doc! { "convertToCapped": "nosuch", "size": 1000 }, 26)
            .await;
        let listed = client
            .ok(doc! { "listCollections": 1, "nameOnly": true })
            .await;
        let cursor = listed.get_document("cursor").expect("a cursor");
        assert_eq!(cursor.get_array("firstBatch").expect("a batch").len(), 2);
    });
}

/// After a crash the collection is within its bounds, in order, and whole; numbers continue.
#[test]
fn a_crash_leaves_no_more_than_the_bounds() {
    for seed in 0..10 {
        with_crashes(620 + seed, &[2, 1, 2], 3, move |life, client| async move {
            if life == 0 {
                create(&client, doc! { "size": 100_000, "max": 7 }).await;
                let index = doc! { "key": { "u": 1 }, "name": "u", "unique": true };
                let durable = doc! { "j": true };
                client
                    .ok(doc! { "createIndexes": "c", "indexes": [index], "writeConcern": durable })
                    .await;
            }
            let before = ids(&client, doc! {}).await;
            assert!(before.len() <= 7, "{before:?}");
            let newest = before
                .last()
                .map_or(-1, |id| id.as_i32().expect("a number"));
            assert_eq!(before, ints(newest + 1 - before.len() as i32..=newest));
            is_valid(&client).await;
            for turn in 0..6 {
                let start = newest + 1 + turn * 4;
                insert(&client.on(turn as u16), start..start + 4).await;
                sleep(Duration::from_millis(seed * 5)).await;
            }
            assert_eq!(ids(&client, doc! {}).await, ints(newest + 18..newest + 25));
        });
    }
}

/// Several clients insert at once while others tail and update: each tail sees every document, in
/// the order in which they are.
#[test]
fn tails_miss_nothing() {
    for seed in 0..6 {
        with_node(640 + seed, 2, 3, move |client| async move {
            create(&client, doc! { "size": 1_000_000 }).await;
            insert(&client, [0]).await;
            let tailing = doc! { "find": "c", "tailable": true, "awaitData": true, "batchSize": 3 };
            let writers: Vec<_> = (0..4)
                .map(|writer| {
                    let client = client.on(writer as u16);
                    spawn(Queue::Foreground, async move {
                        for turn in 0..15 {
                            insert(&client, [1 + writer * 100 + turn]).await;
                            let change = doc! { "q": { "_id": 0 }, "u": { "$inc": { "x": 1 } } };
                            client.ok(doc! { "update": "c", "updates": [change] }).await;
                        }
                    })
                })
                .collect();
            let (id, mut seen) = first(&client, tailing).await;
            while seen.len() < 61 {
                seen.extend(more(&client, id, Some(2000)).await);
            }
            for writer in writers {
                writer.await.expect("it ends by itself");
            }
            assert_eq!(seen, ids(&client, doc! {}).await);
        });
    }
}
