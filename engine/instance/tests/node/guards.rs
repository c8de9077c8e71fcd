//! What the node and its set keep for themselves stays whole, whatever command clients send on
//! whatever name.

use pinion_bson::{Document, doc, rawdoc};
use pinion_catalog::{
    BuildLimits, DropTarget, core_catalog, create_indexes, drop_collection, rename_collection,
};
use pinion_clock::Timestamp;
use pinion_exec::{read_local, write_local};
use pinion_runtime::core_local;
use pinion_runtime::sim::Death;
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{MemberState, OpContext, Registry};

use crate::fake_set::{become_member, of_term_1};
use crate::harness::{Client, with_lives, with_member};

/// Namespaces that the node or its set writes, and one beside them in each database.
const KEPT: [(&str, &str); 23] = [
    ("t", "system.profile"),
    ("t", "system.views"),
    ("t", "system.js"),
    ("t", "system.users"),
    ("t", "system.buckets.s"),
    ("t", "s"),
    ("local", "oplog.rs"),
    ("local", "startup_log"),
    ("local", "system.replset"),
    ("local", "system.rollback.id"),
    ("local", "system.healthlog"),
    ("local", "replset.election"),
    ("local", "replset.initialSyncId"),
    ("local", "replset.minvalid"),
    ("local", "x"),
    ("config", "transactions"),
    ("config", "image_collection"),
    ("config", "system.sessions"),
    ("config", "system.indexBuilds"),
    ("config", "system.preimages"),
    ("admin", "system.version"),
    ("admin", "system.keys"),
    ("admin", "system.users"),
];

/// Commands that end the node, stop it or are of other members, and name no collection.
const LEFT_OUT: [&str; 4] = [
    "shutdown",
    "fsync",
    "configureFailPoint",
    "waitForFailPoint",
];

/// The commands of one name on a collection, each with its database.
fn commands(name: &str, (db, c): (&'static str, &str)) -> Vec<(&'static str, Document)> {
    let ns = format!("{db}.{c}");
    let here = |command: Document| vec![(db, command)];
    let op = |o: Document| {
        let command = doc! { "op": "c", "ns": format!("{db}.$cmd"), "o": o };
        ("admin", doc! { "applyOps": [command] })
    };
    match name {
        "insert" => here(doc! { "insert": c, "documents": [{ "_id": 1 }] }),
        "update" => here(doc! { "update": c, "updates": [
            { "q": {}, "u": { "$set": { "a": 1 } }, "multi": true },
            { "q": { "_id": "new" }, "u": { "$set": { "a": 1 } }, "upsert": true },
        ] }),
        "delete" => here(doc! { "delete": c, "deletes": [{ "q": {}, "limit": 0 }] }),
        "findAndModify" => here(doc! { "findAndModify": c, "query": {}, "remove": true }),
        "bulkWrite" => vec![(
            "admin",
            doc! {
                "bulkWrite": 1, "ops": [{ "insert": 0, "document": { "_id": 2 } }], "nsInfo": [{ "ns": ns }],
            },
        )],
        "create" => vec![
            (db, doc! { "create": c, "capped": true, "size": 4096 }),
            (db, doc! { "create": c, "viewOn": "y", "pipeline": [] }),
            (db, doc! { "create": c }),
        ],
        "createIndexes" => {
            here(doc! { "createIndexes": c, "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] })
        }
        "dropIndexes" => here(doc! { "dropIndexes": c, "index": "*" }),
        "collMod" => vec![
            (db, doc! { "collMod": c, "validationLevel": "moderate" }),
            (db, doc! { "collMod": c, "validator": { "never": 1 } }),
            (db, doc! { "collMod": c, "cappedSize": 8192 }),
        ],
        "convertToCapped" => here(doc! { "convertToCapped": c, "size": 100_000 }),
        "cloneCollectionAsCapped" => vec![
            (
                db,
                doc! { "cloneCollectionAsCapped": c, "toCollection": "clone", "size": 100_000 },
            ),
            (
                db,
                doc! { "cloneCollectionAsCapped": "y", "toCollection": c, "size": 100_000 },
            ),
        ],
        "renameCollection" => [
            "t.y",
            "local.y",
            "config.y",
            "admin.y",
            "local.oplog.rs",
            "u.system.profile",
        ]
        .iter()
        .flat_map(|other| [(ns.as_str(), *other), (*other, ns.as_str())])
        .flat_map(|(from, to)| {
            [false, true].map(|drop| {
                (
                    "admin",
                    doc! {
                        "renameCollection": from, "to": to, "dropTarget": drop,
                    },
                )
            })
        })
        .collect(),
        "aggregate" => vec![
            (db, doc! { "aggregate": c, "pipeline": [], "cursor": {} }),
            (
                db,
                doc! { "aggregate": "y", "pipeline": [{ "$out": c }], "cursor": {} },
            ),
            (
                "t",
                doc! { "aggregate": "y", "pipeline": [{ "$out": { "db": db, "coll": c } }], "cursor": {} },
            ),
            (
                db,
                doc! { "aggregate": "y", "pipeline": [{ "$merge": c }], "cursor": {} },
            ),
        ],
        "applyOps" => vec![
            op(doc! { "create": c }),
            op(doc! { "createIndexes": c, "v": 2, "key": { "b": 1 }, "name": "b_1" }),
            op(doc! { "collMod": c, "validationLevel": "off" }),
            op(doc! { "renameCollection": ns.as_str(), "to": "t.z" }),
            op(doc! { "convertToCapped": c, "size": 4096 }),
            op(doc! { "drop": c }),
            (
                "admin",
                doc! { "applyOps": [{ "op": "i", "ns": ns.as_str(), "o": { "_id": 3 } }] },
            ),
            (
                "admin",
                doc! { "applyOps": [{ "op": "d", "ns": ns.as_str(), "o": { "_id": 1 } }] },
            ),
        ],
        "distinct" => here(doc! { "distinct": c, "key": "a" }),
        "explain" => here(doc! { "explain": { "find": c } }),
        "dataSize" => vec![("admin", doc! { "dataSize": ns })],
        "getMore" => here(doc! { "getMore": 1i64, "collection": c }),
        "killCursors" => here(doc! { "killCursors": c, "cursors": [1i64] }),
        "setIndexCommitQuorum" => {
            here(doc! { "setIndexCommitQuorum": c, "indexNames": ["a_1"], "commitQuorum": 1 })
        }
        "dropDatabase" => here(doc! { "dropDatabase": 1 }),
        other => here(doc! { other: c }),
    }
}

/// All commands of the table; those that drop most come last.
fn names() -> Vec<&'static str> {
    let registry = core_local::<Registry>();
    let mut names: Vec<&str> = registry.iter().map(|command| command.spec.name).collect();
    names.retain(|name| !LEFT_OUT.contains(name));
    assert!(names.len() > 80, "the table has its commands");
    names.sort_by_key(|name| (matches!(*name, "applyOps" | "drop" | "dropDatabase"), *name));
    names
}

/// Runs every command on every namespace; after each the node answers, and so does `look`.
async fn run_all(client: &Client, look: impl AsyncFn(&Document)) {
    let names = names();
    for kept in KEPT {
        // One of its own beside it in each database.
        for db in ["t", "local", "config", "admin"] {
            client
                .at(db)
                .run(doc! { "insert": "y", "documents": [{ "a": 1 }] })
                .await;
        }
        let series = doc! { "create": "s", "timeseries": { "timeField": "at" } };
        client.at("t").run(series).await;
        client
            .at("t")
            .run(doc! { "create": "v", "viewOn": "y" })
            .await;
        client.at("t").run(doc! { "profile": 2 }).await;
        client.at("t").run(doc! { "find": "y" }).await;
        client.at("t").run(doc! { "profile": 0 }).await;
        for name in &names {
            for (db, command) in commands(name, kept) {
                client.at(db).run(command.clone()).await;
                client.ok(doc! { "ping": 1 }).await;
                look(&command).await;
            }
        }
    }
}

async fn takes_writes(client: &Client) {
    let insert = doc! { "insert": "after", "documents": [{ "x": 1 }] };
    client.at("after").ok(insert).await;
}

#[test]
fn no_command_ends_a_standalone() {
    with_lives(1, &[2, 1], 2, |life, client| async move {
        if life == 0 {
            run_all(&client, async |_: &Document| {}).await;
        }
        let version =
            doc! { "find": "system.version", "filter": { "_id": "featureCompatibilityVersion" } };
        client.at("admin").ok(version).await;
        takes_writes(&client).await;
    });
}

const VOTE: &str = "replset.election";

/// Makes the node a primary that shows its log and has voted.
async fn become_primary() {
    become_member(MemberState::Primary, true, of_term_1(Timestamp::MAX)).await;
    pinion_catalog::show_oplog(1 << 30, Timestamp::MAX)
        .await
        .expect("shown");
    let vote = rawdoc! { "_id": "lastVote", "term": 7i64 };
    write_local(VOTE, "lastVote", &vote).await.expect("written");
}

#[test]
fn no_command_ends_a_member_or_takes_what_its_set_rests_on() {
    with_member(2, &[2, 1], 2, None, |life, client| async move {
        if life == 0 {
            become_primary().await;
            run_all(&client, async |command: &Document| {
                let vote = read_local(VOTE, "lastVote").await.expect("read");
                let term = vote.and_then(|vote| vote.get_i64("term").ok());
                assert_eq!(term, Some(7), "{command}");
                let log = core_catalog().get(&name("local.oplog.rs"));
                let log = log.filter(|log| log.is_oplog() && log.indexes.is_empty());
                assert!(log.is_some(), "{command}");
            })
            .await;
        } else {
            become_primary().await;
        }
        takes_writes(&client).await;
    });
}

fn name(text: &str) -> Namespace {
    Namespace::parse(text).expect("a namespace")
}

#[test]
fn answers() {
    with_member(3, &[2], 2, None, |_, client| async move {
        become_primary().await;
        let local = client.at("local");
        let index = |c: &str| doc! { "createIndexes": c, "indexes": [{ "key": { "a": 1 }, "name": "a_1" }] };
        let rename =
            |from: &str, to: &str| doc! { "renameCollection": from, "to": to, "dropTarget": true };
        local.ok(doc! { "insert": "zz", "documents": [{}] }).await;
        local.fails(index("oplog.rs"), 67).await;
        local.fails(index("system.replset"), 67).await;
        local.fails(doc! { "drop": "oplog.rs" }, 5_255_000).await;
        local.fails(doc! { "drop": VOTE }, 20).await;
        local.fails(doc! { "dropDatabase": 1 }, 20).await;
        local
            .fails(
                doc! { "convertToCapped": "oplog.rs", "size": 1i64 << 30 },
                20,
            )
            .await;
        local
            .fails(doc! { "collMod": "oplog.rs", "validationLevel": "off" }, 20)
            .await;
        let admin = client.at("admin");
        admin.fails(rename("local.oplog.rs", "local.o2"), 20).await;
        admin.fails(rename("local.zz", "local.oplog.rs"), 20).await;
        admin.fails(rename("local.zz", "t.zz"), 20).await;
        admin.fails(index("system.version"), 67).await;
        local.ok(doc! { "drop": "zz" }).await;
        // A member that is not the primary says that first.
        become_member(MemberState::Secondary, false, of_term_1(Timestamp::MAX)).await;
        local.fails(index("oplog.rs"), 10_107).await;
        local.fails(doc! { "drop": "oplog.rs" }, 10_107).await;
        local.fails(doc! { "dropDatabase": 1 }, 10_107).await;
        admin
            .fails(rename("local.oplog.rs", "local.o2"), 10_107)
            .await;
    });
}

#[test]
fn the_version_of_the_data_is_kept() {
    with_lives(4, &[1], 1, |_, client| async move {
        let admin = client.at("admin");
        let id = doc! { "_id": "featureCompatibilityVersion" };
        let stored = doc! { "_id": "featureCompatibilityVersion", "version": "8.0" };
        admin
            .ok(doc! { "insert": "system.version", "documents": [stored] })
            .await;
        let code = |reply: Document| {
            let errors = reply.get_array("writeErrors").expect("refused").clone();
            errors[0]
                .as_document()
                .and_then(|error| error.get_i32("code").ok())
        };
        let delete = doc! { "delete": "system.version", "deletes": [{ "q": {}, "limit": 0 }] };
        assert_eq!(code(admin.run(delete).await), Some(40_670));
        for change in [
            doc! { "$set": { "version": "banana" } },
            doc! { "version": "banana" },
        ] {
            let update =
                doc! { "update": "system.version", "updates": [{ "q": id.clone(), "u": change }] };
            assert_eq!(code(admin.run(update).await), Some(2));
        }
        admin.fails(doc! { "drop": "system.version" }, 20).await;
        let other = doc! { "insert": "system.version", "documents": [{ "_id": "authSchema", "currentVersion": 5 }] };
        admin.ok(other).await;
        let delete = doc! { "delete": "system.version", "deletes": [{ "q": { "_id": "authSchema" }, "limit": 1 }] };
        assert_eq!(admin.ok(delete).await.get_i32("n").ok(), Some(1));
    });
}

/// What a program without a guard let clients do to the log, and logged or wrote into the catalog.
async fn damage(how: usize) {
    let now_ns = pinion_runtime::now().as_nanos();
    let ctx = OpContext::internal(0, pinion_command::row("createIndexes"), "local", now_ns);
    let log = name("local.oplog.rs");
    match how {
        0 => {
            let spec = rawdoc! { "v": 2, "key": { "a": 1 }, "name": "a_1" };
            let limits = BuildLimits {
                memory_bytes: 1 << 20,
                least_free_bytes: 0,
                most_active: 1,
            };
            let made = create_indexes(&ctx, log, vec![spec], limits, None).await;
            made.expect("made");
        }
        1 => {
            let to = name("local.o2");
            let renamed = rename_collection(&ctx, log, to, DropTarget::No, false).await;
            renamed.expect("renamed");
        }
        _ => {
            drop_collection(&ctx, log).await.expect("dropped");
        }
    }
}

/// Everything that was written is there after a loss of power.
async fn flushed() {
    let last = storage().last_allotted();
    storage().wait_durable(last).await.expect("durable");
}

/// A log that is damaged so, in the base or to be replayed.
fn check_damaged(how: usize, is_replayed: bool) {
    let death = is_replayed.then_some(Death::PowerCut);
    with_member(5, &[2, 1, 2], 2, death, move |life, client| async move {
        become_primary().await;
        if life == 0 {
            let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
            client.ok(insert).await;
            damage(how).await;
            flushed().await;
            return;
        }
        let found = client.find(doc! { "find": "c" }).await;
        assert_eq!(found.len(), life, "how {how}, replayed {is_replayed}");
        let insert = doc! { "insert": "c", "documents": [{ "_id": life as i32 + 1 }] };
        client.ok(insert).await;
        flushed().await;
        let first = doc! { "find": "oplog.rs", "limit": 1 };
        let log = client.at("local").ok(first).await;
        let cursor = log.get_document("cursor").expect("a cursor");
        assert_eq!(cursor.get_array("firstBatch").expect("a batch").len(), 1);
    });
}

#[test]
fn a_log_that_older_programs_defined_something_of_is_opened() {
    for how in 0..3 {
        check_damaged(how, false);
        check_damaged(how, true);
    }
}
