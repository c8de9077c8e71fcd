//! Definitions through a router: what shards and config servers are asked for, and what the router
//! knows afterwards.

use pinion_bson::{Binary, RawBson, RawDocument, RawDocumentBuf, Uuid, get, get_path, rawdoc};
use pinion_runtime::Rng;

use super::cluster::{Client, run};
use super::operations::{check_one, documents};

/// The names of the commands that coordinators and config servers were sent.
fn sent(client: &Client) -> Vec<String> {
    let world = client.world.borrow();
    let names = world.definitions.iter().map(|command| {
        let (name, _) = pinion_bson::elements(command).next().expect("a command");
        name.to_owned()
    });
    names.collect()
}

fn shard_collection(name: &str) -> RawDocumentBuf {
    rawdoc! { "shardCollection": format!("d.{name}"), "key": { "_id": "hashed" }, "$db": "admin" }
}

async fn count(client: &Client, name: &str) -> i64 {
    let reply = client.expect(&rawdoc! { "count": name }).await;
    let count = get(&reply, "n").and_then(pinion_wire::idl::i64_exact);
    count.expect("a number")
}

async fn code(client: &Client, command: &RawDocument) -> i32 {
    let error = client.run(command).await.expect_err("it is refused");
    error.code.0
}

fn fill(client: &Client, rng: &mut Rng) {
    let mut world = client.world.borrow_mut();
    world.insert("c", documents(rng, 0..60));
    world.insert("other", documents(rng, 0..30));
    world.insert("plain", documents(rng, 0..30));
}

/// Has a collection be sharded by another router.
fn shard(client: &Client, name: &str, rng: &mut Rng) {
    let mut world = client.world.borrow_mut();
    world.shard(name, rawdoc! { "a": 1 }, 4, rng);
}

#[test]
fn a_collection_becomes_sharded() {
    for seed in 1..=5 {
        run(seed, 3, |client, mut rng| async move {
            fill(&client, &mut rng);
            // The router knows it as one that is not sharded.
            assert_eq!(count(&client, "c").await, 60);
            if rng.below(2) == 0 {
                client.world.borrow_mut().move_primary(1);
            }
            let reply = client.expect(&shard_collection("c")).await;
            let name = get(&reply, "collectionsharded").and_then(|name| name.as_str());
            assert_eq!(name, Some("d.c"));
            assert_eq!(sent(&client), ["_shardsvrCreateCollection"]);
            for _ in 0..20 {
                check_one(&client, &mut rng).await;
            }
            // Nothing of that was refused.
            assert!(client.world.borrow().refused <= 1);
            client.expect(&shard_collection("c")).await;
        });
    }
}

#[test]
fn what_coordinators_are_asked_for() {
    run(3, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        let command = rawdoc! {
            "shardCollection": "d.c", "key": { "a": 1.0, "b": "hashed" }, "unique": false,
            "numInitialChunks": 12, "presplitHashedZones": true,
            "collation": { "locale": "simple" }, "implicitlyCreateIndex": true,
            "enforceUniquenessCheck": false, "writeConcern": { "w": 1, "wtimeout": 77 },
            "$db": "admin",
        };
        client.expect(&command).await;
        let world = client.world.borrow();
        let mut expected = rawdoc! {
            "_shardsvrCreateCollection": "c", "shardKey": { "a": 1.0, "b": "hashed" },
            "numInitialChunks": 12i64, "unique": false, "presplitHashedZones": true,
            "implicitlyCreateIndex": true, "enforceUniquenessCheck": false,
            "collation": { "locale": "simple" },
        };
        let concern = rawdoc! { "w": "majority", "wtimeout": 77 };
        expected.append(pinion_bson::cstr!("writeConcern"), concern);
        let found = pinion_bson::elements(&world.definitions[0]);
        let count = pinion_bson::field_count(&expected);
        assert!(found.take(count).eq(pinion_bson::elements(&expected)));
    });
}

#[test]
fn a_database_is_made() {
    run(4, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        client.world.borrow_mut().is_there = false;
        client.expect(&shard_collection("c")).await;
        let expected = ["_configsvrCreateDatabase", "_shardsvrCreateCollection"];
        assert_eq!(sent(&client), expected);
        assert_eq!(count(&client, "c").await, 60);
    });
}

/// A definition is sent again where its outcome is not known.
#[test]
fn coordinators_are_asked_again() {
    run(5, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        client.world.borrow_mut().lost_replies = 2;
        client.expect(&shard_collection("c")).await;
        assert_eq!(sent(&client), ["_shardsvrCreateCollection"; 3]);
        assert_eq!(count(&client, "c").await, 60);
        client.world.borrow_mut().lost_replies = 1;
        client.expect(&rawdoc! { "drop": "c" }).await;
        assert_eq!(sent(&client)[3..], ["_shardsvrDropCollection"; 2]);
        assert_eq!(count(&client, "c").await, 0);
    });
}

#[test]
fn what_cannot_be_sharded() {
    run(6, 2, |client, mut rng| async move {
        fill(&client, &mut rng);
        let by = |key: RawDocumentBuf| {
            rawdoc! { "shardCollection": "d.c", "key": key, "$db": "admin" }
        };
        let named = |name: &str| {
            rawdoc! { "shardCollection": name, "key": { "a": 1 }, "$db": "admin" }
        };
        let with = |name: &str, value: RawBson| {
            let mut out = pinion_bson::DocBuilder::new();
            out.append("shardCollection", "d.c");
            out.append("key", &*rawdoc! { "a": "hashed" });
            out.append_raw(name, value.as_raw_bson_ref());
            out.append("$db", "admin");
            out.finish()
        };
        let german = RawBson::Document(rawdoc! { "locale": "de" });
        let uuid = RawBson::Binary(Binary::from(Uuid::from_bytes([1; 16])));
        for (command, expected) in [
            (by(rawdoc! {}), 2),
            (by(rawdoc! { "a": -1 }), 2),
            (by(rawdoc! { "a": "text" }), 2),
            (by(rawdoc! { "a": "hashed", "b": "hashed" }), 2),
            (by(rawdoc! { "$a": 1 }), 2),
            (rawdoc! { "shardCollection": "d.c", "$db": "admin" }, 40_414),
            (
                rawdoc! { "shardCollection": 1, "key": { "a": 1 }, "$db": "admin" },
                14,
            ),
            (rawdoc! { "shardCollection": "d.c", "key": { "a": 1 } }, 13),
            (named("d"), 73),
            (named("d."), 73),
            (named("admin.x"), 72),
            (named("local.x"), 72),
            (named("config.x"), 20),
            (named("d.system.profile"), 20),
            (named("d.system.buckets.c"), 5_731_501),
            (named("d.enxcol_.c.esc"), 6_464_401),
            (with("unique", RawBson::Boolean(true)), 72),
            (with("numInitialChunks", RawBson::Int32(-1)), 72),
            (with("numInitialChunks", RawBson::Int32(16_385)), 72),
            (with("collation", german), 2),
            (with("collectionUUID", uuid), 115),
            (with("unknown", RawBson::Int32(1)), 40_415),
        ] {
            let text = pinion_query::document_text(&command);
            assert_eq!(code(&client, &command).await, expected, "{text}");
        }
        assert!(sent(&client).is_empty());
    });
}

#[test]
fn a_collection_is_dropped_as_it_is() {
    for seed in 1..=5 {
        run(seed, 3, |client, mut rng| async move {
            fill(&client, &mut rng);
            // What the router does not know: one that is sharded meanwhile, and one that is not.
            count(&client, "c").await;
            shard(&client, "other", &mut rng);
            count(&client, "other").await;
            shard(&client, "c", &mut rng);
            client.world.borrow_mut().unshard("other");

            client.expect(&rawdoc! { "drop": "c" }).await;
            assert_eq!(sent(&client), ["_shardsvrDropCollection"]);
            assert_eq!(count(&client, "c").await, 0);
            client.expect(&rawdoc! { "drop": "other" }).await;
            assert_eq!(count(&client, "other").await, 0);
            let reply = client.expect(&rawdoc! { "drop": "plain" }).await;
            assert!(get(&reply, "nIndexesWas").is_some());
            assert_eq!(sent(&client), ["_shardsvrDropCollection"; 2]);
        });
    }
}

#[test]
fn a_drop_by_name_and_uuid() {
    run(8, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        shard(&client, "c", &mut rng);
        let uuid = client.world.borrow().uuid("c");
        let by = |uuid: Uuid| rawdoc! { "drop": "c", "collectionUUID": Binary::from(uuid) };
        let other = by(Uuid::from_bytes([1; 16]));
        assert_eq!(code(&client, &other).await, 361);
        client.expect(&by(uuid)).await;
        assert_eq!(sent(&client), ["_shardsvrDropCollection"]);
    });
}

#[test]
fn a_sharded_collection_is_there_already() {
    run(9, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        count(&client, "c").await;
        shard(&client, "c", &mut rng);
        let other = rawdoc! { "create": "c", "capped": true };
        for _ in 0..2 {
            client.expect(&rawdoc! { "create": "c" }).await;
            assert_eq!(code(&client, &other).await, 48);
        }
        client.world.borrow_mut().unshard("c");
        assert_eq!(code(&client, &other).await, 48);
        client.expect(&rawdoc! { "create": "new" }).await;
    });
}

#[test]
fn a_database_is_dropped_with_its_sharded_collections() {
    run(10, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        shard(&client, "c", &mut rng);
        assert_eq!(count(&client, "c").await, 60);
        client.expect(&rawdoc! { "dropDatabase": 1 }).await;
        assert_eq!(sent(&client), ["_shardsvrDropDatabase"]);
        client.expect(&shard_collection("c")).await;
        assert_eq!(count(&client, "c").await, 0);
    });
}

#[test]
fn zones_are_kept_by_config_servers() {
    run(11, 2, |client, _| async move {
        let add = |shard: &str| {
            rawdoc! { "addShardToZone": shard, "zone": "eu", "$db": "admin" }
        };
        client.expect(&add("s1")).await;
        assert_eq!(code(&client, &add("s7")).await, 70);
        let list = rawdoc! { "listShards": 1, "$db": "admin" };
        let reply = client.expect(&list).await;
        let tag = get_path(&reply, "shards.1.tags.0").and_then(|tag| tag.as_str());
        assert_eq!(tag, Some("eu"), "{reply:?}");
        let remove = rawdoc! { "removeShardFromZone": "s1", "zone": "eu", "$db": "admin" };
        client.expect(&remove).await;
        let update = |zone: RawBson| {
            rawdoc! {
                "updateZoneKeyRange": "d.c", "min": { "a": 1 }, "max": { "a": 2 }, "zone": zone,
                "$db": "admin",
            }
        };
        client
            .expect(&update(RawBson::String("eu".to_owned())))
            .await;
        client.expect(&update(RawBson::Null)).await;
        let expected = [
            "_configsvrAddShardToZone",
            "_configsvrAddShardToZone",
            "_configsvrRemoveShardFromZone",
            "_configsvrUpdateZoneKeyRange",
            "_configsvrUpdateZoneKeyRange",
        ];
        assert_eq!(sent(&client), expected);
        let last = client.world.borrow().definitions[4].clone();
        assert_eq!(get(&last, "zone"), Some(pinion_bson::RawBsonRef::Null));
        let w = get_path(&last, "writeConcern.w").and_then(|w| w.as_str());
        assert_eq!(w, Some("majority"));
        let without = rawdoc! { "addShardToZone": "s1", "$db": "admin" };
        assert_eq!(code(&client, &without).await, 40_414);
    });
}
