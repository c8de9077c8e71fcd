//! Builds of indexes on a member: which members are waited for, what becomes of them when the
//! member is primary no longer, and which reads use what they have made. The set is a fake.

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{Bson, Document, doc};
use pinion_catalog::BuildPhase;
use pinion_clock::{OpTime, Timestamp};
use pinion_instance::{interrupt_writers, reopen_at};
use pinion_runtime::{CoreId, Duration, JoinHandle, Queue, on_all_cores, sleep, spawn, submit_to};
use pinion_storage::storage;
use pinion_wire::{ErrorCode, MemberState};

use crate::fake_set::{become_member, fake, of_term_1};
use crate::harness::{Client, column, options, with_node, with_options};

async fn primary() {
    become_member(MemberState::Primary, true, OpTime::NULL).await;
}

async fn secondary() {
    become_member(MemberState::Secondary, false, OpTime::NULL).await;
}

/// This number of members has to be ready.
async fn need_ready(members: usize) {
    on_all_cores(move |_| async move { fake().ready_needed.set(members) }).await;
}

async fn insert(client: &Client, ids: std::ops::Range<i32>) {
    let documents: Vec<Document> = ids.map(|id| doc! { "_id": id, "a": -id }).collect();
    client
        .ok(doc! { "insert": "c", "documents": documents })
        .await;
}

/// Begins to build an index on `a`, and waits until the catalog has it.
async fn begin(client: &Client, more: Document) -> (JoinHandle<Document>, Bson) {
    let mut command =
        doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
    command.extend(more);
    let client = client.clone();
    let asks = client.clone();
    let build = spawn(Queue::Foreground, async move { asks.run(command).await });
    loop {
        if let Some(uuid) = built_by(&client).await {
            return (build, uuid);
        }
        sleep(Duration::from_millis(1)).await;
    }
}

/// The build of the collection that is under way.
async fn built_by(client: &Client) -> Option<Bson> {
    let list = doc! { "listIndexes": "c", "includeBuildUUIDs": true, "$readPreference": { "mode": "nearest" } };
    let listed = client.find(list).await;
    listed
        .iter()
        .find_map(|index| index.get("buildUUID").cloned())
}

async fn index_names(client: &Client) -> Vec<Bson> {
    let list = doc! { "listIndexes": "c", "$readPreference": { "mode": "nearest" } };
    column(&client.find(list).await, "name")
}

async fn kept(client: &Client) -> Vec<Document> {
    let find = doc! { "find": "system.indexBuilds", "$readPreference": { "mode": "nearest" } };
    client.at("config").find(find).await
}

fn vote(build: &Bson, host: &str) -> Document {
    doc! { "voteCommitIndexBuild": build.clone(), "hostAndPort": host }
}

/// The index has exactly what the documents say.
async fn check_index(client: &Client, ids: std::ops::Range<i32>) {
    let reply = client.ok(doc! { "validate": "c", "full": true }).await;
    assert_eq!(reply.get_bool("valid").ok(), Some(true), "{reply}");
    let by_index = doc! { "find": "c", "hint": "a", "sort": { "a": -1 }, "$readPreference": { "mode": "nearest" } };
    let found = column(&client.find(by_index).await, "_id");
    assert_eq!(found, ids.map(Bson::Int32).collect::<Vec<_>>());
}

async fn soon(mut holds: impl AsyncFnMut() -> bool) {
    for _ in 0..2000 {
        if holds().await {
            return;
        }
        sleep(Duration::from_millis(5)).await;
    }
    panic!("it did not come true");
}

#[test]
fn a_build_is_committed_when_enough_are_ready() {
    for (seed, cores) in [(1400, 1), (1401, 2), (1402, 3)] {
        with_node(seed, cores, 3, move |client| async move {
            primary().await;
            insert(&client, 0..50).await;
            need_ready(3).await;
            let (build, uuid) = begin(&client, doc! { "commitQuorum": "majority" }).await;
            soon(async || {
                let kept = kept(&client).await;
                kept.first()
                    .is_some_and(|kept| kept.contains_key("commitReadyMembers"))
            })
            .await;
            let found = kept(&client).await;
            assert_eq!(found[0].get("_id"), Some(&uuid));
            assert_eq!(found[0].get_str("commitQuorum").ok(), Some("majority"));
            assert_eq!(
                found[0].get_array("indexNames").ok(),
                Some(&vec!["a".into()])
            );
            insert(&client, 50..60).await;
            let admin = client.at("admin");
            let unknown = Bson::Binary(pinion_bson::Binary {
                subtype: pinion_bson::BinarySubtype::Uuid,
                bytes: vec![7; 16],
            });
            admin.fails(vote(&unknown, "b:1"), 4).await;
            // The same member twice counts once.
            admin.ok(vote(&uuid, "b:1")).await;
            admin.ok(vote(&uuid, "b:1")).await;
            sleep(Duration::from_secs(2)).await;
            assert!(built_by(&client).await.is_some());
            let set = |quorum: Bson, names: Vec<Bson>| doc! { "setIndexCommitQuorum": "c", "indexNames": names, "commitQuorum": quorum };
            client
                .fails(set(1.into(), vec!["a".into(), "b".into()]), 27)
                .await;
            client.fails(set(1.into(), vec![]), 27).await;
            client.fails(set(0.into(), vec!["a".into()]), 2).await;
            client.fails(set("x".into(), vec!["a".into()]), 79).await;
            client.ok(set(2.into(), vec!["a".into()])).await;
            let found = kept(&client).await;
            assert_eq!(found[0].get_i32("commitQuorum").ok(), Some(2));
            admin.ok(vote(&uuid, "c:1")).await;
            let reply = build.await.expect("not stopped");
            assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
            check_index(&client, 0..60).await;
            soon(async || kept(&client).await.is_empty()).await;
            admin.fails(vote(&uuid, "c:1"), 4).await;
        });
    }
}

#[test]
fn a_build_without_a_quorum_waits_for_no_member_and_one_that_a_member_cannot_make_ends() {
    with_node(1410, 2, 3, |client| async move {
        primary().await;
        insert(&client, 0..20).await;
        need_ready(3).await;
        let at_once = doc! { "createIndexes": "c", "indexes": [{ "key": { "b": 1 }, "name": "b" }], "commitQuorum": 0 };
        client.ok(at_once).await;
        let (build, uuid) = begin(&client, doc! {}).await;
        let admin = client.at("admin");
        admin
            .ok(doc! { "voteAbortIndexBuild": uuid, "hostAndPort": "b:1", "reason": "no room" })
            .await;
        let reply = build.await.expect("not stopped");
        assert_eq!(reply.get_i32("code").ok(), Some(276), "{reply}");
        let message = reply.get_str("errmsg").expect("a message");
        assert!(message.contains("'b:1': no room"), "{message}");
        assert_eq!(index_names(&client).await, ["_id_".into(), "b".into()]);
    });
}

/// Has the node follow another, or lead again.
async fn turn(leads: bool) {
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        match leads {
            true => storage().lead().await,
            false => {
                storage().follow().await.expect("storage serves");
                pinion_instance::writes_ended().await;
            }
        }
    })
    .await;
}

#[test]
fn a_build_continues_when_its_primary_steps_down() {
    for (seed, cores) in [(1420, 1), (1421, 3)] {
        with_node(seed, cores, 3, move |client| async move {
            primary().await;
            insert(&client, 0..80).await;
            need_ready(9).await;
            let (build, uuid) = begin(&client, doc! {}).await;
            insert(&client, 80..90).await;
            let refusing = Some(ErrorCode::NOT_WRITABLE_PRIMARY);
            on_all_cores(move |_| async move { fake().primary_refuses.set(refusing) }).await;
            secondary().await;
            interrupt_writers().await;
            turn(false).await;
            let reply = build.await.expect("not stopped");
            assert_eq!(reply.get_i32("code").ok(), Some(11602), "{reply}");
            assert_eq!(
                reply.get_str("errmsg").ok(),
                Some("operation was interrupted")
            );
            // It votes until the primary has heard of it.
            let is_vote = |call: &String| call == "primary: voteCommitIndexBuild";
            soon(async || {
                fake()
                    .calls
                    .borrow()
                    .iter()
                    .filter(|call| is_vote(call))
                    .count()
                    > 1
            })
            .await;
            on_all_cores(|_| async { fake().primary_refuses.set(None) }).await;
            sleep(Duration::from_secs(3)).await;
            fake().take_calls();
            sleep(Duration::from_secs(3)).await;
            assert_eq!(fake().take_calls(), Vec::<String>::new());
            assert_eq!(built_by(&client).await, Some(uuid));
            need_ready(1).await;
            turn(true).await;
            primary().await;
            soon(async || built_by(&client).await.is_none()).await;
            insert(&client, 90..95).await;
            check_index(&client, 0..95).await;
        });
    }
}

/// What a build has read above the timestamp is in no index afterwards, and what it has not read
/// any more is.
#[test]
fn a_build_starts_again_when_the_directory_is_opened_again() {
    for (seed, cores) in [(1430, 1), (1431, 2), (1432, 3)] {
        let mut options = options(3);
        options.storage.is_member = true;
        with_options(seed, cores, options, move |client| async move {
            primary().await;
            insert(&client, 0..60).await;
            need_ready(9).await;
            let (build, uuid) = begin(&client, doc! {}).await;
            let before = storage().last_allotted();
            storage().set_stable(before);
            insert(&client, 60..90).await;
            let gone = doc! { "q": { "_id": { "$lt": 30 } }, "limit": 0 };
            client.ok(doc! { "delete": "c", "deletes": [gone] }).await;
            sleep(Duration::from_secs(2)).await;
            secondary().await;
            interrupt_writers().await;
            turn(false).await;
            build.await.expect("not stopped");
            submit_to(CoreId(0), Queue::Foreground, move || async move {
                reopen_at(before).await.expect("opens");
            })
            .await;
            assert_eq!(built_by(&client).await, Some(uuid));
            need_ready(1).await;
            turn(true).await;
            primary().await;
            soon(async || built_by(&client).await.is_none()).await;
            check_index(&client, 0..60).await;
        });
    }
}

#[test]
fn a_snapshot_below_the_end_of_a_build_does_not_use_its_index() {
    for (seed, cores) in [(1440, 1), (1441, 2)] {
        // A member keeps its history.
        let mut options = options(3);
        options.storage.is_member = true;
        with_options(seed, cores, options, move |client| async move {
            primary().await;
            insert(&client, 0..30).await;
            need_ready(9).await;
            let (build, _) = begin(&client, doc! {}).await;
            // In the side writes alone until the end.
            sleep(Duration::from_secs(1)).await;
            insert(&client, 30..40).await;
            let before = storage().last_allotted();
            need_ready(1).await;
            build.await.expect("not stopped");
            let after = storage().last_allotted();
            let read = |at: Timestamp, hint: bool| {
                let at = pinion_bson::Timestamp {
                    time: at.secs(),
                    increment: at.inc(),
                };
                let mut find = doc! { "find": "c", "filter": { "a": { "$lte": 0 } } };
                if hint {
                    find.insert("hint", "a");
                }
                find.insert(
                    "readConcern",
                    doc! { "level": "snapshot", "atClusterTime": at },
                );
                find
            };
            let find = doc! { "find": "c", "filter": { "a": { "$lte": 0 } }, "readConcern": { "level": "majority" } };
            let committed = |ts| become_member(MemberState::Primary, true, of_term_1(ts));
            committed(before).await;
            assert_eq!(client.find(find.clone()).await.len(), 40);
            committed(after).await;
            assert_eq!(client.find(find).await.len(), 40);
            assert_eq!(client.find(read(after, true)).await.len(), 40);
            assert_eq!(client.find(read(before, false)).await.len(), 40);
            client.fails(read(before, true), 2).await;
        });
    }
}

/// Does something each time that a build is about to bring over side writes it has read, or to
/// begin with that.
fn at_each_drain<F: Future<Output = ()> + 'static>(act: impl Fn(u32) -> F + Clone + 'static) {
    let drains = Rc::new(Cell::new(0));
    pinion_catalog::set_build_hold(Rc::new(move |phase| {
        let (act, drains) = (act.clone(), drains.clone());
        Box::pin(async move {
            if phase == BuildPhase::Draining {
                drains.set(drains.get() + 1);
                act(drains.get()).await;
            }
            false
        })
    }));
}

/// A checkpoint takes side writes into the base, between a look at them and the statement that
/// takes them out.
#[test]
fn what_a_checkpoint_moves_is_brought_over_by_the_next_pass() {
    for (seed, unique) in [(1450, false), (1451, true)] {
        with_node(seed, 1, 1, move |client| async move {
            insert(&client, 0..50).await;
            let writer = client.clone();
            at_each_drain(move |drain| {
                let writer = writer.clone();
                async move {
                    match drain {
                        1 => insert(&writer, 50..60).await,
                        2 => insert(&writer, 60..70).await,
                        // Behind the gates.
                        3 => {
                            let taken = storage().checkpoint_merging_all().await;
                            taken.expect("a checkpoint");
                        }
                        _ => {}
                    }
                }
            });
            let index = doc! { "key": { "a": 1 }, "name": "a", "unique": unique };
            client
                .ok(doc! { "createIndexes": "c", "indexes": [index] })
                .await;
            check_index(&client, 0..70).await;
        });
    }
}
