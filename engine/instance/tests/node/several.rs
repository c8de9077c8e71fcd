//! Updates and deletes of several documents: behind the first that fails nothing is changed, on
//! however many partitions and cores the documents lie.

use pinion_bson::{Bson, Document, doc};

use crate::harness::{Client, column, with_node};

const DOCUMENTS: i32 = 700;

/// Runs on 1, 2 and 3 partitions, on as many cores and on one.
fn check_everywhere<Fut: Future<Output = ()> + 'static>(test: fn(Client) -> Fut) {
    for (seed, cores, partitions) in [(41, 1, 1), (42, 2, 2), (43, 3, 3), (44, 1, 3)] {
        with_node(seed, cores, partitions, test);
    }
}

async fn fill(client: &Client) {
    let document = |i: i32| doc! { "_id": i, "n": i, "u": i, "s": "x".repeat((i % 50) as usize) };
    let documents: Vec<Document> = (0..DOCUMENTS).map(document).collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Runs an update that fails at this document with the error, and looks at what it has changed.
async fn check_stops(client: &Client, update: impl Into<Bson>, at: i32, code: i32) {
    let update = doc! { "q": {}, "u": update, "multi": true };
    let reply = client
        .run(doc! { "update": "c", "updates": [update] })
        .await;
    let errors = reply.get_array("writeErrors").expect("it fails");
    let error = errors[0].as_document().expect("an error");
    assert_eq!(error.get_i32("code").ok(), Some(code), "{error}");
    // As in MongoDB, a failed statement reports nothing of what it did before.
    assert_eq!(reply.get_i32("nModified").ok(), Some(0), "{reply}");
    let changed = doc! { "find": "c", "filter": { "changed": true }, "sort": { "_id": 1 } };
    let changed = client.find(changed).await;
    let expected: Vec<Bson> = (0..at).map(Bson::from).collect();
    assert_eq!(column(&changed, "_id"), expected);
    let validated = client.ok(doc! { "validate": "c", "full": true }).await;
    assert_eq!(validated.get_bool("valid").ok(), Some(true));
}

#[test]
fn an_update_ends_at_the_first_that_it_cannot_change() {
    check_everywhere(|client| async move {
        for at in [0, 1, 255, 256, 413, DOCUMENTS - 1] {
            client.run(doc! { "drop": "c" }).await;
            fill(&client).await;
            let spoilt = doc! { "q": { "_id": at }, "u": { "$set": { "n": "no number" } } };
            client.ok(doc! { "update": "c", "updates": [spoilt] }).await;
            let update = doc! { "$inc": { "n": 1 }, "$set": { "changed": true } };
            check_stops(&client, update, at, 14).await;
        }
    });
}

#[test]
fn an_update_ends_at_the_first_that_is_not_valid() {
    check_everywhere(|client| async move {
        fill(&client).await;
        client
            .ok(doc! { "collMod": "c", "validator": { "n": { "$lt": 300 + 1000 } } })
            .await;
        let update = doc! { "$inc": { "n": 1000 }, "$set": { "changed": true } };
        check_stops(&client, update, 300, 121).await;
    });
}

#[test]
fn an_update_ends_at_the_first_whose_unique_value_is_taken() {
    check_everywhere(|client| async move {
        fill(&client).await;
        let unique = doc! { "key": { "u": 1 }, "name": "u", "unique": true };
        client
            .ok(doc! { "createIndexes": "c", "indexes": [unique] })
            .await;
        // Values of documents that were changed before are free by then; that of a later one is
        // not.
        let value = |at: i32| doc! { "$cond": [{ "$eq": ["$_id", at] }, at + 1, { "$subtract": ["$u", 1] }] };
        let update = vec![doc! { "$set": { "u": value(320), "changed": true } }];
        check_stops(&client, update, 320, 11000).await;
    });
}

#[test]
fn an_update_ends_at_the_first_that_an_index_has_no_keys_for() {
    check_everywhere(|client| async move {
        fill(&client).await;
        let index = doc! { "key": { "a": 1, "b": 1 }, "name": "ab" };
        client
            .ok(doc! { "createIndexes": "c", "indexes": [index] })
            .await;
        let arrays = |at: i32| doc! { "$cond": [{ "$eq": ["$_id", at] }, [1, 2], 5] };
        // Others have one array, which makes the index multikey on the way.
        let one = doc! { "$cond": [{ "$gte": ["$_id", 100] }, [3, 4], 6] };
        let update = vec![doc! { "$set": { "a": arrays(390), "b": one, "changed": true } }];
        check_stops(&client, update, 390, 171).await;
    });
}

#[test]
fn documents_that_are_large_are_changed_and_deleted_too() {
    check_everywhere(|client| async move {
        for i in 0..24 {
            let large = doc! { "_id": i, "s": "y".repeat(900_000) };
            client
                .ok(doc! { "insert": "l", "documents": [large] })
                .await;
        }
        let update = doc! { "q": {}, "u": { "$set": { "n": 1 } }, "multi": true };
        let reply = client.ok(doc! { "update": "l", "updates": [update] }).await;
        assert_eq!(reply.get_i32("nModified").ok(), Some(24));
        let reply = client
            .ok(doc! { "delete": "l", "deletes": [{ "q": { "n": 1 }, "limit": 0 }] })
            .await;
        assert_eq!(reply.get_i32("n").ok(), Some(24));
        assert!(client.find(doc! { "find": "l" }).await.is_empty());
    });
}
