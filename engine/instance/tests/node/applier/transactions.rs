//! Transactions of another node applied: several changes of one document in one entry, and
//! transactions of several entries.

use std::rc::Rc;

use bytes::Bytes;
use pinion_apply::{Applier, end_open_chain};
use pinion_bson::{Document, RawDocument, doc};
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;
use pinion_runtime::sim::Death;
use pinion_storage::storage;

use super::SHAPES;
use super::source::{Entries, Source, recording};
use super::target::{Replayed, follow, log, state_of};
use crate::harness::{Client, with_member, with_node};
use crate::retryable::{become_primary, session_id};

/// Runs the commands in one transaction, and commits it.
async fn transaction(client: &Client, number: i64, commands: Vec<Document>) {
    for (nth, mut command) in commands.into_iter().enumerate() {
        command.insert("lsid", session_id(1));
        command.insert("txnNumber", number);
        command.insert("autocommit", false);
        if nth == 0 {
            command.insert("startTransaction", true);
        }
        let reply = client.ok(command).await;
        assert!(!reply.contains_key("writeErrors"), "{reply}");
    }
    let commit = doc! { "commitTransaction": 1, "lsid": session_id(1), "txnNumber": number, "autocommit": false };
    client.at("admin").ok(commit).await;
}

pub fn insert(documents: Vec<Document>) -> Document {
    doc! { "insert": "docs", "documents": documents }
}

pub fn update(id: i32, change: Document) -> Document {
    doc! { "update": "docs", "updates": [{ "q": { "_id": id }, "u": change }] }
}

pub fn delete(id: i32) -> Document {
    doc! { "delete": "docs", "deletes": [{ "q": { "_id": id }, "limit": 1 }] }
}

pub async fn prepare(client: &Client) {
    become_primary().await;
    for index in [
        doc! { "key": { "u": 1 }, "name": "u", "unique": true },
        doc! { "key": { "tags": 1 }, "name": "tags" },
    ] {
        client
            .ok(doc! { "createIndexes": "docs", "indexes": [index] })
            .await;
    }
    let documents = (0..10).map(|id| doc! { "_id": id, "u": id, "tags": [id] });
    client.ok(insert(documents.collect())).await;
}

/// Changes each document several times, and gives unique values to and fro.
async fn workload(client: Client) {
    prepare(&client).await;
    let change = |n: i32| doc! { "$set": { "n": n }, "$push": { "tags": 100 + n } };
    transaction(
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
        ],
    )
    .await;
    // Two documents give each other their unique values, by way of a third.
    transaction(
        &client,
        2,
        vec![
            update(4, doc! { "$set": { "u": -1 } }),
            update(5, doc! { "$set": { "u": 4 } }),
            update(4, doc! { "$set": { "u": 5 } }),
            delete(6),
            insert(vec![doc! { "_id": 60, "u": 6 }]),
            update(60, doc! { "$set": { "u": 600 } }),
            insert(vec![doc! { "_id": 6, "u": 6, "back": 1 }]),
        ],
    )
    .await;
    // Of one document many megabytes are written, so what the transaction holds is small and its
    // entries are three.
    let fill = |n: i32| update(100, doc! { "$set": { "x": n.to_string().repeat(1 << 19) } });
    let small = |id: i32| doc! { "_id": id, "u": id, "tags": [id] };
    let mut commands = vec![insert(vec![small(100), small(101), small(102)])];
    commands.extend((10..30).map(fill));
    commands.push(update(100, doc! { "$set": { "n": 1 } }));
    commands.extend((30..45).map(fill));
    commands.extend([
        update(
            100,
            doc! { "$inc": { "n": 1 }, "$push": { "tags": "late" } },
        ),
        delete(101),
        update(7, doc! { "$set": { "u": 101 } }),
        insert(vec![small(103)]),
        update(7, doc! { "$set": { "last": true } }),
    ]);
    transaction(&client, 3, commands).await;
    let last = storage().last_allotted();
    storage().wait_durable(last).await.expect("storage serves");
}

/// Which of the entries are those of the last transaction.
fn last_transaction(entries: &Entries) -> std::ops::Range<usize> {
    let is_partial = |entry: &Bytes| {
        let entry = RawDocument::from_bytes(entry).expect("a document");
        let o = entry.get_document("o").expect("an o");
        o.get_bool("partialTxn").unwrap_or(false)
    };
    let first = entries.iter().position(|(_, entry)| is_partial(entry));
    let first = first.expect("a transaction of several entries");
    let parts = entries[first..]
        .iter()
        .take_while(|(_, entry)| is_partial(entry))
        .count();
    assert!(parts >= 2, "{parts} parts before the last");
    first..first + parts + 1
}

async fn committed(client: &Client) -> Vec<Document> {
    let records = doc! { "find": "transactions" };
    client.at("config").find(records).await
}

#[test]
fn members_apply_transactions_as_they_took_place() {
    for mode in [ApplyMode::Secondary, ApplyMode::Recovery] {
        for (seed, [source, target]) in (900..).zip(SHAPES) {
            let source = recording(seed, source, workload);
            let (cores, partitions) = target;
            with_node(seed, cores, partitions, move |client| {
                let Source { entries, state } = source.clone();
                async move {
                    let replayed = Replayed::new(&entries, mode);
                    follow(&client, seed, vec![replayed], false)
                        .await
                        .expect("applies");
                    assert_eq!(state_of(&client).await, state, "seed {seed} {mode:?}");
                    let records = committed(&client).await;
                    assert_eq!(records.len(), 1, "{records:?}");
                    assert_eq!(records[0].get_i64("txnNum").ok(), Some(3));
                    assert_eq!(records[0].get_str("state").ok(), Some("committed"));
                }
            });
        }
    }
}

/// An initial sync applies entries to documents that are newer.
#[test]
fn transactions_that_are_older_than_the_documents_converge() {
    for (seed, [source, target]) in (910..).zip(SHAPES) {
        let source = recording(seed, source, workload);
        let (cores, partitions) = target;
        with_node(seed, cores, partitions, move |client| {
            let Source { entries, state } = source.clone();
            async move {
                let passes = vec![
                    Replayed::new(&entries, ApplyMode::Secondary),
                    Replayed::new(&entries, ApplyMode::InitialSync),
                ];
                follow(&client, seed, passes, false).await.expect("applies");
                let (mut found, mut expected) = (state_of(&client).await, state);
                found.sort_indexes();
                expected.sort_indexes();
                assert_eq!(found, expected, "seed {seed}");
            }
        });
    }
}

/// Applies entries at their own times with an applier of its own.
async fn apply(entries: &[(Timestamp, Bytes)]) -> Rc<Applier> {
    let applier = Rc::new(Applier::new(ApplyMode::Secondary));
    for (ts, bytes) in entries {
        log(*ts, bytes).await;
        applier.apply(*ts, bytes.clone()).await.expect("applies");
    }
    applier
}

async fn apply_all(entries: &[(Timestamp, Bytes)]) {
    let Some((last, _)) = entries.last().cloned() else {
        return;
    };
    let applier = apply(entries).await;
    applier.barrier().await.expect("applies");
    assert_eq!(applier.applied(), last);
    storage().set_applied(last);
    assert_eq!(storage().visible(), last);
}

async fn has_large(client: &Client) -> bool {
    let large =
        doc! { "find": "docs", "filter": { "_id": { "$gte": 100 } }, "projection": { "x": 0 } };
    let found = client.find(large).await;
    assert!(found.is_empty() || found.len() == 3, "{found:?}");
    !found.is_empty()
}

#[test]
fn nothing_of_a_transaction_is_applied_before_its_last_entry() {
    let source = recording(920, (2, 2), workload);
    with_node(920, 2, 3, move |client| {
        let Source { entries, state } = source.clone();
        async move {
            let parts = last_transaction(&entries);
            storage().follow().await.expect("storage serves");
            apply_all(&entries[..parts.start]).await;
            let before = storage().visible();
            let applier = apply(&entries[parts.start..parts.end - 1]).await;
            // None of them counts before the last.
            pinion_runtime::sleep(pinion_runtime::Duration::from_millis(50)).await;
            assert!(applier.applied() < entries[parts.start].0);
            let (ts, last) = &entries[parts.end - 1];
            log(*ts, last).await;
            applier.apply(*ts, last.clone()).await.expect("applies");
            assert_eq!(applier.wait_applied(*ts).await.expect("applies"), *ts);
            assert_eq!(storage().visible(), before);
            storage().set_applied(*ts);
            assert!(has_large(&client).await);
            drop(applier);
            apply_all(&entries[parts.end..]).await;
            assert_eq!(state_of(&client).await, state);
        }
    });
}

/// Each entry may be applied by another applier.
#[test]
fn the_first_entries_are_found_in_the_log() {
    let source = recording(921, (2, 2), workload);
    with_node(921, 2, 3, move |client| {
        let Source { entries, state } = source.clone();
        async move {
            let parts = last_transaction(&entries);
            storage().follow().await.expect("storage serves");
            apply_all(&entries[..parts.start]).await;
            for at in parts.start..parts.end {
                assert!(!has_large(&client).await);
                apply_all(&entries[at..=at]).await;
            }
            apply_all(&entries[parts.end..]).await;
            assert_eq!(state_of(&client).await, state);
        }
    });
}

/// The primary died between the entries: the next one writes its own behind them, and the
/// transaction has not taken place.
#[test]
fn a_transaction_without_its_last_entry_is_given_up() {
    let source = recording(922, (2, 2), workload);
    with_node(922, 2, 3, move |client| {
        let Source { entries, .. } = source.clone();
        async move {
            let parts = last_transaction(&entries);
            storage().follow().await.expect("storage serves");
            apply_all(&entries[..parts.end - 1]).await;
            end_open_chain();
            storage().lead().await;
            become_primary().await;
            assert!(!has_large(&client).await);
            // The number was not committed, so it is free.
            client.ok(doc! { "find": "docs" }).await;
            transaction(&client, 3, vec![update(7, doc! { "$set": { "u": 101 } })]).await;
            let valid = client.ok(doc! { "validate": "docs", "full": true }).await;
            assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
        }
    });
}

/// A checkpoint lies between the entries of a transaction, and the power goes: after another one,
/// or the rest of them.
#[test]
fn recovery_looks_back_to_the_first_entry() {
    for (seed, rest_is_logged) in [(930, false), (931, true), (932, false), (933, true)] {
        let source = recording(seed, (2, 2), workload);
        let death = Some(Death::PowerCut);
        with_member(seed, &[2, 3], 3, death, move |life, client| {
            let Source { entries, state } = source.clone();
            async move {
                let parts = last_transaction(&entries);
                if life == 0 {
                    storage().follow().await.expect("storage serves");
                    apply_all(&entries[..parts.start + 1]).await;
                    let stable = entries[parts.start].0;
                    storage().wait_durable(stable).await.expect("durable");
                    storage().set_stable(stable);
                    client.at("admin").ok(doc! { "fsync": 1 }).await;
                    assert_eq!(storage().timeline().stable, stable);
                    if rest_is_logged {
                        apply_all(&entries[parts.start + 1..]).await;
                        let last = entries.last().expect("some").0;
                        storage().wait_durable(last).await.expect("durable");
                    }
                    return;
                }
                if !rest_is_logged {
                    storage().follow().await.expect("storage serves");
                    assert!(!has_large(&client).await);
                    apply_all(&entries[parts.start + 1..]).await;
                }
                assert!(has_large(&client).await);
                assert_eq!(state_of(&client).await, state);
            }
        });
    }
}
