//! Reads at a time before a change of the catalog: they find collections, indexes and views as they
//! then were.

use pinion_bson::{Document, doc};
use pinion_clock::Timestamp;
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::fake_set::{become_member, of_term_1};
use crate::harness::{Client, column, options, with_options};
use crate::transactions::{abort, first, statement};

/// All that was written so far is committed, and may be in the base after the next checkpoint.
async fn committed() {
    let last = storage().last_allotted();
    storage().set_stable(last);
    become_member(MemberState::Primary, true, of_term_1(last)).await;
}

/// Has all that is stable in the base, and nothing else of it in memory.
async fn checkpoint(client: &Client) {
    client.at("admin").ok(doc! { "fsync": 1 }).await;
}

fn at_time(command: Document, at: Timestamp) -> Document {
    let mut command = command;
    let at = pinion_bson::Timestamp {
        time: at.secs(),
        increment: at.inc(),
    };
    command.insert(
        "readConcern",
        doc! { "level": "snapshot", "atClusterTime": at },
    );
    command
}

/// What there is before each change: documents with an index, and a view of some of them.
async fn make(client: &Client) {
    let documents: Vec<_> = (0..5).map(|i| doc! { "_id": i, "a": i % 2 }).collect();
    client.make_indexed(documents).await;
    let odd = doc! { "create": "odd", "viewOn": "p", "pipeline": [{ "$match": { "a": 1 } }] };
    client.ok(odd).await;
    client
        .ok(doc! { "insert": "other", "documents": [{ "_id": 1, "a": 1 }] })
        .await;
}

/// Reads that see the documents in different ways, with what each finds before all changes.
fn reads() -> Vec<(Document, Vec<i32>)> {
    let lookup =
        doc! { "$lookup": { "from": "p", "localField": "a", "foreignField": "a", "as": "p" } };
    let joined = doc! { "aggregate": "other", "pipeline": [lookup, { "$unwind": "$p" }, { "$replaceWith": "$p" }], "cursor": {} };
    let grouped = doc! { "aggregate": "p", "pipeline": [{ "$group": { "_id": "$a" } }, { "$sort": { "_id": 1 } }], "cursor": {} };
    vec![
        (doc! { "find": "p" }, vec![0, 1, 2, 3, 4]),
        (doc! { "find": "p", "filter": { "_id": 3 } }, vec![3]),
        (
            doc! { "find": "p", "filter": { "a": 1 }, "hint": "a" },
            vec![1, 3],
        ),
        (doc! { "find": "p", "batchSize": 2 }, vec![0, 1, 2, 3, 4]),
        (doc! { "find": "odd" }, vec![1, 3]),
        (joined, vec![1, 3]),
        (grouped, vec![0, 1]),
    ]
}

fn changes() -> Vec<(&'static str, &'static str, Vec<Document>)> {
    let index = doc! { "createIndexes": "p", "indexes": [{ "key": { "b": 1 }, "name": "b" }] };
    let insert = |name: &str| doc! { "insert": name, "documents": [{ "_id": 9, "a": 1 }] };
    let even = doc! { "collMod": "odd", "viewOn": "p", "pipeline": [{ "$match": { "a": 0 } }] };
    vec![
        ("drop", "test", vec![doc! { "drop": "p" }]),
        (
            "drop and make",
            "test",
            vec![doc! { "drop": "p" }, insert("p")],
        ),
        (
            "rename",
            "admin",
            vec![doc! { "renameCollection": "test.p", "to": "test.q" }],
        ),
        (
            "index",
            "test",
            vec![
                doc! { "dropIndexes": "p", "index": "a" },
                index,
                insert("p"),
            ],
        ),
        ("view", "test", vec![even, insert("p")]),
        (
            "view and drop",
            "test",
            vec![doc! { "drop": "odd" }, doc! { "drop": "p" }],
        ),
        ("database", "test", vec![doc! { "dropDatabase": 1 }]),
    ]
}

#[test]
fn a_snapshot_finds_what_there_was_whatever_has_been_dropped_renamed_or_made_since() {
    for (seed, cores, partitions) in [(1910, 1, 1), (1911, 2, 3)] {
        for checkpoints in 0..4 {
            let mut options = options(partitions);
            options.storage.is_member = true;
            with_options(seed, cores, options, move |client| async move {
                committed().await;
                for (number, (what, db, commands)) in (1i64..).zip(changes()) {
                    make(&client).await;
                    committed().await;
                    if checkpoints & 1 != 0 {
                        checkpoint(&client).await;
                    }
                    let at = storage().last_allotted();
                    // It would keep a database from being dropped.
                    let with_transaction = what != "database";
                    if with_transaction {
                        client
                            .ok(first(1, number, doc! { "find": "unrelated" }))
                            .await;
                    }
                    for command in commands {
                        client.at(db).ok(command).await;
                    }
                    committed().await;
                    if checkpoints & 2 != 0 {
                        checkpoint(&client).await;
                    }
                    for (read, expected) in reads() {
                        let expected: Vec<_> = expected.into_iter().map(Into::into).collect();
                        let label = format!("{what}, {read}, checkpoints {checkpoints}");
                        let found = client.find(at_time(read.clone(), at)).await;
                        assert_eq!(column(&found, "_id"), expected, "{label}");
                        if with_transaction && !read.contains_key("batchSize") {
                            let found = client.find(statement(1, number, read)).await;
                            assert_eq!(column(&found, "_id"), expected, "{label}, transaction");
                        }
                    }
                    if with_transaction {
                        client.at("admin").ok(abort(1, number)).await;
                    }
                    client.ok(doc! { "dropDatabase": 1 }).await;
                }
            });
        }
    }
}

#[test]
fn what_was_not_there_yet_is_not_there_for_a_snapshot() {
    let mut options = options(2);
    options.storage.is_member = true;
    with_options(1912, 2, options, move |client| async move {
        make(&client).await;
        committed().await;
        let at = storage().last_allotted();
        client.ok(first(1, 1, doc! { "find": "p" })).await;
        client
            .ok(doc! { "insert": "late", "documents": [{ "_id": 1 }] })
            .await;
        committed().await;
        let late = doc! { "find": "late" };
        assert!(client.find(at_time(late.clone(), at)).await.is_empty());
        assert!(client.find(statement(1, 1, late)).await.is_empty());
        // What has changed since is for others to write.
        let writing = doc! { "insert": "late", "documents": [{ "_id": 2 }] };
        client.fails(statement(1, 1, writing), 112).await;
    });
}

/// What `$listCatalog` shows of the database `test`: each name, with those of its indexes that are
/// multikey.
async fn listed(client: &Client, concern: Document) -> Vec<(String, Vec<String>)> {
    let of_test = doc! { "$match": { "db": "test" } };
    let order = doc! { "$sort": { "name": 1 } };
    let mut command =
        doc! { "aggregate": 1, "pipeline": [{ "$listCatalog": {} }, of_test, order], "cursor": {} };
    command.extend(concern);
    let reply = client.at("admin").ok(command).await;
    let cursor = reply.get_document("cursor").expect("a cursor");
    let rows = cursor.get_array("firstBatch").expect("a batch");
    let text = |document: &Document, field: &str| document.get_str(field).expect("a name").into();
    let multikey = |row: &Document| {
        let indexes = row
            .get_document("md")
            .and_then(|md| md.get_array("indexes"));
        let indexes = indexes.into_iter().flatten();
        let indexes = indexes.map(|index| index.as_document().expect("an index"));
        let multikey = indexes.filter(|index| index.get_bool("multikey").expect("a flag"));
        let spec = |index: &Document| index.get_document("spec").expect("a spec").clone();
        multikey.map(|index| text(&spec(index), "name")).collect()
    };
    let rows = rows.iter().map(|row| row.as_document().expect("a row"));
    rows.map(|row| (text(row, "name"), multikey(row))).collect()
}

#[test]
fn the_catalog_is_listed_as_it_was_at_the_time_of_the_read() {
    let mut options = options(2);
    options.storage.is_member = true;
    with_options(1913, 2, options, move |client| async move {
        committed().await;
        make(&client).await;
        committed().await;
        let at = storage().last_allotted();
        let rename =
            doc! { "renameCollection": "test.p", "to": "test.q", "writeConcern": { "w": 1 } };
        for (db, command) in [
            (
                "test",
                doc! { "insert": "p", "documents": [{ "_id": 9, "a": [1, 2] }] },
            ),
            ("test", doc! { "drop": "other", "writeConcern": { "w": 1 } }),
            ("admin", rename),
            (
                "test",
                doc! { "create": "late", "writeConcern": { "w": 1 } },
            ),
        ] {
            client.at(db).ok(command).await;
        }
        let row = |name: &str, multikey: &[&str]| {
            let multikey = multikey.iter().map(|name| (*name).to_owned());
            (name.to_owned(), multikey.collect::<Vec<_>>())
        };
        let (odd, views) = (row("odd", &[]), row("system.views", &[]));
        let before = vec![odd.clone(), row("other", &[]), row("p", &[]), views.clone()];
        let after = vec![row("late", &[]), odd, row("q", &["a"]), views];
        let majority = doc! { "readConcern": { "level": "majority" } };
        assert_eq!(listed(&client, majority.clone()).await, before);
        assert_eq!(listed(&client, doc! {}).await, after);
        committed().await;
        assert_eq!(listed(&client, at_time(doc! {}, at)).await, before);
        assert_eq!(listed(&client, majority).await, after);
        let snapshot = doc! { "readConcern": { "level": "snapshot" } };
        assert_eq!(listed(&client, snapshot).await, after);
    });
}
