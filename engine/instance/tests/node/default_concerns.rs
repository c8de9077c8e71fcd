//! `getDefaultRWConcern` and `setDefaultRWConcern`, and what they set.

use pinion_bson::{Bson, Document, doc};
use pinion_clock::OpTime;
use pinion_wire::{ErrorCode, MemberState};

use crate::fake_set::{become_member, fake, of_term_1, view};
use crate::harness::{Client, with_lives, with_node};

async fn primary() {
    let committed = of_term_1(pinion_storage::storage().last_allotted());
    become_member(MemberState::Primary, true, committed).await;
}

fn setting(fields: Document) -> Document {
    let mut command = doc! { "setDefaultRWConcern": 1 };
    command.extend(fields);
    command
}

/// Compares what a reply shows of the concerns, in the order of its fields, but for the times.
fn check_defaults(reply: &Document, expected: Document) {
    let times = [
        "updateOpTime",
        "updateWallClockTime",
        "localUpdateWallClockTime",
        "ok",
        "$clusterTime",
        "operationTime",
    ];
    let mut found = Document::new();
    for (name, value) in reply {
        if !times.contains(&name.as_str()) {
            found.insert(name, value.clone());
        }
    }
    assert_eq!(found.to_string(), expected.to_string());
    assert!(reply.get_datetime("localUpdateWallClockTime").is_ok());
}

async fn defaults(client: &Client) -> Document {
    client.ok(doc! { "getDefaultRWConcern": 1 }).await
}

#[test]
fn a_standalone_has_none() {
    with_node(1140, 1, 1, |client| async move {
        let admin = client.at("admin");
        admin.fails(doc! { "getDefaultRWConcern": 1 }, 51300).await;
        let set = setting(doc! { "defaultReadConcern": { "level": "local" } });
        admin.fails(set, 51300).await;
    });
}

#[test]
fn defaults_are_set_and_shown() {
    with_lives(1141, &[2, 1], 3, |life, client| async move {
        let admin = client.at("admin");
        primary().await;
        if life == 1 {
            check_defaults(
                &defaults(&admin).await,
                doc! {
                    "defaultReadConcern": { "level": "local" }, "defaultWriteConcern": { "w": 2, "j": true, "wtimeout": 9 },
                    "defaultWriteConcernSource": "global", "defaultReadConcernSource": "implicit",
                },
            );
            return;
        }
        let implicit = doc! {
            "defaultReadConcern": { "level": "local" }, "defaultWriteConcern": { "w": "majority", "wtimeout": 0 },
            "defaultWriteConcernSource": "implicit", "defaultReadConcernSource": "implicit",
        };
        check_defaults(&defaults(&admin).await, implicit);
        let set = setting(doc! { "defaultReadConcern": { "level": "majority" } });
        let reply = admin.on(1).ok(set).await;
        assert!(reply.get_timestamp("updateOpTime").is_ok());
        assert!(reply.get_datetime("updateWallClockTime").is_ok());
        let set = setting(doc! { "defaultWriteConcern": { "w": 2, "j": true, "wtimeout": 9 } });
        let reply = admin.ok(set).await;
        let both = doc! {
            "defaultReadConcern": { "level": "majority" }, "defaultWriteConcern": { "w": 2, "j": true, "wtimeout": 9 },
            "defaultWriteConcernSource": "global", "defaultReadConcernSource": "global",
        };
        check_defaults(&reply, both.clone());
        check_defaults(&defaults(&admin.on(1)).await, both);
        let unset = setting(doc! { "defaultReadConcern": {} });
        admin.ok(unset).await;
        let reply = admin
            .ok(doc! { "getDefaultRWConcern": 1, "inMemory": true })
            .await;
        assert_eq!(
            reply.get_str("defaultReadConcernSource").ok(),
            Some("implicit")
        );
        assert_eq!(reply.get_bool("inMemory").ok(), Some(true));
        let stored = client.at("config").find(doc! { "find": "settings" }).await;
        assert_eq!(stored.len(), 1);
        assert_eq!(
            stored[0].get_str("_id").ok(),
            Some("ReadWriteConcernDefaults")
        );
    });
}

#[test]
fn what_cannot_be_a_default_is_refused() {
    with_node(1142, 1, 2, |client| async move {
        let admin = client.at("admin");
        primary().await;
        for (fields, code) in [
            (doc! {}, 2),
            (
                doc! { "defaultReadConcern": Bson::Null, "defaultWriteConcern": Bson::Null },
                2,
            ),
            (
                doc! { "defaultReadConcern": { "level": "snapshot" }, "defaultWriteConcern": { "w": 1 } },
                2,
            ),
            (
                doc! { "defaultReadConcern": { "level": "linearizable" } },
                2,
            ),
            (doc! { "defaultReadConcern": { "level": "x" } }, 2),
            (doc! { "defaultReadConcern": { "level": 1 } }, 14),
            (
                doc! { "defaultReadConcern": { "provenance": "clientSupplied" } },
                2,
            ),
            (doc! { "defaultReadConcern": { "x": 1 } }, 40415),
            (doc! { "defaultReadConcern": 1 }, 14),
            (doc! { "defaultWriteConcern": { "w": 0 } }, 2),
            (doc! { "defaultWriteConcern": { "wtimeout": 100 } }, 2),
            (doc! { "defaultWriteConcern": { "w": "x" } }, 79),
            (doc! { "defaultWriteConcern": { "w": Bson::Null } }, 79),
            (doc! { "defaultWriteConcern": { "w": 4 } }, 100),
            (doc! { "defaultWriteConcern": { "w": -1 } }, 9),
            (doc! { "defaultWriteConcern": { "w": 1 }, "x": 1 }, 40415),
        ] {
            admin.fails(setting(fields), code).await;
        }
        check_defaults(
            &defaults(&admin).await,
            doc! {
                "defaultReadConcern": { "level": "local" }, "defaultWriteConcern": { "w": "majority", "wtimeout": 0 },
                "defaultWriteConcernSource": "implicit", "defaultReadConcernSource": "implicit",
            },
        );
        admin.ok(setting(doc! { "defaultWriteConcern": {} })).await;
        admin
            .ok(setting(doc! { "defaultWriteConcern": { "w": "dc" } }))
            .await;
        admin
            .fails(setting(doc! { "defaultWriteConcern": {} }), 20)
            .await;
        // Defaults that are not acknowledged are an error.
        fake().refuse(Some((
            ErrorCode::UNKNOWN_REPL_WRITE_CONCERN,
            "no such mode",
        )));
        let set = setting(doc! { "defaultReadConcern": {}, "writeConcern": { "w": "x" } });
        admin.fails(set, 79).await;
    });
}

#[test]
fn defaults_hold_for_commands_that_name_none() {
    with_node(1143, 2, 3, |client| async move {
        let admin = client.at("admin");
        primary().await;
        client
            .ok(doc! { "insert": "c", "documents": [{ "_id": 1 }] })
            .await;
        primary().await;
        let set = doc! { "defaultReadConcern": { "level": "majority" }, "defaultWriteConcern": { "w": 2 } };
        admin.ok(setting(set)).await;
        let insert = |id: i32| doc! { "insert": "c", "documents": [{ "_id": id }] };
        fake().take_calls();
        client.ok(insert(2)).await;
        assert_eq!(fake().take_calls(), ["Some(Members(2)) j:None"]);
        // What is not committed a read by default does not see, one that says so does.
        let count = |command: Document| {
            let client = client.clone();
            async move { client.find(command).await.len() }
        };
        let by_id = doc! { "find": "c", "filter": { "_id": 2 } };
        assert_eq!(count(by_id.clone()).await, 0);
        let mut local = by_id.clone();
        local.insert("readConcern", doc! { "level": "local" });
        assert_eq!(count(local).await, 1);
        // Also what is written past the command is seen by every core.
        let settings = client.at("config");
        for core in 0..2 {
            let update = doc! { "q": {}, "u": { "$unset": { "defaultReadConcern": "" } } };
            let update = doc! { "update": "settings", "updates": [update] };
            settings.on(core).ok(update).await;
        }
        assert_eq!(count(by_id.clone()).await, 1);
        let drop = doc! { "drop": "settings" };
        settings.ok(drop).await;
        fake().take_calls();
        client.ok(insert(3)).await;
        assert_eq!(fake().take_calls(), ["Some(Majority) j:Some(true)"]);
        // Where arbiters could keep a majority from being reached, one member is enough.
        let mut with_arbiter = view(MemberState::Primary, true);
        with_arbiter.default_is_majority = false;
        crate::fake_set::become_with(with_arbiter, OpTime::NULL).await;
        client.ok(insert(4)).await;
        assert!(fake().take_calls().is_empty());
        let defaults = defaults(&admin).await;
        assert!(!defaults.contains_key("defaultWriteConcern"), "{defaults}");
    });
}
