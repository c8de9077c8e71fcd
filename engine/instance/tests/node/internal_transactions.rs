//! Internal transactions: the sessions of servers, and retryable writes that are executed in them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinion_bson::{Binary, BinarySubtype, Bson, Document, Timestamp, doc};
use pinion_runtime::sim::Death;
use pinion_runtime::{Duration, Queue, sleep, spawn};
use pinion_storage::storage;

use crate::applier::source::recording;
use crate::harness::{Client, with_member, with_node};
use crate::prepared::majority_has_all;
use crate::retryable::{SHAPES, become_primary, retryable, session_id};
use crate::retryable_durable::follow;
use crate::started_again::become_shard;
use crate::transactions::{all, first, ids, insert, statement};

fn uuid(number: u8) -> Binary {
    Binary {
        subtype: BinarySubtype::Uuid,
        bytes: vec![number; 16],
    }
}

/// The session of an internal transaction which executes this write of session 1.
fn of_write(txn_number: i64, uuid_of: u8) -> Document {
    let mut lsid = session_id(1);
    lsid.insert("txnNumber", txn_number);
    lsid.insert("txnUUID", uuid(uuid_of));
    lsid
}

/// The command in this session, as a statement of its transaction 0.
fn inside(lsid: &Document, command: Document) -> Document {
    let mut command = command;
    command.insert("lsid", lsid.clone());
    command.insert("txnNumber", 0i64);
    command.insert("autocommit", false);
    command
}

fn begins(lsid: &Document, command: Document) -> Document {
    let mut command = inside(lsid, command);
    command.insert("startTransaction", true);
    command
}

fn commit(lsid: &Document) -> Document {
    inside(lsid, doc! { "commitTransaction": 1 })
}

fn abort(lsid: &Document) -> Document {
    inside(lsid, doc! { "abortTransaction": 1 })
}

/// The command with the numbers of its statements.
fn numbered(command: Document, stmt_ids: &[i32]) -> Document {
    let mut command = command;
    command.insert("stmtIds", stmt_ids.to_vec());
    command
}

fn increments(ids: &[i32]) -> Document {
    let updates: Vec<_> = (ids.iter())
        .map(|id| doc! { "q": { "_id": id }, "u": { "$inc": { "n": 1 } } })
        .collect();
    doc! { "update": "c", "updates": updates }
}

fn modify(id: i32, new: bool) -> Document {
    doc! { "findAndModify": "c", "query": { "_id": id }, "update": { "$inc": { "n": 1 } }, "new": new }
}

fn remove(id: i32) -> Document {
    doc! { "delete": "c", "deletes": [{ "q": { "_id": id }, "limit": 1 }] }
}

async fn prepare(client: &Client, lsid: &Document) -> Timestamp {
    let prepare = inside(lsid, doc! { "prepareTransaction": 1 });
    let reply = client.at("admin").ok(prepare).await;
    reply.get_timestamp("prepareTimestamp").expect("a time")
}

fn commit_at(lsid: &Document, at: Timestamp) -> Document {
    let mut commit = commit(lsid);
    commit.insert("commitTimestamp", Bson::Timestamp(at));
    commit
}

async fn numbers(client: &Client) -> Vec<(i32, i32)> {
    let found = client.find(all()).await;
    let number = |found: &Document, name| found.get_i32(name).expect("a number");
    (found.iter())
        .map(|found| (number(found, "_id"), number(found, "n")))
        .collect()
}

fn retried(reply: &Document) -> Vec<i32> {
    if let Ok(one) = reply.get_i32("retriedStmtId") {
        return vec![one];
    }
    match reply.get_array("retriedStmtIds") {
        Ok(several) => several.iter().filter_map(Bson::as_i32).collect(),
        Err(_) => Vec::new(),
    }
}

/// The documents of config.transactions.
async fn records(client: &Client) -> Vec<Document> {
    let find = doc! { "find": "transactions", "sort": { "_id": 1 } };
    client.at("config").find(find).await
}

#[test]
fn who_may_name_one_and_when() {
    with_node(2500, 2, 3, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        let mut without_uuid = session_id(1);
        without_uuid.insert("txnNumber", 1i64);
        client.fails(begins(&without_uuid, all()), 72).await;
        let child = of_write(3, 1);
        for mut outside in [all(), increments(&[1])] {
            outside.insert("lsid", child.clone());
            let message = client.fails(outside.clone(), 72).await;
            assert_eq!(
                message,
                "Internal sessions are not supported outside of transactions"
            );
            outside.insert("txnNumber", 1i64);
            client.fails(outside, 72).await;
        }
        // Those that execute no retryable write are sessions like others, with no others in the
        // way.
        let mut alone = session_id(1);
        alone.insert("txnUUID", uuid(7));
        client
            .ok(begins(&alone, numbered(increments(&[1]), &[5])))
            .await;
        client.ok(first(1, 4, insert(&[2]))).await;
        client.at("admin").ok(commit(&alone)).await;
        client.at("admin").ok(commit(&alone)).await;
        client
            .at("admin")
            .ok(statement(1, 4, doc! { "commitTransaction": 1 }))
            .await;
        assert_eq!(numbers(&client).await, [(1, 1), (2, 0)]);
        let records = records(&client).await;
        assert_eq!(records.len(), 2, "{records:?}");
        let of_child = records[1].get_document("_id").expect("a session");
        assert_eq!(of_child.get("txnUUID"), Some(&Bson::Binary(uuid(7))));
        assert!(!records[1].contains_key("parentLsid"), "{records:?}");
        let message = client.fails(begins(&alone, all()), 117).await;
        assert!(message.contains("sharded cluster"), "{message}");
        let message = client.fails(inside(&alone, all()), 256).await;
        assert!(message.contains("has been committed"), "{message}");
    });
}

/// What several of one parent execute, and it itself, is executed once, and answered the same by
/// all.
#[test]
fn a_write_is_executed_once_whichever_session_executes_it() {
    for (seed, (cores, partitions)) in (2510..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2, 3, 4])).await;
            let admin = client.at("admin");
            // The session executes one statement itself, and two are executed for it.
            let itself = retryable(1, 5, numbered(increments(&[1]), &[0]));
            client.ok(itself.clone()).await;
            let child = of_write(5, 1);
            let both = numbered(increments(&[1, 2]), &[0, 1]);
            let reply = client.ok(begins(&child, both.clone())).await;
            assert_eq!(retried(&reply), [0], "{reply}");
            assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
            let upsert = doc! { "update": "c", "updates": [
                { "q": { "_id": 9 }, "u": { "$inc": { "n": 1 } }, "upsert": true },
            ] };
            let upsert = numbered(upsert, &[2]);
            let upserted = client.on(1).ok(inside(&child, upsert.clone())).await;
            // What servers do beside it is done each time, and is no statement.
            let beside = numbered(increments(&[4, 4]), &[-1, -1]);
            client.ok(inside(&child, beside.clone())).await;
            let mut several = increments(&[4]);
            several.insert("stmtIds", [-1].to_vec());
            let updates = several.get_array_mut("updates").expect("updates");
            updates[0]
                .as_document_mut()
                .expect("one")
                .insert("multi", true);
            client.ok(inside(&child, several)).await;
            let changed = client
                .ok(inside(&child, numbered_one(modify(3, true), 3)))
                .await;
            assert_eq!(
                changed.get_document("value").ok(),
                Some(&doc! { "_id": 3, "n": 1 })
            );
            client
                .ok(inside(&child, numbered(insert(&[20, 21]), &[4, 5])))
                .await;
            client.ok(inside(&child, numbered(remove(2), &[6]))).await;
            admin.on(1).ok(commit(&child)).await;
            let state = [(1, 1), (3, 1), (4, 3), (9, 1), (20, 0), (21, 0)];
            assert_eq!(numbers(&client).await, state);
            for (turn, number) in (0..).zip([2, 3, 4, 5]) {
                if turn % 2 == 1 {
                    pinion_exec::forget_sessions().await;
                }
                // Executed once more by a new transaction, and by the session itself.
                let again = of_write(5, number);
                let send = |command: Document| match turn {
                    0 | 1 => inside(&again, command),
                    _ => retryable(1, 5, command),
                };
                if turn < 2 {
                    client.ok(begins(&again, all())).await;
                }
                let reply = client.on(turn).ok(send(both.clone())).await;
                assert_eq!(retried(&reply), [0, 1], "{reply}");
                let reply = client.ok(send(upsert.clone())).await;
                assert_eq!(retried(&reply), [2], "{reply}");
                assert_eq!(reply.get("upserted"), upserted.get("upserted"), "{reply}");
                let reply = client.ok(send(numbered_one(modify(3, true), 3))).await;
                assert_eq!(retried(&reply), [3], "{reply}");
                assert_eq!(reply.get("value"), changed.get("value"), "{reply}");
                let reply = client.ok(send(numbered(insert(&[20, 21]), &[4, 5]))).await;
                assert_eq!(retried(&reply), [4, 5], "{reply}");
                assert_eq!(reply.get_i32("n").ok(), Some(2), "{reply}");
                let reply = client.ok(send(numbered(remove(2), &[6]))).await;
                assert_eq!(retried(&reply), [6], "{reply}");
                let bulk = doc! { "bulkWrite": 1, "ops": [
                    { "update": 0, "filter": { "_id": 1 }, "updateMods": { "$inc": { "n": 1 } } },
                    { "delete": 0, "filter": { "_id": 2 } },
                ], "nsInfo": [{ "ns": "test.c" }], "stmtIds": [0, 6] };
                let reply = admin.ok(send(bulk)).await;
                assert_eq!(retried(&reply), [0, 6], "{reply}");
                assert_eq!(reply.get_i32("nModified").ok(), Some(1), "{reply}");
                assert_eq!(reply.get_i32("nDeleted").ok(), Some(1), "{reply}");
                if turn < 2 {
                    admin.ok(commit(&again)).await;
                }
                assert_eq!(numbers(&client).await, state);
            }
            // The next write of the session is another one.
            client
                .ok(retryable(1, 6, numbered(increments(&[1]), &[0])))
                .await;
            client.fails(inside(&child, all()), 225).await;
            admin.fails(commit(&child), 225).await;
            client.fails(begins(&of_write(5, 9), all()), 225).await;
            let valid = client
                .at("config")
                .ok(doc! { "validate": "transactions" })
                .await;
            assert_eq!(valid.get_bool("valid").ok(), Some(true), "{valid}");
        });
    }
}

fn numbered_one(command: Document, stmt_id: i32) -> Document {
    let mut command = command;
    command.insert("stmtId", stmt_id);
    command
}

#[test]
fn a_statement_is_one_of_a_transaction_once() {
    with_node(2520, 2, 3, |client| async move {
        become_primary().await;
        client.ok(insert(&[1, 2])).await;
        let admin = client.at("admin");
        let twice = of_write(1, 1);
        client
            .fails(
                begins(&twice, numbered(increments(&[1, 2]), &[3, 3])),
                5_875_600,
            )
            .await;
        client.fails(inside(&twice, all()), 251).await;
        let again = of_write(1, 2);
        client
            .ok(begins(&again, numbered(increments(&[1]), &[3])))
            .await;
        client
            .fails(inside(&again, numbered(increments(&[2]), &[3])), 5_875_600)
            .await;
        // One document that is answered is kept for each write.
        let images = of_write(1, 3);
        client
            .ok(begins(&images, numbered_one(modify(1, true), 1)))
            .await;
        client
            .ok(inside(&images, numbered_one(modify(2, false), 2)))
            .await;
        admin.fails(commit(&images), 6_054_001).await;
        assert_eq!(numbers(&client).await, [(1, 0), (2, 0)]);
        let many = of_write(1, 4);
        let mut several = numbered(increments(&[1]), &[0]);
        let updates = several.get_array_mut("updates").expect("updates");
        updates[0]
            .as_document_mut()
            .expect("one")
            .insert("multi", true);
        let reply = client.ok(begins(&many, several)).await;
        assert!(reply.to_string().contains("multi=true"), "{reply}");
        client.fails(inside(&many, all()), 251).await;
        // The number of a transaction of the client's is none of a write.
        client.ok(first(1, 2, insert(&[3]))).await;
        client.fails(begins(&of_write(2, 5), all()), 217).await;
        client.fails(retryable(1, 2, increments(&[1])), 217).await;
        client.ok(statement(1, 2, all())).await;
        // A later write ends it.
        client
            .ok(begins(&of_write(3, 6), numbered(increments(&[1]), &[0])))
            .await;
        client.fails(statement(1, 2, all()), 225).await;
        admin.ok(commit(&of_write(3, 6))).await;
        assert_eq!(numbers(&client).await, [(1, 1), (2, 0)]);
    });
}

/// Of those that execute one write the first that meets another aborts it, and later ones wait.
#[test]
fn those_of_one_write_do_not_run_beside_each_other() {
    for (seed, (cores, partitions)) in (2530..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2])).await;
            let admin = client.at("admin");
            let (one, two, three) = (of_write(5, 1), of_write(5, 2), of_write(5, 3));
            let write = || numbered(increments(&[1]), &[0]);
            client.ok(begins(&one, write())).await;
            let reply = client.on(1).ok(begins(&two, write())).await;
            assert!(retried(&reply).is_empty(), "{reply}");
            // What comes late from the one that gave way does no harm.
            admin.fails(commit(&one), 251).await;
            admin.fails(abort(&one), 251).await;
            let done = Rc::new(Cell::new(0));
            let waits = [begins(&three, write()), retryable(1, 5, write())];
            let waiting = waits[seed as usize % 2].clone();
            let task = {
                let (client, done) = (client.clone(), done.clone());
                spawn(Queue::Foreground, async move {
                    let reply = client.on(2).ok(waiting).await;
                    done.set(1);
                    reply
                })
            };
            sleep(Duration::from_millis(300)).await;
            assert_eq!(done.get(), 0, "seed {seed}: nobody waited");
            let mut impatient = waits[(seed as usize + 1) % 2].clone();
            impatient.insert("maxTimeMS", 50);
            client.fails(impatient, 50).await;
            admin.ok(commit(&two)).await;
            let reply = task.await.expect("not stopped");
            assert_eq!(retried(&reply), [0], "{reply}");
            if seed % 2 == 0 {
                admin.ok(abort(&three)).await;
            }
            admin.fails(commit(&one), 251).await;
            assert_eq!(numbers(&client).await, [(1, 1), (2, 0)]);
            // A newer write, or transaction, of the client ends what executes an older one.
            for (number, newer) in [
                (6, retryable(1, 7, increments(&[2]))),
                (8, first(1, 9, insert(&[3]))),
                (10, begins(&of_write(11, 9), all())),
            ] {
                let older = of_write(number, 4);
                client.ok(begins(&older, write())).await;
                client.ok(newer).await;
                admin.fails(commit(&older), 225).await;
            }
            assert_eq!(numbers(&client).await, [(1, 1), (2, 1)]);
            // Nothing that was given up is held.
            client.ok(increments(&[1])).await;
            let status = client.ok(doc! { "serverStatus": 1 }).await;
            let transactions = status.get_document("transactions").expect("a section");
            assert_eq!(
                transactions.get_i64("currentOpen").ok(),
                Some(1),
                "{transactions}"
            );
        });
    }
}

#[test]
fn what_is_prepared_is_waited_for() {
    for (seed, (cores, partitions)) in (2540..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2])).await;
            let admin = client.at("admin");
            let one = of_write(5, 1);
            let write = || numbered(increments(&[1]), &[0]);
            client.ok(begins(&one, write())).await;
            client
                .ok(inside(&one, numbered_one(modify(2, true), 1)))
                .await;
            let at = prepare(&client, &one).await;
            majority_has_all().await;
            if seed % 2 == 1 {
                pinion_exec::forget_sessions().await;
            }
            assert_eq!(prepare(&client, &one).await, at);
            for waiting in [
                begins(&of_write(5, 2), all()),
                begins(&of_write(6, 2), all()),
                retryable(1, 5, write()),
                retryable(1, 7, write()),
                first(1, 8, all()),
            ] {
                let mut waiting = waiting;
                waiting.insert("maxTimeMS", 50);
                client.fails(waiting, 50).await;
            }
            client.fails(retryable(1, 4, write()), 225).await;
            let done = Rc::new(Cell::new(0));
            let task = {
                let (client, done) = (client.clone(), done.clone());
                spawn(Queue::Foreground, async move {
                    let again = retryable(1, 5, numbered_one(modify(2, true), 1));
                    let reply = client.on(1).ok(again).await;
                    done.set(1);
                    reply
                })
            };
            sleep(Duration::from_millis(300)).await;
            assert_eq!(done.get(), 0, "seed {seed}: nobody waited");
            let commits = seed % 4 != 3;
            let outcome = match commits {
                true => commit_at(&one, at),
                false => abort(&one),
            };
            admin.on(1).ok(outcome).await;
            let reply = task.await.expect("not stopped");
            assert_eq!(
                reply.get_document("value").ok(),
                Some(&doc! { "_id": 2, "n": 1 })
            );
            assert_eq!(retried(&reply).len(), usize::from(commits), "{reply}");
            let reply = client.ok(retryable(1, 5, write())).await;
            assert_eq!(retried(&reply).len(), usize::from(commits), "{reply}");
            assert_eq!(numbers(&client).await, [(1, 1), (2, 1)]);
        });
    }
}

#[test]
fn what_ends_the_parent_ends_its_children() {
    with_node(2550, 3, 4, |client| async move {
        become_primary().await;
        client.ok(insert(&[1])).await;
        let admin = client.at("admin");
        let mut alone = session_id(1);
        alone.insert("txnUUID", uuid(7));
        let endings = [
            doc! { "killSessions": [session_id(1)] },
            doc! { "endSessions": [session_id(1)] },
            doc! { "killAllSessionsByPattern": [{ "lsid": session_id(1) }] },
        ];
        for (number, ending) in (1i64..).zip(endings) {
            let shown = ending.to_string();
            let child = of_write(number, 1);
            client
                .ok(begins(&child, numbered(increments(&[1]), &[0])))
                .await;
            client.ok(first(2, number, insert(&[2]))).await;
            let mut own = begins(&alone, all());
            own.insert("txnNumber", number);
            own.insert("batchSize", 0);
            client.ok(own).await;
            client.ok(ending).await;
            admin.fails(commit(&child), 251).await;
            let mut gone = commit(&alone);
            gone.insert("txnNumber", number);
            admin.fails(gone, 251).await;
            let others = statement(2, number, doc! { "abortTransaction": 1 });
            admin.ok(others).await;
            assert_eq!(numbers(&client).await, [(1, 0)], "{shown}");
        }
        // They use the session of the client, which is the one that is known.
        let listed =
            doc! { "aggregate": 1, "pipeline": [{ "$listLocalSessions": {} }], "cursor": {} };
        client.ok(begins(&of_write(900, 3), all())).await;
        let reply = client.at("test").ok(listed).await;
        let shown = reply.to_string();
        assert!(!shown.contains("txnUUID"), "{shown}");
    });
}

#[test]
fn what_they_leave_goes_with_the_session() {
    for (seed, (cores, partitions)) in (2560..).zip(SHAPES) {
        with_node(seed, cores, partitions, |client| async move {
            become_primary().await;
            client.ok(insert(&[1, 2])).await;
            let admin = client.at("admin");
            for number in 1..4 {
                let child = of_write(number, number as u8);
                client
                    .ok(begins(&child, numbered_one(modify(1, false), 0)))
                    .await;
                client
                    .ok(inside(&child, numbered(increments(&[2]), &[1])))
                    .await;
                admin.ok(commit(&child)).await;
            }
            let found = records(&client).await;
            assert_eq!(found.len(), 3, "{found:?}");
            for record in &found {
                let parent = record.get_document("parentLsid").expect("a parent");
                let session = record.get_document("_id").expect("a session");
                assert_eq!(parent.get("id"), session.get("id"));
                assert_eq!(parent.get("uid"), session.get("uid"));
                assert_eq!(parent.len(), 2);
                let names: Vec<&str> = session.keys().map(String::as_str).collect();
                assert_eq!(names, ["id", "uid", "txnNumber", "txnUUID"]);
                assert_eq!(record.get_str("state").ok(), Some("committed"));
                assert_eq!(record.get_i64("txnNum").ok(), Some(0));
            }
            let image = client
                .at("config")
                .find(doc! { "find": "image_collection" })
                .await;
            // The image of a write takes the place of the one before.
            let of_latest = image.iter().filter(|image| {
                let session = image.get_document("_id").expect("a session");
                session.get_i64("txnNumber").ok() == Some(3)
            });
            let of_latest: Vec<_> = of_latest.collect();
            assert_eq!(of_latest.len(), 1, "{image:?}");
            assert_eq!(
                of_latest[0].get_document("image").ok(),
                Some(&doc! { "_id": 1, "n": 2 })
            );
            // While the session is used on, what executed earlier writes of it goes.
            for _ in 0..3 {
                sleep(Duration::from_secs(15 * 60)).await;
                let mut used = doc! { "ping": 1 };
                used.insert("lsid", session_id(1));
                client.ok(used).await;
                admin.ok(doc! { "refreshLogicalSessionCacheNow": 1 }).await;
            }
            admin.ok(doc! { "reapLogicalSessionCacheNow": 1 }).await;
            let found = records(&client).await;
            assert_eq!(found.len(), 1, "{found:?}");
            let reply = client
                .ok(retryable(1, 3, numbered(increments(&[2]), &[1])))
                .await;
            assert_eq!(retried(&reply), [1], "{reply}");
            admin.ok(doc! { "endSessions": [session_id(1)] }).await;
            admin.ok(doc! { "refreshLogicalSessionCacheNow": 1 }).await;
            sleep(Duration::from_secs(40 * 60)).await;
            admin.ok(doc! { "refreshLogicalSessionCacheNow": 1 }).await;
            admin.ok(doc! { "reapLogicalSessionCacheNow": 1 }).await;
            assert!(records(&client).await.is_empty());
            let images = client
                .at("config")
                .find(doc! { "find": "image_collection" })
                .await;
            assert!(images.is_empty(), "{images:?}");
            let valid = client
                .at("config")
                .ok(doc! { "validate": "transactions" })
                .await;
            assert!(valid.to_string().contains("\"nrecords\": 0"), "{valid}");
        });
    }
}

/// Three writes of session 1 that are executed by others, the last two prepared; of these the first
/// is committed.
async fn workload(client: &Client) -> Timestamp {
    become_primary().await;
    client.ok(insert(&[1, 2, 3])).await;
    let admin = client.at("admin");
    let one = of_write(1, 1);
    client
        .ok(begins(&one, numbered_one(modify(1, true), 0)))
        .await;
    client
        .ok(inside(&one, numbered(increments(&[2, 3]), &[1, 2])))
        .await;
    admin.ok(commit(&one)).await;
    let two = of_write(2, 2);
    client
        .ok(begins(&two, numbered_one(modify(1, false), 0)))
        .await;
    client.ok(inside(&two, numbered(insert(&[20]), &[1]))).await;
    let at = prepare(client, &two).await;
    majority_has_all().await;
    admin.ok(commit_at(&two, at)).await;
    let three = of_write(3, 3);
    client
        .ok(begins(&three, numbered(increments(&[2, 3]), &[7, 8])))
        .await;
    client
        .ok(inside(&three, numbered_one(modify(1, true), 9)))
        .await;
    let at = prepare(client, &three).await;
    let last = storage().last_allotted();
    storage().wait_durable(last).await.expect("storage serves");
    at
}

/// What the next primary finds.
async fn check_workload(client: &Client, at: Timestamp) {
    let admin = client.at("admin");
    let before = [(1, 2), (2, 1), (3, 1), (20, 0)];
    assert_eq!(numbers(client).await, before);
    let mut waits = retryable(1, 3, numbered(increments(&[2]), &[7]));
    waits.insert("maxTimeMS", 50);
    client.fails(waits, 50).await;
    client
        .fails(retryable(1, 2, numbered(increments(&[2]), &[1])), 225)
        .await;
    let three = of_write(3, 3);
    admin.ok(commit_at(&three, at)).await;
    let reply = client
        .ok(retryable(1, 3, numbered(increments(&[2, 3]), &[7, 8])))
        .await;
    assert_eq!(retried(&reply), [7, 8], "{reply}");
    let again = of_write(3, 4);
    let reply = client
        .ok(begins(&again, numbered_one(modify(1, true), 9)))
        .await;
    assert_eq!(retried(&reply), [9], "{reply}");
    assert_eq!(
        reply.get_document("value").ok(),
        Some(&doc! { "_id": 1, "n": 3 })
    );
    admin.ok(abort(&again)).await;
    admin.ok(commit_at(&three, at)).await;
    assert_eq!(numbers(client).await, [(1, 3), (2, 2), (3, 2), (20, 0)]);
    let records = records(client).await;
    assert_eq!(records.len(), 3, "{records:?}");
}

#[test]
fn members_that_apply_them_know_them() {
    for (seed, (shape, target)) in
        (2570..).zip(SHAPES.into_iter().zip([(2, 3), (1, 1), (2, 2), (3, 4)]))
    {
        let prepared_at: Rc<RefCell<Option<Timestamp>>> = Rc::default();
        let source = {
            let prepared_at = prepared_at.clone();
            recording(seed, shape, move |client| {
                let prepared_at = prepared_at.clone();
                async move {
                    let at = workload(&client).await;
                    *prepared_at.borrow_mut() = Some(at);
                }
            })
        };
        let at = prepared_at.take().expect("it was prepared");
        let (cores, partitions) = target;
        with_node(seed, cores, partitions, move |client| {
            let entries = source.entries.clone();
            async move {
                follow(&entries).await;
                majority_has_all().await;
                pinion_exec::hold_prepared().await;
                pinion_exec::forget_sessions().await;
                check_workload(&client, at).await;
            }
        });
    }
}

#[test]
fn a_crash_takes_nothing_of_them() {
    for (seed, checkpoint) in [(2580, false), (2581, true)] {
        let prepared_at: Rc<Cell<Option<Timestamp>>> = Rc::default();
        let death = Some(Death::PowerCut);
        with_member(seed, &[2, 3, 1], 3, death, move |life, client| {
            let prepared_at = prepared_at.clone();
            async move {
                match life {
                    0 => {
                        prepared_at.set(Some(workload(&client).await));
                        if checkpoint {
                            storage().set_stable(storage().last_allotted());
                            client.at("admin").ok(doc! { "fsync": 1 }).await;
                        }
                    }
                    1 => {
                        become_primary().await;
                        majority_has_all().await;
                        pinion_exec::hold_prepared().await;
                        check_workload(&client, prepared_at.get().expect("it is prepared")).await;
                        let last = storage().last_allotted();
                        storage().wait_durable(last).await.expect("storage serves");
                    }
                    _ => {
                        become_primary().await;
                        let again = retryable(1, 3, numbered(increments(&[2, 3]), &[7, 8]));
                        let reply = client.ok(again).await;
                        assert_eq!(retried(&reply), [7, 8], "{reply}");
                        assert_eq!(ids(&client, all()).await, [1, 2, 3, 20]);
                    }
                }
            }
        });
    }
}

/// The command as one of the transaction with this number.
fn of_number(txn_number: i64, command: Document) -> Document {
    let mut command = command;
    command.insert("txnNumber", txn_number);
    command
}

/// A child that has executed one statement, and has prepared another when the power goes: what the
/// first answered with is not taken for what the second does.
#[test]
fn after_a_crash_the_answer_is_that_of_the_last_transaction() {
    let prepared_at: Rc<Cell<Option<Timestamp>>> = Rc::default();
    let death = Some(Death::PowerCut);
    with_member(2590, &[2, 2], 3, death, move |life, client| {
        let prepared_at = prepared_at.clone();
        async move {
            let (admin, child) = (client.at("admin"), of_write(5, 1));
            let second = || numbered_one(modify(1, true), 1);
            become_primary().await;
            if life == 0 {
                client.ok(insert(&[1, 2])).await;
                client
                    .ok(begins(&child, numbered_one(modify(1, false), 0)))
                    .await;
                admin.ok(commit(&child)).await;
                client.ok(of_number(1, begins(&child, second()))).await;
                let prepare = inside(&child, doc! { "prepareTransaction": 1 });
                let reply = admin.ok(of_number(1, prepare)).await;
                prepared_at.set(reply.get_timestamp("prepareTimestamp").ok());
                storage().set_stable(storage().last_allotted());
                admin.ok(doc! { "fsync": 1 }).await;
                return;
            }
            majority_has_all().await;
            pinion_exec::hold_prepared().await;
            let at = prepared_at.get().expect("it is prepared");
            admin.ok(of_number(1, commit_at(&child, at))).await;
            let reply = client.ok(retryable(1, 5, second())).await;
            assert_eq!(retried(&reply), [1], "{reply}");
            let value = reply.get_document("value").expect("a document");
            assert_eq!(*value, doc! { "_id": 1, "n": 2 });
        }
    });
}

/// One write of more statements than a session keeps in memory, over many children, some of which
/// are prepared.
#[test]
fn many_statements_are_executed_once_over_many_children() {
    const EACH: i32 = 400;
    for (seed, (cores, partitions)) in (2600..).zip(SHAPES) {
        with_node(seed, cores, partitions, move |client| async move {
            become_primary().await;
            client.ok(doc! { "create": "c" }).await;
            let admin = client.at("admin");
            let statements = |nth: i32| {
                let stmt_ids: Vec<i32> = (nth * EACH..(nth + 1) * EACH).collect();
                numbered(insert(&stmt_ids), &stmt_ids)
            };
            for nth in 0..5 {
                let child = of_write(1, nth as u8);
                client.ok(begins(&child, statements(nth))).await;
                if nth % 2 == 0 {
                    admin.ok(commit(&child)).await;
                    continue;
                }
                let at = prepare(&client, &child).await;
                majority_has_all().await;
                admin.ok(commit_at(&child, at)).await;
            }
            for nth in 0..5 {
                let expected: Vec<i32> = (nth * EACH..(nth + 1) * EACH).collect();
                let reply = match nth % 2 {
                    0 => client.ok(retryable(1, 1, statements(nth))).await,
                    _ => {
                        let again = of_write(1, 100 + nth as u8);
                        let reply = client.ok(begins(&again, statements(nth))).await;
                        admin.ok(commit(&again)).await;
                        reply
                    }
                };
                assert_eq!(retried(&reply), expected, "seed {seed}, {nth}");
            }
            // What was not executed is executed.
            let reply = client.ok(retryable(1, 1, statements(5))).await;
            assert!(retried(&reply).is_empty(), "{reply}");
            let count = client.ok(doc! { "count": "c" }).await;
            assert_eq!(count.get_i32("n").ok(), Some(6 * EACH));
        });
    }
}

/// A shard starts no transaction with the number of a write that a child executes or has executed.
#[test]
fn a_shard_starts_no_transaction_with_the_number_of_a_childs_write() {
    with_node(2490, 2, 3, |client| async move {
        const BY_CHILD: i32 = 6_202_002;
        become_primary().await;
        become_shard().await;
        client.ok(insert(&[1])).await;
        let lsid = of_write(5, 1);
        let update = || numbered(increments(&[1]), &[0]);
        client.ok(begins(&lsid, update())).await;
        client.fails(first(1, 5, all()), BY_CHILD).await;
        client.at("admin").ok(abort(&lsid)).await;
        // The child starts again with its own number.
        client.ok(begins(&lsid, update())).await;
        client.at("admin").ok(commit(&lsid)).await;
        client.fails(first(1, 5, all()), BY_CHILD).await;
        client.fails(begins(&lsid, update()), 50_911).await;
        client.ok(first(1, 6, all())).await;
    });
}
