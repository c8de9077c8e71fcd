//! The default concerns that another member has set.

use pinion_bson::doc;
use pinion_catalog::ApplyMode;
use pinion_clock::OpTime;
use pinion_wire::MemberState;

use super::source::recording;
use super::target::{Replayed, follow};
use crate::fake_set::become_member;
use crate::harness::{Client, with_node};

async fn source_known_to(client: &Client, core: u16) -> String {
    let command = doc! { "getDefaultRWConcern": 1, "inMemory": true };
    let reply = client.at("admin").on(core).ok(command).await;
    let source = reply.get_str("defaultReadConcernSource");
    source.expect("a source").to_owned()
}

#[test]
fn every_core_knows_the_defaults_that_were_applied() {
    for seed in 0..4 {
        let source = recording(880 + seed, (1, 2), |client| async move {
            become_member(MemberState::Primary, true, OpTime::NULL).await;
            let set = doc! { "setDefaultRWConcern": 1, "defaultReadConcern": { "level": "majority" },
            "writeConcern": { "w": 1, "j": true } };
            client.at("admin").ok(set).await;
        });
        with_node(880 + seed, 3, 3, move |client| {
            let entries = source.entries.clone();
            async move {
                become_member(MemberState::Secondary, false, OpTime::NULL).await;
                for core in 0..3 {
                    assert_eq!(source_known_to(&client, core).await, "implicit");
                }
                let replayed = Replayed::new(&entries, ApplyMode::Secondary);
                follow(&client, seed, vec![replayed], false)
                    .await
                    .expect("applies");
                for core in 0..3 {
                    assert_eq!(source_known_to(&client, core).await, "global");
                }
            }
        });
    }
}
