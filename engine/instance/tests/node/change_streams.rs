//! Change streams: nothing is shown before a majority has it, everything once, and tokens of one
//! core's cursor hold on another.

use pinion_bson::{Bson, Document, doc};
use pinion_clock::{OpTime, Timestamp};
use pinion_storage::storage;
use pinion_wire::MemberState;

use crate::document_keys::migrate_in_and_out;
use crate::fake_set::{become_member, of_term_1, within_ms};
use crate::harness::{Client, with_member};

/// Everything that is written by now is committed.
async fn commit_all() {
    let last = of_term_1(storage().last_allotted());
    become_member(MemberState::Primary, true, last).await;
}

fn batch(reply: &Document, name: &str) -> (Vec<Document>, Document, i64) {
    let cursor = reply.get_document("cursor").expect("a cursor");
    let events = cursor.get_array(name).expect("a batch").iter();
    let events = events.map(|event| event.as_document().expect("a document").clone());
    let token = cursor
        .get_document("postBatchResumeToken")
        .expect("a token");
    (
        events.collect(),
        token.clone(),
        cursor.get_i64("id").expect("an id"),
    )
}

/// The events of one `getMore`, and the token behind them.
async fn more(client: &Client, id: i64) -> (Vec<Document>, Document) {
    let reply = client
        .ok(doc! { "getMore": id, "collection": "c", "maxTimeMS": 50 })
        .await;
    let (events, token, left) = batch(&reply, "nextBatch");
    assert_eq!(left, id);
    (events, token)
}

async fn opened(
    client: &Client,
    spec: Document,
    behind: Vec<Bson>,
) -> (Vec<Document>, Document, i64) {
    let mut pipeline = vec![Bson::Document(doc! { "$changeStream": spec })];
    pipeline.extend(behind);
    let reply = client
        .ok(doc! { "aggregate": "c", "pipeline": pipeline, "cursor": {} })
        .await;
    batch(&reply, "firstBatch")
}

fn ids(events: &[Document]) -> Vec<Bson> {
    let key = |event: &Document| event.get_document("documentKey").expect("a key")["_id"].clone();
    events.iter().map(key).collect()
}

async fn insert(client: &Client, id: i32) {
    let insert = doc! { "insert": "c", "documents": [{ "_id": id }], "writeConcern": { "w": 1 } };
    client.ok(insert).await;
}

#[test]
fn what_a_majority_has_is_shown_once() {
    with_member(2300, &[2], 3, None, |_, client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        insert(&client, 0).await;
        let (events, _, id) = opened(&client, doc! {}, vec![]).await;
        assert_eq!(events, []);
        insert(&client, 1).await;
        assert_eq!(more(&client, id).await.0, []);
        commit_all().await;
        insert(&client, 2).await;
        let (events, token) = more(&client, id).await;
        assert_eq!(ids(&events), [Bson::Int32(1)]);
        assert_eq!(&token, events[0].get_document("_id").expect("a token"));
        assert_eq!(more(&client, id).await.0, []);
        commit_all().await;
        // From another connection, on another core.
        let (events, _) = more(&client.on(1), id).await;
        assert_eq!(ids(&events), [Bson::Int32(2)]);
        // The same from the first event's token on, whatever core has the stream.
        for core in 0..2 {
            let resumed = doc! { "resumeAfter": token.clone() };
            let (events, ..) = opened(&client.on(core), resumed, vec![]).await;
            assert_eq!(ids(&events), [Bson::Int32(2)]);
        }
    });
}

#[test]
fn a_wait_ends_when_more_is_committed() {
    with_member(2301, &[2], 3, None, |_, client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        insert(&client, 0).await;
        commit_all().await;
        let (.., id) = opened(&client, doc! {}, vec![]).await;
        let waiting = client.ok(doc! { "getMore": id, "collection": "c", "maxTimeMS": 60_000 });
        let waiting = pinion_runtime::spawn(pinion_runtime::Queue::Foreground, waiting);
        insert(&client, 1).await;
        commit_all().await;
        let reply = within_ms(1000, waiting).await.expect("not cancelled");
        assert_eq!(ids(&batch(&reply, "nextBatch").0), [Bson::Int32(1)]);
    });
}

#[test]
fn quiet_streams_have_tokens_that_move_on() {
    with_member(2302, &[1], 2, None, |_, client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        insert(&client, 0).await;
        commit_all().await;
        let none = vec![Bson::Document(
            doc! { "$match": { "operationType": "delete" } },
        )];
        let (events, first, id) = opened(&client, doc! {}, none.clone()).await;
        assert_eq!(events, []);
        for n in 1..400 {
            insert(&client, n).await;
        }
        commit_all().await;
        let (events, token) = more(&client, id).await;
        assert_eq!(events, []);
        assert!(token.get_str("_data").unwrap() > first.get_str("_data").unwrap());
        client
            .ok(doc! { "delete": "c", "deletes": [{ "q": { "_id": 7 }, "limit": 1 }], "writeConcern": { "w": 1 } })
            .await;
        commit_all().await;
        for behind in [first, token] {
            let (events, ..) = opened(&client, doc! { "resumeAfter": behind }, none.clone()).await;
            assert_eq!(ids(&events), [Bson::Int32(7)]);
        }
    });
}

#[test]
fn a_statement_of_many_documents_shows_each() {
    with_member(2303, &[2], 4, None, |_, client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        let documents: Vec<Document> = (0..500).map(|n| doc! { "_id": n, "n": 0 }).collect();
        client
            .ok(doc! { "insert": "c", "documents": documents, "writeConcern": { "w": 1 } })
            .await;
        commit_all().await;
        let (.., id) = opened(&client, doc! {}, vec![]).await;
        let update = doc! { "q": {}, "u": { "$set": { "n": 1 } }, "multi": true };
        client
            .ok(doc! { "update": "c", "updates": [update], "writeConcern": { "w": 1 } })
            .await;
        commit_all().await;
        let mut seen = Vec::new();
        while seen.len() < 500 {
            let (events, _) = more(&client, id).await;
            assert!(!events.is_empty(), "{} events", seen.len());
            assert!(
                events
                    .iter()
                    .all(|event| event.get_str("operationType").ok() == Some("update"))
            );
            let tokens = events.windows(2).map(|pair| {
                let data = |event: &Document| {
                    event
                        .get_document("_id")
                        .unwrap()
                        .get_str("_data")
                        .unwrap()
                        .to_owned()
                };
                (data(&pair[0]), data(&pair[1]))
            });
            assert!(tokens.into_iter().all(|(before, behind)| before < behind));
            seen.extend(
                ids(&events)
                    .into_iter()
                    .map(|id| id.as_i32().expect("a number")),
            );
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..500).collect::<Vec<_>>());
    });
}

#[test]
fn what_is_not_asked_for_is_read_later() {
    with_member(2304, &[2], 3, None, |_, client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        insert(&client, 0).await;
        commit_all().await;
        let (.., waiting) = opened(&client, doc! {}, vec![]).await;
        let (.., following) = opened(&client, doc! {}, vec![]).await;
        let mut followed = Vec::new();
        // More than is kept for one that does not ask.
        for n in 1..700 {
            insert(&client, n).await;
            if n % 50 == 0 {
                commit_all().await;
                followed.extend(ids(&more(&client, following).await.0));
            }
        }
        commit_all().await;
        let mut late = Vec::new();
        while late.len() < 699 {
            let (events, _) = more(&client, waiting).await;
            assert!(!events.is_empty(), "{} events", late.len());
            late.extend(ids(&events));
        }
        followed.extend(ids(&more(&client, following).await.0));
        let all: Vec<Bson> = (1..700).map(Bson::Int32).collect();
        assert_eq!(late, all);
        assert_eq!(followed, all);
        // It keeps up again.
        insert(&client, 700).await;
        commit_all().await;
        for id in [waiting, following] {
            assert_eq!(ids(&more(&client, id).await.0), [Bson::Int32(700)]);
        }
    });
}

#[test]
fn streams_of_one_core_are_handed_what_concerns_them() {
    with_member(2305, &[2], 3, None, |_, client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        insert(&client, 0).await;
        commit_all().await;
        let open = async |target: Bson| {
            let reply = client
                .ok(doc! { "aggregate": target, "pipeline": [{ "$changeStream": {} }], "cursor": {} })
                .await;
            batch(&reply, "firstBatch").2
        };
        let of_names = ["c", "e", "f"].map(|name| (name, Bson::from(name)));
        let mut streams = Vec::new();
        for (name, target) in of_names {
            streams.push((name, open(target).await));
        }
        let of_database = open(Bson::Int32(1)).await;
        for (n, name) in ["c", "e", "c", "g"].into_iter().enumerate() {
            client
                .ok(doc! { "insert": name, "documents": [{ "_id": n as i32 + 1 }], "writeConcern": { "w": 1 } })
                .await;
        }
        commit_all().await;
        let asked = async |id: i64, name: &str| {
            let reply = client
                .ok(doc! { "getMore": id, "collection": name, "maxTimeMS": 50 })
                .await;
            ids(&batch(&reply, "nextBatch").0)
        };
        let expected: [&[i32]; 3] = [&[1, 3], &[2], &[]];
        for ((name, id), expected) in streams.into_iter().zip(expected) {
            let expected: Vec<Bson> = expected.iter().copied().map(Bson::Int32).collect();
            assert_eq!(asked(id, name).await, expected, "{name}");
        }
        let all: Vec<Bson> = (1..5).map(Bson::Int32).collect();
        assert_eq!(asked(of_database, "$cmd.aggregate").await, all);
    });
}

/// The names of a stream's own stages in an answer of `explain`, and how many documents left each
/// of all stages.
fn explained(reply: &Document) -> (Vec<String>, Vec<Option<i64>>) {
    let stages = reply.get_array("stages").expect("stages").iter();
    let stages: Vec<&Document> = stages.filter_map(Bson::as_document).collect();
    let cursor = stages[0].get_document("$cursor").expect("a cursor");
    let planner = cursor.get_document("queryPlanner").expect("a plan");
    assert_eq!(planner.get_str("namespace").ok(), Some("local.oplog.rs"));
    let plan = planner.get_document("winningPlan").expect("a plan");
    assert!(plan.to_string().contains("COLLSCAN"), "{plan}");
    let name = |stage: &&Document| {
        let own = stage.get_document("$changeStream").ok()?;
        Some(own.get_str("stage").expect("a name").to_owned())
    };
    let names = stages.iter().filter_map(name).collect();
    let left = stages.iter().skip(1);
    (
        names,
        left.map(|stage| stage.get_i64("nReturned").ok()).collect(),
    )
}

#[test]
fn what_a_stream_would_do_is_explained() {
    with_member(3550, &[2], 3, None, |_, client| async move {
        pinion_catalog::show_oplog(1 << 30, Timestamp::MAX)
            .await
            .expect("shown");
        commit_all().await;
        insert(&client, 1).await;
        commit_all().await;
        let started = pinion_catalog::bson_timestamp(storage().last_allotted());
        for id in 2..5 {
            insert(&client, id).await;
        }
        client
            .ok(doc! { "insert": "other", "documents": [{ "_id": 9 }] })
            .await;
        commit_all().await;
        let stream = |spec: Document| {
            let only = doc! { "$match": { "documentKey._id": { "$gt": 3 } } };
            doc! { "aggregate": "c", "pipeline": [{ "$changeStream": spec }, only], "cursor": {} }
        };
        let own = [
            "internalUnwindTransaction",
            "internalTransform",
            "internalCheckInvalidate",
            "internalCheckResumability",
        ];
        let mut asked = stream(doc! {});
        asked.insert("explain", true);
        let (names, left) = explained(&client.ok(asked).await);
        assert_eq!(names, own);
        assert_eq!(left, [None; 5]);
        let then = doc! { "startAtOperationTime": Bson::Timestamp(started), "fullDocument": "updateLookup" };
        for verbosity in ["queryPlanner", "executionStats", "allPlansExecution"] {
            let explain = doc! { "explain": stream(then.clone()), "verbosity": verbosity };
            let reply = client.on(1).ok(explain).await;
            let (names, left) = explained(&reply);
            assert_eq!(names[..4], own, "{reply}");
            assert_eq!(names[4], "internalAddPostImage", "{reply}");
            match verbosity {
                "queryPlanner" => assert_eq!(left, [None; 6], "{reply}"),
                // The insert that it begins with and three behind it; that of the other collection
                // is not watched.
                _ => assert_eq!(
                    left,
                    [Some(4), Some(4), Some(4), Some(4), Some(4), None],
                    "{reply}"
                ),
            }
        }
        let explain = |command: Document| doc! { "explain": command };
        client
            .fails(explain(stream(doc! { "resumeAfter": { "_data": "x" } })), 9)
            .await;
        let mut elsewhere = stream(doc! {});
        elsewhere.insert("aggregate", "system.x");
        client.fails(explain(elsewhere), 73).await;
        let mut stream = stream(doc! {});
        stream.insert(
            "pipeline",
            vec![
                doc! { "$changeStream": {} },
                doc! { "$group": { "_id": 1 } },
            ],
        );
        client.fails(explain(stream), 20).await;
    });
}

/// For a stream nothing happens when documents move between shards; its tokens move forward.
#[test]
fn what_moves_between_shards_is_not_shown() {
    with_member(2390, &[2], 3, None, |_, client| async move {
        become_member(MemberState::Primary, true, OpTime::NULL).await;
        insert(&client, 0).await;
        let (_, _, id) = opened(&client, doc! {}, vec![]).await;
        migrate_in_and_out(1).await;
        commit_all().await;
        let (events, token) = more(&client, id).await;
        assert_eq!(events, []);
        insert(&client, 2).await;
        migrate_in_and_out(3).await;
        commit_all().await;
        assert_eq!(ids(&more(&client, id).await.0), [Bson::Int32(2)]);
        // The same where the log is read again, from a token behind hidden entries.
        for core in 0..2 {
            let resumed = doc! { "resumeAfter": token.clone() };
            let (events, ..) = opened(&client.on(core), resumed, vec![]).await;
            assert_eq!(ids(&events), [Bson::Int32(2)]);
        }
    });
}
