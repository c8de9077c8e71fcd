//! A database that moves from shard to shard: what was acknowledged in it is there, wherever it is,
//! and a write that is not sent again has one effect at most.

use std::rc::Rc;

use pinion_bson::rawdoc;
use pinion_runtime::{Duration, Rng, sleep};

use super::cluster::Cluster;
use crate::client::error_code;
use crate::sets::session::Session;

/// Longest time between two moves.
const PAUSE_MS: u64 = 6_000;
/// LockTimeout (an operation does not leave the gate), LockBusy, ConflictingOperationInProgress,
/// CommandFailed (the shard could not copy it in time).
const NOT_MOVED: [i32; 4] = [24, 46, 117, 125];

/// Moves the database, over and over, and does not always wait for it.
pub async fn move_about(cluster: Rc<Cluster>, mut rng: Rng) {
    let mut session = Session::of(cluster.control(), &mut rng);
    while let Some(_active) = cluster.control().begin().await {
        if cluster.is_built.get() {
            move_once(&cluster, &mut session, &mut rng).await;
        }
        sleep(Duration::from_millis(rng.below(PAUSE_MS))).await;
    }
}

async fn move_once(cluster: &Cluster, session: &mut Session, rng: &mut Rng) {
    let shard = &cluster.shards[rng.below(cluster.shards.len() as u64) as usize];
    let to = match rng.chance(0.2) {
        true => shard.string(),
        false => shard.name.to_owned(),
    };
    let max_time_ms = [1_000, 5_000, 20_000][rng.below(3) as usize];
    let command = rawdoc! {
        "movePrimary": cluster.moving.db, "to": to, "maxTimeMS": max_time_ms, "$db": "admin",
    };
    let router = session.place();
    let _definition = cluster.definitions.send(false);
    let Ok(reply) = session.on(router, &command).await else {
        cluster.count("moves of unknown outcome");
        return;
    };
    match error_code(&reply) {
        0 => cluster.count("databases moved"),
        code if NOT_MOVED.contains(&code) => cluster.count("databases not moved"),
        _ if session.is_momentary(&reply) => cluster.count("databases not moved"),
        _ => cluster.fail(format!("{} was not moved: {reply:?}", cluster.moving.db)),
    }
}
