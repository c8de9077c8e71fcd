//! Time series: acknowledged measurements outlive crashes, and writers of one source do not lose
//! each other's measurements.

use std::collections::BTreeSet;

use pinion_bson::{DateTime, Document, doc};

use crate::harness::{Client, with_crashes, with_node};

const MEASUREMENTS_OF_LIFE: i32 = 60;

fn at(secs: i64) -> DateTime {
    DateTime::from_millis(1_700_000_000_000 + secs * 1000)
}

fn measurement(id: i32) -> Document {
    doc! { "_id": id, "t": at(i64::from(id % 7) * 400), "m": { "s": id % 3 }, "v": id }
}

fn insert(ids: impl Iterator<Item = i32>) -> Document {
    let documents: Vec<Document> = ids.map(measurement).collect();
    doc! { "insert": "s", "documents": documents, "writeConcern": { "j": true } }
}

async fn ids(client: &Client, filter: Document) -> BTreeSet<i32> {
    let found = client.find(doc! { "find": "s", "filter": filter }).await;
    let ids: Vec<i32> = found
        .iter()
        .map(|found| found.get_i32("_id").expect("a number"))
        .collect();
    let distinct: BTreeSet<i32> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "each measurement is there once");
    distinct
}

async fn check_valid(client: &Client) {
    let validated = client.ok(doc! { "validate": "s", "full": true }).await;
    assert_eq!(validated.get_bool("valid").ok(), Some(true), "{validated}");
}

/// What has been acknowledged before this life.
fn acknowledged(life: i32) -> BTreeSet<i32> {
    let kept = |id: &i32| id % MEASUREMENTS_OF_LIFE % 5 != 4;
    (0..life * MEASUREMENTS_OF_LIFE).filter(kept).collect()
}

fn survives(seed: u64) {
    with_crashes(seed, &[1, 2, 2], 2, |life, client| async move {
        let life = i32::try_from(life).expect("few lives");
        if life == 0 {
            let series = doc! { "timeField": "t", "metaField": "m" };
            client
                .ok(doc! { "create": "s", "timeseries": series })
                .await;
            let index = doc! { "key": { "m.s": 1, "t": -1 }, "name": "source" };
            client
                .ok(doc! { "createIndexes": "s", "indexes": [index] })
                .await;
        }
        // What was not acknowledged may be there or not.
        let sure = doc! { "_id": { "$lt": 1_000_000 } };
        assert_eq!(ids(&client, sure).await, acknowledged(life));
        let of_source = doc! { "m.s": 1, "_id": { "$lt": 1_000_000 } };
        let expected = acknowledged(life).into_iter().filter(|id| id % 3 == 1);
        assert_eq!(ids(&client, of_source).await, expected.collect());
        check_valid(&client).await;
        let first = life * MEASUREMENTS_OF_LIFE;
        let half = first + MEASUREMENTS_OF_LIFE / 2;
        let other = client.on(1);
        let (one, two) = (
            client.ok(insert(first..half)),
            other.ok(insert(half..half + MEASUREMENTS_OF_LIFE / 2)),
        );
        for reply in [one.await, two.await] {
            assert_eq!(reply.get_i32("n").ok(), Some(MEASUREMENTS_OF_LIFE / 2));
        }
        let filter = doc! { "_id": { "$gte": first }, "$expr": { "$eq": [{ "$mod": [{ "$mod": ["$_id", MEASUREMENTS_OF_LIFE] }, 5] }, 4] } };
        let delete = doc! { "q": filter, "limit": 0 };
        client
            .ok(doc! { "delete": "s", "deletes": [delete], "writeConcern": { "j": true } })
            .await;
        let lost = doc! { "insert": "s", "documents": [measurement(1_000_000 + life)] };
        client.ok(lost).await;
    });
}

#[test]
fn acknowledged_measurements_survive_crashes() {
    for seed in 0..8 {
        survives(seed);
    }
}

#[test]
fn writers_of_one_source_keep_all_measurements() {
    for seed in 0..4 {
        with_node(seed, 2, 4, |client| async move {
            let series = doc! { "timeField": "t", "metaField": "m" };
            client
                .ok(doc! { "create": "s", "timeseries": series })
                .await;
            let writer = |number: i32| {
                let client = client.on(number as u16);
                async move {
                    for round in 0..5 {
                        let first = number * 1000 + round * 20;
                        let documents: Vec<Document> = (first..first + 20)
                            .map(|id| doc! { "_id": id, "t": at(i64::from(id)), "m": 1, "v": id })
                            .collect();
                        client
                            .ok(doc! { "insert": "s", "documents": documents })
                            .await;
                        let gone = doc! { "q": { "_id": first + 3 }, "limit": 1 };
                        let reply = client.ok(doc! { "delete": "s", "deletes": [gone] }).await;
                        assert_eq!(reply.get_i32("n").ok(), Some(1), "{reply}");
                    }
                }
            };
            pinion_runtime::join_all((0..4).map(writer)).await;
            let expected = (0..4).flat_map(|number| {
                let all = number * 1000..number * 1000 + 100;
                all.filter(|id| id % 20 != 3)
            });
            assert_eq!(ids(&client, doc! {}).await, expected.collect());
            check_valid(&client).await;
        });
    }
}

#[test]
fn an_update_of_sources_changes_each_bucket_once() {
    with_node(1, 2, 4, |client| async move {
        let series = doc! { "timeField": "t", "metaField": "m" };
        client
            .ok(doc! { "create": "s", "timeseries": series })
            .await;
        let index = doc! { "key": { "m.tags": 1 }, "name": "tags" };
        client
            .ok(doc! { "createIndexes": "s", "indexes": [index] })
            .await;
        let documents: Vec<Document> = (0..40)
            .map(|id| doc! { "_id": id, "t": at(i64::from(id)), "m": { "s": id, "n": 0 } })
            .collect();
        client
            .ok(doc! { "insert": "s", "documents": documents })
            .await;
        // The index becomes multikey on the way, for which the statement stops and continues.
        let change = doc! { "$inc": { "m.n": 1 }, "$set": { "m.tags": ["a", "b"] } };
        let update = doc! { "q": { "m.s": { "$gte": 0 } }, "u": change, "multi": true };
        let reply = client.ok(doc! { "update": "s", "updates": [update] }).await;
        assert_eq!(
            (reply.get_i32("n").ok(), reply.get_i32("nModified").ok()),
            (Some(40), Some(40))
        );
        let changed = doc! { "m.n": 1, "m.tags": "b" };
        assert_eq!(ids(&client, changed).await, (0..40).collect());
        check_valid(&client).await;
    });
}

/// The first write of a name that comes to be a series while the write waits goes into the series.
#[test]
fn a_first_write_beside_the_making_of_a_series() {
    for seed in 0..12 {
        with_node(seed, 2, 3, move |client| async move {
            let series = doc! { "timeField": "t", "metaField": "m" };
            let change = doc! { "q": { "m": 7 }, "u": { "$set": { "m": 8 } }, "multi": true };
            let commands = [
                doc! { "create": "s", "timeseries": series },
                insert(0..3),
                doc! { "update": "s", "updates": [change] },
                insert(3..5),
            ];
            let commands = commands.map(|command| {
                let client = client.on((seed % 2) as u16);
                async move { client.run(command).await }
            });
            let replies = pinion_runtime::join_all(commands).await;
            // A write that comes first makes a collection.
            let is_series = replies[0].get_i32("code").ok() != Some(48);
            for reply in &replies[usize::from(!is_series)..] {
                assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
                assert!(!reply.contains_key("writeErrors"), "{reply}");
            }
            assert_eq!(ids(&client, doc! {}).await, (0..5).collect());
            let buckets = client.find(doc! { "find": "system.buckets.s" }).await;
            assert_eq!(!buckets.is_empty(), is_series);
            assert!(buckets.iter().all(|bucket| bucket.contains_key("control")));
            check_valid(&client).await;
        });
    }
}
