//! No read of a shard gives a document that the shard does not own, by whichever way it comes to
//! it.

use pinion_bson::{Bson, Document, doc};
use pinion_catalog::{GateMode, hold};
use pinion_exec::{NodeOptions, PlantedFault};
use pinion_runtime::{Duration, Queue, now, sleep, spawn};
use pinion_wire::idl::Namespace;

use crate::fake_shard::{become_shard, routed, routed_by, set_owns_all, set_version};
use crate::harness::{Client, batch, column, options, with_node, with_options};
use crate::retryable::become_primary;

const DOCUMENTS: i32 = 60;
const SHAPES: [(u64, usize, u16); 3] = [(3300, 1, 1), (3301, 2, 3), (3302, 3, 2)];

/// Documents with an even key are owned. The `_id` is another number.
fn document(key: i32) -> Document {
    let place = f64::from(key % 50);
    doc! {
        "_id": key * 7 % 61, "k": key, "a": key % 5, "b": key % 3, "u": -key, "l": [key % 7, 100 + key],
        "t": format!("word w{}", key % 4), "p": { "type": "Point", "coordinates": [place, place] },
        "w": { "x": key % 9 }
    }
}

async fn fill(client: &Client) {
    let indexes = vec![
        doc! { "key": { "k": 1 }, "name": "k" },
        doc! { "key": { "a": 1 }, "name": "a" },
        doc! { "key": { "a": 1, "k": -1 }, "name": "a_k" },
        doc! { "key": { "b": 1, "u": 1 }, "name": "b_u" },
        doc! { "key": { "k": 1, "u": 1 }, "name": "k_u", "unique": true },
        doc! { "key": { "l": 1 }, "name": "l" },
        doc! { "key": { "t": "text" }, "name": "t" },
        doc! { "key": { "p": "2dsphere" }, "name": "p" },
        doc! { "key": { "w.$**": 1 }, "name": "w" },
        doc! { "key": { "u": "hashed" }, "name": "u_hashed" },
    ];
    client
        .ok(doc! { "createIndexes": "c", "indexes": indexes })
        .await;
    let documents: Vec<Document> = (0..DOCUMENTS).map(document).collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Runs on a shard of which half of the documents are orphans.
fn on_shard<Fut: Future<Output = ()> + 'static>(test: impl Fn(Client) -> Fut + Copy + 'static) {
    for (seed, cores, partitions) in SHAPES {
        with_node(seed, cores, partitions, move |client| async move {
            fill(&client).await;
            become_shard(doc! { "k": 1 }).await;
            test(client).await;
        });
    }
}

fn find(rest: Document) -> Document {
    let mut command = doc! { "find": "c", "batchSize": 4 };
    command.extend(rest);
    command
}

fn aggregate(pipeline: Vec<Document>) -> Document {
    doc! { "aggregate": "c", "pipeline": pipeline, "cursor": { "batchSize": 4 } }
}

/// Reads whose documents have the key that says which are owned.
fn reads() -> Vec<Document> {
    let near = doc! { "type": "Point", "coordinates": [3, 4] };
    let sort = |sort: Document, hint: &str| find(doc! { "sort": sort, "hint": hint });
    let filter = |filter: Document| find(doc! { "filter": filter });
    let by = |filter: Document, hint: &str| find(doc! { "filter": filter, "hint": hint });
    let of =
        |hint: &str, projection: Document| find(doc! { "hint": hint, "projection": projection });
    vec![
        find(doc! {}),
        filter(doc! { "a": 3 }),
        filter(doc! { "_id": { "$in": [1, 2, 3, 4, 5, 6, 7, 8] } }),
        filter(doc! { "_id": { "$gte": 20 }, "b": 1 }),
        filter(doc! { "l": { "$in": [1, 2, 3] } }),
        filter(doc! { "$or": [{ "a": 1 }, { "k": { "$gt": 40 } }, { "l": 5 }] }),
        filter(doc! { "w.x": { "$gt": 2 } }),
        filter(doc! { "u": { "$in": [-1, -2, -3, -4] } }),
        filter(doc! { "$text": { "$search": "w1 w2" } }),
        filter(doc! { "p": { "$near": { "$geometry": &near } } }),
        filter(doc! { "p": { "$geoWithin": { "$centerSphere": [[0, 0], 0.3] } } }),
        filter(doc! { "$expr": { "$lt": ["$a", 3] } }),
        by(doc! { "k": { "$gte": 5 } }, "k"),
        by(doc! { "k": { "$gte": 5 } }, "k_u"),
        by(doc! {}, "_id_"),
        sort(doc! { "a": 1, "_id": 1 }, "_id_"),
        sort(doc! { "a": -1, "k": 1 }, "a_k"),
        find(doc! { "filter": { "a": { "$in": [0, 4] } }, "sort": { "k": 1 }, "hint": "a_k" }),
        of("a_k", doc! { "k": 1, "a": 1, "_id": 0 }),
        of("k_u", doc! { "k": 1, "_id": 0 }),
        of("b_u", doc! { "b": 1, "k": 1 }),
        find(doc! { "hint": "k", "showRecordId": true }),
        find(doc! { "hint": "k", "returnKey": true }),
        find(doc! { "hint": "a_k", "returnKey": true, "sort": { "a": 1, "k": -1 } }),
        find(doc! { "min": { "k": 3 }, "max": { "k": 30 }, "hint": "k" }),
        aggregate(vec![
            doc! { "$match": { "b": 2 } },
            doc! { "$project": { "k": 1 } },
        ]),
        aggregate(vec![doc! { "$sort": { "b": 1, "_id": 1 } }]),
        aggregate(vec![doc! { "$unwind": "$l" }]),
        aggregate(vec![
            doc! { "$geoNear": { "near": &near, "distanceField": "d", "key": "p" } },
        ]),
        aggregate(vec![
            doc! { "$sort": { "k": 1 } },
            doc! { "$project": { "_id": 0, "k": 1 } },
        ]),
        aggregate(vec![
            doc! { "$addFields": { "z": { "$meta": "recordId" } } },
        ]),
    ]
}

fn keys(documents: &[Document]) -> Vec<i32> {
    let key = |value: Bson| value.as_i32().expect("a number");
    column(documents, "k").into_iter().map(key).collect()
}

fn owned(all: Vec<i32>) -> Vec<i32> {
    all.into_iter().filter(|key| key % 2 == 0).collect()
}

#[test]
fn no_read_gives_an_orphan() {
    on_shard(|client| async move {
        for read in reads() {
            let all = keys(&client.find(read.clone()).await);
            assert!(all.iter().any(|key| key % 2 != 0), "{read} finds none");
            let expected = owned(all.clone());
            assert!(!expected.is_empty(), "{read} finds no other");
            let found = keys(&client.find(routed(read.clone())).await);
            assert_eq!(found, expected, "{read}");
            let available = doc! { "level": "available" };
            let mut unfiltered = routed(read.clone());
            unfiltered.insert("readConcern", available);
            assert_eq!(keys(&client.find(unfiltered).await), all, "{read}");
            if read.contains_key("aggregate") {
                continue;
            }
            let mut limited = read.clone();
            limited.extend(doc! { "skip": 2, "limit": 5 });
            let found = keys(&client.find(routed(limited)).await);
            let few: Vec<i32> = expected.into_iter().skip(2).take(5).collect();
            assert_eq!(found, few, "{read}");
        }
    });
}

#[test]
fn all_that_is_owned_is_given_without_a_look() {
    on_shard(|client| async move {
        set_owns_all(true).await;
        for read in reads() {
            let all = keys(&client.find(read.clone()).await);
            assert_eq!(keys(&client.find(routed(read)).await), all);
        }
        let counted = client.ok(routed(doc! { "count": "c" })).await;
        assert_eq!(counted.get_i32("n").ok(), Some(DOCUMENTS));
    });
}

#[test]
fn a_cursor_keeps_what_it_began_with() {
    on_shard(|client| async move {
        let reply = client.ok(routed(find(doc! { "sort": { "k": 1 } }))).await;
        let cursor = reply.get_document("cursor").expect("a cursor");
        let mut found = batch(cursor, "firstBatch");
        set_version(2).await;
        set_owns_all(true).await;
        let id = cursor.get_i64("id").expect("a number");
        let more = doc! { "getMore": id, "collection": "c" };
        let reply = client.on(1).ok(more).await;
        found.extend(batch(
            reply.get_document("cursor").expect("one"),
            "nextBatch",
        ));
        assert_eq!(keys(&found), owned((0..DOCUMENTS).collect()));
    });
}

#[test]
fn finds_by_id() {
    on_shard(|client| async move {
        for key in 0..DOCUMENTS {
            let id = key * 7 % 61;
            let is_owned = key % 2 == 0;
            let express = doc! { "find": "c", "filter": { "_id": id } };
            let mut planned = express.clone();
            planned.insert("projection", doc! { "k": 1 });
            for command in [express, planned] {
                assert_eq!(client.find(command.clone()).await.len(), 1);
                let found = client.on(key as u16).find(routed(command)).await;
                assert_eq!(keys(&found), owned(vec![key]), "{key}");
            }
            let mut again = routed(doc! { "find": "c", "filter": { "_id": id } });
            again.insert("$db", "test");
            // The first is read as a command; those behind it are known.
            let found = client.repeat(again.clone()).await;
            assert_eq!(found.is_some(), key > 0);
            assert!(found.is_none_or(|found| found == is_owned), "{key}");
            if key == DOCUMENTS - 1 {
                assert_eq!(client.repeat(again.clone()).await, Some(is_owned));
                set_version(2).await;
                assert_eq!(client.repeat(again.clone()).await, None);
                set_version(1).await;
                set_owns_all(true).await;
                // What was refused is not known any more.
                assert_eq!(client.repeat(again.clone()).await, None);
                assert_eq!(client.repeat(again).await, Some(true));
            }
        }
    });
}

async fn count(client: &Client, rest: Document) -> i32 {
    let mut command = doc! { "count": "c" };
    command.extend(rest);
    let reply = client.ok(routed(command)).await;
    reply.get_i32("n").expect("a number")
}

#[test]
fn counts() {
    on_shard(|client| async move {
        let all: Vec<i32> = owned((0..DOCUMENTS).collect());
        let number = |is_so: fn(i32) -> bool| all.iter().filter(|key| is_so(**key)).count() as i32;
        assert_eq!(count(&client, doc! {}).await, number(|_| true));
        assert_eq!(count(&client, doc! { "skip": 3, "limit": 9 }).await, 9);
        assert_eq!(count(&client, doc! { "skip": 25 }).await, 5);
        for hint in ["_id_", "k", "a", "a_k", "k_u"] {
            let hinted = doc! { "query": { "a": 2 }, "hint": hint };
            assert_eq!(
                count(&client, hinted).await,
                number(|key| key % 5 == 2),
                "{hint}"
            );
            assert_eq!(
                count(&client, doc! { "hint": hint }).await,
                number(|_| true),
                "{hint}"
            );
        }
        for query in [
            doc! { "k": { "$lt": 31 } },
            doc! { "$or": [{ "k": { "$lt": 10 } }, { "k": { "$gte": 10, "$lt": 31 } }] },
        ] {
            let found = count(&client, doc! { "query": &query }).await;
            assert_eq!(found, number(|key| key < 31), "{query}");
        }
        let found = count(&client, doc! { "query": { "l": { "$gte": 100 } } }).await;
        assert_eq!(found, number(|_| true));
        assert_eq!(count(&client, doc! { "query": { "_id": 7 } }).await, 0);
        assert_eq!(count(&client, doc! { "query": { "_id": 14 } }).await, 1);
    });
}

/// The one document of a pipeline.
async fn one(client: &Client, pipeline: Vec<Document>) -> Document {
    let found = client.find(routed(aggregate(pipeline))).await;
    assert_eq!(found.len(), 1);
    found.into_iter().next().expect("one")
}

#[test]
fn pipelines_in_parts() {
    on_shard(|client| async move {
        let all = owned((0..DOCUMENTS).collect());
        let (number, sum) = (all.len() as i32, all.iter().sum::<i32>());
        let counted = doc! { "$count": "n" };
        assert_eq!(
            one(&client, vec![counted.clone()]).await,
            doc! { "n": number }
        );
        let some = vec![doc! { "$match": { "k": { "$lt": 31 } } }, counted.clone()];
        assert_eq!(one(&client, some).await, doc! { "n": 16 });
        let group = doc! { "$group": { "_id": Bson::Null, "s": { "$sum": "$k" }, "m": { "$max": "$k" }, "n": { "$sum": 1 } } };
        let expected = doc! { "_id": Bson::Null, "s": sum, "m": 58, "n": number };
        assert_eq!(one(&client, vec![group]).await, expected);
        let pushed = doc! { "$group": { "_id": Bson::Null, "ks": { "$push": "$k" }, "f": { "$first": "$k" } } };
        let pushed = one(&client, vec![doc! { "$sort": { "k": 1 } }, pushed]).await;
        let keys: Vec<Bson> = all.iter().copied().map(Bson::from).collect();
        assert_eq!(pushed.get_array("ks").ok(), Some(&keys));
        assert_eq!(pushed.get_i32("f").ok(), Some(0));
        let sampled = vec![doc! { "$sample": { "size": 1000 } }, counted.clone()];
        assert_eq!(one(&client, sampled).await, doc! { "n": number });
        let few = client
            .find(routed(aggregate(vec![doc! { "$sample": { "size": 5 } }])))
            .await;
        assert_eq!(few.len(), 5);
        assert!(
            few.iter()
                .all(|found| found.get_i32("k").is_ok_and(|key| key % 2 == 0))
        );
        let limited = vec![
            doc! { "$sort": { "k": -1 } },
            doc! { "$limit": 3 },
            doc! { "$group": { "_id": Bson::Null, "s": { "$sum": "$k" } } },
        ];
        assert_eq!(
            one(&client, limited).await.get_i32("s").ok(),
            Some(58 + 56 + 54)
        );
        let facets =
            doc! { "$facet": { "all": [&counted], "some": [{ "$match": { "a": 1 } }, &counted] } };
        let facets = one(&client, vec![facets]).await;
        let expected = doc! { "all": [{ "n": number }], "some": [{ "n": 6 }] };
        assert_eq!(facets, expected);
    });
}

async fn distinct(client: &Client, key: &str, query: Document) -> Vec<i32> {
    let command = doc! { "distinct": "c", "key": key, "query": query };
    let reply = client.ok(routed(command)).await;
    let values = reply.get_array("values").expect("values").iter();
    let mut values: Vec<i32> = values.map(|value| value.as_i32().expect("one")).collect();
    values.sort_unstable();
    values
}

#[test]
fn distinct_values() {
    on_shard(|client| async move {
        let all = owned((0..DOCUMENTS).collect());
        assert_eq!(distinct(&client, "k", doc! {}).await, all);
        assert_eq!(
            distinct(&client, "k", doc! { "k": { "$gt": 50 } }).await,
            [52, 54, 56, 58]
        );
        assert_eq!(distinct(&client, "a", doc! {}).await, [0, 1, 2, 3, 4]);
        assert_eq!(
            distinct(&client, "a", doc! { "k": { "$in": [1, 4, 6, 7] } }).await,
            [1, 4]
        );
        assert_eq!(
            distinct(&client, "w.x", doc! { "k": { "$lt": 5 } }).await,
            [0, 2, 4]
        );
        let odd: Vec<i32> = (0..DOCUMENTS)
            .filter(|key| key % 2 == 0)
            .map(|key| -key)
            .rev()
            .collect();
        assert_eq!(distinct(&client, "u", doc! {}).await, odd);
    });
}

/// The names of the stages of the winning plan, from the outermost.
async fn stages(client: &Client, command: Document) -> (Vec<String>, Document) {
    let reply = client
        .ok(routed(
            doc! { "explain": command, "verbosity": "executionStats" },
        ))
        .await;
    let executed = reply.get_document("executionStats").expect("statistics");
    let mut stage = executed.get_document("executionStages").expect("stages");
    let (mut names, mut filter) = (Vec::new(), Document::new());
    loop {
        let name = stage.get_str("stage").expect("a name").to_owned();
        if name == "SHARDING_FILTER" {
            filter = stage.clone();
        }
        names.push(name);
        match stage.get_document("inputStage") {
            Ok(input) => stage = input,
            Err(_) => return (names, filter),
        }
    }
}

#[test]
fn explain_shows_the_filter() {
    on_shard(|client| async move {
        let check = async |command: Document, expected: &[&str], skips: i32, returned: i32| {
            let (names, filter) = stages(&client, command.clone()).await;
            assert_eq!(names, expected, "{command}");
            assert_eq!(filter.get_i32("chunkSkips").ok(), Some(skips), "{command}");
            assert_eq!(
                filter.get_i32("nReturned").ok(),
                Some(returned),
                "{command}"
            );
        };
        let all = doc! { "find": "c", "filter": {} };
        check(all, &["SHARDING_FILTER", "COLLSCAN"], 30, 30).await;
        let sorted = doc! { "find": "c", "filter": { "a": 3 }, "sort": { "b": 1 }, "hint": "a" };
        let expected = ["SORT", "SHARDING_FILTER", "FETCH", "IXSCAN"];
        check(sorted, &expected, 6, 6).await;
        let covered = doc! { "find": "c", "hint": "k", "filter": { "k": { "$lt": 10 } }, "projection": { "k": 1, "_id": 0 } };
        let expected = ["PROJECTION_COVERED", "SHARDING_FILTER", "IXSCAN"];
        check(covered, &expected, 5, 5).await;
        let by_other = doc! { "find": "c", "hint": "b_u", "filter": { "b": 1 }, "projection": { "b": 1, "_id": 0 } };
        let expected = ["PROJECTION_SIMPLE", "SHARDING_FILTER", "FETCH", "IXSCAN"];
        check(by_other, &expected, 10, 10).await;
        let counted = doc! { "count": "c", "query": { "k": { "$lt": 10 } }, "hint": "k" };
        check(counted, &["COUNT", "SHARDING_FILTER", "IXSCAN"], 5, 5).await;
        let counted = doc! { "count": "c", "query": { "a": 1 }, "hint": "a" };
        let expected = ["COUNT", "SHARDING_FILTER", "FETCH", "IXSCAN"];
        check(counted, &expected, 6, 6).await;
        set_owns_all(true).await;
        let (names, _) = stages(&client, doc! { "find": "c" }).await;
        assert_eq!(names, ["COLLSCAN"]);
    });
}

#[test]
fn covered_reads_fetch_no_document() {
    on_shard(|client| async move {
        let examined = async |command: Document| {
            let explain = doc! { "explain": command, "verbosity": "executionStats" };
            let reply = client.ok(routed(explain)).await;
            let executed = reply.get_document("executionStats").expect("statistics");
            executed.get_i32("totalDocsExamined").expect("a number")
        };
        let covered = doc! { "find": "c", "hint": "k_u", "projection": { "u": 1, "_id": 0 } };
        assert_eq!(examined(covered).await, 0);
        let counted = doc! { "count": "c", "query": { "k": { "$gt": 3 } } };
        assert_eq!(examined(counted).await, 0);
        let counted = doc! { "count": "c", "query": { "b": 1 } };
        assert_eq!(examined(counted).await, 20);
    });
}

/// What has no key is owned by no shard, also where the entries of an index cannot say it.
#[test]
fn documents_without_a_key() {
    on_shard(|client| async move {
        let documents = [doc! { "_id": 1000 }, doc! { "_id": 1001, "k": Bson::Null }];
        client
            .ok(doc! { "insert": "c", "documents": documents.to_vec() })
            .await;
        let all = count(&client, doc! { "hint": "k" }).await;
        assert_eq!(all, DOCUMENTS / 2);
        let nulls = doc! { "query": { "k": Bson::Null }, "hint": "k" };
        assert_eq!(count(&client, nulls).await, 0);
        let covered = find(doc! { "hint": "k", "projection": { "k": 1, "_id": 0 } });
        assert_eq!(client.find(routed(covered)).await.len(), 30);
    });
}

#[test]
fn versions_are_compared_behind_the_gate() {
    on_shard(|client| async move {
        let unsharded = routed_by(9, doc! { "find": "other" });
        client.ok(unsharded).await;
        let other = routed_by(2, find(doc! {}));
        client.fails(other, 13388).await;
        let nested =
            doc! { "$lookup": { "from": "c", "localField": "a", "foreignField": "a", "as": "x" } };
        let nested = doc! { "aggregate": "other", "pipeline": [nested], "cursor": {} };
        client
            .ok(doc! { "insert": "other", "documents": [{ "_id": 1, "a": 1 }] })
            .await;
        client.fails(routed_by(9, nested), 13388).await;
    });
}

/// A find that waits at the gate while the version changes: how many documents it gives, or the
/// code of its error.
async fn find_through_change(client: &Client) -> Result<usize, i32> {
    let ns = Namespace::parse("test.c").expect("a name");
    let soon = now() + Duration::from_millis(500);
    let held = hold(ns, GateMode::Closed, soon).await.expect("it is free");
    let other = client.on(1);
    let finding = spawn(Queue::Foreground, async move {
        other.run(routed(doc! { "find": "c" })).await
    });
    sleep(Duration::from_millis(50)).await;
    set_version(2).await;
    held.release().await;
    let reply = finding.await.expect("not stopped");
    match reply.get_document("cursor") {
        Ok(cursor) => Ok(batch(cursor, "firstBatch").len()),
        Err(_) => Err(reply.get_i32("code").expect("a code")),
    }
}

#[test]
fn a_version_that_changes_at_the_gate_is_seen() {
    on_shard(|client| async move {
        become_primary().await;
        assert_eq!(find_through_change(&client).await, Err(13388));
    });
}

fn with_fault(fault: PlantedFault) -> NodeOptions {
    NodeOptions {
        planted_fault: fault,
        ..options(3)
    }
}

/// Each fault shows in what it is of.
#[test]
fn planted_faults_show() {
    let check = |fault, expected: [bool; 3]| {
        with_options(3310, 2, with_fault(fault), move |client| async move {
            become_primary().await;
            fill(&client).await;
            become_shard(doc! { "k": 1 }).await;
            let scanned = client.find(routed(find(doc! {}))).await.len() == 60;
            let by_id = routed(doc! { "find": "c", "filter": { "_id": 7 } });
            let by_id = !client.find(by_id).await.is_empty();
            let passes = find_through_change(&client).await.is_ok();
            assert_eq!([scanned, by_id, passes], expected, "{fault:?}");
        });
    };
    check(PlantedFault::None, [false; 3]);
    check(PlantedFault::FilterSkippedInScans, [true, false, false]);
    check(PlantedFault::FilterSkippedById, [false, true, false]);
    check(PlantedFault::VersionUnchecked, [false, false, true]);
}
