//! Databases that are dropped and made again on another shard, and their clients.
//!
//! A write that was sent and acknowledged while the database was there, and was not about to be
//! dropped, is there until it is dropped; what was acknowledged before a removal began is not there
//! after it. So a write into the wrong incarnation is lost, or comes back. Of writes beside a
//! removal nothing is known but that each has one effect at most. One that was sent again since its
//! answer did not come may come back: the first router that had it may still be busy with it.

use std::rc::Rc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, Instant, Rng, now, sleep};

use super::cluster::{Cluster, Place};
use crate::client::{Failure, error_code};
use crate::sets::session::{Session, Unread, Written};
use crate::sets::workload::INCOMPLETE_HISTORY;

const COLLECTION: &str = "c";
/// How often its collection is sharded.
const SHARDED: f64 = 0.5;
/// The longest that a database lives.
const LIFE_MS: u64 = 12_000;
const MAX_TIME_MS: i32 = 5_000;
/// How long a router may still be busy with a command of that time whose client has left.
pub const LEFT_BEHIND: Duration = Duration::from_secs(25);
/// NamespaceExists: a write has made the database elsewhere.
pub const EXISTS: i32 = 48;
/// ConflictingOperationInProgress.
pub const CONFLICT: i32 = 117;
/// InvalidOptions: a collection with documents has no index on the key.
pub const NO_INDEX: i32 = 72;
const WTIMEOUT_MS: i32 = 5_000;

/// A time in which a database is there for certain, and its removal.
#[derive(Default)]
struct Life {
    made: Option<Instant>,
    drop_began: Option<Instant>,
    drop_ended: Option<Instant>,
}

struct Op {
    id: i64,
    sent: Instant,
    acknowledged: Option<Instant>,
    /// A router may send it once more, for a client that has left.
    is_left_behind: bool,
}

/// What became of a database, and of what was written into it.
#[derive(Default)]
pub struct Lives {
    lives: Vec<Life>,
    ops: Vec<Op>,
}

impl Lives {
    fn made(&mut self) {
        self.lives.push(Life {
            made: Some(now()),
            ..Life::default()
        });
    }

    fn current(&mut self) -> &mut Life {
        self.lives.last_mut().expect("a database was made")
    }

    fn sent(&mut self) -> i64 {
        let id = self.ops.len() as i64;
        self.ops.push(Op {
            id,
            sent: now(),
            acknowledged: None,
            is_left_behind: false,
        });
        id
    }

    fn acknowledged(&mut self, id: i64, is_left_behind: bool) {
        let op = &mut self.ops[id as usize];
        op.acknowledged = Some(now());
        op.is_left_behind = is_left_behind;
    }

    /// Checks documents that were read from the primary between two times.
    pub fn check(
        &self,
        documents: &[RawDocumentBuf],
        began: Instant,
        ended: Instant,
    ) -> Result<(), String> {
        let mut found = Vec::new();
        for document in documents {
            let id = match pinion_bson::get(document, "_id") {
                Some(RawBsonRef::Int64(id)) => id,
                _ => return Err(format!("what nobody wrote: {document:?}")),
            };
            if !matches!(document.get_i32("n"), Ok(1)) {
                return Err(format!("executed more than once: {document:?}"));
            }
            if found.contains(&id) || id as usize >= self.ops.len() {
                return Err(format!("twice, or never sent: {document:?}"));
            }
            found.push(id);
        }
        for op in &self.ops {
            let Some(acknowledged) = op.acknowledged else {
                continue;
            };
            let is_found = found.contains(&op.id);
            let lasts = |life: &Life| {
                life.made.is_some_and(|made| made <= op.sent)
                    && acknowledged <= began
                    && life.drop_began.is_none_or(|drop| drop > ended)
            };
            let gone = |life: &Life| {
                life.drop_began.is_some_and(|drop| acknowledged < drop)
                    && life.drop_ended.is_some_and(|drop| drop <= began)
            };
            if !is_found && self.lives.iter().any(lasts) {
                return Err(format!("write {} of this life is not there", op.id));
            }
            if is_found && !op.is_left_behind && self.lives.iter().any(gone) {
                return Err(format!("write {} of an earlier life is there", op.id));
            }
        }
        Ok(())
    }
}

/// Makes and drops a database, over and over. In the end it is there.
pub async fn lead(cluster: Rc<Cluster>, number: usize, mut rng: Rng) {
    let place = &cluster.places[number];
    let mut session = Session::of(cluster.control(), &mut rng);
    while let Some(active) = cluster.control().begin().await {
        let shard = &cluster.shards[rng.below(cluster.shards.len() as u64) as usize];
        let make = rawdoc! { "enableSharding": place.db, "primaryShard": shard.name, "maxTimeMS": MAX_TIME_MS, "$db": "admin" };
        match session.retry(&make).await {
            Written::Acknowledged => cluster.count("databases made again"),
            Written::Refused(reply) if error_code(&reply) == EXISTS => {
                cluster.count("databases made by a write before");
            }
            Written::Refused(reply) => {
                return cluster.fail(format!("{} was not made: {reply:?}", place.db));
            }
            Written::Unknown => continue,
        }
        if rng.chance(SHARDED)
            && !shard_its_collection(&cluster, place, &mut session, &mut rng).await
        {
            return;
        }
        place.lives.borrow_mut().made();
        drop(active);
        sleep(Duration::from_millis(rng.between(500, LIFE_MS))).await;
        let Some(active) = cluster.control().begin().await else {
            return;
        };
        place.lives.borrow_mut().current().drop_began = Some(now());
        let Some(is_clear) = remove(&cluster, place, &mut session).await else {
            return;
        };
        place.lives.borrow_mut().current().drop_ended = Some(now());
        cluster.count("databases dropped");
        drop(active);
        if !is_clear {
            sleep(LEFT_BEHIND).await;
        }
    }
}

/// Shards the collection of a database; false where that fails.
async fn shard_its_collection(
    cluster: &Cluster,
    place: &Place,
    session: &mut Session,
    rng: &mut Rng,
) -> bool {
    if rng.chance(0.5) {
        // What a write made before can be sharded too.
        let index = rawdoc! { "key": { "_id": "hashed" }, "name": "_id_hashed" };
        let index = rawdoc! { "createIndexes": COLLECTION, "indexes": [index], "maxTimeMS": MAX_TIME_MS, "$db": place.db };
        if let Written::Refused(reply) = session.retry(&index).await {
            cluster.fail(format!("{} has no index: {reply:?}", place.db));
            return false;
        }
    }
    let name = format!("{}.{COLLECTION}", place.db);
    let command = rawdoc! { "shardCollection": name, "key": { "_id": "hashed" }, "maxTimeMS": MAX_TIME_MS, "$db": "admin" };
    let _definition = cluster.definitions.send(false);
    match session.retry(&command).await {
        Written::Acknowledged => cluster.count("collections sharded"),
        Written::Refused(reply) if error_code(&reply) == NO_INDEX => {
            cluster.count("collections with documents and no index");
        }
        Written::Refused(reply) => {
            cluster.fail(format!("{} was not sharded: {reply:?}", place.db));
            return false;
        }
        Written::Unknown => {}
    }
    true
}

/// Drops a database; whether no earlier attempt can still be under way. `None` where the run ends.
async fn remove(cluster: &Cluster, place: &Place, session: &mut Session) -> Option<bool> {
    let command = rawdoc! { "dropDatabase": 1_i32, "maxTimeMS": MAX_TIME_MS, "writeConcern": { "w": "majority" }, "$db": place.db };
    let mut is_clear = true;
    let _definition = cluster.definitions.send(false);
    while !cluster.control().stopped.get() {
        let router = session.place();
        match session.on(router, &command).await {
            Ok(reply) => match error_code(&reply) {
                0 => return Some(is_clear),
                CONFLICT => {}
                _ if session.is_momentary(&reply) => {}
                _ => {
                    cluster.fail(format!("{} was not dropped: {reply:?}", place.db));
                    return None;
                }
            },
            Err(Failure::NotSent) => {}
            Err(Failure::Unknown) => is_clear = false,
        }
        sleep(Duration::from_millis(200)).await;
    }
    None
}

/// Writes into databases that come and go, and reads them.
pub async fn visit(cluster: Rc<Cluster>, mut rng: Rng) {
    let mut session = Session::of(cluster.control(), &mut rng);
    let mut operations = 0;
    while let Some(_active) = cluster.control().begin().await {
        let at = rng.below(cluster.places.len() as u64) as usize;
        let place = &cluster.places[at];
        match rng.below(4) {
            0 => read(&cluster, place, &mut session).await,
            1 if cluster.places.len() > 1 => {
                let other = &cluster.places[(at + 1) % cluster.places.len()];
                write_both(&cluster, [place, other], &mut session).await;
            }
            _ => write(&cluster, place, &mut session, &mut rng).await,
        }
        operations += 1;
        let pause_ms = cluster.control().pause_of(operations);
        sleep(Duration::from_millis(rng.below(pause_ms + 1))).await;
    }
}

fn concern() -> RawDocumentBuf {
    rawdoc! { "w": "majority", "wtimeout": WTIMEOUT_MS }
}

async fn write(cluster: &Cluster, place: &Place, session: &mut Session, rng: &mut Rng) {
    let id = place.lives.borrow_mut().sent();
    let change = rawdoc! { "$inc": { "n": 1_i32 } };
    let command = match rng.below(3) {
        0 => {
            rawdoc! { "insert": COLLECTION, "documents": [{ "_id": id, "n": 1_i32 }], "writeConcern": concern(), "$db": place.db }
        }
        1 => {
            rawdoc! { "update": COLLECTION, "updates": [{ "q": { "_id": id }, "u": change, "upsert": true }], "writeConcern": concern(), "$db": place.db }
        }
        _ => {
            rawdoc! { "findAndModify": COLLECTION, "query": { "_id": id }, "update": change, "upsert": true, "writeConcern": concern(), "$db": place.db }
        }
    };
    let written = session.write(&command).await;
    note(cluster, session, &[(place, id)], written);
}

/// Writes into two databases with one command.
async fn write_both(cluster: &Cluster, places: [&Place; 2], session: &mut Session) {
    let ids = places.map(|place| place.lives.borrow_mut().sent());
    let [first, second] = places.map(|place| format!("{}.{COLLECTION}", place.db));
    let command = rawdoc! {
        "bulkWrite": 1_i32,
        "ops": [
            { "insert": 0_i32, "document": { "_id": ids[0], "n": 1_i32 } },
            { "update": 1_i32, "filter": { "_id": ids[1] }, "updateMods": { "$inc": { "n": 1_i32 } }, "upsert": true },
        ],
        "nsInfo": [{ "ns": first }, { "ns": second }],
        "writeConcern": concern(),
        "$db": "admin",
    };
    let written = session.write(&command).await;
    cluster.count("bulk writes over two databases");
    let ids = [(places[0], ids[0]), (places[1], ids[1])];
    note(cluster, session, &ids, written);
}

fn note(cluster: &Cluster, session: &Session, written: &[(&Place, i64)], outcome: Written) {
    match outcome {
        Written::Acknowledged => {
            for (place, id) in written {
                let mut lives = place.lives.borrow_mut();
                lives.acknowledged(*id, session.is_left_behind);
                cluster.count("writes into what comes and goes");
            }
        }
        Written::Refused(reply) if error_code(&reply) == INCOMPLETE_HISTORY => {}
        Written::Refused(reply) => {
            let db = written[0].0.db;
            cluster.fail(format!("a write into {db} was refused: {reply:?}"));
        }
        Written::Unknown => cluster.count("writes of unknown outcome"),
    }
}

async fn read(cluster: &Cluster, place: &Place, session: &mut Session) {
    let level: &RawDocument = &rawdoc! { "level": "linearizable" };
    session.place();
    let began = now();
    let read = session.read_all(None, (place.db, COLLECTION), level, None);
    match read.await {
        Ok(documents) => {
            let checked = place.lives.borrow().check(&documents, began, now());
            cluster.count("reads of what comes and goes");
            checked.unwrap_or_else(|why| cluster.fail(format!("{}: {why}", place.db)));
        }
        Err(Unread::OfTheMoment) => {}
        Err(Unread::Refused(reply)) => {
            cluster.fail(format!("a read of {} was refused: {reply:?}", place.db));
        }
    }
}
