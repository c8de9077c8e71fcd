//! Critical sections as clients meet them.

use pinion_bson::{Document, doc};
use pinion_catalog::{GateMode, Hold, hold, hold_database, hold_database_but};
use pinion_clock::OpTime;
use pinion_runtime::{Duration, Instant, JoinHandle, Queue, now, sleep, spawn};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, MemberState};

use crate::fake_set::become_member;
use crate::harness::{Client, with_node};
use crate::retryable::{SHAPES, become_primary};
use crate::transactions::{all, commit, first, ids, insert, statement};

fn soon() -> Instant {
    now() + Duration::from_millis(500)
}

async fn taken(mode: GateMode) -> Result<Hold, Error> {
    let ns = Namespace::parse("test.c").expect("a name");
    hold(ns, mode, soon()).await
}

fn begin(client: &Client, command: Document) -> JoinHandle<Document> {
    let client = client.on(1);
    spawn(Queue::Foreground, async move { client.run(command).await })
}

/// The operations that wait: their commands, and whether it is for a critical section.
async fn waiting(client: &Client) -> Vec<(String, bool)> {
    let shown = doc! { "currentOp": 1, "waitingForLock": true };
    let shown = client.at("admin").ok(shown).await;
    let operations = shown.get_array("inprog").expect("operations").iter();
    let mut waiting: Vec<(String, bool)> = operations
        .map(|operation| {
            let operation = operation.as_document().expect("an operation");
            let command = operation.get_document("command").expect("a command");
            let name = command.keys().next().expect("a name");
            let is_so = operation.get_bool("waitingForCriticalSection");
            (name.to_owned(), is_so.unwrap_or(false))
        })
        .collect();
    waiting.sort();
    waiting
}

fn named(names: &[&str], by_section: bool) -> Vec<(String, bool)> {
    let all = names.iter();
    all.map(|name| ((*name).to_owned(), by_section)).collect()
}

#[test]
fn operations_show_what_they_wait_for() {
    for (seed, (cores, partitions)) in (2900..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2])).await;
            let held = taken(GateMode::NoWrites).await.expect("nobody has it");
            assert_eq!(ids(&client, all()).await, [1, 2]);
            let writing = begin(&client, insert(&[3]));
            let dropping = begin(&client, doc! { "drop": "c" });
            sleep(Duration::from_millis(50)).await;
            assert_eq!(waiting(&client).await, named(&["drop", "insert"], true));
            let deadline = soon();
            held.set_mode(GateMode::Closed, deadline)
                .await
                .expect("nobody reads");
            let mut limited = all();
            limited.insert("maxTimeMS", 30);
            client.on(1).fails(limited, 50).await;
            let reading = begin(&client, all());
            sleep(Duration::from_millis(50)).await;
            let expected = named(&["drop", "find", "insert"], true);
            assert_eq!(waiting(&client).await, expected);
            let shown = doc! { "currentOp": 1, "command.drop": "c" };
            let shown = client.at("admin").ok(shown).await;
            let shown = shown.get_array("inprog").expect("operations");
            let op = shown[0].as_document().expect("an operation");
            assert_eq!(
                op.get_document("locks").ok(),
                Some(&doc! { "Collection": "W" })
            );
            let op = op.get_i32("opid").expect("a number");
            client.at("admin").ok(doc! { "killOp": 1, "op": op }).await;
            let dropped = dropping.await.expect("not stopped");
            assert_eq!(dropped.get_i32("code").ok(), Some(11601), "{dropped}");
            held.release().await;
            for task in [writing, reading] {
                let reply = task.await.expect("not stopped");
                assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
            }
            assert_eq!(ids(&client, all()).await, [1, 2, 3]);
            // For a change others wait as before.
            client.ok(first(1, 1, insert(&[4]))).await;
            let dropping = begin(&client, doc! { "drop": "c" });
            sleep(Duration::from_millis(50)).await;
            let modifying = begin(&client, doc! { "collMod": "c" });
            sleep(Duration::from_millis(50)).await;
            assert_eq!(waiting(&client).await, named(&["collMod", "drop"], false));
            client.at("admin").ok(commit(1, 1)).await;
            dropping.await.expect("not stopped");
            modifying.await.expect("not stopped");
        });
    }
}

/// Documents of a namespace that stays open are read and written; what comes to be is kept out.
#[test]
fn a_part_of_a_database_stays_open() {
    for (seed, (cores, partitions)) in (2950..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1])).await;
            client
                .ok(doc! { "insert": "open", "documents": [{ "_id": 1 }] })
                .await;
            let open = vec![Namespace::parse("test.open").expect("a name")];
            let held = hold_database_but("test".to_owned(), open, GateMode::NoWrites, soon());
            let held = held.await.expect("nobody has it");
            client
                .ok(doc! { "insert": "open", "documents": [{ "_id": 2 }] })
                .await;
            assert_eq!(ids(&client, all()).await, [1]);
            let writing = begin(&client, insert(&[2]));
            let making = begin(
                &client,
                doc! { "insert": "new", "documents": [{ "_id": 1 }] },
            );
            let indexing = begin(
                &client,
                doc! { "createIndexes": "open", "indexes": [{ "key": { "a": 1 }, "name": "a" }] },
            );
            sleep(Duration::from_millis(50)).await;
            let expected = named(&["createIndexes", "insert", "insert"], true);
            assert_eq!(waiting(&client).await, expected);
            let closed = held.set_mode(GateMode::Closed, soon()).await;
            closed.expect("nobody reads");
            assert_eq!(ids(&client, doc! { "find": "open" }).await, [1, 2]);
            let reading = begin(&client, all());
            sleep(Duration::from_millis(50)).await;
            held.release().await;
            for task in [writing, making, indexing, reading] {
                let reply = task.await.expect("not stopped");
                assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
            }
        });
    }
}

/// Neither waits for the other for long.
#[test]
fn transactions_and_critical_sections_do_not_wait_in_a_circle() {
    for (seed, (cores, partitions)) in (2910..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1])).await;
            client.ok(doc! { "create": "b" }).await;
            client.ok(first(1, 1, insert(&[10]))).await;
            let refused = taken(GateMode::Closed)
                .await
                .err()
                .expect("a transaction stays");
            assert_eq!(refused.code.0, 24, "{refused}");
            let database = hold_database("test".into(), GateMode::NoWrites, soon()).await;
            let refused = database.err().expect("a transaction stays");
            assert_eq!(refused.code.0, 24, "{refused}");
            assert_eq!(ids(&client, all()).await, [1]);
            client.at("admin").ok(commit(1, 1)).await;
            let held = taken(GateMode::NoWrites).await.expect("it has ended");
            let one = doc! { "insert": "b", "documents": [{ "_id": 1 }] };
            client.ok(first(2, 1, one)).await;
            client.fails(statement(2, 1, insert(&[11])), 24).await;
            // A collection that a transaction makes waits no longer either.
            held.release().await;
            assert_eq!(ids(&client, all()).await, [1, 10]);
            client.at("admin").fails(commit(2, 1), 251).await;
        });
    }
}

#[test]
fn a_step_down_ends_critical_sections() {
    with_node(2920, 3, 3, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        let held = taken(GateMode::Closed).await.expect("nobody has it");
        let database = hold_database("test2".into(), GateMode::Closed, soon()).await;
        let _database = database.expect("nobody has it");
        let writing = begin(&client, insert(&[2]));
        let dropping = begin(&client, doc! { "drop": "c" });
        sleep(Duration::from_millis(50)).await;
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        pinion_instance::interrupt_writers().await;
        for task in [writing, dropping] {
            let reply = task.await.expect("not stopped");
            let code = reply.get_i32("code").expect("it was interrupted");
            assert!([10107, 11602].contains(&code), "{reply}");
        }
        storage().follow().await.expect("storage serves");
        pinion_instance::writes_ended().await;
        let mut read = all();
        read.insert("$readPreference", doc! { "mode": "secondary" });
        assert_eq!(ids(&client, read).await, [1]);
        let refused = taken(GateMode::NoWrites).await.err().expect("it follows");
        assert_eq!(refused.code.0, 11602);
        storage().lead().await;
        pinion_exec::forget_sessions().await;
        become_primary().await;
        client.ok(insert(&[3])).await;
        // Its guard comes late.
        let again = taken(GateMode::Closed).await.expect("nobody has it");
        held.release().await;
        let mut limited = all();
        limited.insert("maxTimeMS", 30);
        client.fails(limited, 50).await;
        again.release().await;
        assert_eq!(ids(&client, all()).await, [1, 3]);
    });
}
