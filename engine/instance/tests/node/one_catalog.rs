//! Stages that read other collections find those that were there when their pipeline began,
//! whatever is renamed, dropped, made or changed between two of their accesses.

use pinion_bson::{Document, doc};

use crate::harness::{Client, batch, with_node};

const OUTER: i32 = 6;

/// Documents, a view of some of them, and what joins them.
async fn make(client: &Client) {
    let documents: Vec<_> = (0..8).map(|i| doc! { "_id": i, "a": i % 4 }).collect();
    client.make_indexed(documents).await;
    let odd = doc! { "create": "odd", "viewOn": "p", "pipeline": [{ "$match": { "a": { "$in": [1, 3] } } }] };
    client.ok(odd).await;
    let outer: Vec<_> = (0..OUTER).map(|i| doc! { "_id": i, "a": i % 3 }).collect();
    client
        .ok(doc! { "insert": "outer", "documents": outer })
        .await;
}

/// Pipelines over `outer`, and how many documents they give before they read the other collection
/// again.
fn pipelines() -> Vec<(i32, Vec<Document>)> {
    let lookup = |from: &str| doc! { "$lookup": { "from": from, "localField": "a", "foreignField": "a", "as": "found" } };
    let correlated = doc! { "$lookup": {
        "from": "p", "let": { "a": "$a" }, "as": "found",
        "pipeline": [{ "$match": { "$expr": { "$eq": ["$a", "$$a"] } } }],
    } };
    let nested =
        doc! { "$lookup": { "from": "outer", "as": "found", "pipeline": [lookup("odd")] } };
    let graph = doc! { "$graphLookup": {
        "from": "p", "startWith": "$a", "connectFromField": "none", "connectToField": "a", "as": "found",
    } };
    let union =
        |with: &str| doc! { "$unionWith": { "coll": with, "pipeline": [{ "$set": { "u": 1 } }] } };
    vec![
        (1, vec![lookup("p")]),
        (1, vec![lookup("odd")]),
        (1, vec![correlated]),
        (1, vec![nested]),
        (1, vec![graph]),
        (2, vec![union("p")]),
        (2, vec![union("odd")]),
    ]
}

/// What has no order in itself is brought into one: it comes by an index, or without.
fn in_order(mut documents: Vec<Document>) -> Vec<Document> {
    for document in &mut documents {
        if let Ok(found) = document.get_array_mut("found") {
            found.sort_by_key(ToString::to_string);
        }
    }
    documents.sort_by_key(ToString::to_string);
    documents
}

/// Runs a pipeline with something done behind its first batch; the code of the error that ends it.
async fn run<Fut: Future<Output = ()>>(
    client: &Client,
    (first, stages): (i32, Vec<Document>),
    between: Fut,
) -> Result<Vec<Document>, i32> {
    let aggregate =
        doc! { "aggregate": "outer", "pipeline": stages, "cursor": { "batchSize": first } };
    let reply = client.ok(aggregate).await;
    let cursor = reply.get_document("cursor").expect("a cursor");
    let mut found: Vec<Document> = batch(cursor, "firstBatch");
    assert_eq!(found.len() as i32, first);
    let mut id = cursor.get_i64("id").expect("an id");
    between.await;
    while id != 0 {
        let more = doc! { "getMore": id, "collection": "outer", "batchSize": 2 };
        let reply = client.run(more).await;
        if let Ok(code) = reply.get_i32("code") {
            return Err(code);
        }
        let cursor = reply.get_document("cursor").expect("a cursor");
        found.extend(batch(cursor, "nextBatch"));
        id = cursor.get_i64("id").expect("an id");
    }
    Ok(in_order(found))
}

/// A command, and the database in which it runs.
type Command = fn() -> (&'static str, Document);

/// Whether each pipeline gives what it would have given before the commands, or ends as one whose
/// plan was killed.
fn check(commands: &[Command], is_killed: bool) {
    for (seed, cores, partitions) in [(2300, 1, 1), (2301, 2, 3)] {
        let commands = commands.to_vec();
        with_node(seed, cores, partitions, move |client| {
            check_on(client, commands.clone(), is_killed)
        });
    }
}

async fn check_on(client: Client, commands: Vec<Command>, is_killed: bool) {
    for pipeline in pipelines() {
        make(&client).await;
        let before = run(&client, pipeline.clone(), async {}).await;
        assert!(
            before
                .as_ref()
                .is_ok_and(|found| found.len() >= OUTER as usize)
        );
        let between = async {
            for command in &commands {
                let (db, command) = command();
                client.at(db).ok(command).await;
            }
        };
        let shown = format!("{pipeline:?}");
        let found = run(&client, pipeline, between).await;
        match is_killed {
            true => assert_eq!(found, Err(175), "{shown}"),
            false => assert_eq!(found, before, "{shown}"),
        }
        client.ok(doc! { "dropDatabase": 1 }).await;
    }
}

fn rename() -> (&'static str, Document) {
    let rename = doc! { "renameCollection": "test.p", "to": "test.q" };
    ("admin", rename)
}

fn make_another() -> (&'static str, Document) {
    let documents = vec![doc! { "_id": 100, "a": 1 }, doc! { "_id": 101, "a": 2 }];
    ("test", doc! { "insert": "p", "documents": documents })
}

fn drop_it() -> (&'static str, Document) {
    ("test", doc! { "drop": "p" })
}

fn drop_view() -> (&'static str, Document) {
    ("test", doc! { "drop": "odd" })
}

fn make_collection_of_view() -> (&'static str, Document) {
    let documents = vec![doc! { "_id": 100, "a": 1 }];
    ("test", doc! { "insert": "odd", "documents": documents })
}

fn change_view() -> (&'static str, Document) {
    let pipeline = vec![doc! { "$match": { "a": 0 } }];
    (
        "test",
        doc! { "collMod": "odd", "viewOn": "p", "pipeline": pipeline },
    )
}

fn drop_index() -> (&'static str, Document) {
    ("test", doc! { "dropIndexes": "p", "index": "a" })
}

#[test]
fn what_is_renamed_is_still_found() {
    check(&[rename], false);
    check(&[rename, make_another], false);
}

#[test]
fn views_stay_what_they_were() {
    check(&[change_view], false);
    check(&[drop_view], false);
    check(&[drop_view, make_collection_of_view], false);
}

#[test]
fn indexes_may_come_and_go() {
    check(&[drop_index], false);
}

#[test]
fn what_is_dropped_ends_the_pipeline() {
    check(&[drop_it], true);
    check(&[drop_it, make_another], true);
    check(&[rename, drop_renamed], true);
}

fn drop_renamed() -> (&'static str, Document) {
    ("test", doc! { "drop": "q" })
}

#[test]
fn what_is_made_later_is_not_found() {
    with_node(2302, 2, 3, |client| async move {
        for stages in [
            vec![
                doc! { "$lookup": { "from": "late", "localField": "_id", "foreignField": "_id", "as": "found" } },
            ],
            vec![doc! { "$unionWith": "late" }],
        ] {
            make(&client).await;
            let before = run(&client, (1, stages.clone()), async {}).await;
            let between = async {
                let documents: Vec<_> = (0..OUTER).map(|i| doc! { "_id": i }).collect();
                client
                    .ok(doc! { "insert": "late", "documents": documents })
                    .await;
            };
            assert_eq!(run(&client, (1, stages.clone()), between).await, before);
            // A pipeline that begins by now finds it.
            assert_ne!(run(&client, (1, stages), async {}).await, before);
            client.ok(doc! { "dropDatabase": 1 }).await;
        }
    });
}
