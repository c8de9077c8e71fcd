//! Read and write concerns on a member.

use pinion_bson::{Bson, Document, Timestamp, doc};
use pinion_clock::OpTime;
use pinion_storage::storage;
use pinion_wire::{ErrorCode, MemberState};

use crate::fake_set::{become_member, fake, of_term_1};
use crate::harness::{Client, column, with_node};

fn bson(ts: pinion_clock::Timestamp) -> Timestamp {
    Timestamp {
        time: ts.secs(),
        increment: ts.inc(),
    }
}

async fn primary() {
    become_member(
        MemberState::Primary,
        true,
        of_term_1(storage().last_allotted()),
    )
    .await;
}

fn insert(id: i32) -> Document {
    doc! { "insert": "c", "documents": [{ "_id": id }] }
}

/// Runs a command with a write concern, and compares what the set was asked for and what the reply
/// says of it.
async fn check_write(
    client: &Client,
    mut command: Document,
    concern: Option<Document>,
    asked: &[&str],
    failure: Option<Document>,
) {
    if let Some(concern) = concern {
        command.insert("writeConcern", concern);
    }
    let shown = command.to_string();
    fake().take_calls();
    let reply = client.ok(command).await;
    assert_eq!(fake().take_calls(), asked, "{shown}");
    let found = reply.get_document("writeConcernError").ok().cloned();
    assert_eq!(found, failure, "{shown}");
}

#[test]
fn writes_wait_for_the_set() {
    with_node(1110, 1, 2, |client| async move {
        primary().await;
        let majority = ["Some(Majority) j:Some(true)"];
        check_write(&client, insert(1), None, &majority, None).await;
        let empty = Some(doc! {});
        check_write(&client, insert(2), empty, &majority, None).await;
        let timed = || Some(doc! { "wtimeout": 500 });
        check_write(&client, insert(3), timed(), &majority, None).await;
        check_write(&client, insert(4), Some(doc! { "w": 1 }), &[], None).await;
        check_write(&client, insert(5), Some(doc! { "w": 0 }), &[], None).await;
        let journaled = Some(doc! { "w": 1, "j": true });
        check_write(&client, insert(6), journaled, &[], None).await;
        let two = Some(doc! { "w": 2 });
        check_write(&client, insert(7), two, &["Some(Members(2)) j:None"], None).await;
        let mode = Some(doc! { "w": "dc", "j": false });
        let asked = ["Some(Mode(\"dc\")) j:Some(false)"];
        check_write(&client, insert(8), mode, &asked, None).await;
        // What changes nothing, and what fails, waits for what it saw; local data wait for no
        // member.
        let nothing = doc! { "delete": "c", "deletes": [{ "q": { "_id": -1 }, "limit": 1 }] };
        check_write(&client, nothing, None, &majority, None).await;
        check_write(&client, insert(1), None, &majority, None).await;
        check_write(&client.at("local"), insert(1), None, &[], None).await;
        for other in [
            doc! { "create": "d" },
            doc! { "createIndexes": "d", "indexes": [{ "key": { "a": 1 }, "name": "a" }] },
            doc! { "aggregate": "c", "pipeline": [{ "$out": "d" }], "cursor": {} },
            doc! { "findAndModify": "c", "query": { "_id": 1 }, "update": { "$set": { "a": 1 } } },
            doc! { "drop": "d" },
        ] {
            check_write(&client, other, None, &majority, None).await;
        }
        let read = doc! { "aggregate": "c", "pipeline": [], "cursor": {} };
        check_write(&client, read, None, &[], None).await;
    });
}

#[test]
fn a_write_concern_that_is_not_reached_is_reported() {
    with_node(1111, 1, 2, |client| async move {
        primary().await;
        let failure = |code: i32, name: &str, text: &str, info: Document| {
            Some(doc! { "code": code, "codeName": name, "errmsg": text, "errInfo": info })
        };
        let text = "waiting for replication timed out";
        fake().refuse(Some((ErrorCode::WRITE_CONCERN_TIMEOUT, text)));
        let info = doc! { "wtimeout": true,
        "writeConcern": { "w": "majority", "wtimeout": 100, "provenance": "implicitDefault" } };
        let timed = Some(doc! { "wtimeout": 100 });
        let expected = failure(64, "WriteConcernTimeout", text, info);
        let majority = ["Some(Majority) j:Some(true)"];
        check_write(&client, insert(1), timed, &majority, expected).await;
        let text = "Not enough data-bearing nodes";
        fake().refuse(Some((ErrorCode::UNSATISFIABLE_WRITE_CONCERN, text)));
        let given = doc! { "w": 50, "j": true };
        let info = doc! { "writeConcern": { "w": 50, "j": true, "wtimeout": 0, "provenance": "clientSupplied" } };
        let expected = failure(100, "UnsatisfiableWriteConcern", text, info);
        let asked = ["Some(Members(50)) j:Some(true)"];
        check_write(&client, insert(2), Some(given), &asked, expected).await;
        // The write has taken place. The member that the client is to ask now is named as with an
        // error.
        let text = "Primary stepped down while waiting for replication";
        fake().refuse(Some((ErrorCode::PRIMARY_STEPPED_DOWN, text)));
        let reply = client.ok(insert(3)).await;
        let fields: Vec<&str> = reply.keys().map(String::as_str).collect();
        assert_eq!(
            fields,
            [
                "n",
                "writeConcernError",
                "ok",
                "topologyVersion",
                "$clusterTime",
                "operationTime"
            ]
        );
        // An error that shows what another wrote is as safe as that.
        let upsert = doc! { "findAndModify": "c", "query": { "a": 1 }, "update": { "_id": 1 }, "upsert": true };
        let reply = client.run(upsert).await;
        assert_eq!(reply.get_i32("code").ok(), Some(11000));
        let found = reply.get_document("writeConcernError").unwrap();
        assert_eq!(found.get_i32("code").ok(), Some(189));
        fake().take_calls();
        client.fails(doc! { "create": "c", "x": 1 }, 40415).await;
        assert!(fake().take_calls().is_empty());
        fake().refuse(None);
        assert_eq!(client.find(doc! { "find": "c" }).await.len(), 3);
    });
}

fn reading(concern: Document) -> Document {
    doc! { "find": "c", "readConcern": concern, "$readPreference": { "mode": "nearest" } }
}

#[test]
fn read_concerns_are_refused() {
    with_node(1112, 1, 2, |client| async move {
        client.ok(insert(1)).await;
        primary().await;
        let now = bson(storage().last_allotted());
        let future = Timestamp {
            time: now.time + 1000,
            increment: 1,
        };
        let op_time = doc! { "ts": now, "t": 1i64 };
        for (concern, code) in [
            (doc! { "level": "available", "afterClusterTime": now }, 72),
            (
                doc! { "level": "linearizable", "afterClusterTime": now },
                72,
            ),
            (
                doc! { "level": "linearizable", "afterOpTime": op_time.clone() },
                9,
            ),
            (
                doc! { "level": "snapshot", "afterOpTime": op_time.clone() },
                72,
            ),
            (
                doc! { "afterClusterTime": now, "afterOpTime": op_time.clone() },
                72,
            ),
            (doc! { "level": "majority", "atClusterTime": now }, 72),
            (doc! { "afterClusterTime": future }, 72),
            (doc! { "level": "snapshot", "atClusterTime": future }, 72),
        ] {
            client.fails(reading(concern), code).await;
        }
        let mut count = doc! { "count": "c", "readConcern": { "level": "snapshot" } };
        client.fails(count.clone(), 72).await;
        count.insert("readConcern", doc! { "afterOpTime": op_time });
        client.ok(count).await;
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        client
            .fails(reading(doc! { "level": "snapshot" }), 246)
            .await;
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        client
            .fails(reading(doc! { "level": "linearizable" }), 10107)
            .await;
        become_member(MemberState::Startup2, false, OpTime::NULL).await;
        client
            .fails(reading(doc! { "afterClusterTime": now }), 13436)
            .await;
    });
}

#[test]
fn reads_wait_for_what_they_are_to_see() {
    for seed in 0..6 {
        with_node(1120 + seed, 1 + seed as usize % 3, 3, |client| async move {
            client.ok(insert(1)).await;
            primary().await;
            fake().take_calls();
            let written = client.ok(insert(2)).await;
            let after = written.get_timestamp("operationTime").unwrap();
            fake().take_calls();
            let local = reading(doc! { "afterClusterTime": after });
            assert_eq!(client.find(local.clone()).await.len(), 2);
            assert!(fake().take_calls().is_empty());
            let majority = reading(doc! { "level": "majority", "afterClusterTime": after });
            assert_eq!(client.find(majority).await.len(), 2);
            assert_eq!(fake().take_calls(), ["committed"]);
            // A time that was only heard of is reached by an entry that changes nothing.
            let secs = after.time + 500;
            let ahead = Timestamp {
                time: secs,
                increment: 1,
            };
            let mut causal = reading(doc! { "afterClusterTime": ahead });
            causal.insert("$clusterTime", doc! { "clusterTime": ahead });
            assert_eq!(client.find(causal).await.len(), 2);
            assert_eq!(fake().take_calls(), ["waiting for clusterTime"]);
            assert!(storage().visible().secs() >= secs);
            // Without writes the wait has an end in the operation's time.
            become_member(MemberState::Secondary, false, OpTime::NULL).await;
            let ahead = Timestamp {
                time: secs + 500,
                increment: 1,
            };
            let mut causal = reading(doc! { "afterClusterTime": ahead });
            causal.insert("$clusterTime", doc! { "clusterTime": ahead });
            causal.insert("maxTimeMS", 50);
            client.fails(causal, 50).await;
        });
    }
}

#[test]
fn snapshots_have_one_time() {
    with_node(1130, 2, 3, |client| async move {
        let documents: Vec<_> = (0..4).map(|i| doc! { "_id": i }).collect();
        client
            .ok(doc! { "insert": "c", "documents": documents })
            .await;
        primary().await;
        let at = bson(storage().last_allotted());
        client.ok(insert(4)).await;
        let mut command = reading(doc! { "level": "snapshot" });
        command.insert("batchSize", 2);
        let reply = client.ok(command).await;
        let cursor = reply.get_document("cursor").unwrap();
        assert_eq!(cursor.get_timestamp("atClusterTime").ok(), Some(at));
        let fields: Vec<&str> = cursor.keys().map(String::as_str).collect();
        assert_eq!(fields, ["firstBatch", "id", "ns", "atClusterTime"]);
        client.ok(insert(5)).await;
        let id = cursor.get_i64("id").unwrap();
        let more = client.ok(doc! { "getMore": id, "collection": "c" }).await;
        let cursor = more.get_document("cursor").unwrap();
        assert_eq!(cursor.get_array("nextBatch").unwrap().len(), 2);
        assert_eq!(cursor.get_timestamp("atClusterTime").ok(), Some(at));
        // The same state is there again under its time, through every command that takes one.
        let concern = || doc! { "level": "snapshot", "atClusterTime": at };
        let found = client.find(reading(concern())).await;
        assert_eq!(
            column(&found, "_id"),
            (0..4).map(Into::into).collect::<Vec<_>>()
        );
        let distinct = doc! { "distinct": "c", "key": "_id", "readConcern": concern() };
        let reply = client.ok(distinct).await;
        assert_eq!(reply.get_array("values").unwrap().len(), 4);
        assert_eq!(reply.get_timestamp("atClusterTime").ok(), Some(at));
        let group = doc! { "$group": { "_id": null, "n": { "$sum": 1 } } };
        let aggregate =
            doc! { "aggregate": "c", "pipeline": [group], "cursor": {}, "readConcern": concern() };
        let found = client.find(aggregate).await;
        assert_eq!(column(&found, "n"), [4.into()]);
    });
}

/// Runs a find by `_id` as a driver sends it in a causally consistent session.
async fn repeat_find(client: &Client, after: Timestamp, id: i32) -> Option<bool> {
    let body = doc! {
        "find": "c", "filter": { "_id": id }, "limit": 1, "$db": "test",
        "readConcern": { "afterClusterTime": after }, "$clusterTime": { "clusterTime": after },
    };
    client.repeat(body).await
}

#[test]
fn a_find_that_repeats_another_sees_what_it_is_to_see() {
    with_node(1132, 2, 3, |client| async move {
        primary().await;
        client.ok(insert(1)).await;
        let written = client.ok(insert(2)).await;
        let after = written.get_timestamp("operationTime").unwrap();
        let later = Timestamp {
            time: after.time + 100,
            increment: 1,
        };
        assert_eq!(repeat_find(&client, after, 1).await, None);
        assert_eq!(repeat_find(&client, after, 2).await, Some(true));
        assert_eq!(repeat_find(&client, after, 3).await, Some(false));
        // Another time is another message, which names it and waits for it.
        fake().take_calls();
        assert_eq!(repeat_find(&client, later, 2).await, None);
        assert_eq!(fake().take_calls(), ["waiting for clusterTime"]);
        assert_eq!(repeat_find(&client, later, 2).await, Some(true));
        // A node that has stepped down does not answer from what it read as a primary.
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        assert_eq!(repeat_find(&client, later, 2).await, None);
        primary().await;
        // Nor does one whose default is another now.
        let plain = |id: i32| doc! { "find": "c", "filter": { "_id": id }, "$db": "test" };
        assert_eq!(client.repeat(plain(1)).await, None);
        assert_eq!(client.repeat(plain(2)).await, Some(true));
        let set = doc! { "setDefaultRWConcern": 1, "defaultReadConcern": { "level": "majority" } };
        client.at("admin").ok(set).await;
        client.ok(insert(3)).await;
        assert_eq!(client.repeat(plain(2)).await, None);
    });
}

#[test]
fn linearizable_reads_are_confirmed() {
    with_node(1131, 2, 3, |client| async move {
        client.ok(insert(1)).await;
        primary().await;
        fake().take_calls();
        for command in [
            reading(doc! { "level": "linearizable" }),
            doc! { "find": "c", "filter": { "_id": 1 }, "readConcern": { "level": "linearizable" } },
        ] {
            assert_eq!(client.find(command).await.len(), 1);
            assert_eq!(fake().take_calls(), ["linearizable read", "committed"]);
        }
    });
}

/// Makes an index and compares what the reply says of its commit quorum.
async fn check_quorum(client: &Client, quorum: Option<Bson>, expected: Result<&str, i32>) {
    let mut command =
        doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
    if let Some(quorum) = quorum {
        command.insert("commitQuorum", quorum);
    }
    let shown = command.to_string();
    let reply = client.run(command).await;
    let found = match reply.get("commitQuorum") {
        Some(quorum) => Ok(quorum.to_string()),
        None => Err(reply.get_i32("code").unwrap_or_default()),
    };
    assert_eq!(found, expected.map(str::to_owned), "{shown}: {reply}");
    client.run(doc! { "dropIndexes": "c", "index": "a" }).await;
}

#[test]
fn commit_quorums() {
    with_node(1133, 1, 2, |client| async move {
        client.ok(insert(1)).await;
        check_quorum(&client, Some(1.into()), Err(2)).await;
        check_quorum(&client, None, Err(0)).await;
        primary().await;
        check_quorum(&client, None, Ok("\"votingMembers\"")).await;
        for (quorum, expected) in [
            (Bson::from("majority"), Ok("\"majority\"")),
            ("dc".into(), Ok("\"dc\"")),
            (3.into(), Ok("3")),
            (0.0.into(), Ok("0")),
            (4.into(), Err(278)),
            (51.into(), Err(9)),
            ((-1).into(), Err(9)),
            ("".into(), Err(9)),
            (true.into(), Err(9)),
            ("x".into(), Err(79)),
        ] {
            check_quorum(&client, Some(quorum), expected).await;
        }
        // What is made with its collection is ready at once.
        let fresh = doc! { "createIndexes": "d", "indexes": [{ "key": { "a": 1 }, "name": "a" }] };
        let reply = client.ok(fresh).await;
        assert!(!reply.contains_key("commitQuorum"), "{reply}");
    });
}
