//! Users and roles of a node: what every core knows of them, and what a member that takes something
//! back forgets.

use pinion_auth::{ClientConversation, Hash, Secrets};
use pinion_bson::{Binary, BinarySubtype, Bson, Document, doc};
use pinion_exec::NodeOptions;
use pinion_instance::reopen_at;
use pinion_storage::storage;

use crate::harness::{Client, options, with_node, with_options};

fn binary(text: &str) -> Bson {
    Bson::Binary(Binary {
        subtype: BinarySubtype::Generic,
        bytes: text.as_bytes().to_vec(),
    })
}

fn text(reply: &Document) -> String {
    let bytes = reply.get_binary_generic("payload").expect("a payload");
    String::from_utf8(bytes.clone()).expect("text")
}

/// Logs in, and gives the last reply.
async fn log_in(client: &Client, user: &str, password: &str) -> Document {
    let mut conversation = ClientConversation::new(Hash::Sha256, user, "abcdef".into()).unwrap();
    let start = doc! {
        "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": binary(&conversation.first()),
        "options": { "skipEmptyExchange": true },
    };
    let challenge = conversation
        .challenge(&text(&client.ok(start).await))
        .unwrap();
    let (salt, iterations) = (&challenge.salt, challenge.iterations);
    let secrets = Secrets::derive(Hash::Sha256, password, salt, iterations);
    let payload = conversation.answer(&challenge, &secrets);
    let proof = doc! { "saslContinue": 1, "conversationId": 1, "payload": binary(&payload) };
    client.run(proof).await
}

/// The user of a connection and its roles.
async fn known(client: &Client) -> (Vec<String>, Vec<String>) {
    let status = client.ok(doc! { "connectionStatus": 1 }).await;
    let info = status.get_document("authInfo").expect("what is known");
    let names = |list: &str, field: &str| {
        let named = info.get_array(list).expect("an array").iter();
        let name = |one: &Bson| one.as_document()?.get_str(field).ok().map(str::to_owned);
        named.filter_map(name).collect()
    };
    (
        names("authenticatedUsers", "user"),
        names("authenticatedUserRoles", "role"),
    )
}

fn is_known(seen: &(Vec<String>, Vec<String>), user: &str, roles: &[&str]) {
    assert_eq!(seen.0, [user]);
    assert_eq!(seen.1, roles);
}

fn create(user: &str, roles: &[&str]) -> Document {
    let roles: Vec<&str> = roles.to_vec();
    doc! { "createUser": user, "pwd": "secret", "roles": roles, "mechanisms": ["SCRAM-SHA-256"] }
}

#[test]
fn connections_of_all_cores_take_changes_over() {
    with_node(1320, 2, 3, |client| async move {
        client.ok(create("u", &["read"])).await;
        let connections = [client.on(0).connected(5), client.on(1).connected(6)];
        for connection in &connections {
            let ended = log_in(connection, "u", "secret").await;
            assert_eq!(ended.get_bool("done").ok(), Some(true), "{ended}");
            is_known(&known(connection).await, "u", &["read"]);
            let other = connection.connected(7);
            let refused = log_in(&other, "u", "wrong").await;
            assert_eq!(refused.get_i32("code").ok(), Some(18), "{refused}");
            let refused = log_in(&other, "nobody", "secret").await;
            assert_eq!(refused.get_i32("code").ok(), Some(18), "{refused}");
        }
        client
            .ok(doc! { "grantRolesToUser": "u", "roles": ["dbAdmin"] })
            .await;
        for connection in &connections {
            is_known(&known(connection).await, "u", &["read", "dbAdmin"]);
        }
        let roles = doc! { "$set": { "roles": [] } };
        let update = doc! { "q": { "user": "u" }, "u": roles };
        client
            .at("admin")
            .on(1)
            .ok(doc! { "update": "system.users", "updates": [update] })
            .await;
        for connection in &connections {
            is_known(&known(connection).await, "u", &[]);
        }
        client.ok(doc! { "dropUser": "u" }).await;
        for connection in &connections {
            assert!(known(connection).await.0.is_empty());
        }
    });
}

fn of_member() -> NodeOptions {
    let mut options = options(3);
    options.storage.is_member = true;
    options
}

/// Users that only this member had are gone with the rest of what it takes back.
#[test]
fn what_is_taken_back_is_forgotten() {
    with_options(1321, 2, of_member(), |client| async move {
        client.ok(create("kept", &["read"])).await;
        let stable = storage().last_allotted();
        storage().set_stable(stable);
        client.ok(create("gone", &["read"])).await;
        client
            .ok(doc! { "grantRolesToUser": "kept", "roles": ["dbAdmin"] })
            .await;
        let connections = [client.on(0).connected(5), client.on(1).connected(6)];
        for (connection, user) in connections.iter().zip(["kept", "gone"]) {
            let ended = log_in(connection, user, "secret").await;
            assert_eq!(ended.get_bool("done").ok(), Some(true), "{ended}");
        }
        is_known(&known(&connections[0]).await, "kept", &["read", "dbAdmin"]);
        storage().follow().await.expect("storage serves");
        reopen_at(stable).await.expect("opens");
        storage().lead().await;
        is_known(&known(&connections[0]).await, "kept", &["read"]);
        assert!(known(&connections[1]).await.0.is_empty());
        let refused = log_in(&client.connected(8), "gone", "secret").await;
        assert_eq!(refused.get_i32("code").ok(), Some(18), "{refused}");
        client.ok(create("gone", &[])).await;
    });
}
