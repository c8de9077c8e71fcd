//! Change streams through a router, compared with the logs of all shards.

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, get, get_path, rawdoc};
use pinion_query::ResumeToken;
use pinion_runtime::{Duration, Queue, Rng, now, sleep, spawn};
use pinion_wire::Error;
use pinion_wire::idl::i64_exact;

use super::cluster::{Client, run};
use super::feeds::{Logged, as_bytes};

/// A client's stream.
struct Watched {
    client: Client,
    pipeline: Vec<RawDocumentBuf>,
    id: i64,
    token: RawDocumentBuf,
    events: Vec<RawDocumentBuf>,
}

impl Watched {
    async fn open(client: &Client, spec: RawDocumentBuf) -> Result<Watched, Error> {
        let mut stream = Watched {
            client: client.clone(),
            pipeline: Vec::new(),
            id: 0,
            token: RawDocumentBuf::new(),
            events: Vec::new(),
        };
        stream.reopen(spec).await?;
        Ok(stream)
    }

    async fn reopen(&mut self, spec: RawDocumentBuf) -> Result<(), Error> {
        let mut command = DocBuilder::new();
        command.append("aggregate", "c").start_array("pipeline");
        command.push(&*rawdoc! { "$changeStream": spec });
        self.pipeline.iter().for_each(|stage| {
            command.push(&**stage);
        });
        command.end().start_document("cursor").end();
        let reply = self.client.run(&command.finish()).await?;
        self.take(&reply, "firstBatch");
        Ok(())
    }

    fn take(&mut self, reply: &RawDocument, name: &str) {
        let cursor = get(reply, "cursor").and_then(|cursor| cursor.as_document());
        let cursor = cursor.expect("a cursor");
        self.id = get(cursor, "id").and_then(i64_exact).expect("an id");
        let token = get(cursor, "postBatchResumeToken").and_then(|token| token.as_document());
        let token = token.expect("a token").to_owned();
        let order = |token: &RawDocument| ResumeToken::parse(token).expect("a token");
        if !self.token.is_empty() {
            assert!(order(&token) >= order(&self.token), "it went back");
        }
        let Some(RawBsonRef::Array(batch)) = get(cursor, name) else {
            panic!("a batch is an array");
        };
        for event in pinion_bson::values(batch).filter_map(|event| event.as_document()) {
            let id = event.get_document("_id").expect("a token");
            assert!(order(id) <= order(&token), "the token is behind its batch");
            self.events.push(event.to_owned());
        }
        self.token = token;
    }

    async fn more(&mut self, size: Option<i64>, wait_ms: i64) -> Result<(), Error> {
        let mut more = DocBuilder::new();
        more.append("getMore", self.id).append("collection", "c");
        if let Some(size) = size {
            more.append("batchSize", size);
        }
        more.append("maxTimeMS", wait_ms);
        let reply = self.client.run(&more.finish()).await?;
        self.take(&reply, "nextBatch");
        Ok(())
    }

    async fn kill(&mut self) {
        let kill = rawdoc! { "killCursors": "c", "cursors": [self.id] };
        self.client.expect(&kill).await;
    }
}

fn write(client: &Client, shard: usize, logged: Logged) {
    let mut world = client.world.borrow_mut();
    let least = world.feeds.known + 1;
    world.feeds.feed(shard).log(logged, least);
}

/// Writes to all shards, some less than others, until it is to stop.
fn write_meanwhile(client: &Client, mut rng: Rng, count: i32) -> Rc<Cell<bool>> {
    let (client, ended) = (client.clone(), Rc::new(Cell::new(false)));
    let is_over = ended.clone();
    spawn(Queue::Background, async move {
        for id in 0..count {
            let shards = client.world.borrow().shards as u64;
            let busy = 1 + rng.below(shards);
            let shard = rng.below(busy) as usize;
            let logged = match rng.below(4) {
                0 => Logged::Other,
                _ => Logged::Insert(id),
            };
            write(&client, shard, logged);
            if rng.below(3) == 0 {
                sleep(Duration::from_millis(rng.below(60))).await;
            }
        }
        is_over.set(true);
    });
    ended
}

async fn closed(client: &Client) {
    sleep(Duration::from_secs(3)).await;
    assert_eq!(client.world.borrow().feeds.streams.len(), 0);
}

#[test]
fn events_of_all_shards_come_once_and_in_order() {
    for seed in 1..=20 {
        run(seed, 1 + seed as usize % 4, |client, mut rng| async move {
            let mut stream = Watched::open(&client, rawdoc! {}).await.expect("it opens");
            let start = ResumeToken::parse(&stream.token).expect("a token");
            let ended = write_meanwhile(&client, Rng::from_seed(rng.next_u64()), 150);
            let deadline = now() + Duration::from_secs(120);
            let mut drops = false;
            while stream.id != 0 {
                assert!(now() < deadline, "it does not end");
                if ended.get() && !drops {
                    // The others have nothing more: the end waits for their marks.
                    drops = true;
                    write(&client, 0, Logged::Drop);
                }
                let size = (rng.below(2) == 0).then(|| 1 + rng.below(6) as i64);
                stream
                    .more(size, rng.below(300) as i64 + 1)
                    .await
                    .expect("more");
                if rng.below(6) == 0 && stream.id != 0 {
                    stream.kill().await;
                    let token = stream.token.clone();
                    let spec = match rng.below(2) {
                        0 => rawdoc! { "resumeAfter": token },
                        _ => rawdoc! { "startAfter": token },
                    };
                    stream.reopen(spec).await.expect("it is resumed");
                }
            }
            let expected = client.world.borrow().feeds.all_events(start);
            assert_eq!(as_bytes(&stream.events), as_bytes(&expected));
            closed(&client).await;
        });
    }
}

#[test]
fn an_event_does_not_wait_long_for_quiet_shards() {
    run(3, 4, |client, _| async move {
        let mut stream = Watched::open(&client, rawdoc! {}).await.expect("it opens");
        stream.more(None, 500).await.expect("nothing");
        for id in 0..10 {
            let started = now();
            write(&client, 1, Logged::Insert(id));
            let before = stream.events.len();
            while stream.events.len() == before {
                stream.more(None, 1000).await.expect("more");
            }
            let took = now().saturating_since(started);
            assert!(took < Duration::from_millis(300), "{took:?}");
        }
        let marks: Vec<u32> = (0..4)
            .map(|shard| client.world.borrow_mut().feeds.feed(shard).marks)
            .collect();
        assert!(
            marks[0] >= 1 && marks[0] <= 20 && marks[1] == 0,
            "{marks:?}"
        );
        // Without changes no shard is asked for anything, and the token moves all the same.
        let (token, before) = (stream.token.clone(), marks[0]);
        (0..4).for_each(|shard| write(&client, shard, Logged::Other));
        sleep(Duration::from_millis(1500)).await;
        stream.more(None, 1500).await.expect("nothing");
        stream.more(None, 1500).await.expect("nothing");
        assert!(stream.token != token);
        assert_eq!(client.world.borrow_mut().feeds.feed(0).marks, before);
        stream.kill().await;
        closed(&client).await;
    });
}

#[test]
fn an_event_that_no_shard_has_is_not_resumed_from() {
    run(4, 3, |client, _| async move {
        let mut stream = Watched::open(&client, rawdoc! {}).await.expect("it opens");
        write(&client, 0, Logged::Insert(1));
        while stream.events.is_empty() {
            stream.more(None, 1000).await.expect("more");
        }
        stream.kill().await;
        let token = stream.token.clone();
        for feed in client.world.borrow_mut().feeds.of.values_mut() {
            *feed = Default::default();
        }
        sleep(Duration::from_millis(200)).await;
        (0..3).for_each(|shard| write(&client, shard, Logged::Insert(2)));
        let spec = rawdoc! { "resumeAfter": token };
        let mut stream = Watched::open(&client, spec).await.expect("it opens");
        let error = loop {
            if let Err(error) = stream.more(None, 1000).await {
                break error;
            }
        };
        assert_eq!(error.code.0, 280, "{error}");
        closed(&client).await;
    });
}

#[test]
fn stages_of_the_client_hide_the_end_but_do_not_undo_it() {
    run(5, 3, |client, _| async move {
        let mut stream = Watched::open(&client, rawdoc! {}).await.expect("it opens");
        stream.kill().await;
        let time = stream.token.clone();
        stream.pipeline = vec![rawdoc! { "$match": { "operationType": "insert" } }];
        stream
            .reopen(rawdoc! { "startAfter": time })
            .await
            .expect("it opens");
        (0..3).for_each(|shard| write(&client, shard, Logged::Insert(shard as i32)));
        sleep(Duration::from_millis(100)).await;
        write(&client, 2, Logged::Drop);
        while stream.id != 0 {
            stream.more(None, 1000).await.expect("more");
        }
        assert_eq!(stream.events.len(), 3);
        closed(&client).await;
    });
}

#[test]
fn a_shard_that_comes_later_is_heard() {
    run(6, 3, |client, _| async move {
        let set_shards = |count: usize| {
            let mut world = client.world.borrow_mut();
            world.shards = count;
            world.topology += 1;
        };
        set_shards(2);
        let mut stream = Watched::open(&client, rawdoc! {}).await.expect("it opens");
        let start = ResumeToken::parse(&stream.token).expect("a token");
        write(&client, 0, Logged::Insert(1));
        while stream.events.is_empty() {
            stream.more(None, 1000).await.expect("more");
        }
        set_shards(3);
        write(&client, 2, Logged::Insert(2));
        write(&client, 0, Logged::Insert(3));
        // Some reply says that there is another one.
        Watched::open(&client, rawdoc! {})
            .await
            .expect("it opens")
            .kill()
            .await;
        write(&client, 2, Logged::Insert(4));
        for _ in 0..20 {
            stream.more(None, 200).await.expect("more");
        }
        let expected = client.world.borrow().feeds.all_events(start);
        let mut found = stream.events.clone();
        found.sort_by_key(|event| {
            let id = event.get_document("_id").expect("a token");
            ResumeToken::parse(id).expect("a token")
        });
        assert_eq!(as_bytes(&found), as_bytes(&expected));
        stream.kill().await;
        closed(&client).await;
    });
}

#[test]
fn documents_are_looked_up_where_they_are_now() {
    run(8, 3, |client, mut rng| async move {
        let documents = super::operations::documents(&mut rng, 0..40);
        {
            let mut world = client.world.borrow_mut();
            world.insert("c", documents.clone());
            world.shard("c", rawdoc! { "_id": "hashed" }, 8, &mut rng);
        }
        let spec = rawdoc! { "fullDocument": "updateLookup" };
        let mut stream = Watched::open(&client, spec).await.expect("it opens");
        let ids = [3, 17, 99];
        for id in ids {
            // Wherever the document was when it was changed.
            let shard = rng.below(3) as usize;
            write(&client, shard, Logged::Update(rawdoc! { "_id": id }));
            client.world.borrow_mut().move_chunk("c", &mut rng);
            sleep(Duration::from_millis(50)).await;
        }
        while stream.events.len() < 3 {
            stream.more(None, 1000).await.expect("more");
        }
        for (event, id) in stream.events.iter().zip(ids) {
            let found = get_path(event, "fullDocument");
            match documents.get(id as usize) {
                Some(document) => assert_eq!(found, Some(RawBsonRef::Document(document))),
                None => assert_eq!(found, Some(RawBsonRef::Null)),
            }
        }
        stream.kill().await;
        closed(&client).await;
    });
}
