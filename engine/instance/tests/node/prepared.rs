//! Prepared transactions on one member: what may come in between, which operations wait, and what a
//! crash leaves.

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{Bson, Document, Timestamp, doc};
use pinion_clock::OpTime;
use pinion_runtime::sim::Death;
use pinion_runtime::{Duration, Queue, sleep, spawn};
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::fake_set::{become_member, fake, of_term_1};
use crate::harness::{Client, with_member, with_node};
use crate::retryable::{SHAPES, become_primary, session_id};
use crate::transactions::{abort, all, commit, first, ids, insert, statement};

fn prepare(session: u8, txn_number: i64) -> Document {
    statement(session, txn_number, doc! { "prepareTransaction": 1 })
}

pub fn commit_at(session: u8, txn_number: i64, at: Timestamp) -> Document {
    let mut commit = commit(session, txn_number);
    commit.insert("commitTimestamp", Bson::Timestamp(at));
    commit
}

pub async fn prepared(client: &Client, session: u8, txn_number: i64) -> Timestamp {
    let reply = client.at("admin").ok(prepare(session, txn_number)).await;
    reply.get_timestamp("prepareTimestamp").expect("a time")
}

/// A majority has all that there is.
pub async fn majority_has_all() {
    let last = of_term_1(storage().last_allotted());
    become_member(MemberState::Primary, true, last).await;
}

async fn transactions(client: &Client) -> Document {
    let status = client.ok(doc! { "serverStatus": 1 }).await;
    status
        .get_document("transactions")
        .expect("a section")
        .clone()
}

#[track_caller]
fn counted(status: &Document, expected: &[(&str, i64)]) {
    for (name, value) in expected {
        assert_eq!(status.get_i64(name).ok(), Some(*value), "{name} {status}");
    }
}

async fn record(client: &Client) -> Document {
    let find = doc! { "find": "transactions" };
    let mut records = client.at("config").find(find).await;
    assert_eq!(records.len(), 1, "{records:?}");
    records.remove(0)
}

/// Changes, inserts and deletes in one transaction, which is prepared.
async fn prepare_changes(client: &Client) -> Timestamp {
    client.ok(first(1, 1, insert(&[10, 11, 12, 13]))).await;
    let update = doc! { "update": "c", "updates": [
        { "q": { "n": 0 }, "u": { "$inc": { "n": 5 } }, "multi": true },
    ] };
    client.on(1).ok(statement(1, 1, update)).await;
    let delete = doc! { "delete": "c", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] };
    client.ok(statement(1, 1, delete)).await;
    prepared(client, 1, 1).await
}

#[test]
fn what_is_prepared_takes_place_with_its_commit() {
    for (seed, (cores, partitions)) in (2300..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client
                .ok(doc! { "createIndexes": "c", "indexes": [{ "key": { "n": 1 }, "name": "n" }] })
                .await;
            client.ok(insert(&[1, 2, 3])).await;
            let admin = client.at("admin");
            let at = prepare_changes(&client).await;
            let again = admin.on(1).ok(prepare(1, 1)).await;
            assert_eq!(again.get_timestamp("prepareTimestamp").ok(), Some(at));
            let namespaces = again.get_array("affectedNamespaces").expect("a list");
            assert_eq!(namespaces, &vec![Bson::from("test.c")]);
            let found = record(&client).await;
            assert_eq!(found.get_str("state").ok(), Some("prepared"));
            for name in ["startOpTime", "lastWriteOpTime"] {
                let time = found.get_document(name).expect("a time");
                assert_eq!(time.get_timestamp("ts").ok(), Some(at), "{found}");
            }
            counted(
                &transactions(&client).await,
                &[
                    ("currentPrepared", 1),
                    ("currentOpen", 1),
                    ("totalPrepared", 1),
                    ("totalPreparedThenCommitted", 0),
                ],
            );
            let shown = client
                .at("admin")
                .ok(doc! { "currentOp": 1, "transaction.timePreparedMicros": { "$gte": 0 } })
                .await;
            assert_eq!(
                shown.get_array("inprog").map(Vec::len).ok(),
                Some(1),
                "{shown}"
            );
            // It takes no more statements, and its end is requested with a time that it can have.
            client.fails(statement(1, 1, all()), 267).await;
            client.fails(first(1, 1, all()), 117).await;
            client.fails(statement(1, 2, all()), 251).await;
            client.fails(statement(1, 0, all()), 225).await;
            admin.fails(commit(1, 1), 72).await;
            let null = Timestamp {
                time: 0,
                increment: 0,
            };
            admin.fails(commit_at(1, 1, null), 72).await;
            admin.fails(commit_at(1, 1, at), 72).await;
            majority_has_all().await;
            let before = Timestamp {
                time: at.time - 1,
                ..at
            };
            let beyond = Timestamp {
                time: u32::MAX,
                ..at
            };
            admin.fails(commit_at(1, 1, before), 72).await;
            admin.fails(commit_at(1, 1, beyond), 72).await;
            assert_eq!(ids(&client, all()).await, [1, 2, 3]);
            admin.on(1).ok(commit_at(1, 1, at)).await;
            let own = [1, 3, 10, 11, 12, 13];
            assert_eq!(ids(&client, all()).await, own);
            let by_index = doc! { "find": "c", "filter": { "n": 5 }, "sort": { "_id": 1 } };
            assert_eq!(ids(&client, by_index).await, own);
            // Sent again it is the same, also when nothing is remembered.
            admin.ok(commit_at(1, 1, at)).await;
            pinion_exec::forget_sessions().await;
            admin.ok(commit_at(1, 1, at)).await;
            admin.fails(prepare(1, 1), 256).await;
            admin.fails(abort(1, 1), 256).await;
            let valid = client.ok(doc! { "validate": "c", "full": true }).await;
            assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
            let found = record(&client).await;
            assert_eq!(found.get_str("state").ok(), Some("committed"));
            counted(
                &transactions(&client).await,
                &[
                    ("currentPrepared", 0),
                    ("currentOpen", 0),
                    ("totalCommitted", 1),
                    ("totalPreparedThenCommitted", 1),
                    ("totalPreparedThenAborted", 0),
                ],
            );
            // A read at the time of the commit sees it, though its entry came later.
            let mut then = all();
            let concern = doc! { "level": "snapshot", "atClusterTime": Bson::Timestamp(at) };
            then.insert("readConcern", concern);
            assert_eq!(ids(&client, then).await, own);
        });
    }
}

#[test]
fn what_is_prepared_may_be_aborted() {
    for (seed, (cores, partitions)) in (2310..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2, 3])).await;
            let admin = client.at("admin");
            admin.fails(prepare(1, 1), 251).await;
            prepare_changes(&client).await;
            admin.on(1).ok(abort(1, 1)).await;
            assert_eq!(ids(&client, all()).await, [1, 2, 3]);
            for forgotten in [false, true] {
                if forgotten {
                    pinion_exec::forget_sessions().await;
                }
                admin.fails(abort(1, 1), 251).await;
                admin.fails(prepare(1, 1), 251).await;
                client.fails(statement(1, 1, all()), 251).await;
            }
            let found = record(&client).await;
            assert_eq!(found.get_str("state").ok(), Some("aborted"));
            let status = transactions(&client).await;
            counted(
                &status,
                &[
                    ("totalAborted", 1),
                    ("totalPreparedThenAborted", 1),
                    ("currentPrepared", 0),
                ],
            );
            // One that has written nothing is prepared too.
            client.ok(first(1, 2, all())).await;
            let at = prepared(&client, 1, 2).await;
            majority_has_all().await;
            admin.ok(commit_at(1, 2, at)).await;
            // What is not prepared has no time of its own, and continues when a request gives it
            // one.
            client.ok(first(1, 3, insert(&[4]))).await;
            admin.fails(commit_at(1, 3, at), 72).await;
            admin.ok(commit(1, 3)).await;
            assert_eq!(ids(&client, all()).await, [1, 2, 3, 4]);
        });
    }
}

/// The command with this read concern.
fn with_concern(command: Document, concern: Document) -> Document {
    let mut command = command;
    command.insert("readConcern", concern);
    command
}

#[test]
fn readers_wait_by_their_concern() {
    for (seed, (cores, partitions)) in (2320..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2, 3])).await;
            let before = storage().last_allotted();
            let at = prepare_changes(&client).await;
            majority_has_all().await;
            // Those that promise no more see what was there before.
            for level in ["local", "available", "majority"] {
                let concern = doc! { "level": level };
                assert_eq!(
                    ids(&client, with_concern(all(), concern.clone())).await,
                    [1, 2, 3]
                );
                let one = doc! { "find": "c", "filter": { "_id": 2 } };
                assert_eq!(ids(&client.on(1), with_concern(one, concern)).await, [2]);
            }
            let count = client.ok(doc! { "count": "c", "query": { "n": 0 } }).await;
            assert_eq!(count.get_i32("n").ok(), Some(3), "{count}");
            let earlier = pinion_catalog::bson_timestamp(before);
            let then = doc! { "level": "snapshot", "atClusterTime": Bson::Timestamp(earlier) };
            assert_eq!(ids(&client, with_concern(all(), then)).await, [1, 2, 3]);
            // Others wait, for as long as they may.
            let waiting = [
                doc! { "level": "snapshot" },
                doc! { "level": "linearizable" },
                doc! { "level": "local", "afterClusterTime": Bson::Timestamp(at) },
                doc! { "level": "majority", "afterClusterTime": Bson::Timestamp(at) },
            ];
            let reads = [
                all(),
                doc! { "find": "c", "filter": { "_id": 2 } },
                doc! { "aggregate": "c", "pipeline": [{ "$match": { "n": { "$gte": 0 } } }], "cursor": {} },
            ];
            for concern in &waiting {
                for read in &reads {
                    let mut read = with_concern(read.clone(), concern.clone());
                    read.insert("maxTimeMS", 20);
                    client.on(1).fails(read, 50).await;
                }
            }
            let mut inside = first(2, 1, all());
            inside.insert("maxTimeMS", 20);
            client.fails(inside, 50).await;
            let update = doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$set": { "n": 9 } } }], "maxTimeMS": 20 };
            client.fails(update, 50).await;
            let seen = Rc::new(Cell::new(0));
            let mut tasks = Vec::new();
            for concern in waiting {
                let (client, seen) = (client.clone(), seen.clone());
                tasks.push(spawn(Queue::Foreground, async move {
                    let found = ids(&client.on(1), with_concern(all(), concern)).await;
                    seen.set(seen.get() + 1);
                    found
                }));
            }
            sleep(Duration::from_millis(500)).await;
            assert_eq!(seen.get(), 0, "seed {seed}: somebody did not wait");
            client.at("admin").ok(commit_at(1, 1, at)).await;
            for task in tasks {
                let found = task.await.expect("not stopped");
                assert_eq!(found, [1, 3, 10, 11, 12, 13], "seed {seed}");
            }
        });
    }
}

#[test]
fn writers_sessions_and_changes_of_the_catalog_wait() {
    for (seed, (cores, partitions)) in (2330..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2, 3])).await;
            let at = prepare_changes(&client).await;
            majority_has_all().await;
            // No end of the session takes it away, nor its age.
            client.ok(doc! { "killAllSessions": [] }).await;
            client.ok(doc! { "endSessions": [session_id(1)] }).await;
            let limit = doc! { "setParameter": 1, "transactionLifetimeLimitSeconds": 1 };
            client.at("admin").ok(limit).await;
            sleep(Duration::from_secs(90)).await;
            client.fails(statement(1, 1, all()), 267).await;
            for command in [
                doc! { "insert": "c", "documents": [{ "_id": 10 }] },
                doc! { "findAndModify": "c", "query": { "_id": 2 }, "remove": true },
            ] {
                let mut command = command;
                command.insert("maxTimeMS", 50);
                client.fails(command, 50).await;
            }
            // Another transaction does not wait to write. It may have started before.
            client.fails(first(2, 1, insert(&[10])), 112).await;
            let done = Rc::new(Cell::new(0));
            let mut retryable = insert(&[20]);
            retryable.insert("lsid", session_id(1));
            retryable.insert("txnNumber", 2i64);
            // What its session begins next waits, of whatever kind it is.
            let (next, last) = match seed % 2 {
                0 => (first(1, 3, insert(&[30])), 30),
                _ => (retryable, 20),
            };
            let waiting = [
                next,
                doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }] },
            ];
            let mut tasks = Vec::new();
            for command in waiting {
                let (client, done) = (client.clone(), done.clone());
                tasks.push(spawn(Queue::Foreground, async move {
                    client.ok(command).await;
                    done.set(done.get() + 1);
                }));
            }
            sleep(Duration::from_secs(2)).await;
            assert_eq!(done.get(), 0, "seed {seed}: somebody did not wait");
            client.at("admin").ok(commit_at(1, 1, at)).await;
            for task in tasks {
                task.await.expect("not stopped");
            }
            if last == 30 {
                client.at("admin").ok(commit(1, 3)).await;
            }
            assert_eq!(ids(&client, all()).await, [1, 3, 10, 11, 12, 13, last]);
            let one = client
                .find(doc! { "find": "c", "filter": { "_id": 1 } })
                .await;
            assert_eq!(one, [doc! { "_id": 1, "n": 6 }]);
            let at = {
                client.ok(first(4, 1, insert(&[40]))).await;
                prepared(&client, 4, 1).await
            };
            majority_has_all().await;
            let dropped = Rc::new(Cell::new(false));
            let dropping = {
                let (client, dropped) = (client.clone(), dropped.clone());
                spawn(Queue::Foreground, async move {
                    client.ok(doc! { "dropDatabase": 1 }).await;
                    dropped.set(true);
                })
            };
            sleep(Duration::from_secs(1)).await;
            assert!(!dropped.get(), "seed {seed}: the drop did not wait");
            client.at("admin").ok(commit_at(4, 1, at)).await;
            dropping.await.expect("not stopped");
            assert!(ids(&client, all()).await.is_empty());
        });
    }
}

/// What a cursor has given and what it gives after that, with the values of `n`.
async fn rest_of(client: &Client, first: Document) -> Vec<i32> {
    let mut cursor = first.get_document("cursor").expect("a cursor").clone();
    let mut values = Vec::new();
    loop {
        let batch = cursor.get_array("firstBatch");
        let batch = batch.or_else(|_| cursor.get_array("nextBatch"));
        for document in batch.expect("a batch") {
            let document = document.as_document().expect("a document");
            values.push(document.get_i32("n").expect("a number"));
        }
        let id = cursor.get_i64("id").expect("an id");
        if id == 0 {
            return values;
        }
        let more = client.ok(doc! { "getMore": id, "collection": "c" }).await;
        cursor = more.get_document("cursor").expect("a cursor").clone();
    }
}

/// A read that waits for nothing continues while what is prepared is committed behind it.
#[test]
fn a_late_commit_is_read_whole_or_not_at_all() {
    for (seed, (cores, partitions)) in (2370..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            let all_ids: Vec<i32> = (0..400).collect();
            client.ok(insert(&all_ids)).await;
            let update = doc! { "update": "c", "updates": [
                { "q": {}, "u": { "$set": { "n": 7 } }, "multi": true },
            ] };
            client.ok(first(1, 1, update)).await;
            let at = prepared(&client, 1, 1).await;
            // Readers from here on are beyond the time of the commit.
            client
                .ok(doc! { "insert": "other", "documents": [{}] })
                .await;
            majority_has_all().await;
            let begin = |level: &str| {
                let find = doc! { "find": "c", "batchSize": 3 };
                with_concern(find, doc! { "level": level })
            };
            let mut cursors = Vec::new();
            for (nth, level) in (0u16..).zip(["local", "available", "majority"]) {
                let client = client.on(nth);
                cursors.push((client.clone(), client.ok(begin(level)).await));
            }
            client.at("admin").ok(commit_at(1, 1, at)).await;
            for (client, first) in cursors {
                let values = rest_of(&client, first).await;
                assert_eq!(values, [0; 400], "seed {seed}");
            }
            // A majority has the data, and not yet the word of their commit.
            let first = client.ok(begin("majority")).await;
            assert_eq!(rest_of(&client, first).await, [0; 400], "seed {seed}");
            majority_has_all().await;
            for level in ["local", "available", "majority"] {
                let first = client.ok(begin(level)).await;
                assert_eq!(rest_of(&client, first).await, [7; 400], "seed {seed}");
            }
        });
    }
}

#[test]
fn what_makes_collections_is_not_prepared() {
    with_node(2390, 2, 3, |client| async move {
        become_primary().await;
        let admin = client.at("admin");
        let make = insert(&[1]);
        client.ok(first(1, 1, make.clone())).await;
        let message = admin.fails(prepare(1, 1), 263).await;
        let expected = "Cannot create new collections inside distributed transactions";
        assert_eq!(message, expected);
        // It is aborted, and the session is as good as before.
        admin.fails(commit(1, 1), 251).await;
        assert!(ids(&client, all()).await.is_empty());
        client.ok(first(1, 2, make)).await;
        admin.ok(commit(1, 2)).await;
        client.ok(first(1, 3, insert(&[2]))).await;
        let at = prepared(&client, 1, 3).await;
        majority_has_all().await;
        admin.ok(commit_at(1, 3, at)).await;
        assert_eq!(ids(&client, all()).await, [1, 2]);
    });
}

/// The operation that does this.
async fn operation(client: &Client, filter: Document) -> Document {
    let mut shown = doc! { "currentOp": 1 };
    shown.extend(filter);
    let shown = client.at("admin").ok(shown).await;
    let operations = shown.get_array("inprog").expect("operations");
    assert_eq!(operations.len(), 1, "{shown}");
    operations[0].as_document().expect("an operation").clone()
}

/// A change of the catalog of prepared data waits for as long as it may, and leaves no gate closed.
#[test]
fn changes_of_the_catalog_can_be_stopped_while_they_wait() {
    for (seed, (cores, partitions)) in (2380..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2, 3])).await;
            let index = doc! { "key": { "m": 1 }, "name": "m" };
            client
                .ok(doc! { "createIndexes": "c", "indexes": [index] })
                .await;
            client.ok(first(1, 1, insert(&[10]))).await;
            let at = prepared(&client, 1, 1).await;
            majority_has_all().await;
            let index = doc! { "key": { "n": 1 }, "name": "n" };
            let changes = [
                ("test", doc! { "drop": "c" }),
                ("test", doc! { "createIndexes": "c", "indexes": [index] }),
                ("test", doc! { "dropIndexes": "c", "index": "m" }),
                (
                    "test",
                    doc! { "collMod": "c", "index": { "name": "m", "hidden": true } },
                ),
                (
                    "test",
                    doc! { "collMod": "c", "validationLevel": "moderate" },
                ),
                ("test", doc! { "convertToCapped": "c", "size": 4096 }),
                (
                    "admin",
                    doc! { "renameCollection": "test.c", "to": "test.d" },
                ),
                ("test", doc! { "dropDatabase": 1 }),
            ];
            for (nth, (db, change)) in (0u16..).zip(changes) {
                let mut change = change;
                change.insert("maxTimeMS", 20);
                client.at(db).on(nth).fails(change, 50).await;
                // Others pass.
                assert_eq!(ids(&client, all()).await, [1, 2, 3], "seed {seed}");
                let update = doc! { "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } };
                client.ok(doc! { "update": "c", "updates": [update] }).await;
            }
            // One waits for the gate and the other for the first.
            let dropping = |session: u8| {
                let (client, mut drop) = (client.on(1), doc! { "drop": "c" });
                drop.insert("lsid", session_id(session));
                drop.insert("comment", i32::from(session));
                spawn(Queue::Foreground, async move {
                    client.fails(drop, 11601).await;
                })
            };
            let by_op = [dropping(5), dropping(6)];
            sleep(Duration::from_millis(100)).await;
            for (session, task) in [6, 5].into_iter().zip(by_op.into_iter().rev()) {
                let found = operation(&client, doc! { "command.comment": session }).await;
                let op = found.get_i32("opid").expect("a number");
                client.at("admin").ok(doc! { "killOp": 1, "op": op }).await;
                task.await.expect("not stopped");
            }
            let by_session = dropping(7);
            sleep(Duration::from_millis(100)).await;
            client.ok(doc! { "killSessions": [session_id(7)] }).await;
            by_session.await.expect("not stopped");
            client.at("admin").ok(commit_at(1, 1, at)).await;
            assert_eq!(ids(&client, all()).await, [1, 2, 3, 10]);
            client.ok(doc! { "drop": "c", "maxTimeMS": 20 }).await;
        });
    }
}

/// The power goes while something is prepared, with a checkpoint behind it or before it, and once
/// more behind the outcome.
#[test]
fn a_crash_takes_nothing_that_is_prepared() {
    for (seed, checkpoint, commits) in [
        (2340, false, true),
        (2341, true, true),
        (2342, false, false),
        (2343, true, false),
    ] {
        let death = Some(Death::PowerCut);
        with_member(seed, &[2, 3, 1], 3, death, move |life, client| async move {
            let (old, new) = ([1, 2, 3].to_vec(), [1, 3, 10, 11, 12, 13].to_vec());
            let after = if commits { new } else { old.clone() };
            let at_rest = || async {
                let last = storage().last_allotted();
                storage().wait_durable(last).await.expect("durable");
            };
            match life {
                0 => {
                    become_primary().await;
                    let index = doc! { "key": { "n": 1 }, "name": "n" };
                    client
                        .ok(doc! { "createIndexes": "c", "indexes": [index] })
                        .await;
                    client.ok(insert(&[1, 2, 3])).await;
                    prepare_changes(&client).await;
                    client
                        .ok(doc! { "insert": "other", "documents": [{}] })
                        .await;
                    at_rest().await;
                    if checkpoint {
                        storage().set_stable(storage().last_allotted());
                        client.at("admin").ok(doc! { "fsync": 1 }).await;
                    }
                }
                1 => {
                    become_primary().await;
                    majority_has_all().await;
                    pinion_exec::hold_prepared().await;
                    assert_eq!(ids(&client, all()).await, old, "seed {seed}");
                    client.fails(statement(1, 1, all()), 267).await;
                    let mut snapshot = with_concern(all(), doc! { "level": "snapshot" });
                    snapshot.insert("maxTimeMS", 20);
                    client.fails(snapshot, 50).await;
                    let status = transactions(&client).await;
                    counted(&status, &[("currentPrepared", 1)]);
                    let at = prepared(&client, 1, 1).await;
                    let admin = client.at("admin");
                    match commits {
                        true => admin.ok(commit_at(1, 1, at)).await,
                        false => admin.ok(abort(1, 1)).await,
                    };
                    assert_eq!(ids(&client, all()).await, after, "seed {seed}");
                    at_rest().await;
                }
                _ => {
                    become_primary().await;
                    assert_eq!(ids(&client, all()).await, after, "seed {seed}");
                    let status = transactions(&client).await;
                    counted(&status, &[("currentPrepared", 0)]);
                    let admin = client.at("admin");
                    let any = pinion_catalog::bson_timestamp(storage().last_allotted());
                    match commits {
                        true => drop(admin.ok(commit_at(1, 1, any)).await),
                        false => drop(admin.fails(abort(1, 1), 251).await),
                    }
                    let valid = client.ok(doc! { "validate": "c", "full": true }).await;
                    assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
                }
            }
        });
    }
}

/// That a transaction was aborted is in the log, and may be rolled back before a majority has it:
/// it is prepared again then.
#[test]
fn that_a_prepared_transaction_was_aborted_is_certain_with_a_majority() {
    with_node(2349, 2, 2, |client| async move {
        become_primary().await;
        client.ok(insert(&[1, 2, 3])).await;
        prepare_changes(&client).await;
        client.at("admin").ok(abort(1, 1)).await;
        let code = pinion_wire::ErrorCode::PRIMARY_STEPPED_DOWN;
        fake().refuse(Some((code, "stepped down")));
        for forgotten in [false, true] {
            if forgotten {
                pinion_exec::forget_sessions().await;
            }
            for command in [abort(1, 1), prepare(1, 1), commit(1, 1)] {
                let mut weak = command;
                weak.insert("writeConcern", doc! { "w": 1 });
                let reply = client.at("admin").run(weak).await;
                assert_eq!(reply.get_i32("code").ok(), Some(251), "{reply}");
                assert!(reply.contains_key("writeConcernError"), "{reply}");
            }
        }
    });
}

/// A member that steps down releases the gates and nothing else.
#[test]
fn a_step_down_leaves_what_is_prepared() {
    with_node(2350, 2, 3, |client| async move {
        become_primary().await;
        client.ok(insert(&[1, 2, 3])).await;
        let at = prepare_changes(&client).await;
        client.ok(first(2, 1, insert(&[50]))).await;
        // What is prepared is not dropped because its gates are released.
        let dropping = {
            let client = client.on(1);
            spawn(Queue::Foreground, async move {
                client.fails(doc! { "drop": "c" }, 11602).await
            })
        };
        sleep(Duration::from_millis(100)).await;
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        pinion_instance::interrupt_writers().await;
        assert!(
            pinion_runtime::on_all_cores(|_| async {
                pinion_instance::no_writer_is_behind_a_gate()
            })
            .await
            .into_iter()
            .all(|drained| drained)
        );
        dropping.await.expect("not stopped");
        storage().follow().await.expect("storage serves");
        pinion_instance::writes_ended().await;
        let mut read = all();
        read.insert("$readPreference", doc! { "mode": "secondary" });
        assert_eq!(ids(&client, read).await, [1, 2, 3]);
        client.at("admin").fails(commit_at(1, 1, at), 10107).await;
        storage().lead().await;
        pinion_exec::forget_sessions().await;
        pinion_exec::hold_prepared().await;
        majority_has_all().await;
        client.at("admin").fails(commit(2, 1), 251).await;
        let dropping = {
            let client = client.on(1);
            spawn(Queue::Foreground, async move {
                client.ok(doc! { "drop": "c" }).await
            })
        };
        sleep(Duration::from_millis(100)).await;
        assert!(!dropping.is_finished(), "the drop did not wait");
        client.at("admin").ok(commit_at(1, 1, at)).await;
        dropping.await.expect("not stopped");
    });
}

/// Many sessions prepare at once, each on its own documents, and end in any order.
#[test]
fn many_are_prepared_at_once() {
    for (seed, (cores, partitions)) in (2360..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client.ok(doc! { "create": "c" }).await;
            let mut tasks = Vec::new();
            for session in 1..20u8 {
                let client = client.on(session.into());
                tasks.push(spawn(Queue::Foreground, async move {
                    let base = i32::from(session) * 10;
                    client
                        .ok(first(session, 1, insert(&[base, base + 1, base + 2])))
                        .await;
                    (session, prepared(&client, session, 1).await)
                }));
            }
            let mut ends = Vec::new();
            for task in tasks {
                ends.push(task.await.expect("not stopped"));
            }
            majority_has_all().await;
            assert!(ids(&client, all()).await.is_empty());
            counted(&transactions(&client).await, &[("currentPrepared", 19)]);
            let mut tasks = Vec::new();
            for (session, at) in ends.into_iter().rev() {
                let admin = client.at("admin").on(session.into());
                tasks.push(spawn(Queue::Foreground, async move {
                    match session % 3 {
                        0 => drop(admin.ok(abort(session, 1)).await),
                        _ => drop(admin.ok(commit_at(session, 1, at)).await),
                    }
                }));
            }
            for task in tasks {
                task.await.expect("not stopped");
            }
            let mut expected = Vec::new();
            for base in (1..20).filter(|session| session % 3 != 0) {
                expected.extend([base * 10, base * 10 + 1, base * 10 + 2]);
            }
            assert_eq!(ids(&client, all()).await, expected, "seed {seed}");
            counted(&transactions(&client).await, &[("currentPrepared", 0)]);
        });
    }
}
