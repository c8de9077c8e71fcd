//! Clustered and temporary collections, and renames over others.

use pinion_bson::{Bson, Document, doc};

use crate::harness::{Client, column, with_lives, with_node};

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<Bson> {
    values.into_iter().map(Bson::Int32).collect()
}

async fn clustered(client: &Client, documents: i32) {
    client
        .ok(doc! { "create": "c", "clusteredIndex": { "key": { "_id": 1 }, "unique": true, "name": "by id" } })
        .await;
    let documents: Vec<Document> = (0..documents).rev().map(|id| doc! { "_id": id }).collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

async fn plan(client: &Client, find: Document) -> Document {
    let mut command = doc! { "find": "c" };
    command.extend(find);
    let explained = client.ok(doc! { "explain": command }).await;
    let planner = explained.get_document("queryPlanner").expect("a planner");
    planner.get_document("winningPlan").expect("a plan").clone()
}

#[test]
fn a_clustered_collection_is_its_own_index() {
    for (seed, cores, partitions) in [(701, 1, 1), (702, 2, 3)] {
        with_node(seed, cores, partitions, |client| async move {
            clustered(&client, 20).await;
            let made = client
                .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] })
                .await;
            assert_eq!(made.get_i32("numIndexesBefore").ok(), Some(0));
            let stats = client.ok(doc! { "collStats": "c" }).await;
            assert_eq!(stats.get_i32("nindexes").ok(), Some(1));
            let hinted = client
                .find(doc! { "find": "c", "filter": { "_id": { "$gte": 17 } }, "hint": "by id" })
                .await;
            assert_eq!(column(&hinted, "_id"), ints(17..20));
            client.fails(doc! { "find": "c", "hint": "_id_" }, 2).await;
            let range = plan(
                &client,
                doc! { "filter": { "_id": { "$gte": 3, "$lt": 7 } } },
            )
            .await;
            assert_eq!(range.get_str("stage").ok(), Some("CLUSTERED_IXSCAN"));
            assert_eq!(range.get("minRecord"), Some(&Bson::Int32(3)));
            assert_eq!(range.get("maxRecord"), Some(&Bson::Int32(7)));
            let one = plan(&client, doc! { "filter": { "_id": 3 } }).await;
            assert_eq!(one.get_str("stage").ok(), Some("EXPRESS_CLUSTERED_IXSCAN"));
            let all = plan(&client, doc! { "sort": { "_id": -1 } }).await;
            assert_eq!(all.get_str("stage").ok(), Some("COLLSCAN"));
            assert_eq!(all.get_str("direction").ok(), Some("backward"));
            client
                .fails(doc! { "dropIndexes": "c", "index": "by id" }, 5979800)
                .await;
            let dropped = client.ok(doc! { "dropIndexes": "c", "index": "*" }).await;
            assert_eq!(dropped.get_i32("nIndexesWas").ok(), Some(1));
            client.ok(doc! { "dbHash": 1 }).await;
        });
    }
}

#[test]
fn temporary_collections_go_with_the_process() {
    with_lives(711, &[2, 1], 2, |life, client| async move {
        if life == 0 {
            for (name, temporary) in [("a", true), ("b", false), ("c", true), ("d", true)] {
                client.ok(doc! { "create": name, "temp": temporary }).await;
            }
            let admin = client.at("admin");
            admin
                .ok(doc! { "renameCollection": "test.c", "to": "test.e" })
                .await;
            admin
                .ok(doc! { "renameCollection": "test.d", "to": "test.f", "stayTemp": true })
                .await;
        }
        let listed = client
            .ok(doc! { "listCollections": 1, "nameOnly": true })
            .await;
        let cursor = listed.get_document("cursor").expect("a cursor");
        let names: Vec<&str> = cursor
            .get_array("firstBatch")
            .expect("a batch")
            .iter()
            .map(|value| {
                value
                    .as_document()
                    .expect("a document")
                    .get_str("name")
                    .expect("a name")
            })
            .collect();
        let expected: &[&str] = match life {
            0 => &["a", "b", "e", "f"],
            _ => &["b", "e"],
        };
        assert_eq!(names, expected);
    });
}

#[test]
fn a_rename_drops_the_target_that_is_meant() {
    with_node(721, 2, 2, |client| async move {
        let admin = client.at("admin");
        for name in ["a", "b"] {
            client
                .ok(doc! { "insert": name, "documents": [{ "_id": name }] })
                .await;
        }
        let listed = client
            .ok(doc! { "listCollections": 1, "filter": { "name": "b" } })
            .await;
        let info = listed.get_document("cursor").expect("a cursor");
        let info = info.get_array("firstBatch").expect("a batch")[0].clone();
        let info = info.as_document().expect("a document");
        let uuid = info
            .get_document("info")
            .expect("info")
            .get("uuid")
            .cloned();
        let uuid = uuid.expect("a uuid");
        let renaming = |to: &str, drop: Bson| doc! { "renameCollection": "test.a", "to": to, "dropTarget": drop };
        admin
            .fails(renaming("test.b", Bson::Boolean(false)), 48)
            .await;
        admin
            .fails(renaming("test.nosuch", uuid.clone()), 361)
            .await;
        admin.fails(renaming("other.b", uuid.clone()), 72).await;
        admin.fails(renaming("test.b", Bson::Null), 14).await;
        admin.ok(renaming("test.b", uuid)).await;
        let left = client.find(doc! { "find": "b" }).await;
        assert_eq!(column(&left, "_id"), [Bson::from("a")]);
        admin
            .ok(doc! { "renameCollection": "test.b", "to": "other.b" })
            .await;
        let moved = client.at("other").find(doc! { "find": "b" }).await;
        assert_eq!(column(&moved, "_id"), [Bson::from("a")]);
    });
}
