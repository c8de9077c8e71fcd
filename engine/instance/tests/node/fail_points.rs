//! `failCommand` and its relatives: which commands they fail, how often, and with what.

use pinion_bson::{Document, doc};
use pinion_runtime::{Duration, now};

use crate::harness::{Client, column, with_node};

/// Sets a fail point, and gives how often it had acted before.
async fn set(
    client: &Client,
    name: &str,
    mode: impl Into<pinion_bson::Bson>,
    data: Document,
) -> i64 {
    let command = doc! { "configureFailPoint": name, "mode": mode, "data": data };
    let reply = client.at("admin").ok(command).await;
    reply.get_i64("count").expect("a count")
}

fn fails(commands: &[&str]) -> Document {
    doc! { "failCommands": commands, "errorCode": 91 }
}

/// The codes of the replies to these commands, each on another core in turn; 0 where there is none.
async fn codes(client: &Client, commands: &[Document]) -> Vec<i32> {
    let mut codes = Vec::new();
    for (turn, command) in commands.iter().enumerate() {
        let reply = client.on(turn as u16).run(command.clone()).await;
        codes.push(reply.get_i32("code").unwrap_or(0));
    }
    codes
}

#[test]
fn the_commands_that_are_named_fail() {
    with_node(1100, 2, 3, |client| async move {
        let check = async |data: Document, expected: [i32; 4]| {
            let shown = data.to_string();
            set(&client, "failCommand", "alwaysOn", data).await;
            let commands = [
                doc! { "find": "c" },
                doc! { "find": "c", "filter": { "_id": 1 } },
                doc! { "findandmodify": "c", "remove": true },
                doc! { "ping": 1 },
            ];
            assert_eq!(codes(&client, &commands).await, expected, "{shown}");
        };
        check(fails(&["find"]), [91, 91, 0, 0]).await;
        check(fails(&["findAndModify"]), [0, 0, 91, 0]).await;
        check(fails(&["findandmodify", "ping"]), [0, 0, 91, 91]).await;
        check(fails(&[]), [0; 4]).await;
        check(doc! { "failAllCommands": true, "errorCode": 7 }, [7; 4]).await;
        check(doc! { "failCommands": ["find"] }, [0; 4]).await;
        let with = |name: &str, value: &str| {
            let mut data = fails(&["find", "ping"]);
            data.insert(name, value);
            data
        };
        check(with("namespace", "test.c"), [91, 91, 0, 0]).await;
        check(with("namespace", "test.d"), [0; 4]).await;
        check(with("appName", "another"), [0; 4]).await;
        check(with("threadName", "conn1"), [91, 91, 0, 91]).await;
        check(with("threadName", "conn2"), [0; 4]).await;
        set(&client, "failCommand", "off", doc! {}).await;
        client.ok(doc! { "find": "c" }).await;
        client.fails_as_unknown("failNothing").await;
    });
}

impl Client {
    async fn fails_as_unknown(&self, name: &str) {
        let command = doc! { "configureFailPoint": name, "mode": "alwaysOn" };
        let message = self.at("admin").fails(command, 266).await;
        assert_eq!(message, format!("{name} not found"));
    }
}

#[test]
fn a_fail_point_acts_so_often_over_all_cores() {
    for cores in 1..4 {
        with_node(1110, cores, 3, |client| async move {
            let pings = vec![doc! { "ping": 1 }; 5];
            let fails = || fails(&["ping"]);
            let before = set(&client, "failCommand", doc! { "times": 2 }, fails()).await;
            assert_eq!(before, 0);
            assert_eq!(codes(&client, &pings).await, [91, 91, 0, 0, 0]);
            let before = set(&client, "failCommand", doc! { "skip": 3 }, fails()).await;
            assert_eq!(before, 2);
            assert_eq!(codes(&client, &pings).await, [0, 0, 0, 91, 91]);
            assert_eq!(set(&client, "failCommand", "off", doc! {}).await, 4);
            assert_eq!(codes(&client, &pings).await, [0; 5]);
            // A find that repeats the one before is not read, and fails all the same.
            let find = doc! { "find": "c", "filter": { "_id": 1 } };
            client.ok(find.clone()).await;
            set(&client, "failCommand", doc! { "times": 1 }, fails_find()).await;
            assert_eq!(codes(&client, &vec![find; 3]).await, [91, 0, 0]);
        });
    }
}

fn fails_find() -> Document {
    fails(&["find"])
}

#[test]
fn what_a_failed_command_answers() {
    with_node(1120, 2, 3, |client| async move {
        let ping = doc! { "ping": 1 };
        let data = doc! { "failCommands": ["ping"], "errorCode": 91, "errorLabels": ["a", "b"] };
        set(&client, "failCommand", "alwaysOn", data).await;
        let reply = client.run(ping.clone()).await;
        assert_eq!(
            reply,
            doc! {
                "ok": 0.0, "errmsg": "Failing command via 'failCommand' failpoint", "code": 91,
                "codeName": "ShutdownInProgress", "errorLabels": ["a", "b"],
            }
        );
        let data = doc! { "failCommands": ["ping"], "errorCode": 91, "errorLabels": [], "errorExtraInfo": { "why": 1 } };
        set(&client, "failCommand", "alwaysOn", data).await;
        let reply = client.run(ping.clone()).await;
        assert!(!reply.contains_key("errorLabels"), "{reply}");
        assert_eq!(reply.get_i32("why").ok(), Some(1));
        let data = doc! { "failCommands": ["ping"], "closeConnection": true };
        set(&client, "failCommand", doc! { "times": 1 }, data).await;
        assert_eq!(
            client.run(ping.clone()).await,
            doc! { "ok": 1.0, "withheld": true }
        );
        client.ok(ping).await;

        let error = doc! { "code": 64, "codeName": "WriteConcernFailed", "errmsg": "x" };
        let data = doc! { "failCommands": ["insert", "find"], "writeConcernError": error.clone(), "errorLabels": ["l"] };
        set(&client, "failCommand", "alwaysOn", data).await;
        let insert = doc! { "insert": "c", "documents": [{ "_id": 1 }] };
        let reply = client.ok(insert.clone()).await;
        assert_eq!(reply.get_document("writeConcernError").ok(), Some(&error));
        assert_eq!(reply.get_array("errorLabels").unwrap().len(), 1);
        assert_eq!(client.find(doc! { "find": "c" }).await.len(), 1);
        let mut wrong = insert;
        wrong.insert("unknown", 1);
        let reply = client.run(wrong).await;
        assert_eq!(reply.get_i32("code").ok(), Some(40415));
        assert_eq!(reply.get_document("writeConcernError").ok(), Some(&error));
    });
}

#[test]
fn commands_of_versions_of_the_api() {
    with_node(1170, 1, 1, |client| async move {
        let check = async |name: &str, option: &str, expected: i32| {
            let command = doc! { name: 1, "apiVersion": "1", option: true };
            let code = client.run(command).await.get_i32("code").unwrap_or(0);
            assert_eq!(code, expected, "{name} {option}");
        };
        check("testVersion2", "apiStrict", 323).await;
        check("testVersion2", "apiDeprecationErrors", 0).await;
        check("testVersions1And2", "apiStrict", 0).await;
        check("testDeprecation", "apiStrict", 0).await;
        check("testDeprecation", "apiDeprecationErrors", 324).await;
        check("testDeprecationInVersion2", "apiDeprecationErrors", 0).await;
    });
}

#[test]
fn a_command_is_blocked() {
    with_node(1130, 2, 3, |client| async move {
        let block =
            |ms: i32| doc! { "failCommands": ["ping"], "blockConnection": true, "blockTimeMS": ms };
        set(&client, "failCommand", "alwaysOn", block(500)).await;
        let began = now();
        client.ok(doc! { "ping": 1 }).await;
        assert!(began.elapsed() >= Duration::from_millis(500));
        client.fails(doc! { "ping": 1, "maxTimeMS": 50 }, 50).await;
        let untimed = doc! { "failCommands": ["ping"], "blockConnection": true };
        set(&client, "failCommand", "alwaysOn", untimed).await;
        client.fails(doc! { "ping": 1 }, 72).await;
        set(&client, "failCommand", "alwaysOn", block(-1)).await;
        client.fails(doc! { "ping": 1 }, 72).await;
    });
}

#[test]
fn cursors_outlive_what_fails_a_get_more() {
    with_node(1140, 3, 3, |client| async move {
        let documents: Vec<_> = (0..9).map(|i| doc! { "_id": i }).collect();
        (client.ok(doc! { "insert": "c", "documents": documents })).await;
        let reply = client.ok(doc! { "find": "c", "batchSize": 2 }).await;
        let id = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
        let more = doc! { "getMore": id, "collection": "c", "batchSize": 2 };
        let point = "failGetMoreAfterCursorCheckout";
        set(
            &client,
            point,
            doc! { "times": 1 },
            doc! { "errorCode": 280 },
        )
        .await;
        client.on(1).fails(more.clone(), 280).await;
        set(&client, point, doc! { "times": 1 }, doc! {}).await;
        client.on(2).fails(more.clone(), 1).await;
        let reply = client.ok(more).await;
        let batch = reply.get_document("cursor").unwrap().get_array("nextBatch");
        let found: Vec<_> = batch
            .unwrap()
            .iter()
            .map(|d| d.as_document().unwrap().clone())
            .collect();
        assert_eq!(column(&found, "_id"), [2.into(), 3.into()]);
    });
}

#[test]
fn time_is_always_or_never_up() {
    with_node(1150, 2, 3, |client| async move {
        let documents: Vec<_> = (0..9).map(|i| doc! { "_id": i }).collect();
        (client.ok(doc! { "insert": "c", "documents": documents })).await;
        let find = doc! { "find": "c", "batchSize": 2, "maxTimeMS": 10_000 };
        let reply = client.ok(find.clone()).await;
        let id = reply.get_document("cursor").unwrap().get_i64("id").unwrap();
        set(&client, "maxTimeAlwaysTimeOut", "alwaysOn", doc! {}).await;
        client.fails(find.clone(), 50).await;
        client
            .fails(doc! { "getMore": id, "collection": "c" }, 50)
            .await;
        client.ok(doc! { "find": "c" }).await;
        set(&client, "maxTimeNeverTimeOut", "alwaysOn", doc! {}).await;
        client.ok(find).await;
    });
}

#[test]
fn a_wait_for_a_fail_point_ends_when_it_has_acted() {
    with_node(1160, 2, 3, |client| async move {
        let admin = client.at("admin");
        let wait = |times: i32, ms: i32| doc! { "waitForFailPoint": "failCommand", "timesEntered": times, "maxTimeMS": ms };
        admin.fails(wait(1, 100), 50).await;
        admin.fails(wait(0, 100), 2).await;
        admin
            .fails(
                doc! { "waitForFailPoint": "failCommand", "timesEntered": 1 },
                2,
            )
            .await;
        set(&client, "failCommand", "alwaysOn", fails(&["ping"])).await;
        let pings = async {
            for turn in 0..3 {
                client.on(turn).fails(doc! { "ping": 1 }, 91).await;
            }
        };
        let waits = async { admin.on(1).ok(wait(3, 10_000)).await };
        let both = pinion_runtime::join_all([
            Box::pin(pings) as std::pin::Pin<Box<dyn Future<Output = ()>>>,
            Box::pin(async { drop(waits.await) }),
        ]);
        both.await;
    });
}
