//! What a node does in each state of a member of a replica set. The set is a fake: a view that the
//! test sets.

use pinion_bson::{DateTime, Document, doc};
use pinion_clock::OpTime;
use pinion_runtime::{Duration, sleep, wall_ms};
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::fake_set::{become_member, fake, of_term_1};
use crate::harness::{Client, column, with_node};

/// Runs a command on a member in this state and compares the code and message of its error, `None`
/// where there is none.
async fn check(
    client: &Client,
    at: (MemberState, bool),
    command: Document,
    expected: Option<(i32, &str)>,
) {
    let (member, writable) = at;
    become_member(member, writable, OpTime::NULL).await;
    let shown = command.to_string();
    let reply = client.run(command).await;
    let found = reply.get_i32("code").ok().zip(reply.get_str("errmsg").ok());
    assert_eq!(found, expected, "{member:?} {writable} {shown}: {reply}");
}

const PRIMARY: (MemberState, bool) = (MemberState::Primary, true);
const DRAINING: (MemberState, bool) = (MemberState::Primary, false);
const SECONDARY: (MemberState, bool) = (MemberState::Secondary, false);
const RECOVERING: (MemberState, bool) = (MemberState::Recovering, false);
const STARTUP: (MemberState, bool) = (MemberState::Startup, false);

const NOT_PRIMARY: Option<(i32, &str)> = Some((10107, "not primary"));
const NOT_ASKED: Option<(i32, &str)> = Some((13435, "not primary and secondaryOk=false"));
const IS_RECOVERING: Option<(i32, &str)> = Some((13436, "node is recovering"));
const IS_NEITHER: Option<(i32, &str)> = Some((13436, "node is not in primary or recovering state"));

#[test]
fn each_state_runs_what_it_may() {
    with_node(1000, 2, 3, |client| async move {
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] })
            .await;
        let with = |mode: &str, command: &Document| {
            let mut command = command.clone();
            command.insert("$readPreference", doc! { "mode": mode });
            command
        };
        let reads = [
            doc! { "find": "c" },
            doc! { "find": "c", "filter": { "_id": 1 } },
            doc! { "count": "c" },
            doc! { "distinct": "c", "key": "_id" },
            doc! { "aggregate": "c", "pipeline": [{ "$lookup": { "from": "c", "localField": "_id", "foreignField": "_id", "as": "x" } }], "cursor": {} },
            doc! { "listCollections": 1 },
            doc! { "listIndexes": "c" },
            doc! { "explain": { "find": "c" } },
        ];
        for read in &reads {
            for (at, by_default, opted_in) in [
                (PRIMARY, None, None),
                (DRAINING, NOT_ASKED, None),
                (SECONDARY, NOT_ASKED, None),
                (RECOVERING, NOT_ASKED, IS_RECOVERING),
                (STARTUP, NOT_ASKED, IS_NEITHER),
            ] {
                check(&client, at, read.clone(), by_default).await;
                check(&client, at, with("primary", read), by_default).await;
                for mode in [
                    "primaryPreferred",
                    "secondary",
                    "secondaryPreferred",
                    "nearest",
                ] {
                    check(&client, at, with(mode, read), opted_in).await;
                }
            }
        }
        let writes = [
            doc! { "insert": "c", "documents": [{ "a": 1 }] },
            doc! { "update": "c", "updates": [{ "q": { "_id": 1 }, "u": { "$inc": { "n": 1 } } }] },
            doc! { "delete": "c", "deletes": [{ "q": { "_id": 2 }, "limit": 1 }] },
            doc! { "findAndModify": "c", "query": { "_id": 2 }, "remove": true },
            doc! { "createIndexes": "c", "indexes": [{ "key": { "a": 1 }, "name": "a" }] },
            doc! { "collMod": "c", "validationLevel": "strict" },
            doc! { "create": "c2" },
            doc! { "drop": "c2" },
        ];
        for write in &writes {
            check(&client, PRIMARY, write.clone(), None).await;
            for at in [DRAINING, SECONDARY, RECOVERING, STARTUP] {
                check(&client, at, write.clone(), NOT_PRIMARY).await;
                check(&client, at, with("nearest", write), NOT_PRIMARY).await;
            }
        }
        // What a pipeline writes is refused on arrival, as the command itself may run.
        let writing = doc! { "aggregate": "c", "pipeline": [{ "$merge": "d" }], "cursor": {} };
        check(&client, SECONDARY, with("nearest", &writing), NOT_PRIMARY).await;
        check(&client, PRIMARY, writing, None).await;
        for at in [PRIMARY, DRAINING, SECONDARY, RECOVERING, STARTUP] {
            for command in [
                doc! { "ping": 1 },
                doc! { "hello": 1 },
                doc! { "validate": "c" },
                doc! { "collStats": "c" },
                doc! { "dbStats": 1 },
                doc! { "serverStatus": 1 },
            ] {
                check(&client, at, command, None).await;
            }
            let local = client.at("local");
            let own = doc! { "insert": "own", "documents": [{ "a": 1 }] };
            check(&local, at, own, None).await;
            check(&local, at, doc! { "find": "own" }, None).await;
        }
    });
}

#[test]
fn a_cursor_lives_on_when_its_node_is_no_primary_any_more() {
    with_node(1001, 2, 3, |client| async move {
        let documents: Vec<_> = (0..9).map(|i| doc! { "_id": i }).collect();
        client
            .ok(doc! { "insert": "c", "documents": documents })
            .await;
        let find = doc! { "find": "c", "batchSize": 2 };
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        let reply = client.ok(find).await;
        let id = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
        let more = doc! { "getMore": id, "collection": "c", "batchSize": 2 };
        check(&client, SECONDARY, more.clone(), None).await;
        check(&client, RECOVERING, more, IS_RECOVERING).await;
    });
}

#[test]
fn majority_reads_see_what_is_committed() {
    for seed in 0..8 {
        with_node(
            1010 + seed,
            1 + (seed as usize % 3),
            3,
            |client| async move {
                let insert = |id: i32| doc! { "insert": "c", "documents": [{ "_id": id }] };
                client.ok(insert(1)).await;
                let committed = of_term_1(storage().last_allotted());
                client.ok(insert(2)).await;
                let majority = |mut command: Document| {
                    command.insert("readConcern", doc! { "level": "majority" });
                    command.insert("$readPreference", doc! { "mode": "nearest" });
                    command
                };
                let by_id = doc! { "find": "c", "filter": { "_id": 2 } };
                for (member, writable) in [PRIMARY, SECONDARY] {
                    become_member(member, writable, OpTime::NULL).await;
                    fake().is_alone.set(true);
                    let bounded = doc! { "find": "c", "maxTimeMS": 20 };
                    client.fails(majority(bounded), 50).await;
                    fake().is_alone.set(false);
                    become_member(member, writable, committed).await;
                    let found = client.find(majority(doc! { "find": "c" })).await;
                    assert_eq!(column(&found, "_id"), [1.into()]);
                    assert!(client.find(majority(by_id.clone())).await.is_empty());
                    let counted = client.ok(majority(doc! { "count": "c" })).await;
                    assert_eq!(counted.get_i32("n").ok(), Some(1));
                    become_member(member, writable, of_term_1(storage().last_allotted())).await;
                    let counted = client.ok(majority(doc! { "count": "c" })).await;
                    assert_eq!(counted.get_i32("n").ok(), Some(2));
                }
                // What a secondary has applied is there without being committed.
                become_member(MemberState::Secondary, false, committed).await;
                let mut local = by_id;
                local.insert("$readPreference", doc! { "mode": "secondary" });
                assert_eq!(client.find(local).await.len(), 1);
            },
        );
    }
}

#[test]
fn states_have_their_numbers_and_names() {
    let known: Vec<_> = MemberState::ALL
        .iter()
        .map(|state| (state.number(), state.name()))
        .collect();
    assert_eq!(
        known,
        [
            (0, "STARTUP"),
            (1, "PRIMARY"),
            (2, "SECONDARY"),
            (3, "RECOVERING"),
            (5, "STARTUP2"),
            (6, "UNKNOWN"),
            (7, "ARBITER"),
            (8, "DOWN"),
            (9, "ROLLBACK"),
            (10, "REMOVED"),
        ]
    );
    for state in MemberState::ALL {
        assert_eq!(MemberState::from_number(state.number().into()), Some(state));
    }
    assert_eq!(MemberState::from_number(4), None);
}

#[test]
fn documents_expire_on_the_node_that_accepts_writes() {
    with_node(1020, 2, 3, |client| async move {
        let fast = doc! { "setParameter": 1, "ttlMonitorSleepSecs": 1 };
        client.at("admin").ok(fast).await;
        let index = doc! { "key": { "t": 1 }, "name": "t", "expireAfterSeconds": 0 };
        client
            .ok(doc! { "createIndexes": "c", "indexes": [index] })
            .await;
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        let passes = async || {
            let status = client.ok(doc! { "serverStatus": 1 }).await;
            let metrics = status.get_document("metrics").unwrap();
            let ttl = metrics.get_document("ttl").unwrap();
            ttl.get_i64("passes").unwrap()
        };
        let before = passes().await;
        sleep(Duration::from_millis(2500)).await;
        assert_eq!(passes().await, before);
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        let old = DateTime::from_millis(wall_ms() - 1000);
        client
            .ok(doc! { "insert": "c", "documents": [{ "t": old }] })
            .await;
        sleep(Duration::from_millis(2500)).await;
        assert!(client.find(doc! { "find": "c" }).await.is_empty());
        assert!(passes().await > before);
    });
}
