//! What clients get when shards refuse what the router knows, and no config server answers: the
//! reason, and never that something is stale.

use pinion_bson::{RawArrayBuf, RawDocumentBuf, get, rawdoc};
use pinion_query::document_text;
use pinion_runtime::Rng;

use super::cluster::{Client, run};
use super::fill;

/// Commands of every way to the shards of a collection.
fn commands(name: &str) -> Vec<RawDocumentBuf> {
    let write = rawdoc! { "q": { "b": { "$gte": 0 } }, "u": { "$set": { "x": 1 } }, "multi": true };
    let one = rawdoc! { "q": { "_id": 3 }, "u": { "$set": { "x": 1 } } };
    let found = rawdoc! { "q": { "b": 3 }, "limit": 1 };
    let ns = format!("d.{name}");
    let spec = rawdoc! { "key": { "b": 1 }, "name": "b" };
    let bulk = rawdoc! { "insert": 0, "document": { "_id": 90_000 } };
    vec![
        rawdoc! { "find": name },
        rawdoc! { "find": name, "filter": { "_id": 3 } },
        rawdoc! { "count": name },
        rawdoc! { "distinct": name, "key": "b" },
        rawdoc! { "aggregate": name, "pipeline": [{ "$group": { "_id": "$b" } }], "cursor": {} },
        rawdoc! { "aggregate": name, "pipeline": [{ "$out": "o" }], "cursor": {} },
        rawdoc! { "insert": name, "documents": [{ "_id": 90_001 }, { "_id": 90_002 }] },
        rawdoc! { "insert": name, "documents": [{ "_id": 90_003 }], "ordered": false },
        rawdoc! { "update": name, "updates": [write] },
        rawdoc! { "update": name, "updates": [one] },
        rawdoc! { "delete": name, "deletes": [found] },
        rawdoc! { "findAndModify": name, "query": { "_id": 3 }, "remove": true },
        rawdoc! { "findAndModify": name, "query": { "b": 3 }, "remove": true },
        rawdoc! { "bulkWrite": 1, "ops": [bulk], "nsInfo": [{ "ns": ns }], "$db": "admin" },
        rawdoc! { "explain": { "find": name } },
        rawdoc! { "explain": { "count": name, "query": {} } },
        rawdoc! { "explain": { "aggregate": name, "pipeline": [], "cursor": {} } },
        rawdoc! { "explain": { "delete": name, "deletes": [{ "q": {}, "limit": 0 }] } },
        rawdoc! { "create": name },
        rawdoc! { "createIndexes": name, "indexes": [spec] },
        rawdoc! { "listIndexes": name },
        rawdoc! { "collStats": name },
        rawdoc! { "validate": name },
    ]
}

/// Has all commands on a collection refused as stale, without a version.
fn check(seed: u64, name: &'static str, change: fn(&Client, &mut Rng)) {
    run(seed, 3, move |client, mut rng| async move {
        fill(&client, &mut rng);
        client
            .world
            .borrow_mut()
            .shard("c", rawdoc! { "_id": "hashed" }, 20, &mut rng);
        for name in ["c", "plain"] {
            client.expect(&rawdoc! { "count": name }).await;
        }
        client.kill_config_server();
        change(&client, &mut rng);
        client.world.borrow_mut().is_silent = true;
        for command in commands(name) {
            let text = document_text(&command);
            let refused = client.world.borrow().refused;
            let error = client.run(&command).await.expect_err(&text);
            assert_eq!(error.code.0, 133, "{text}: {error}");
            // What is known to be refused is not sent again while nothing newer is known.
            let refused = client.world.borrow().refused - refused;
            assert!(refused <= 3, "{text} was refused {refused} times");
        }
    });
}

#[test]
fn a_collection_that_was_sharded_again() {
    check(21, "c", |client, rng| {
        let mut world = client.world.borrow_mut();
        world.shard("c", rawdoc! { "_id": "hashed" }, 20, rng);
    });
}

#[test]
fn a_collection_that_was_not_sharded() {
    check(22, "plain", |client, rng| {
        let mut world = client.world.borrow_mut();
        world.shard("plain", rawdoc! { "_id": "hashed" }, 20, rng);
    });
}

#[test]
fn a_database_that_was_moved() {
    check(23, "plain", |client, _| {
        client.world.borrow_mut().move_primary(2);
    });
}

/// What shards have executed of a batch stays done, and the reply says so.
#[test]
fn a_batch_of_which_a_part_is_refused() {
    for is_ordered in [false, true] {
        run(24, 3, move |client, mut rng| async move {
            fill(&client, &mut rng);
            let owners = |client: &Client| client.world.borrow().owners("c");
            while owners(&client) < 3 {
                let mut world = client.world.borrow_mut();
                world.shard("c", rawdoc! { "_id": "hashed" }, 20, &mut rng);
            }
            client.expect(&rawdoc! { "count": "c" }).await;
            let of_first = client.world.borrow().version("c", 0);
            let of_last = client.world.borrow().version("c", 2);
            // The first shard is not concerned.
            while client.world.borrow().version("c", 2) == of_last {
                let mut world = client.world.borrow_mut();
                world.move_chunk("c", &mut rng);
                if world.version("c", 0) != of_first {
                    return;
                }
            }
            client.kill_config_server();
            client.world.borrow_mut().is_silent = true;
            let mut documents = RawArrayBuf::new();
            (1_000..1_060).for_each(|id| documents.push(rawdoc! { "_id": id }));
            let insert = rawdoc! { "insert": "c", "documents": documents, "ordered": is_ordered };
            let before = client.world.borrow().documents("c").len();
            let outcome = client.run(&insert).await;
            let inserted = client.world.borrow().documents("c").len() - before;
            let reply = match outcome {
                // The first of an ordered batch may be that of a shard which refuses it.
                Err(error) => return assert_eq!((error.code.0, inserted), (133, 0), "{error}"),
                Ok(reply) => reply,
            };
            assert_eq!(reply.get_i32("n").expect("a number"), inserted as i32);
            let errors = get(&reply, "writeErrors").and_then(|errors| errors.as_array());
            let errors: Vec<_> = pinion_bson::values(errors.expect("errors")).collect();
            let expected = if is_ordered { 1 } else { 60 - inserted };
            assert_eq!(errors.len(), expected, "{reply:?}");
            for error in errors {
                let error = error.as_document().expect("an error");
                assert_eq!(error.get_i32("code").ok(), Some(133), "{error:?}");
            }
        });
    }
}
