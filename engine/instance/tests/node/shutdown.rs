//! Which clients may end a node, what a primary does before, and what clients of one that ends are
//! answered.

use pinion_bson::doc;
use pinion_clock::OpTime;
use pinion_exec::SetView;
use pinion_runtime::{is_shutdown_requested, now};
use pinion_wire::MemberState;

use crate::fake_set::{become_with, fake, view};
use crate::harness::{Client, with_node};

async fn shuts_down(client: &Client, command: pinion_bson::Document) {
    client.ok(command).await;
    pinion_runtime::shutdown_requested().await;
}

#[test]
fn a_node_is_ended_from_its_own_machine() {
    with_node(1240, 2, 3, |client| async move {
        let admin = client.at("admin");
        let stranger = admin.connected_from([10, 0, 0, 7], 5);
        let refusal = stranger
            .fails(doc! { "shutdown": 1, "force": true }, 13)
            .await;
        assert_eq!(
            refusal,
            "shutdown must run from localhost when running db without auth"
        );
        for (refused, code) in [
            (doc! { "shutdown": 1, "timeoutSecs": -1 }, 2),
            (doc! { "shutdown": 1, "timeoutSecs": "1" }, 14),
            (doc! { "shutdown": 1, "force": "yes" }, 14),
            (doc! { "shutdown": 1, "never": true }, 40415),
        ] {
            admin.fails(refused, code).await;
        }
        assert!(!is_shutdown_requested());
        shuts_down(
            &admin.connected_from([127, 8, 0, 1], 6),
            doc! { "shutdown": 1 },
        )
        .await;
    });
}

#[test]
fn a_primary_steps_down_before_it_ends() {
    with_node(1241, 2, 3, |client| async move {
        become_with(view(MemberState::Primary, true), OpTime::NULL).await;
        let admin = client.at("admin");
        fake().refuses_to_leave.set(true);
        admin.fails(doc! { "shutdown": 1 }, 262).await;
        admin
            .fails(doc! { "shutdown": 1, "timeoutSecs": 2 }, 262)
            .await;
        assert!(!is_shutdown_requested());
        shuts_down(
            &admin,
            doc! { "shutdown": 1, "timeoutSecs": 3, "force": true },
        )
        .await;
        let calls = ["leave 15000 false", "leave 2000 false", "leave 3000 true"];
        assert_eq!(fake().take_calls(), calls);
    });
}

#[test]
fn clients_of_a_node_that_ends_are_sent_away() {
    with_node(1242, 2, 3, |client| async move {
        let until_ms = now().as_nanos() / 1_000_000 + 5000;
        let ends = SetView {
            counter: 7,
            quiesces_until_ms: Some(until_ms),
            ..view(MemberState::Secondary, false)
        };
        become_with(ends, OpTime::NULL).await;
        for hello in ["hello", "isMaster"] {
            let reply = client.run(doc! { hello: 1 }).await;
            assert_eq!(reply.get_i32("code").ok(), Some(91), "{reply}");
            let left_ms = reply.get_i64("remainingQuiesceTimeMillis").unwrap();
            assert!((1..=5000).contains(&left_ms), "{reply}");
            let version = reply.get_document("topologyVersion").unwrap();
            assert_eq!(version.get_i64("counter").ok(), Some(7), "{reply}");
        }
        // A member connects to it still, and asks for its vote.
        let peer = client.connected(9);
        let versions = doc! { "minWireVersion": 0, "maxWireVersion": 25 };
        peer.ok(doc! { "isMaster": 1, "internalClient": versions })
            .await;
        client.ok(doc! { "ping": 1 }).await;
    });
}
