//! Builds of indexes over a restart: where each phase is stopped, what continues, and what begins
//! again.

use pinion_bson::{Bson, Document, doc};
use pinion_clock::OpTime;
use pinion_runtime::{Duration, Queue, fs, sleep, spawn};
use pinion_wire::MemberState;

use crate::fake_set::become_member;
use crate::harness::{Client, column, count_in_lives, options, with_crashes};

/// What a build is held up by, in the order of its phases.
const POINTS: [&str; 3] = [
    "hangIndexBuildDuringCollectionScanPhaseAfterInsertion",
    "hangIndexBuildDuringBulkLoadPhase",
    "hangIndexBuildDuringDrainWritesPhase",
];

async fn insert(client: &Client, ids: std::ops::Range<i32>) {
    let documents: Vec<Document> = ids
        .map(|id| doc! { "_id": id, "a": -id, "u": id, "t": [id, id + 1] })
        .collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Begins a build, and waits until it is held up.
async fn begin_held(client: &Client, point: &str) {
    let admin = client.at("admin");
    admin
        .ok(doc! { "configureFailPoint": point, "mode": "alwaysOn", "data": {} })
        .await;
    let asks = client.clone();
    drop(spawn(Queue::Foreground, async move {
        let indexes = vec![
            doc! { "key": { "a": 1 }, "name": "a" },
            doc! { "key": { "u": 1 }, "name": "u", "unique": true },
            doc! { "key": { "t": 1 }, "name": "t" },
        ];
        asks.run(doc! { "createIndexes": "c", "indexes": indexes })
            .await
    }));
    admin
        .ok(doc! { "waitForFailPoint": point, "timesEntered": 1, "maxTimeMS": 60_000 })
        .await;
}

/// All that may happen to documents while a build is under way, before and behind where its scan
/// is.
async fn write_beside(client: &Client) {
    insert(client, 60..80).await;
    let updates = vec![
        doc! { "q": { "_id": { "$lt": 20 } }, "u": { "$inc": { "a": -1000 } }, "multi": true },
        doc! { "q": { "_id": { "$gte": 50 } }, "u": { "$set": { "a": [1, 2] } }, "multi": true },
    ];
    client.ok(doc! { "update": "c", "updates": updates }).await;
    let gone = doc! { "q": { "_id": { "$mod": [7, 3] } }, "limit": 0 };
    client.ok(doc! { "delete": "c", "deletes": [gone] }).await;
}

/// Waits until no build is under way, and compares the indexes with the documents.
async fn check_built(client: &Client) {
    let look = doc! { "listIndexes": "c", "includeBuildUUIDs": true, "$readPreference": { "mode": "nearest" } };
    loop {
        let listed = client.find(look.clone()).await;
        if listed.iter().all(|index| !index.contains_key("buildUUID")) {
            assert_eq!(column(&listed, "name").len(), 4, "{listed:?}");
            break;
        }
        sleep(Duration::from_millis(10)).await;
    }
    let reply = client.ok(doc! { "validate": "c", "full": true }).await;
    assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
    let expected: Vec<Bson> = (0..80).filter(|id| id % 7 != 3).map(Bson::Int32).collect();
    for (filter, hint, sort) in [
        (doc! { "u": { "$gte": 0 } }, "u", doc! { "u": 1 }),
        (doc! { "t": { "$gte": 0 } }, "t", doc! { "_id": 1 }),
        (doc! { "a": { "$lte": 2 } }, "a", doc! { "_id": 1 }),
    ] {
        let find = doc! { "find": "c", "filter": filter, "hint": hint, "sort": sort };
        assert_eq!(column(&client.find(find).await, "_id"), expected, "{hint}");
    }
    let twice = doc! { "_id": 1000, "u": 4 };
    client.fails_to_insert(twice, 11000).await;
    assert_eq!(files().await, [""; 0]);
}

async fn files() -> Vec<String> {
    fs::read_dir("/data/_tmp").await.expect("there is one")
}

async fn become_primary() {
    become_member(MemberState::Primary, true, OpTime::NULL).await;
}

/// Stops a node in order while a build is held up; the next life continues with it, on any number
/// of cores.
fn check_stopped(seed: u64, cores: &[usize], point: &'static str, is_member: bool) {
    let mut options = options(3);
    options.storage.is_member = is_member;
    let script = move |life: usize, client: Client| async move {
        if is_member {
            become_primary().await;
        }
        if life == 0 {
            insert(&client, 0..60).await;
            begin_held(&client, point).await;
            write_beside(&client).await;
            return;
        }
        if is_member {
            pinion_catalog::begin_builds()
                .await
                .expect("storage serves");
        }
        check_built(&client).await;
    };
    let resumed = count_in_lives(seed, cores, options, "index build resumed", script);
    assert_eq!(resumed, 1, "{point}, member: {is_member}");
}

#[test]
fn a_build_continues_in_each_phase() {
    for (n, point) in (0..).zip(POINTS) {
        check_stopped(1500 + n, &[1, 1], point, false);
        check_stopped(1510 + n, &[2, 3], point, false);
        check_stopped(1520 + n, &[3, 2], point, true);
    }
}

/// A build that is stopped twice, and the second time before it has done anything.
#[test]
fn a_build_continues_after_each_of_several_stops() {
    let script = |life: usize, client: Client| async move {
        if life == 0 {
            insert(&client, 0..60).await;
            begin_held(&client, POINTS[0]).await;
            write_beside(&client).await;
        } else if life == 2 {
            check_built(&client).await;
        }
    };
    let event = "index build resumed";
    let resumed = count_in_lives(1530, &[2, 1, 2], options(3), event, script);
    assert!(resumed >= 1);
}

#[test]
fn a_build_begins_again_after_a_crash() {
    for (n, point) in (0..).zip(POINTS) {
        with_crashes(1540 + n, &[2, 1, 3], 3, move |life, client| async move {
            if life == 0 {
                insert(&client, 0..60).await;
                begin_held(&client, point).await;
                write_beside(&client).await;
                let last = pinion_storage::storage().last_allotted();
                let storage = pinion_storage::storage();
                let durable = storage.wait_durable(last).await;
                durable.expect("storage serves");
            } else {
                check_built(&client).await;
            }
        });
    }
}

/// Damages the files that a build has left.
async fn damage(how: usize) {
    for name in files().await {
        let path = format!("/data/_tmp/{name}");
        let is_state = name.starts_with("index-build-");
        if is_state != (how == 0) {
            continue;
        }
        if how == 1 {
            fs::remove_file(&path).await.expect("it is there");
            continue;
        }
        let file = pinion_runtime::File::open(&path, pinion_runtime::OpenOptions::write());
        let file = file.await.expect("it is there");
        let mut block = file
            .read_at(0, pinion_runtime::ALIGN)
            .await
            .expect("it is read");
        block[30] ^= 8;
        file.write_at(0, block).await.expect("it is written");
        file.close().await.expect("it is closed");
    }
}

/// What was kept and is not as it was written, or is gone: the build begins again. The second life
/// is that of a member, which begins it when its set is there: the test is there first.
#[test]
fn a_build_begins_again_where_its_files_are_damaged() {
    for how in 0..3 {
        let mut options = options(3);
        options.storage.is_member = true;
        let script = move |life: usize, client: Client| async move {
            become_primary().await;
            if life == 0 {
                insert(&client, 0..60).await;
                begin_held(&client, POINTS[1]).await;
                write_beside(&client).await;
                return;
            }
            assert!(files().await.len() > 1, "state and sorted entries");
            damage(how).await;
            pinion_catalog::begin_builds()
                .await
                .expect("storage serves");
            check_built(&client).await;
        };
        let event = "index build resumed";
        let resumed = count_in_lives(1550 + how as u64, &[2, 2], options, event, script);
        // Damage inside of a file of entries shows when it is read.
        assert_eq!(resumed, u64::from(how == 2), "how {how}");
    }
}
