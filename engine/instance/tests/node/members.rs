//! What a key file reserves for members: authentication as one, the commands that only they may
//! send, and the times that they sign.

use pinion_auth::{ClientConversation, Hash, MemberKeys, Secrets};
use pinion_bson::{Binary, BinarySubtype, Bson, Document, Timestamp, doc};
use pinion_clock::{Key, KeyId, KeyRing, OpTime, SignedTime};
use pinion_exec::NodeOptions;
use pinion_runtime::{Duration, on_all_cores, sleep};
use pinion_service::members::MemberAuth;
use pinion_service::parameter_commands::set_start_parameters;
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::fake_set::{become_member, fake};
use crate::harness::{Client, options, with_node, with_options};

fn with_keys(is_transition: bool) -> NodeOptions {
    let mut options = options(3);
    options.process.member_auth = Some(MemberAuth {
        keys: MemberKeys::parse("- first1\n- second").unwrap(),
        is_transition,
    });
    options
}

fn binary(bytes: &[u8]) -> Bson {
    Bson::Binary(Binary {
        subtype: BinarySubtype::Generic,
        bytes: bytes.to_vec(),
    })
}

fn text<'d>(reply: &'d Document, field: &str) -> &'d str {
    let bytes = reply.get_binary_generic(field).expect("a payload");
    std::str::from_utf8(bytes).unwrap()
}

fn start(user: &str, mechanism: &str) -> (ClientConversation, Document) {
    let conversation = ClientConversation::new(Hash::Sha256, user, "abcdef".into()).unwrap();
    let payload = binary(conversation.first().as_bytes());
    let start = doc! { "saslStart": 1, "mechanism": mechanism, "payload": payload };
    (conversation, start)
}

fn sasl_continue(payload: &str) -> Document {
    doc! { "saslContinue": 1, "conversationId": 1, "payload": binary(payload.as_bytes()) }
}

/// The client's second message, if its password is this.
fn proof(conversation: &mut ClientConversation, challenge: &Document, password: &str) -> Document {
    let challenge = conversation.challenge(text(challenge, "payload")).unwrap();
    let (salt, iterations) = (&challenge.salt, challenge.iterations);
    let secrets = Secrets::derive(Hash::Sha256, password, salt, iterations);
    sasl_continue(&conversation.answer(&challenge, &secrets))
}

/// Authenticates as a member.
async fn log_in(client: &Client, password: &str) {
    let local = client.at("local");
    let (mut conversation, mut start) = start("__system", "SCRAM-SHA-256");
    start.insert("options", doc! { "skipEmptyExchange": true });
    let challenge = local.ok(start).await;
    assert_eq!(challenge.get_bool("done").ok(), Some(false));
    let ended = local
        .ok(proof(&mut conversation, &challenge, password))
        .await;
    assert_eq!(ended.get_bool("done").ok(), Some(true));
    conversation.verify(text(&ended, "payload")).unwrap();
}

fn of_members() -> Document {
    doc! { "_replCatalogRows": 1 }
}

#[test]
fn what_only_members_send_is_refused_to_others() {
    with_options(1300, 2, with_keys(false), |client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        let admin = client.at("admin").connected(5);
        let refused = admin.fails(of_members(), 13).await;
        assert!(
            refused.starts_with("not authorized on admin to execute command { _replCatalogRows: 1"),
            "{refused}"
        );
        // Clients do everything else.
        admin.ok(doc! { "insert": "c", "documents": [{}] }).await;
        for (core, password) in [(0, "first1"), (1, "second")] {
            let member = admin.on(core).connected(6);
            log_in(&member, password).await;
            member.ok(of_members()).await;
            let status = member.ok(doc! { "connectionStatus": 1 }).await;
            let known = status.get_document("authInfo").unwrap();
            let name = |field: &str| doc! { field: "__system", "db": "local" };
            let listed = |one: Document| Bson::Array(vec![one.into()]);
            assert_eq!(known["authenticatedUsers"], listed(name("user")));
            assert_eq!(known["authenticatedUserRoles"], listed(name("role")));
            // Another connection is still not authenticated.
            admin.fails(of_members(), 13).await;
            member.ok(doc! { "logout": 1 }).await;
            member.ok(of_members()).await;
            member.at("local").ok(doc! { "logout": 1 }).await;
            member.fails(of_members(), 13).await;
        }
    });
    // Without a key file no client has to authenticate, and none can.
    with_node(1301, 1, 1, |client| async move {
        client.at("admin").ok(of_members()).await;
        let (_, start) = start("__system", "SCRAM-SHA-256");
        client.at("local").fails(start, 18).await;
    });
    with_options(1302, 1, with_keys(true), |client| async move {
        client.at("admin").ok(of_members()).await;
        log_in(&client.connected(5), "second").await;
    });
}

#[test]
fn conversations_that_lead_nowhere() {
    with_options(1303, 1, with_keys(false), |client| async move {
        let local = client.at("local").connected(5);
        let member = |mechanism| start("__system", mechanism);
        for (user, db) in [("__system", "admin"), ("root", "local"), ("root", "admin")] {
            // A user that does not exist is asked for a proof as well, which proves nothing.
            let (mut conversation, start) = start(user, "SCRAM-SHA-256");
            let challenge = local.at(db).ok(start).await;
            let proof = proof(&mut conversation, &challenge, "first1");
            let said = local.at(db).fails(proof, 18).await;
            assert_eq!(said, "Authentication failed.");
        }
        local.fails(member("SCRAM-SHA-1").1, 18).await;
        local.fails(member("PLAIN").1, 334).await;
        let unnamed = doc! { "saslStart": 1, "payload": binary(b"") };
        local.fails(unnamed, 40414).await;
        let empty = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256" };
        local.fails(empty, 40414).await;
        for payload in [binary(b""), binary(b"\xff"), "n,,".into()] {
            let start = doc! { "saslStart": 1, "mechanism": "SCRAM-SHA-256", "payload": payload };
            local.fails(start, 18).await;
        }
        local.fails(sasl_continue(""), 17).await;
        // One that fails is over.
        let (mut conversation, begin) = member("SCRAM-SHA-256");
        let challenge = local.ok(begin.clone()).await;
        local
            .fails(proof(&mut conversation, &challenge, "third1"), 18)
            .await;
        local
            .fails(proof(&mut conversation, &challenge, "first1"), 17)
            .await;
        // The messages of one are none of another, and another connection has none.
        let challenge = local.ok(begin.clone()).await;
        let answer = proof(&mut conversation, &challenge, "first1");
        local.connected(6).fails(answer.clone(), 17).await;
        local.ok(begin.clone()).await;
        local.fails(answer, 18).await;
        let challenge = local.ok(begin).await;
        let mut answer = proof(&mut conversation, &challenge, "first1");
        answer.insert("conversationId", 2);
        local.fails(answer, 17).await;
        // A client that does not say that it leaves out the last, empty message sends it.
        let answer = proof(&mut conversation, &challenge, "first1");
        let proven = local.ok(answer).await;
        assert_eq!(proven.get_bool("done").ok(), Some(false));
        conversation.verify(text(&proven, "payload")).unwrap();
        local.at("admin").fails(of_members(), 13).await;
        let ended = local.ok(sasl_continue("")).await;
        assert_eq!(ended.get_bool("done").ok(), Some(true));
        local.at("admin").ok(of_members()).await;
    });
}

#[test]
fn a_hello_begins_a_conversation() {
    with_options(1304, 1, with_keys(false), |client| async move {
        let admin = client.at("admin").connected(5);
        let hello = |user: &str, db: &str| {
            let (conversation, mut begin) = start(user, "SCRAM-SHA-256");
            begin.insert("db", db);
            begin.insert("options", doc! { "skipEmptyExchange": true });
            let name = format!("{db}.{user}");
            let hello =
                doc! { "hello": 1, "saslSupportedMechs": name, "speculativeAuthenticate": begin };
            (conversation, hello)
        };
        let reply = admin.ok(hello("root", "admin").1).await;
        assert!(!reply.contains_key("saslSupportedMechs"));
        assert!(reply.contains_key("speculativeAuthenticate"));
        let (mut conversation, hello) = hello("__system", "local");
        let reply = admin.ok(hello).await;
        let mechanisms = reply.get_array("saslSupportedMechs").unwrap();
        assert_eq!(*mechanisms, [Bson::from("SCRAM-SHA-256")]);
        let challenge = reply.get_document("speculativeAuthenticate").unwrap();
        let answer = proof(&mut conversation, challenge, "first1");
        let ended = admin.at("local").ok(answer).await;
        assert_eq!(ended.get_bool("done").ok(), Some(true));
        admin.ok(of_members()).await;
    });
}

fn signed_time(reply: &Document) -> Option<SignedTime> {
    let time = reply.get_document("$clusterTime").ok()?;
    let at = time.get_timestamp("clusterTime").unwrap();
    let signature = time.get_document("signature").unwrap();
    let hash = signature.get_binary_generic("hash").unwrap();
    Some(SignedTime {
        time: pinion_clock::Timestamp::new(at.time, at.increment),
        proof: hash[..].try_into().unwrap(),
        key_id: KeyId(signature.get_i64("keyId").unwrap()),
    })
}

fn with_time(signed: &SignedTime) -> Document {
    let time = Timestamp {
        time: signed.time.secs(),
        increment: signed.time.inc(),
    };
    let signature = doc! { "hash": binary(&signed.proof), "keyId": signed.key_id.0 };
    doc! { "ping": 1, "$clusterTime": { "clusterTime": time, "signature": signature } }
}

/// The keys, as they are stored.
async fn stored_keys(client: &Client) -> Vec<Document> {
    let find = doc! { "find": "system.keys", "sort": { "_id": 1 } };
    client.at("admin").find(find).await
}

fn ring_of(keys: &[Document]) -> KeyRing {
    let mut ring = KeyRing::new();
    for document in keys {
        let id = KeyId(document.get_i64("_id").unwrap());
        let key = document.get_binary_generic("key").unwrap();
        let expires = document.get_timestamp("expiresAt").unwrap();
        let expires = pinion_clock::Timestamp::new(expires.time, expires.increment);
        ring.insert(id, Key(key[..].try_into().unwrap()), expires);
    }
    ring
}

/// The first reply that has a signed time.
async fn first_signed(client: &Client) -> SignedTime {
    for _ in 0..100 {
        if let Some(signed) = signed_time(&client.ok(doc! { "ping": 1 }).await) {
            return signed;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("no time is signed");
}

#[test]
fn clients_hand_on_what_members_sign() {
    with_options(1305, 2, with_keys(false), |client| async move {
        client.ok(doc! { "insert": "c", "documents": [{}] }).await;
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        // While there is no key no time is reported.
        let reply = client.ok(doc! { "ping": 1 }).await;
        assert!(!reply.contains_key("$clusterTime") && !reply.contains_key("operationTime"));
        let signed = first_signed(&client).await;
        let keys = stored_keys(&client).await;
        assert_eq!(keys.len(), 2);
        for key in &keys {
            let names: Vec<&str> = key.keys().map(String::as_str).collect();
            assert_eq!(names, ["_id", "purpose", "key", "expiresAt"]);
            assert_eq!(key.get_str("purpose").ok(), Some("HMAC"));
        }
        assert_eq!(signed.key_id.0, keys[0].get_i64("_id").unwrap());
        let ring = ring_of(&keys);
        ring.verify(&signed).unwrap();
        first_signed(&client.on(1)).await;
        // What is signed is taken in on every core.
        let ahead = |secs: u32| {
            let time = storage().cluster_time();
            pinion_clock::Timestamp::new(time.secs() + secs, 1)
        };
        let genuine = ring.sign(ahead(100)).unwrap();
        let reply = client.on(1).ok(with_time(&genuine)).await;
        assert!(signed_time(&reply).unwrap().time >= genuine.time);
        // What is not is refused, where it is ahead, and the time stays.
        let before = storage().cluster_time();
        let forged = SignedTime {
            time: ahead(1000),
            ..genuine
        };
        let said = client.fails(with_time(&forged), 204).await;
        assert_eq!(said, "Proof does not match the cluster time");
        let unknown = SignedTime {
            key_id: KeyId(7),
            ..forged
        };
        let said = client.on(1).fails(with_time(&unknown), 211).await;
        assert!(said.ends_with("with id: 7"), "{said}");
        client
            .fails(with_time(&SignedTime::unsigned(ahead(1000))), 211)
            .await;
        // What a connection begins with is answered all the same.
        for passed_over in [unknown, SignedTime::unsigned(ahead(1000))] {
            let mut hello = doc! { "hello": 1 };
            let time = with_time(&passed_over).remove("$clusterTime");
            hello.insert("$clusterTime", time.unwrap());
            client.ok(hello).await;
        }
        assert_eq!(storage().cluster_time(), before);
        let old = SignedTime {
            time: pinion_clock::Timestamp::new(1, 1),
            ..forged
        };
        client.ok(with_time(&old)).await;
        // A member is trusted, and gets no signature, which it does not need.
        let member = client.connected(9);
        log_in(&member, "first1").await;
        let time = ahead(1000);
        let reply = member.ok(with_time(&SignedTime::unsigned(time))).await;
        assert_eq!(signed_time(&reply), Some(SignedTime::unsigned(time)));
    });
}

#[test]
fn keys_are_made_ahead_and_changed_in_time() {
    with_options(1306, 2, with_keys(false), |client| async move {
        client.ok(doc! { "insert": "c", "documents": [{}] }).await;
        on_all_cores(|_| async {
            let secs = ("KeysRotationIntervalSec".to_owned(), "20".to_owned());
            set_start_parameters(&[secs]).unwrap();
        })
        .await;
        // A secondary makes none, and what a majority does not have is not used.
        become_member(MemberState::Secondary, false, OpTime::NULL).await;
        assert_eq!(signed_time(&client.ok(doc! { "ping": 1 }).await), None);
        sleep(Duration::from_millis(300)).await;
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        assert_eq!(stored_keys(&client).await.len(), 0);
        fake().is_alone.set(true);
        for _ in 0..10 {
            assert_eq!(signed_time(&client.ok(doc! { "ping": 1 }).await), None);
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(stored_keys(&client).await.len(), 2);
        fake().is_alone.set(false);
        sleep(Duration::from_secs(21)).await;
        first_signed(&client).await;
        let mut used = Vec::new();
        for _ in 0..15 {
            let secs = doc! { "insert": "c", "documents": [{}] };
            client.ok(secs).await;
            used.push(first_signed(&client).await);
            sleep(Duration::from_secs(5)).await;
        }
        let keys = stored_keys(&client).await;
        let ring = ring_of(&keys);
        for signed in &used {
            ring.verify(signed).unwrap();
        }
        used.dedup_by_key(|signed| signed.key_id);
        assert!(used.len() >= 3 && keys.len() >= 4, "{used:?} {keys:?}");
        // There is always one that is not used yet.
        let last = keys.last().unwrap().get_i64("_id").unwrap();
        assert!(used.iter().all(|signed| signed.key_id.0 != last));
    });
}
