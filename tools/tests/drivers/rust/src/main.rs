//! The life of a small application with the Rust driver, all options left at their defaults.

use futures::TryStreamExt;
use mongodb::bson::{Document, doc};
use mongodb::options::{IndexOptions, ReturnDocument};
use mongodb::{Client, IndexModel};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::with_uri_str(std::env::args().nth(1).expect("a URI")).await?;
    let db = client.database("rust_driver");
    db.drop().await?;
    let c = db.collection::<Document>("c");
    let one = c.insert_one(doc! { "a": 1_i64 << 60, "list": [1, "x", null] }).await?;
    let back = c.find_one(doc! { "_id": one.inserted_id }).await?.expect("the document");
    assert_eq!(back.get_i64("a")?, 1_i64 << 60);
    let many = (0..500).map(|i| doc! { "_id": i, "n": i % 10 });
    assert_eq!(c.insert_many(many).await?.inserted_ids.len(), 500);
    let all: Vec<Document> =
        c.find(doc! { "n": { "$lt": 10 } }).batch_size(7).await?.try_collect().await?;
    assert_eq!(all.len(), 500);
    let updated = c.update_many(doc! { "n": 2 }, doc! { "$set": { "x.y": 1 } }).await?;
    assert_eq!(updated.modified_count, 50);
    let upserted =
        c.update_one(doc! { "_id": "new" }, doc! { "$inc": { "k": 1 } }).upsert(true).await?;
    assert_eq!(upserted.upserted_id.and_then(|id| id.as_str().map(String::from)).as_deref(), Some("new"));
    let found = c
        .find_one_and_update(doc! { "_id": 1 }, doc! { "$inc": { "x": 5 } })
        .return_document(ReturnDocument::After)
        .await?
        .expect("the document");
    assert_eq!(found.get_i32("x")?, 5);
    assert_eq!(c.delete_many(doc! { "n": 9 }).await?.deleted_count, 50);
    assert_eq!(c.count_documents(doc! { "n": { "$exists": true } }).await?, 450);
    let options = IndexOptions::builder().unique(true).sparse(true).build();
    let index = IndexModel::builder().keys(doc! { "u": 1 }).options(options).build();
    assert_eq!(c.create_index(index).await?.index_name, "u_1");
    c.insert_one(doc! { "u": 1 }).await?;
    let error = c.insert_one(doc! { "u": 1 }).await.expect_err("a duplicate");
    assert!(error.to_string().contains("11000"), "{error}");
    let stages = [
        doc! { "$match": { "n": { "$lt": 3 } } },
        doc! { "$group": { "_id": "$n", "count": { "$sum": 1 } } },
    ];
    let groups: Vec<Document> = c.aggregate(stages).await?.try_collect().await?;
    assert_eq!(groups.len(), 3);
    assert_eq!(db.list_collection_names().await?, ["c"]);
    db.drop().await?;
    println!("ok");
    Ok(())
}
