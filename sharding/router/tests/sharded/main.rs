//! Reads of sharded collections through a router, compared with one model collection.

mod change_streams;
mod changes;
mod cluster;
mod config_away;
mod coordinator;
mod definitions;
mod feeds;
mod indexes;
mod local;
mod nodes;
mod operations;
mod outputs;
mod world;
mod writes;

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{Binary, RawBson, RawDocumentBuf, get, rawdoc};
use pinion_runtime::{Duration, Queue, Rng, join_all, sleep, spawn};

use self::cluster::{Client, run};
use self::operations::{check_one, documents, keys};

/// Two collections of which both may be sharded, and one that never is.
pub fn fill(client: &Client, rng: &mut Rng) {
    let mut world = client.world.borrow_mut();
    let count = 20 + rng.below(150) as i32;
    world.insert("c", documents(rng, 0..count));
    world.insert("other", documents(rng, 0..30));
    world.insert("plain", documents(rng, 0..30));
    let key = keys()[rng.below(4) as usize].clone();
    let cuts = rng.below(8) as usize;
    world.shard("c", key, cuts, rng);
    if rng.below(2) == 0 {
        world.shard("other", rawdoc! { "a": 1 }, 3, rng);
    }
}

/// Something that makes what a router knows old.
pub fn change(client: &Client, rng: &mut Rng) {
    let mut world = client.world.borrow_mut();
    world.is_silent = rng.below(4) == 0;
    match rng.below(8) {
        0 => world.unshard("c"),
        1 => {
            let key = keys()[rng.below(4) as usize].clone();
            let cuts = rng.below(8) as usize;
            world.shard("c", key, cuts, rng);
        }
        2 => {
            let to = rng.below(world.shards as u64) as usize;
            world.move_primary(to);
        }
        3 => world.move_chunk("other", rng),
        _ => world.move_chunk("c", rng),
    }
}

#[test]
fn reads_equal_those_of_one_collection() {
    for seed in 1..=30 {
        let shards = 1 + seed as usize % 4;
        run(seed, shards, |client, mut rng| async move {
            fill(&client, &mut rng);
            let several = client.world.borrow().owners("c") > 1;
            for _ in 0..60 {
                check_one(&client, &mut rng).await;
            }
            // Nothing has changed: the config servers were asked once for each collection.
            assert!(client.config_reads("collections") <= 4);
            let served = client.world.borrow().served.len();
            assert!(served > 1 || !several);
            closed(&client).await;
        });
    }
}

#[test]
fn reads_see_all_while_versions_change() {
    let refused = Rc::new(Cell::new(0));
    for seed in 1..=30 {
        let total = refused.clone();
        run(seed, 1 + seed as usize % 4, move |client, mut rng| {
            let total = total.clone();
            async move {
                fill(&client, &mut rng);
                for _ in 0..60 {
                    if rng.below(2) == 0 {
                        change(&client, &mut rng);
                    }
                    check_one(&client, &mut rng).await;
                }
                total.set(total.get() + client.world.borrow().refused);
                closed(&client).await;
            }
        });
    }
    assert!(refused.get() > 200, "{}", refused.get());
}

#[test]
fn reads_see_all_beside_changes() {
    let refused = Rc::new(Cell::new(0));
    for seed in 1..=30 {
        let seen = refused.clone();
        run(seed, 2 + seed as usize % 3, move |client, mut rng| {
            let seen = seen.clone();
            async move {
                fill(&client, &mut rng);
                let stops = Rc::new(Cell::new(false));
                let (other, stopped) = (client.clone(), stops.clone());
                let mut changes = Rng::from_seed(rng.next_u64());
                spawn(Queue::Background, async move {
                    while !stopped.get() {
                        sleep(Duration::from_millis(5 + changes.below(100))).await;
                        change(&other, &mut changes);
                    }
                });
                for _ in 0..60 {
                    check_one(&client, &mut rng).await;
                }
                stops.set(true);
                sleep(Duration::from_millis(200)).await;
                seen.set(seen.get() + client.world.borrow().refused);
                closed(&client).await;
            }
        });
    }
    assert!(refused.get() > 50, "{}", refused.get());
}

/// No cursor of a shard is left once those of clients have ended.
async fn closed(client: &Client) {
    sleep(Duration::from_secs(2)).await;
    assert_eq!(client.world.borrow().cursors.len(), 0);
}

#[test]
fn a_cursor_that_is_killed_is_closed_at_all_shards() {
    run(3, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        client
            .world
            .borrow_mut()
            .shard("c", rawdoc! { "_id": "hashed" }, 9, &mut rng);
        let find = rawdoc! { "find": "c", "sort": { "_id": 1 }, "batchSize": 2 };
        let reply = client.expect(&find).await;
        let id = pinion_bson::get_path(&reply, "cursor.id").and_then(|id| id.as_i64());
        let id = id.expect("a cursor");
        assert!(id != 0 && !client.world.borrow().cursors.is_empty());
        let killed = client
            .expect(&rawdoc! { "killCursors": "c", "cursors": [id] })
            .await;
        assert_eq!(
            killed
                .get_array("cursorsKilled")
                .expect("a list")
                .into_iter()
                .count(),
            1
        );
        closed(&client).await;
    });
}

#[test]
fn one_read_of_the_config_servers_serves_all_that_wait() {
    run(5, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        let find = rawdoc! { "count": "c" };
        client.expect(&find).await;
        let before = client.config_reads("chunks");
        let old = client.world.borrow().version("c", 0);
        while client.world.borrow().version("c", 0) == old {
            client.world.borrow_mut().move_chunk("c", &mut rng);
        }
        join_all((0..300).map(|_| client.expect(&find))).await;
        // A request that was under way from before the first answer may ask once more.
        let reads = client.config_reads("chunks") - before;
        assert!((1..=2).contains(&reads), "{reads}");
        // A table that is flushed is read again once.
        let flush = rawdoc! { "flushRouterConfig": "d.c", "$db": "admin" };
        client.expect(&flush).await;
        join_all((0..50).map(|_| client.expect(&find))).await;
        assert!(client.config_reads("chunks") - before - reads <= 2);
    });
}

/// What is known of collections serves them while no config server answers.
#[test]
fn reads_do_without_config_servers() {
    run(13, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        for name in ["c", "other", "plain"] {
            client.expect(&rawdoc! { "count": name }).await;
        }
        client.kill_config_server();
        for _ in 0..20 {
            check_one(&client, &mut rng).await;
        }
        // What is not known any more is asked for in vain.
        let old = client.world.borrow().version("c", 0);
        while client.world.borrow().version("c", 0) == old {
            client.world.borrow_mut().move_chunk("c", &mut rng);
        }
        let error = client
            .run(&rawdoc! { "count": "c" })
            .await
            .expect_err("it is stale");
        assert_eq!(error.code.0, 133, "{error}");
        closed(&client).await;
    });
}

/// Of several shards that are asked, one is gone.
#[test]
fn partial_results_are_for_those_that_allow_them() {
    run(11, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        while client.world.borrow().owners("c") < 3 {
            client
                .world
                .borrow_mut()
                .shard("c", rawdoc! { "_id": 1 }, 9, &mut rng);
        }
        let sort = rawdoc! { "_id": 1 };
        client.expect(&rawdoc! { "count": "c" }).await;
        client.kill_shard(2);
        let find = rawdoc! { "find": "c", "sort": sort.clone(), "batchSize": 1000 };
        let error = client.run(&find).await.expect_err("a shard is missing");
        assert_eq!(error.code.0, 133, "{error}");
        let find = rawdoc! {
            "find": "c", "sort": sort, "batchSize": 1000, "allowPartialResults": true,
        };
        let reply = client.expect(&find).await;
        let flag = pinion_bson::get_path(&reply, "cursor.partialResultsReturned");
        assert_eq!(flag.and_then(|flag| flag.as_bool()), Some(true));
        let mut expected = client.world.borrow().part("c", 0);
        expected.extend(client.world.borrow().part("c", 1));
        expected.sort_by_key(|document| document.get_i32("_id").expect("a number"));
        let found = pinion_bson::get_path(&reply, "cursor.firstBatch");
        let found = found.and_then(|batch| batch.as_array()).expect("a batch");
        let found = pinion_bson::values(found).filter_map(|found| found.as_document());
        assert!(found.eq(expected.iter().map(|document| &**document)));
    });
}

/// A view over a sharded collection is read from here, by whatever command and in whatever stage.
#[test]
fn views() {
    run(11, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        client
            .world
            .borrow_mut()
            .shard("c", rawdoc! { "_id": "hashed" }, 9, &mut rng);
        let (below, sort) = (rawdoc! { "b": { "$lt": 4 } }, rawdoc! { "_id": 1 });
        let count = |reply: &RawDocumentBuf| get(reply, "n").and_then(|n| n.as_i32());
        let of_view = client.expect(&rawdoc! { "count": "v" }).await;
        let of_all = client
            .expect(&rawdoc! { "count": "c", "query": below.clone() })
            .await;
        assert_eq!(count(&of_view), count(&of_all));
        let values = |reply: &RawDocumentBuf| get(reply, "values").map(RawBson::from);
        let of_view = client
            .expect(&rawdoc! { "distinct": "v", "key": "b" })
            .await;
        let of_all = client
            .expect(&rawdoc! { "distinct": "c", "key": "b", "query": below.clone() })
            .await;
        assert_eq!(values(&of_view), values(&of_all));
        let batch = |reply: &RawDocumentBuf| {
            pinion_bson::get_path(reply, "cursor.firstBatch").map(RawBson::from)
        };
        let find = |name: &str, filter: RawDocumentBuf| rawdoc! { "find": name, "filter": filter, "sort": sort.clone(), "batchSize": 1000 };
        let of_view = client.expect(&find("v", rawdoc! {})).await;
        let of_all = client.expect(&find("c", below.clone())).await;
        assert_eq!(batch(&of_view), batch(&of_all));
        let union = |name: &str, stages: Vec<RawDocumentBuf>| {
            let mut pipeline = pinion_bson::RawArrayBuf::new();
            stages.into_iter().for_each(|stage| pipeline.push(stage));
            rawdoc! {
                "aggregate": "plain", "cursor": { "batchSize": 1000 },
                "pipeline": [{ "$limit": 1 }, { "$unionWith": { "coll": name, "pipeline": pipeline } },
                    { "$group": { "_id": "$b", "n": { "$sum": "$_id" } } }, { "$sort": { "_id": 1 } }],
            }
        };
        let of_all = client
            .expect(&union("c", vec![rawdoc! { "$match": below }]))
            .await;
        let of_view = client.expect(&union("v", Vec::new())).await;
        assert_eq!(batch(&of_view), batch(&of_all));
    });
}

/// What is not supported says so, and names the collection.
#[test]
fn refusals() {
    run(7, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        {
            let mut world = client.world.borrow_mut();
            world.shard("c", rawdoc! { "_id": "hashed" }, 9, &mut rng);
            world.unshard("other");
        }
        let by_uuid = client.world.borrow().uuid("c");
        let commands: Vec<RawDocumentBuf> = vec![
            rawdoc! { "find": Binary::from(by_uuid) },
            rawdoc! { "find": "c", "filter": { "a": { "$near": [0, 0] } }, "returnKey": true },
            rawdoc! { "aggregate": 1, "pipeline": [{ "$merge": { "into": "c" } }], "cursor": {} },
            rawdoc! { "explain": { "insert": "c", "documents": [{ "_id": 1 }] } },
        ];
        for command in commands {
            let error = client.run(&command).await.expect_err("it is refused");
            let text = pinion_query::document_text(&command);
            assert_eq!(error.code.0, 115, "{text}: {error}");
            assert!(
                error.message.contains("d.c") || error.message.contains("database d"),
                "{error}"
            );
        }
    });
}

#[test]
fn explains() {
    run(9, 3, |client, mut rng| async move {
        fill(&client, &mut rng);
        client
            .world
            .borrow_mut()
            .shard("c", rawdoc! { "_id": "hashed" }, 12, &mut rng);
        let owners = client.world.borrow().owners("c") as i32;
        let check = async |command: RawDocumentBuf, stage: &str, shards: i32| {
            let explain = rawdoc! { "explain": command };
            let reply = client.expect(&explain).await;
            let plan = pinion_bson::get_path(&reply, "queryPlanner.winningPlan");
            let plan = plan.and_then(|plan| plan.as_document()).expect("a plan");
            assert_eq!(
                get(plan, "stage").and_then(|stage| stage.as_str()),
                Some(stage)
            );
            let list = plan.get_array("shards").expect("a list");
            assert_eq!(list.into_iter().count() as i32, shards, "{reply:?}");
            let stats = pinion_bson::get_path(&reply, "executionStats.nReturned");
            assert_eq!(stats.and_then(|n| n.as_i64()), Some(2 * i64::from(shards)));
        };
        check(
            rawdoc! { "find": "c", "filter": { "_id": 3 } },
            "SINGLE_SHARD",
            1,
        )
        .await;
        check(rawdoc! { "find": "c" }, "SHARD_MERGE", owners).await;
        let all = rawdoc! { "delete": "c", "deletes": [{ "q": {}, "limit": 0 }] };
        check(all, "SHARD_WRITE", owners).await;
        let one = rawdoc! { "q": { "_id": 3 }, "u": { "$set": { "x": 1 } }, "upsert": true };
        check(
            rawdoc! { "update": "c", "updates": [one] },
            "SINGLE_SHARD",
            1,
        )
        .await;
        let modify = rawdoc! { "findAndModify": "c", "query": { "b": 3 }, "remove": true };
        check(modify, "SHARD_WRITE", owners).await;
        check(rawdoc! { "count": "c", "query": {} }, "SHARD_MERGE", owners).await;
        let sorted = rawdoc! { "find": "c", "sort": { "a": 1 }, "skip": 2, "limit": 3 };
        check(sorted, "SHARD_MERGE_SORT", owners).await;
        let pipeline = rawdoc! {
            "aggregate": "c", "cursor": {}, "explain": true,
            "pipeline": [{ "$match": { "a": { "$gt": RawBson::MinKey } } }, { "$sort": { "a": 1 } },
                { "$group": { "_id": "$b" } }],
        };
        let reply = client.expect(&pipeline).await;
        let part = pinion_bson::get_path(&reply, "splitPipeline.shardsPart");
        let part = part.and_then(|part| part.as_array()).expect("a list");
        assert_eq!(pinion_bson::values(part).count(), 2);
        let shards = get(&reply, "shards").and_then(|shards| shards.as_document());
        assert_eq!(
            pinion_bson::elements(shards.expect("shards")).count() as i32,
            owners
        );
    });
}
