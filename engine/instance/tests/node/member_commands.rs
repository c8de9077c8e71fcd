//! Commands that do on a member of a replica set what they do not on a standalone.

use pinion_bson::{Bson, Document, Timestamp, doc, rawdoc};
use pinion_clock::OpTime;
use pinion_exec::SetView;
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::fake_set::{become_member, become_with, view};
use crate::harness::{Client, column, with_node};

async fn become_primary() {
    become_member(MemberState::Primary, true, OpTime::NULL).await;
}

fn last_allotted() -> Timestamp {
    let last = storage().last_allotted();
    Timestamp {
        time: last.secs(),
        increment: last.inc(),
    }
}

#[test]
fn notes_in_the_oplog() {
    with_node(1200, 2, 3, |client| async move {
        let admin = client.at("admin");
        let note = |data: Bson| doc! { "appendOplogNote": 1, "data": data };
        let sent = note(doc! { "a": 1 }.into());
        let until = |limit: Timestamp| {
            let mut note = sent.clone();
            note.insert("maxClusterTime", limit);
            note
        };
        admin.fails(sent.clone(), 76).await;
        become_primary().await;
        let before = last_allotted();
        admin.ok(sent.clone()).await;
        let behind = last_allotted();
        assert!(behind > before);
        admin.fails(until(before), 209).await;
        admin.fails(until(behind), 209).await;
        assert_eq!(last_allotted(), behind);
        admin
            .ok(until(Timestamp {
                time: u32::MAX,
                increment: 1,
            }))
            .await;
        assert!(last_allotted() > behind);
        admin.fails(note(1.into()), 14).await;
        admin.fails(doc! { "appendOplogNote": 1 }, 4).await;
        admin
            .fails(
                doc! { "appendOplogNote": 1, "data": {}, "maxClusterTime": 1 },
                14,
            )
            .await;
        client.fails(sent.clone(), 13).await;
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        admin.fails(sent.clone(), 10107).await;
    });
}

#[test]
fn what_members_list() {
    with_node(1220, 2, 3, |client| async move {
        let admin = client.at("admin");
        let list = |spec: Bson| doc! { "aggregate": 1, "pipeline": [{ "$listSampledQueries": spec }], "cursor": {} };
        admin.fails(list(doc! {}.into()), 20).await;
        become_primary().await;
        for spec in [doc! {}, doc! { "namespace": "d.c" }] {
            let reply = admin.ok(list(spec.into())).await;
            let batch = reply
                .get_document("cursor")
                .unwrap()
                .get_array("firstBatch");
            assert_eq!(batch.ok().map(Vec::len), Some(0), "{reply}");
        }
        admin.fails(list(doc! { "other": 1 }.into()), 40415).await;
        admin.fails(list(1.into()), 6_876_001).await;
        client.fails(list(doc! {}.into()), 73).await;
    });
}

#[test]
fn what_the_status_of_a_member_shows() {
    with_node(1230, 2, 3, |client| async move {
        let status = async || client.ok(doc! { "serverStatus": 1 }).await;
        let standalone = status().await;
        assert!(!standalone.contains_key("repl"), "{standalone}");
        assert!(!standalone.contains_key("defaultRWConcern"));
        become_primary().await;
        let repl = status().await.get_document("repl").unwrap().clone();
        assert!(repl.contains_key("info"), "{repl}");
        let hello = rawdoc! { "hosts": ["a:1"], "setName": "rs0", "setVersion": 1, "secondary": false, "me": "a:1" };
        let set = SetView {
            hello,
            ..view(MemberState::Primary, true)
        };
        become_with(set, OpTime::NULL).await;
        let status = status().await;
        let repl = status.get_document("repl").unwrap();
        let names: Vec<_> = repl.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "topologyVersion",
                "hosts",
                "setName",
                "setVersion",
                "isWritablePrimary",
                "secondary",
                "me",
                "lastWrite",
                "rbid",
                "userWriteBlockMode"
            ]
        );
        let defaults = status.get_document("defaultRWConcern").unwrap();
        assert_eq!(
            defaults.get_str("defaultWriteConcernSource").ok(),
            Some("implicit")
        );
        let without = doc! { "serverStatus": 1, "repl": 0, "defaultRWConcern": 0 };
        let without = client.ok(without).await;
        assert!(!without.contains_key("repl") && !without.contains_key("defaultRWConcern"));
    });
}

/// The type of `$$CLUSTER_TIME` in a projection, or the code of the error.
async fn time_in(client: &Client, command: Document) -> Result<(), i32> {
    let reply = client.run(command).await;
    reply.get_i32("code").map_or(Ok(()), Err)
}

#[test]
fn members_have_a_cluster_time() {
    with_node(1210, 2, 3, |client| async move {
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] })
            .await;
        let shown = doc! { "aggregate": "c", "pipeline": [{ "$project": { "t": "$$CLUSTER_TIME" } }], "cursor": {} };
        let counted =
            doc! { "count": "c", "query": { "$expr": { "$gt": ["$$CLUSTER_TIME", null] } } };
        let later = doc! { "$expr": { "$lte": ["$t", "$$CLUSTER_TIME"] } };
        let checked = |name: &str| doc! { "create": name, "validator": later.clone() };
        assert_eq!(time_in(&client, shown.clone()).await, Err(10_071_200));
        assert_eq!(time_in(&client, counted.clone()).await, Err(10_071_200));
        assert_eq!(time_in(&client, checked("v")).await, Err(10_071_200));
        become_primary().await;
        let before = last_allotted();
        let found = client.find(shown).await;
        assert!(
            column(&found, "t")[0].as_timestamp() >= Some(before),
            "{found:?}"
        );
        // The filter of a count has no times.
        assert_eq!(time_in(&client, counted).await, Err(51144));
        assert_eq!(time_in(&client, checked("v")).await, Ok(()));
        let insert = |t: Timestamp| doc! { "insert": "v", "documents": [{ "t": t }] };
        client.ok(insert(before)).await;
        let ahead = Timestamp {
            time: u32::MAX,
            increment: 1,
        };
        let reply = client.ok(insert(ahead)).await;
        assert_eq!(reply.get_array("writeErrors").unwrap().len(), 1, "{reply}");
        let stage = doc! { "$merge": { "into": "d", "whenMatched": [{ "$set": { "t": "$$CLUSTER_TIME" } }] } };
        for _ in 0..2 {
            client
                .ok(doc! { "aggregate": "c", "pipeline": [stage.clone()], "cursor": {} })
                .await;
        }
        let found = client.find(doc! { "find": "d" }).await;
        assert!(
            column(&found, "t")[0].as_timestamp() >= Some(before),
            "{found:?}"
        );
    });
}

/// Members of MongoDB 4.4 have an older name for the size of a batch, and fetch from whatever
/// member they choose.
#[test]
fn what_members_of_mongodb_4_4_call_otherwise() {
    with_node(1231, 2, 3, |client| async move {
        client
            .ok(doc! { "insert": "c", "documents": [{}, {}, {}] })
            .await;
        let preference = doc! { "mode": "secondaryPreferred" };
        let find =
            doc! { "find": "c", "filter": {}, "ntoreturn": 2, "$readPreference": preference };
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        client.fails(find.clone(), 40415).await;
        let peer = client.connected(7);
        let versions = doc! { "minWireVersion": 0, "maxWireVersion": 9 };
        peer.ok(doc! { "isMaster": 1, "internalClient": versions })
            .await;
        let found = peer.ok(find).await;
        let batch = found
            .get_document("cursor")
            .unwrap()
            .get_array("firstBatch");
        assert_eq!(batch.map(Vec::len).ok(), Some(2), "{found}");
    });
}
