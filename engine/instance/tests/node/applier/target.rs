//! A node that applies the entries of another while it is read.

use std::cell::Cell;
use std::rc::Rc;

use bytes::Bytes;
use pinion_apply::Applier;
use pinion_bson::{Bson, Document, doc};
use pinion_catalog::ApplyMode;
use pinion_clock::Timestamp;
use pinion_runtime::{Duration, Queue, random_stream, sleep, spawn};
use pinion_storage::{ForeignEntry, storage};

use super::source::{CAPPED, GENERATION};
use crate::harness::{Client, column};

/// All that a client sees of a node's databases.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct State(Vec<Document>);

impl State {
    /// Forgets in which order the indexes of a collection were made.
    pub fn sort_indexes(&mut self) {
        for shown in &mut self.0 {
            if let Ok(indexes) = shown.get_array_mut("indexes") {
                indexes.sort_by_key(|index| index.to_string());
            }
        }
    }
}

/// The hashes of the databases, and the collections with their options and indexes; everything is
/// validated.
pub async fn state_of(client: &Client) -> State {
    let mut state = Vec::new();
    for db in ["test", "other"] {
        let client = client.at(db);
        let mut hash = client.ok(doc! { "dbHash": 1 }).await;
        for of_the_moment in ["timeMillis", "$clusterTime", "operationTime"] {
            hash.remove(of_the_moment);
        }
        state.push(hash);
        let reply = client.ok(doc! { "listCollections": 1 }).await;
        let cursor = reply.get_document("cursor").expect("a cursor");
        let mut listed: Vec<Document> = cursor
            .get_array("firstBatch")
            .expect("a batch")
            .iter()
            .map(|entry| entry.as_document().expect("a document").clone())
            .collect();
        listed.sort_by_key(|entry| entry.get_str("name").expect("a name").to_owned());
        for mut entry in listed {
            let name = entry.get_str("name").expect("a name").to_owned();
            if entry.get_str("type").ok() == Some("collection") {
                let indexes = client.ok(doc! { "listIndexes": &name }).await;
                let cursor = indexes.get_document("cursor").expect("a cursor");
                entry.insert("indexes", cursor.get("firstBatch").expect("a batch"));
                let valid = client.ok(doc! { "validate": &name, "full": true }).await;
                assert_eq!(valid.get_bool("valid").ok(), Some(true), "{name}: {valid}");
                let keys = valid.get_document("keysPerIndex").expect("counts").clone();
                let mut keys: Vec<_> = keys.into_iter().collect();
                keys.sort_by(|a, b| a.0.cmp(&b.0));
                entry.insert("keys", Bson::Document(keys.into_iter().collect()));
            }
            state.push(entry);
        }
    }
    let natural = client
        .find(doc! { "find": "log", "hint": { "$natural": 1 } })
        .await;
    state.push(doc! { "log": natural });
    State(state)
}

/// Entries that are applied in one pass.
pub struct Replayed {
    entries: Vec<(Timestamp, Bytes)>,
    mode: ApplyMode,
}

impl Replayed {
    pub fn new(entries: &[(Timestamp, Bytes)], mode: ApplyMode) -> Replayed {
        Replayed {
            entries: entries.to_vec(),
            mode,
        }
    }
}

/// Applies the passes one after the other, at timestamps that rise over all of them. What is
/// applied is seen by reads. With `read`, there are readers meanwhile.
pub async fn follow(
    client: &Client,
    seed: u64,
    passes: Vec<Replayed>,
    read: bool,
) -> Result<(), pinion_storage::ApplyError> {
    let stop = Rc::new(Cell::new(false));
    let readers: Vec<_> = (0..if read { 3 } else { 0 })
        .map(|number| spawn(Queue::Foreground, read_on(client.on(number), stop.clone())))
        .collect();
    storage().follow().await.expect("storage serves");
    let mut next = 1u64 << 32;
    let mut result = Ok(());
    for Replayed { entries, mode } in passes {
        if result.is_ok() {
            let count = entries.len() as u64;
            result = pass(entries, mode, next).await;
            next += count;
        }
    }
    stop.set(true);
    let mut reads = 0;
    for reader in readers {
        reads += reader.await.expect("not stopped");
    }
    assert!(!read || reads > 20, "seed {seed}: {reads} reads");
    result
}

async fn pass(
    entries: Vec<(Timestamp, Bytes)>,
    mode: ApplyMode,
    first: u64,
) -> Result<(), pinion_storage::ApplyError> {
    let applier = Rc::new(Applier::new(mode));
    let last = Timestamp::from_u64(first + entries.len() as u64 - 1);
    let visible = {
        let applier = applier.clone();
        spawn(Queue::Foreground, async move {
            let mut applied = Timestamp::MIN;
            while applied < last {
                applied = applier.wait_beyond(applied).await?;
                storage().set_applied(applied);
            }
            Ok::<(), pinion_storage::ApplyError>(())
        })
    };
    let mut rng = random_stream("fetcher");
    for (ts, (_, bytes)) in (first..).zip(&entries) {
        log(Timestamp::from_u64(ts), bytes).await;
        applier
            .apply(Timestamp::from_u64(ts), bytes.clone())
            .await?;
        // Now and then there is nothing to fetch.
        if rng.chance(0.05) {
            sleep(Duration::from_micros(rng.below(3000))).await;
        }
    }
    applier.barrier().await?;
    assert_eq!(applier.applied(), last);
    assert_eq!(applier.counts().entries, entries.len() as u64);
    visible.await.expect("not stopped")
}

/// Logs an entry behind all that is logged.
pub async fn log(ts: Timestamp, bytes: &Bytes) {
    let entry = ForeignEntry {
        ts,
        predecessor: storage().last_allotted(),
        bytes: bytes.clone(),
    };
    storage().log_at(&[entry]).await.expect("storage serves");
}

/// Reads what changes as a whole. Gives the number of its rounds.
async fn read_on(client: Client, stop: Rc<Cell<bool>>) -> u64 {
    let mut rounds = 0;
    while !stop.get() {
        rounds += 1;
        let generation = client.find(doc! { "find": "r", "batchSize": 100 }).await;
        let seen = column(&generation, "generation");
        assert!(
            seen.is_empty() || seen.len() == GENERATION as usize,
            "a part of a generation: {generation:?}"
        );
        assert!(
            seen.windows(2).all(|two| two[0] == two[1]),
            "{generation:?}"
        );
        let log = client.find(doc! { "find": "log", "batchSize": 100 }).await;
        assert!(log.len() <= CAPPED as usize, "{log:?}");
        let sorted = doc! { "find": "docs", "sort": { "u": 1 }, "batchSize": 100 };
        let sorted = column(&client.find(sorted).await, "u");
        let values: Vec<i32> = sorted.iter().filter_map(Bson::as_i32).collect();
        assert!(values.windows(2).all(|two| two[0] < two[1]), "{values:?}");
        sleep(Duration::from_micros(300)).await;
    }
    rounds
}
