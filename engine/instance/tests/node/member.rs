//! What clients see of a member in every reply and in `hello`: the times, the topology, and whom to
//! ask instead.

use pinion_bson::{Bson, Document, Timestamp, doc, rawdoc};
use pinion_clock::OpTime;
use pinion_exec::SetView;
use pinion_runtime::{Duration, Queue, now, sleep, spawn, wall_ms};
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::fake_set::{become_member, become_with, of_term_1, view, within_ms};
use crate::harness::{Client, with_node};

/// The fields of a reply, in their order.
fn fields(reply: &Document) -> Vec<&str> {
    reply.keys().map(String::as_str).collect()
}

fn operation_time(reply: &Document) -> Timestamp {
    reply.get_timestamp("operationTime").expect("a time")
}

fn cluster_time(reply: &Document) -> Timestamp {
    let time = reply.get_document("$clusterTime").expect("a time");
    time.get_timestamp("clusterTime").expect("a timestamp")
}

#[test]
fn every_reply_has_the_times() {
    with_node(1100, 2, 3, |client| async move {
        let find = || doc! { "find": "c" };
        let before = client.ok(find()).await;
        assert_eq!(fields(&before), ["cursor", "ok"]);
        // Before the first write there is no time to report.
        let written = doc! { "insert": "before", "documents": [{}] };
        client.ok(written).await;
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        let reply = client.ok(find()).await;
        assert_eq!(
            fields(&reply),
            ["cursor", "ok", "$clusterTime", "operationTime"]
        );
        let time = reply.get_document("$clusterTime").unwrap();
        let signature = time.get_document("signature").unwrap();
        assert_eq!(signature.get_i64("keyId").ok(), Some(0));
        assert_eq!(
            signature.get_binary_generic("hash").ok(),
            Some(&vec![0; 20])
        );
        // A write reports its own time, an error that of what could be read.
        let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
        let written = client.ok(insert.clone()).await;
        let last = storage().last_allotted();
        assert_eq!(
            operation_time(&written),
            Timestamp {
                time: last.secs(),
                increment: last.inc()
            }
        );
        let refused = client.run(doc! { "find": 1 }).await;
        assert_eq!(
            fields(&refused),
            [
                "ok",
                "errmsg",
                "code",
                "codeName",
                "$clusterTime",
                "operationTime"
            ]
        );
        assert_eq!(operation_time(&refused), operation_time(&written));
        let unknown = client.run(doc! { "noSuchCommand": 1 }).await;
        assert_eq!(cluster_time(&unknown), cluster_time(&written));
        // What a majority read reports is committed.
        let committed = of_term_1(storage().last_allotted());
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 2 }] })
            .await;
        become_member(MemberState::Primary, true, committed).await;
        let majority = doc! { "find": "c", "readConcern": { "level": "majority" } };
        let reply = client.ok(majority).await;
        assert_eq!(operation_time(&reply), operation_time(&written));
        assert!(cluster_time(&reply) > operation_time(&reply));
        // A client that asks the wrong member learns which topology that is.
        become_member(MemberState::Secondary, false, committed).await;
        let refused = client.run(insert).await;
        let version = refused.get_document("topologyVersion").expect("a version");
        assert_eq!(version.get_i64("counter").ok(), Some(1));
        assert_eq!(refused.get_i32("code").ok(), Some(10107));
    });
}

#[test]
fn a_request_advances_the_cluster_time() {
    with_node(1101, 2, 3, |client| async move {
        // Before the first write there is no time to report.
        let written = doc! { "insert": "before", "documents": [{}] };
        client.ok(written).await;
        let secs = (wall_ms() / 1000) as u32;
        let with = |time: u32, increment: u32| {
            doc! { "ping": 1, "$clusterTime": {
                "clusterTime": Timestamp { time, increment },
                "signature": { "hash": Bson::Binary(pinion_bson::Binary {
                    subtype: pinion_bson::BinarySubtype::Generic, bytes: vec![7; 20] }), "keyId": 9i64 },
            } }
        };
        // A standalone passes over it.
        client.ok(with(secs + 1000, 7)).await;
        assert!(storage().cluster_time().secs() < secs + 1000);
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        let reply = client.ok(with(secs + 1000, 7)).await;
        let sent = Timestamp {
            time: secs + 1000,
            increment: 7,
        };
        assert_eq!(cluster_time(&reply), sent);
        assert!(operation_time(&reply) < sent);
        let written = client
            .on(1)
            .ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] })
            .await;
        assert!(operation_time(&written) > sent);
        // An older one changes nothing, one too far ahead is refused.
        let reply = client.ok(with(secs, 1)).await;
        assert_eq!(cluster_time(&reply), cluster_time(&written));
        let year = 365 * 24 * 60 * 60;
        client.fails(with(secs + year + 100, 1), 205).await;
        client.fails(with(u32::MAX, 1), 40482).await;
        assert_eq!(
            cluster_time(&client.ok(doc! { "ping": 1 }).await),
            cluster_time(&written)
        );
    });
}

fn member_view(counter: i64, writable: bool) -> SetView {
    SetView {
        counter,
        hello: rawdoc! {
            "hosts": ["a:1", "b:1"], "setName": "rs0", "setVersion": 1, "secondary": !writable, "primary": "a:1",
            "me": "a:1",
        },
        ..view(MemberState::Primary, writable)
    }
}

async fn hello(client: &Client, command: Document, expected: &[&str]) -> Document {
    let reply = client.ok(command).await;
    let fields = fields(&reply);
    assert_eq!(&fields[..expected.len()], expected, "{reply}");
    reply
}

#[test]
fn hello_describes_the_set() {
    with_node(1102, 2, 3, |client| async move {
        let alone = ["isWritablePrimary", "topologyVersion", "maxBsonObjectSize"];
        hello(&client, doc! { "hello": 1 }, &alone).await;
        let fresh = SetView {
            config_version: 0,
            ..view(MemberState::Startup, false)
        };
        become_with(fresh, OpTime::NULL).await;
        let unconfigured = [
            "topologyVersion",
            "ismaster",
            "secondary",
            "info",
            "isreplicaset",
            "maxBsonObjectSize",
        ];
        let reply = hello(&client, doc! { "isMaster": 1 }, &unconfigured).await;
        assert_eq!(reply.get_bool("ismaster").ok(), Some(false));
        become_with(member_view(3, true), OpTime::NULL).await;
        let configured = [
            "topologyVersion",
            "hosts",
            "setName",
            "setVersion",
            "isWritablePrimary",
            "secondary",
            "primary",
            "me",
            "lastWrite",
            "maxBsonObjectSize",
        ];
        let reply = hello(&client, doc! { "hello": 1 }, &configured).await;
        assert_eq!(reply.get_bool("isWritablePrimary").ok(), Some(true));
        assert_eq!(reply.get_i32("logicalSessionTimeoutMinutes").ok(), Some(30));
        let last = reply.get_document("lastWrite").unwrap();
        assert_eq!(
            fields(last),
            [
                "opTime",
                "lastWriteDate",
                "majorityOpTime",
                "majorityWriteDate"
            ]
        );
        become_with(member_view(4, false), OpTime::NULL).await;
        let reply = hello(&client, doc! { "hello": 1 }, &configured).await;
        assert_eq!(reply.get_bool("isWritablePrimary").ok(), Some(false));
    });
}

#[test]
fn a_change_of_the_topology_ends_the_wait_of_hello() {
    with_node(1103, 2, 3, |client| async move {
        become_with(member_view(3, true), OpTime::NULL).await;
        let reply = client.ok(doc! { "hello": 1 }).await;
        let version = reply.get_document("topologyVersion").unwrap().clone();
        let awaiting = |counter: i64| {
            let mut version = version.clone();
            version.insert("counter", counter);
            doc! { "hello": 1, "topologyVersion": version, "maxAwaitTimeMS": 10_000 }
        };
        // What the client does not know yet is sent at once, what no member knows is refused.
        within_ms(5, client.ok(awaiting(2))).await;
        client.fails(awaiting(4), 31382).await;
        let began = now();
        client.ok(awaiting(3)).await;
        assert!(began.elapsed() >= Duration::from_secs(10));
        let change = spawn(Queue::Foreground, async {
            sleep(Duration::from_secs(2)).await;
            become_with(member_view(4, false), OpTime::NULL).await;
        });
        let began = now();
        let reply = client.on(1).ok(awaiting(3)).await;
        change.await.expect("it ends");
        assert!(began.elapsed() < Duration::from_millis(2010));
        assert_eq!(reply.get_bool("isWritablePrimary").ok(), Some(false));
        let version = reply.get_document("topologyVersion").unwrap();
        assert_eq!(version.get_i64("counter").ok(), Some(4));
    });
}
