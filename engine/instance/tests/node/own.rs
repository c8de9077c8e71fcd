//! What a node keeps for itself, the database `local` and profiles: no entry of the oplog shows it,
//! and it outlives crashes.

use pinion_bson::{Bson, Document, doc};
use pinion_storage::storage;

use crate::harness::{Client, column, with_crashes, with_node};

async fn is_valid(client: &Client, name: &str) {
    let reply = client.ok(doc! { "validate": name, "full": true }).await;
    assert_eq!(reply.get_bool("valid").ok(), Some(true), "{name}: {reply}");
}

fn ints(range: std::ops::Range<i32>) -> Vec<Bson> {
    range.map(Bson::Int32).collect()
}

async fn insert(client: &Client, name: &str, ids: std::ops::Range<i32>) {
    let documents: Vec<Document> = ids
        .map(|id| doc! { "_id": id, "u": id, "v": 100 })
        .collect();
    let reply = client
        .ok(doc! { "insert": name, "documents": documents, "writeConcern": { "j": true } })
        .await;
    assert!(reply.get("writeErrors").is_none(), "{reply}");
}

/// Makes collections of each kind.
async fn make(local: &Client) {
    let index = doc! { "key": { "u": 1 }, "name": "u", "unique": true };
    local
        .ok(doc! { "createIndexes": "plain", "indexes": [index] })
        .await;
    local
        .ok(doc! { "create": "capped", "capped": true, "size": 100_000, "max": 5 })
        .await;
    insert(local, "plain", 0..3).await;
    // An index over documents that are there.
    let index = doc! { "key": { "v": 1, "u": -1 }, "name": "v" };
    local
        .ok(doc! { "createIndexes": "plain", "indexes": [index], "writeConcern": { "j": true } })
        .await;
}

#[test]
fn what_is_a_nodes_own_is_not_in_the_oplog_and_outlives_crashes() {
    const EACH: i32 = 10;
    for seed in 0..6 {
        with_crashes(1200 + seed, &[2, 1, 3], 3, move |life, client| async move {
            let local = client.at("local");
            let before = storage().last_allotted();
            let life = life as i32;
            if life == 0 {
                make(&local).await;
            } else {
                let found = local
                    .find(doc! { "find": "plain", "sort": { "u": 1 } })
                    .await;
                assert_eq!(column(&found, "_id"), ints(0..life * EACH));
                let changed = found
                    .iter()
                    .filter(|document| document.get_i32("v").expect("a number") == life - 1);
                assert_eq!(changed.count(), 1);
                let left = life * EACH;
                let found = local.find(doc! { "find": "capped" }).await;
                assert_eq!(column(&found, "_id"), ints(left - 5..left));
                let named = doc! { "listCollections": 1, "filter": { "name": "gone" } };
                let listed = local.ok(named).await;
                let cursor = listed.get_document("cursor").expect("a cursor");
                assert!(cursor.get_array("firstBatch").expect("a batch").is_empty());
            }
            for name in ["plain", "capped"] {
                is_valid(&local, name).await;
            }
            let first = local.find(doc! { "find": "plain" }).await.len() as i32;
            insert(&local.on(1), "plain", first..(life + 1) * EACH).await;
            insert(&local.on(2), "capped", life * EACH..(life + 1) * EACH).await;
            local
                .ok(doc! { "insert": "plain", "documents": [{ "_id": -1, "u": 1 }] })
                .await
                .get_array("writeErrors")
                .expect("the value of u is there");
            insert(&local, "gone", 0..1).await;
            local.ok(doc! { "drop": "gone" }).await;
            let change = doc! { "q": { "_id": 0 }, "u": { "$set": { "v": life } } };
            local
                .ok(doc! { "update": "plain", "updates": [change], "writeConcern": { "j": true } })
                .await;
            assert_eq!(storage().last_allotted(), before, "seed {seed}");
            // What is replicated continues beside it.
            insert(&client, "shared", life * EACH..(life + 1) * EACH).await;
            assert_eq!(
                client.find(doc! { "find": "shared" }).await.len() as i32,
                (life + 1) * EACH
            );
            assert!(storage().last_allotted() > before);
        });
    }
}

#[test]
fn profiles_have_no_entries() {
    with_node(1210, 2, 2, |client| async move {
        insert(&client, "c", 0..3).await;
        client.ok(doc! { "profile": 2 }).await;
        let before = storage().last_allotted();
        client.find(doc! { "find": "c" }).await;
        client.ok(doc! { "profile": 0 }).await;
        let profiled = client.find(doc! { "find": "system.profile" }).await;
        assert!(!profiled.is_empty());
        assert_eq!(storage().last_allotted(), before);
    });
}

#[test]
fn names_of_both_kinds_are_not_exchanged() {
    with_node(1211, 2, 2, |client| async move {
        insert(&client, "c", 0..3).await;
        insert(&client.at("local"), "c", 0..3).await;
        let admin = client.at("admin");
        for (from, to) in [("test.c", "local.d"), ("local.c", "test.d")] {
            admin
                .fails(doc! { "renameCollection": from, "to": to }, 20)
                .await;
        }
        admin
            .ok(doc! { "renameCollection": "local.c", "to": "local.d" })
            .await;
        let moved = client.at("local").find(doc! { "find": "d" }).await;
        assert_eq!(column(&moved, "_id"), ints(0..3));
    });
}
