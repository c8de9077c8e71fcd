//! Prepared transactions of another node applied: in every mode, and by appliers that continue what
//! others have started.

use std::rc::Rc;

use bytes::Bytes;
use pinion_apply::Applier;
use pinion_bson::{Document, RawDocument, doc};
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;
use pinion_runtime::sim::Death;
use pinion_storage::storage;

use super::SHAPES;
use super::source::{Entries, Source, recording};
use super::target::{log, state_of};
use super::transactions::{delete, insert, prepare, update};
use crate::harness::{Client, with_member, with_node};
use crate::prepared::{commit_at, majority_has_all, prepared};
use crate::transactions::{abort, first, statement};

/// Runs the commands in a transaction of a session, and prepares it.
async fn begin(client: &Client, session: u8, commands: Vec<Document>) -> pinion_bson::Timestamp {
    for (nth, command) in commands.into_iter().enumerate() {
        let command = match nth {
            0 => first(session, 1, command),
            _ => statement(session, 1, command),
        };
        let reply = client.ok(command).await;
        assert!(!reply.contains_key("writeErrors"), "{reply}");
    }
    prepared(client, session, 1).await
}

/// Three transactions that are prepared at the same time: one with several changes of the same
/// documents, one that is aborted, and one of several entries. Others write between.
async fn workload(client: Client) {
    prepare(&client).await;
    let change = |n: i32| doc! { "$set": { "n": n }, "$push": { "tags": 100 + n } };
    let small = |id: i32| doc! { "_id": id, "u": id, "tags": [id] };
    let one = begin(
        &client,
        1,
        vec![
            insert(vec![doc! { "_id": 20, "u": 20, "tags": ["a", "b"] }]),
            update(20, change(1)),
            update(20, doc! { "$set": { "u": 21 }, "$pull": { "tags": "a" } }),
            update(1, change(2)),
            update(1, change(3)),
            delete(2),
            insert(vec![doc! { "_id": 2, "u": 2, "again": true }]),
            update(2, doc! { "$set": { "tags": [7, 8] } }),
            insert(vec![doc! { "_id": 30, "u": 30 }]),
            delete(30),
            delete(3),
            // Two documents give each other their unique values, by way of a third.
            update(4, doc! { "$set": { "u": -1 } }),
            update(5, doc! { "$set": { "u": 4 } }),
            update(4, doc! { "$set": { "u": 5 } }),
        ],
    )
    .await;
    begin(
        &client,
        2,
        vec![
            insert(vec![small(40), small(41)]),
            update(6, change(9)),
            delete(7),
        ],
    )
    .await;
    let fill = |n: i32| update(100, doc! { "$set": { "x": n.to_string().repeat(1 << 19) } });
    let mut commands = vec![insert(vec![small(100), small(101), small(102)])];
    commands.extend((10..40).map(fill));
    commands.extend([delete(101), update(8, doc! { "$set": { "last": true } })]);
    let three = begin(&client, 3, commands).await;
    client.ok(insert(vec![small(50)])).await;
    client.ok(update(9, change(4))).await;
    majority_has_all().await;
    let admin = client.at("admin");
    admin.ok(commit_at(3, 1, three)).await;
    client.ok(update(100, change(5))).await;
    admin.ok(abort(2, 1)).await;
    client.ok(update(7, change(6))).await;
    // It is committed in the past.
    admin.ok(commit_at(1, 1, one)).await;
    client.ok(update(20, change(7))).await;
    client.ok(delete(4)).await;
    let last = storage().last_allotted();
    storage().wait_durable(last).await.expect("storage serves");
}

/// Where in the log transactions are prepared, and where their outcomes are logged.
fn places(entries: &Entries) -> (Vec<usize>, Vec<usize>) {
    let (mut prepares, mut outcomes) = (Vec::new(), Vec::new());
    for (place, (_, entry)) in entries.iter().enumerate() {
        let entry = RawDocument::from_bytes(entry).expect("a document");
        let o = entry.get_document("o").expect("an o");
        if o.get_bool("prepare").unwrap_or(false) {
            prepares.push(place);
        }
        let names = ["commitTransaction", "abortTransaction"];
        if names.iter().any(|name| o.get_i32(name).is_ok()) {
            outcomes.push(place);
        }
    }
    assert_eq!((prepares.len(), outcomes.len()), (3, 3));
    assert!(prepares[2] < outcomes[0], "{prepares:?} {outcomes:?}");
    (prepares, outcomes)
}

/// Applies entries at their own times with an applier of its own, and waits for that.
async fn apply(entries: &[(Timestamp, Bytes)], mode: ApplyMode) -> Rc<Applier> {
    let applier = Rc::new(Applier::new(mode));
    for (ts, bytes) in entries {
        log(*ts, bytes).await;
        applier.apply(*ts, bytes.clone()).await.expect("applies");
    }
    applier.barrier().await.expect("applies");
    if let Some((last, _)) = entries.last() {
        storage().set_applied(*last);
    }
    applier
}

async fn prepared_now(client: &Client) -> i64 {
    let status = client.ok(doc! { "serverStatus": 1 }).await;
    let status = status.get_document("transactions").expect("a section");
    status.get_i64("currentPrepared").expect("a number")
}

/// What transactions have written is not there, and what others have is.
async fn check_undecided(client: &Client) {
    let ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 40, 100];
    let find =
        doc! { "find": "docs", "filter": { "_id": { "$in": ids.to_vec() } }, "sort": { "_id": 1 } };
    let found = client.find(find).await;
    let found: Vec<i32> = (found.iter())
        .map(|found| found.get_i32("_id").expect("an id"))
        .collect();
    assert_eq!(found, [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let by_value = doc! { "find": "docs", "filter": { "u": 4 } };
    let by_value = client.find(by_value).await;
    assert_eq!(by_value[0].get_i32("_id").ok(), Some(4));
}

async fn check_records(client: &Client) {
    let records = doc! { "find": "transactions" };
    let records = client.at("config").find(records).await;
    let mut states: Vec<&str> = (records.iter())
        .map(|record| record.get_str("state").expect("a state"))
        .collect();
    states.sort_unstable();
    assert_eq!(states, ["aborted", "committed", "committed"]);
}

#[test]
fn members_end_what_another_has_prepared() {
    for mode in [
        ApplyMode::Secondary,
        ApplyMode::Recovery,
        ApplyMode::InitialSync,
    ] {
        for (seed, [source, target]) in (2400..).zip(SHAPES) {
            let source = recording(seed, source, workload);
            let (cores, partitions) = target;
            with_node(seed, cores, partitions, move |client| {
                let Source { entries, state } = source.clone();
                async move {
                    storage().follow().await.expect("storage serves");
                    apply(&entries, mode).await;
                    assert_eq!(prepared_now(&client).await, 0);
                    assert_eq!(state_of(&client).await, state, "seed {seed} {mode:?}");
                    check_records(&client).await;
                }
            });
        }
    }
}

/// One applier prepares and another continues, of whatever mode.
#[test]
fn an_outcome_is_applied_by_another_applier() {
    for (seed, mode) in [
        (2420, ApplyMode::Secondary),
        (2421, ApplyMode::InitialSync),
        (2422, ApplyMode::Recovery),
    ] {
        let source = recording(seed, (2, 2), workload);
        with_node(seed, 2, 3, move |client| {
            let Source { entries, state } = source.clone();
            async move {
                let (_, outcomes) = places(&entries);
                storage().follow().await.expect("storage serves");
                let applier = apply(&entries[..outcomes[0]], mode).await;
                if mode == ApplyMode::InitialSync {
                    assert_eq!(prepared_now(&client).await, 0);
                    applier.place_prepared().await.expect("applies");
                }
                assert_eq!(prepared_now(&client).await, 3);
                check_undecided(&client).await;
                let mut at = outcomes[0];
                for (left, &outcome) in [2, 1, 0].iter().zip(&outcomes) {
                    apply(&entries[at..=outcome], ApplyMode::Secondary).await;
                    assert_eq!(prepared_now(&client).await, *left);
                    at = outcome + 1;
                }
                apply(&entries[at..], ApplyMode::Secondary).await;
                assert_eq!(state_of(&client).await, state, "seed {seed}");
                check_records(&client).await;
            }
        });
    }
}

/// A checkpoint lies behind what is prepared, or between the outcomes, and the power goes; the rest
/// of the log is there or comes.
#[test]
fn recovery_prepares_again_what_has_no_outcome() {
    for (seed, ended, rest_is_logged) in [
        (2430, 0, false),
        (2431, 0, true),
        (2432, 1, false),
        (2433, 1, true),
        (2434, 2, true),
        (2435, 3, false),
    ] {
        let source = recording(seed, (2, 2), workload);
        let death = Some(Death::PowerCut);
        with_member(seed, &[2, 3], 3, death, move |life, client| {
            let Source { entries, state } = source.clone();
            async move {
                let (prepares, outcomes) = places(&entries);
                let cut = match ended {
                    0 => prepares[2] + 1,
                    ended => outcomes[ended - 1] + 1,
                };
                let open = 3 - ended as i64;
                if life == 0 {
                    storage().follow().await.expect("storage serves");
                    apply(&entries[..cut], ApplyMode::Secondary).await;
                    let stable = entries[cut - 1].0;
                    storage().wait_durable(stable).await.expect("durable");
                    storage().set_stable(stable);
                    client.at("admin").ok(doc! { "fsync": 1 }).await;
                    assert_eq!(prepared_now(&client).await, open);
                    if rest_is_logged {
                        apply(&entries[cut..], ApplyMode::Secondary).await;
                        let last = entries.last().expect("some").0;
                        storage().wait_durable(last).await.expect("durable");
                    }
                    return;
                }
                if !rest_is_logged {
                    assert_eq!(prepared_now(&client).await, open);
                    storage().follow().await.expect("storage serves");
                    apply(&entries[cut..], ApplyMode::Secondary).await;
                }
                assert_eq!(prepared_now(&client).await, 0);
                assert_eq!(state_of(&client).await, state, "seed {seed}");
                check_records(&client).await;
            }
        });
    }
}
