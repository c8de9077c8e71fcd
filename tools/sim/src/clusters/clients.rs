//! Clients of a cluster beside those that a set has too: writes that are not retried, cursors of
//! several batches, databases that a first write makes.

use std::collections::BTreeSet;
use std::rc::Rc;

use pinion_bson::{RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, Rng, sleep};

use super::cluster::Cluster;
use crate::client::{batch, error_code};
use crate::sets::history::Floor;
use crate::sets::session::{Session, Written};
use crate::sets::workload::{COLLECTION, Shared};

const WTIMEOUT_MS: i32 = 5_000;
/// Databases that one client makes at most.
const MOST_MADE: i64 = 8;
const MOST_PLACED: i64 = 16;
/// Longest time between two databases.
const MAKING_MS: u64 = 4_000;
const BATCH_SIZE: i32 = 5;

fn concern() -> RawDocumentBuf {
    rawdoc! { "w": "majority", "wtimeout": WTIMEOUT_MS }
}

/// Sends each write once, whatever comes of it: it has one effect at most.
pub async fn write_plainly(shared: Rc<Shared>, mut rng: Rng) {
    let mut session = Session::of(&shared, &mut rng);
    let mut number = 0;
    while let Some(_active) = shared.begin().await {
        number += 1;
        let key = format!("plain-{number}");
        let change = rawdoc! { "$push": { "ops": number }, "$inc": { "n": 1_i32 } };
        let update = rawdoc! { "update": COLLECTION, "updates": [{ "q": { "_id": key.as_str() }, "u": change, "upsert": true }], "writeConcern": concern(), "$db": shared.db };
        shared.history.borrow_mut().sent(&key, number);
        let router = session.place();
        match session
            .on(router, &update)
            .await
            .map(|reply| (error_code(&reply), reply))
        {
            Ok((0, _)) => {
                shared.history.borrow_mut().acknowledged(&key, number);
                shared.count("writes that are not retried acknowledged");
            }
            Ok((_, reply)) if session.is_momentary(&reply) => {
                shared.count("writes that are not retried refused");
            }
            Ok((_, reply)) => shared.fail(format!("a write was refused: {reply:?}")),
            Err(_) => shared.count("writes that are not retried unknown"),
        }
        let pause_ms = shared.pause_of(number as u64);
        sleep(Duration::from_millis(rng.below(pause_ms + 1))).await;
    }
}

/// Reads a stable database through cursors of small batches.
pub async fn read_in_batches(shared: Rc<Shared>, mut rng: Rng) {
    let mut session = Session::of(&shared, &mut rng);
    let mut reads = 0;
    while let Some(_active) = shared.begin().await {
        reads += 1;
        match drain(&shared, &mut session).await {
            Ok(documents) => {
                let mut history = shared.history.borrow_mut();
                let found = history.check("a cursor", &documents, &Floor::new());
                let keys: BTreeSet<&str> = found.iter().map(|found| found.key.as_str()).collect();
                if keys.len() != documents.len() {
                    history.fail("a cursor has shown a document twice".to_owned());
                }
                history.count("cursors read to their end");
            }
            Err(None) => shared.count("cursors given up"),
            Err(Some(reply)) => shared.fail(format!("a cursor was refused: {reply:?}")),
        }
        let pause_ms = 10 * shared.pause_of(reads);
        sleep(Duration::from_millis(rng.below(pause_ms + 1))).await;
    }
}

/// An error without a reply is one of the moment.
async fn drain(
    shared: &Shared,
    session: &mut Session,
) -> Result<Vec<RawDocumentBuf>, Option<RawDocumentBuf>> {
    let router = session.place();
    let find = rawdoc! { "find": COLLECTION, "batchSize": BATCH_SIZE, "readConcern": { "level": "majority" }, "$db": shared.db };
    let mut reply = ask(session, router, &find).await?;
    let mut documents = batch(&reply, "firstBatch");
    loop {
        let id = reply.get_document("cursor");
        let id = id.and_then(|cursor| cursor.get_i64("id")).unwrap_or(0);
        if id == 0 {
            return Ok(documents);
        }
        let more = rawdoc! { "getMore": id, "collection": COLLECTION, "batchSize": BATCH_SIZE * 4, "$db": shared.db };
        reply = ask(session, router, &more).await?;
        documents.extend(batch(&reply, "nextBatch"));
    }
}

async fn ask(
    session: &mut Session,
    router: usize,
    command: &RawDocument,
) -> Result<RawDocumentBuf, Option<RawDocumentBuf>> {
    let reply = session.on(router, command).await.map_err(|_| None)?;
    match error_code(&reply) {
        0 => Ok(reply),
        code if session.is_momentary(&reply) || code == QUERY_PLAN_KILLED => Err(None),
        _ => Err(Some(reply)),
    }
}

const QUERY_PLAN_KILLED: i32 = 175;

/// Makes databases, by the first write into each or on a shard, and looks at what there is.
pub async fn make(cluster: Rc<Cluster>, number: usize, mut rng: Rng) {
    let mut session = Session::of(cluster.control(), &mut rng);
    let (mut made, mut placed) = (0, 0);
    while let Some(_active) = cluster.control().begin().await {
        if placed < MOST_PLACED {
            placed += 1;
            place_one(&cluster, &mut session, format!("placed-{number}-{placed}")).await;
        }
        if made < MOST_MADE {
            made += 1;
            make_one(&cluster, &mut session, (number, made)).await;
        }
        look(&cluster, &mut session, &mut rng).await;
        sleep(Duration::from_millis(rng.below(MAKING_MS))).await;
    }
}

async fn make_one(cluster: &Cluster, session: &mut Session, (maker, number): (usize, i64)) {
    let db = format!("made-{maker}-{number}");
    let insert = rawdoc! { "insert": "c", "documents": [{ "_id": number }], "writeConcern": concern(), "$db": db.as_str() };
    match session.write(&insert).await {
        Written::Acknowledged => {
            cluster.count("databases made by a write");
            cluster.made.borrow_mut().push((db, number));
        }
        Written::Refused(reply) => cluster.fail(format!("{db} was not made: {reply:?}")),
        Written::Unknown => cluster.count("writes of unknown outcome"),
    }
}

/// Puts a database on a shard: it stays there, although nothing is in it.
async fn place_one(cluster: &Cluster, session: &mut Session, db: String) {
    let shards = &cluster.shards;
    let shard = shards[session.rng.below(shards.len() as u64) as usize].name;
    let make = rawdoc! { "enableSharding": db.as_str(), "primaryShard": shard, "$db": "admin" };
    match session.retry(&make).await {
        Written::Acknowledged => {
            cluster.count("databases placed");
            cluster.placed.borrow_mut().push((db, shard));
        }
        Written::Refused(reply) => cluster.fail(format!("{db} was not placed: {reply:?}")),
        Written::Unknown => {}
    }
}

/// Lists databases, or the collections of one.
async fn look(cluster: &Cluster, session: &mut Session, rng: &mut Rng) {
    let command = match rng.below(2) {
        0 => rawdoc! { "listDatabases": 1_i32, "nameOnly": true, "$db": "admin" },
        _ => rawdoc! { "listCollections": 1_i32, "nameOnly": true, "$db": cluster.control().db },
    };
    let router = session.place();
    match ask(session, router, &command).await {
        Ok(_) => cluster.count("lists of databases and collections"),
        Err(None) => {}
        Err(Some(reply)) => cluster.fail(format!("a list was refused: {reply:?}")),
    }
}
