//! What does not fit into memory is put on disk: the answers are the same, and nothing is left of
//! it.

use pinion_bson::{Document, doc};
use pinion_runtime::fs;

use crate::harness::{Client, with_crashes, with_lives, with_node};

const LIMITS: [&str; 4] = [
    "internalQueryMaxBlockingSortMemoryUsageBytes",
    "internalDocumentSourceGroupMaxMemoryBytes",
    "internalQuerySlotBasedExecutionHashAggApproxMemoryUseInBytesBeforeSpill",
    "internalDocumentSourceBucketAutoMaxMemoryBytes",
];

async fn set_limits(client: &Client, bytes: i64) {
    let mut command = doc! { "setParameter": 1 };
    for name in LIMITS {
        command.insert(name, bytes);
    }
    // Only the documents of windows are spilled: what is known of each stays.
    command.insert(
        "internalDocumentSourceSetWindowFieldsMaxMemoryBytes",
        2 * bytes,
    );
    client.at("admin").ok(command).await;
}

async fn fill(client: &Client) {
    let documents: Vec<Document> = (0..600_i32)
        .map(|i| doc! { "_id": i, "k": i * 7919 % 1000, "g": i * 31 % 97, "v": f64::from(i) / 7.0, "text": "x".repeat(300) })
        .collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Reads that hold all documents before they give the first one.
fn reads() -> Vec<Document> {
    let aggregate =
        |stages: Vec<Document>| doc! { "aggregate": "c", "pipeline": stages, "cursor": {} };
    vec![
        doc! { "find": "c", "sort": { "k": 1 } },
        doc! { "find": "c", "sort": { "g": -1, "k": 1 }, "projection": { "text": 0 }, "limit": 500 },
        aggregate(vec![
            doc! { "$sort": { "v": -1 } },
            doc! { "$project": { "k": 1 } },
        ]),
        aggregate(vec![
            doc! { "$project": { "k": 1, "text": 1 } },
            doc! { "$sort": { "k": 1 } },
        ]),
        aggregate(vec![
            doc! { "$group": { "_id": "$g", "s": { "$sum": "$v" }, "all": { "$push": "$text" }, "last": { "$last": "$_id" } } },
        ]),
        aggregate(vec![
            doc! { "$unwind": "$k" },
            doc! { "$group": { "_id": "$k", "v": { "$avg": "$v" } } },
        ]),
        aggregate(vec![
            doc! { "$bucketAuto": { "groupBy": "$v", "buckets": 5 } },
        ]),
        aggregate(vec![
            doc! { "$setWindowFields": { "sortBy": { "k": 1 }, "output": { "n": { "$sum": 1 } } } },
        ]),
        aggregate(vec![
            doc! { "$facet": { "a": [{ "$sort": { "k": 1 } }, { "$limit": 400 }], "b": [{ "$sortByCount": "$g" }] } },
        ]),
    ]
}

async fn status(client: &Client, path: &[&str]) -> i64 {
    let mut at = client.at("admin").ok(doc! { "serverStatus": 1 }).await;
    let (last, path) = path.split_last().expect("a path");
    for name in path {
        at = at.get_document(name).expect("a section").clone();
    }
    at.get_i64(last).expect("a counter")
}

#[test]
fn answers_are_the_same_whatever_the_memory() {
    for (seed, cores, partitions) in [(1, 1, 1), (2, 2, 3), (3, 3, 2)] {
        with_node(seed, cores, partitions, |client| async move {
            fill(&client).await;
            let mut expected = Vec::new();
            for read in reads() {
                expected.push(client.find(read).await);
            }
            assert_eq!(
                status(&client, &["metrics", "query", "sort", "spillToDisk"]).await,
                0
            );
            set_limits(&client, 60_000).await;
            for (read, expected) in reads().into_iter().zip(expected) {
                let shown = read.to_string();
                assert!(client.find(read).await == expected, "{shown}");
            }
            for stage in ["sort", "group", "bucketAuto", "setWindowFields"] {
                for counter in ["spills", "spilledBytes", "spilledRecords"] {
                    let count = status(&client, &["metrics", "query", stage, counter]).await;
                    assert!(count > 0, "{stage}.{counter}");
                }
            }
        });
    }
}

#[test]
fn what_may_not_spill_fails() {
    with_node(4, 2, 3, |client| async move {
        fill(&client).await;
        set_limits(&client, 60_000).await;
        for mut read in reads() {
            read.insert("allowDiskUse", false);
            let message = client.fails(read, 292).await;
            assert!(message.contains("memory limit"), "{message}");
        }
        let parameter = doc! { "setParameter": 1, "allowDiskUseByDefault": false };
        client.at("admin").ok(parameter).await;
        let sort = doc! { "find": "c", "sort": { "k": 1 } };
        let message = client.fails(sort.clone(), 292).await;
        assert!(
            message.ends_with(
                "Sort exceeded memory limit of 60000 bytes, but did not opt in to external sorting."
            ),
            "{message}"
        );
        let mut allowed = sort;
        allowed.insert("allowDiskUse", true);
        assert_eq!(client.find(allowed).await.len(), 600);
    });
}

/// The limit is one for all partitions together, however the documents lie.
#[test]
fn a_sort_has_one_limit() {
    for partitions in [1, 2, 4] {
        with_node(5, 2, partitions, |client| async move {
            fill(&client).await;
            let sort = doc! { "find": "c", "sort": { "k": 1 }, "allowDiskUse": false };
            // 600 documents of about 400 bytes.
            set_limits(&client, 200_000).await;
            client.fails(sort.clone(), 292).await;
            set_limits(&client, 400_000).await;
            assert_eq!(client.find(sort).await.len(), 600);
        });
    }
}

#[test]
fn explain_shows_what_was_spilled() {
    with_node(6, 2, 2, |client| async move {
        fill(&client).await;
        let explain = doc! { "explain": { "find": "c", "sort": { "k": 1 } } };
        for (limit, used) in [(1 << 30, false), (50_000, true)] {
            set_limits(&client, limit).await;
            let reply = client.ok(explain.clone()).await;
            let stages = reply
                .get_document("executionStats")
                .and_then(|stats| stats.get_document("executionStages"))
                .expect("stages");
            assert_eq!(stages.get_bool("usedDisk").ok(), Some(used), "{stages}");
            let spills = stages.get_i64("spills").expect("a count");
            assert_eq!(spills > 0, used, "{stages}");
        }
    });
}

/// What a cursor has spilled goes with it, and no command leaves a file with a name.
#[test]
fn nothing_is_left_of_what_was_spilled() {
    with_node(7, 2, 2, |client| async move {
        fill(&client).await;
        set_limits(&client, 60_000).await;
        let in_use = ["pinion", "operations", "spilledBytes"];
        for read in [
            doc! { "find": "c", "sort": { "k": 1 }, "batchSize": 2 },
            doc! { "aggregate": "c", "pipeline": [{ "$group": { "_id": "$_id", "t": { "$first": "$text" } } }], "cursor": { "batchSize": 2 } },
        ] {
            let reply = client.ok(read).await;
            let cursor = reply.get_document("cursor").expect("a cursor");
            let id = cursor.get_i64("id").expect("an id");
            assert!(id != 0 && status(&client, &in_use).await > 0);
            client
                .ok(doc! { "killCursors": "c", "cursors": [id] })
                .await;
            pinion_runtime::sleep(pinion_runtime::Duration::from_secs(1)).await;
            assert_eq!(status(&client, &in_use).await, 0);
        }
        assert!(
            fs::read_dir("/data/_tmp")
                .await
                .expect("there is one")
                .is_empty()
        );
    });
}

/// A disk without room ends the operation, and nothing else.
#[test]
fn a_full_disk_fails_what_spills() {
    with_node(8, 2, 2, |client| async move {
        fill(&client).await;
        set_limits(&client, 60_000).await;
        let parameter =
            doc! { "setParameter": 1, "internalQuerySpillingMinAvailableDiskSpaceBytes": i64::MAX };
        client.at("admin").ok(parameter).await;
        for read in reads() {
            let message = client.fails(read, 14031).await;
            assert!(message.starts_with("Failed to spill to disk"), "{message}");
        }
        fill_more(&client).await;
        let parameter =
            doc! { "setParameter": 1, "internalQuerySpillingMinAvailableDiskSpaceBytes": 0 };
        client.at("admin").ok(parameter).await;
        assert_eq!(
            client
                .find(doc! { "find": "c", "sort": { "k": 1 } })
                .await
                .len(),
            601
        );
    });
}

async fn fill_more(client: &Client) {
    client
        .ok(doc! { "insert": "c", "documents": [{ "_id": "more" }] })
        .await;
}

/// A node needs nothing of what was spilled before it ended, and removes what has a name.
#[test]
fn a_start_removes_what_was_left() {
    let script = |life: usize, client: Client| async move {
        if life == 0 {
            fill(&client).await;
            fs::create_dir_all("/data/_tmp").await.expect("it is made");
            let left = pinion_runtime::File::open(
                "/data/_tmp/spill-0-1",
                pinion_runtime::OpenOptions::create(),
            )
            .await
            .expect("it is made");
            left.close().await.expect("it is closed");
            fs::sync_dir("/data/_tmp").await.expect("it is durable");
            fs::sync_dir("/data").await.expect("it is durable");
        } else {
            assert!(
                fs::read_dir("/data/_tmp")
                    .await
                    .expect("there is one")
                    .is_empty()
            );
        }
        set_limits(&client, 60_000).await;
        // Left open when the life ends.
        let reply = client
            .ok(doc! { "find": "c", "sort": { "k": 1 }, "batchSize": 2 })
            .await;
        let cursor = reply.get_document("cursor").expect("a cursor");
        assert_ne!(cursor.get_i64("id").expect("an id"), 0);
    };
    with_crashes(9, &[2, 1, 3], 3, script);
    with_lives(10, &[2, 3, 1], 3, script);
}
