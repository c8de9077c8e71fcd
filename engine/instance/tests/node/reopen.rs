//! A member takes back what the others do not have: the data directory is opened again as of an
//! earlier timestamp.

use std::cell::Cell;
use std::rc::Rc;

use pinion_apply::OpenNodeError;
use pinion_bson::{Bson, Document, doc};
use pinion_instance::reopen_at;
use pinion_runtime::{Duration, Queue, on_all_cores, sleep, spawn};
use pinion_storage::{OpenError, TreeId, storage};

use crate::harness::{Client, column, options, with_options};

fn ints(range: std::ops::Range<i32>) -> Vec<Bson> {
    range.map(Bson::Int32).collect()
}

async fn insert(client: &Client, name: &str, ids: std::ops::Range<i32>) {
    let documents: Vec<Document> = ids.map(|id| doc! { "_id": id, "u": id }).collect();
    client
        .ok(doc! { "insert": name, "documents": documents })
        .await;
}

async fn ids(client: &Client, name: &str) -> Vec<Bson> {
    column(
        &client.find(doc! { "find": name, "batchSize": 3 }).await,
        "_id",
    )
}

/// A member that writes, until it takes something back.
fn with_member<Fut: Future<Output = ()> + 'static>(
    seed: u64,
    cores: usize,
    script: impl Fn(Client) -> Fut + 'static,
) {
    let mut options = options(3);
    options.storage.is_member = true;
    with_options(seed, cores, options, script);
}

#[test]
fn what_is_above_the_timestamp_is_gone_and_the_rest_continues() {
    for (seed, cores) in [(1300, 1), (1301, 2), (1302, 3)] {
        with_member(seed, cores, move |client| async move {
            let local = client.at("local");
            insert(&client, "c", 0..10).await;
            let index = doc! { "key": { "u": 1 }, "name": "u", "unique": true };
            client
                .ok(doc! { "createIndexes": "c", "indexes": [index] })
                .await;
            client
                .ok(doc! { "create": "capped", "capped": true, "size": 10_000 })
                .await;
            insert(&client, "capped", 0..3).await;
            let kept = storage().last_allotted();
            storage().set_stable(kept);
            // What is taken back: documents, an index, collections made and dropped.
            insert(&client, "c", 10..20).await;
            insert(&client, "capped", 3..6).await;
            insert(&client, "made", 0..3).await;
            client.ok(doc! { "drop": "capped" }).await;
            client.ok(doc! { "dropIndexes": "c", "index": "u" }).await;
            insert(&local, "own", 0..3).await;
            // A cursor is open, and others are reading.
            let reply = client.ok(doc! { "find": "c", "batchSize": 2 }).await;
            let open = reply
                .get_document("cursor")
                .expect("a cursor")
                .get_i64("id");
            let stop = Rc::new(Cell::new(false));
            let readers: Vec<_> = (0..3)
                .map(|number| spawn(Queue::Foreground, read_on(client.on(number), stop.clone())))
                .collect();
            sleep(Duration::from_millis(20)).await;

            storage().follow().await.expect("storage serves");
            let report = reopen_at(kept).await.expect("opens");
            assert_eq!((report.cut, storage().last_allotted()), (kept, kept));
            assert!(!storage().leads());
            storage().lead().await;
            stop.set(true);
            for reader in readers {
                assert!(reader.await.expect("not stopped") > 0);
            }
            assert_eq!(ids(&client, "c").await, ints(0..10));
            assert_eq!(ids(&client, "capped").await, ints(0..3));
            assert_eq!(ids(&client, "made").await, ints(0..0));
            assert_eq!(ids(&local, "own").await, ints(0..3));
            let more = doc! { "getMore": open.expect("an id"), "collection": "c" };
            client.fails(more, 43).await;
            // The node continues from there.
            client
                .fails_to_insert(doc! { "_id": 30, "u": 3 }, 11000)
                .await;
            insert(&client.on(1), "c", 10..15).await;
            insert(&client, "capped", 3..4).await;
            insert(&client, "made", 5..6).await;
            insert(&local, "own", 3..4).await;
            assert_eq!(ids(&client.on(2), "c").await, ints(0..15));
            assert_eq!(ids(&client, "capped").await, ints(0..4));
            assert_eq!(ids(&client, "made").await, ints(5..6));
            assert_eq!(ids(&local, "own").await, ints(0..4));
            for name in ["c", "capped", "made"] {
                let valid = client.ok(doc! { "validate": name, "full": true }).await;
                assert_eq!(valid.get_bool("valid").ok(), Some(true), "{name}: {valid}");
            }
        });
    }
}

/// Reads until it is asked to stop; what was interrupted or is gone is reported so. Returns how
/// often it succeeded.
async fn read_on(client: Client, stop: Rc<Cell<bool>>) -> u64 {
    let mut rounds = 0;
    while !stop.get() {
        let found = client
            .run(doc! { "find": "c", "sort": { "u": 1 }, "batchSize": 100 })
            .await;
        match found.get_i32("code") {
            // Interrupted, or its cursor killed.
            Ok(code) => assert!([11602, 237, 43].contains(&code), "{found}"),
            Err(_) => rounds += 1,
        }
        sleep(Duration::from_micros(200)).await;
    }
    rounds
}

#[test]
fn what_is_stable_stays() {
    with_member(1310, 2, |client| async move {
        insert(&client, "c", 0..3).await;
        let earlier = storage().last_allotted();
        insert(&client, "c", 3..5).await;
        storage().set_stable(storage().last_allotted());
        storage().follow().await.expect("storage serves");
        let refused = reopen_at(earlier).await;
        let Err(OpenNodeError::Storage(OpenError::BeyondRollback { limit, .. })) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(limit, earlier);
        assert_eq!(ids(&client, "c").await, ints(0..5));
        storage().lead().await;
        insert(&client, "c", 5..6).await;
        assert_eq!(ids(&client, "c").await, ints(0..6));
    });
}

/// An index that was built on a branch that was given up lies in the base before the entry of its
/// beginning is stable. Another primary gives its number to another index: seed 28 of the simulated
/// sets found the old one in its place.
#[test]
fn trees_of_the_branch_that_is_given_up_are_gone_at_once() {
    with_member(1320, 2, |client| async move {
        insert(&client, "c", 0..30).await;
        let kept = storage().last_allotted();
        storage().set_stable(kept);
        let index = doc! { "key": { "u": 1 }, "name": "u" };
        client
            .ok(doc! { "createIndexes": "c", "indexes": [index] })
            .await;
        storage().checkpoint().await.expect("storage serves");
        storage().follow().await.expect("storage serves");
        reopen_at(kept).await.expect("opens");
        let left = on_all_cores(|_| async {
            let trees = (1..200).map(TreeId);
            trees
                .filter(|tree| storage().is_dropping(*tree))
                .collect::<Vec<TreeId>>()
        });
        assert!(left.await.concat().is_empty());
        storage().lead().await;
        assert_eq!(ids(&client, "c").await, ints(0..30));
    });
}
