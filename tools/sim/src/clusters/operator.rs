//! The operator of a cluster: a client that no fault reaches. It adds the shards, some of them
//! several times since it did not wait for the answer, and puts the stable databases on them.

use std::rc::Rc;

use pinion_bson::{RawDocument, RawDocumentBuf, rawdoc};
use pinion_runtime::{Duration, Rng, now, sleep};

use super::cluster::Cluster;
use super::strays;
use crate::client::{Client, error_code};
use crate::sets::session::is_of_the_moment;
use crate::sets::workload::COLLECTION;

const PAUSE: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an operator waits who does not wait for the answer.
const IMPATIENCE_MS: u64 = 60;
const IMPATIENT: f64 = 0.4;
/// OperationFailed (a candidate without a primary), FailedToSatisfyReadPreference, ShardNotFound
/// (before the first one is added), NetworkInterfaceExceededTimeLimit.
const NOT_READY: [i32; 4] = [96, 133, 70, 202];
/// How long a probe has to reach its shard.
const PROBED_WITHIN: Duration = Duration::from_secs(6);
const WTIMEOUT_MS: i32 = 4_000;

/// Builds the cluster, and then writes what is of known placement whenever that is ordered.
pub async fn operate(cluster: Rc<Cluster>, mut rng: Rng) {
    for shard in &cluster.shards {
        let add = rawdoc! { "addShard": shard.string(), "$db": "admin" };
        let Some(reply) = insist(&cluster, &add, &mut rng).await else {
            return;
        };
        if reply.get_str("shardAdded").ok() != Some(shard.name) {
            return cluster.fail(format!("{} was not added: {reply:?}", shard.name));
        }
    }
    for shared in cluster.shared() {
        let shard = &cluster.shards[rng.below(cluster.shards.len() as u64) as usize];
        let make =
            rawdoc! { "enableSharding": shared.db, "primaryShard": shard.name, "$db": "admin" };
        if insist(&cluster, &make, &mut rng).await.is_none() {
            return;
        }
    }
    let plain = format!("{}.{COLLECTION}", cluster.plain.db);
    let shard = rawdoc! { "shardCollection": plain, "key": { "_id": "hashed" }, "$db": "admin" };
    if insist(&cluster, &shard, &mut rng).await.is_none() {
        return;
    }
    if !strays::prepare(&cluster, &mut rng).await {
        return;
    }
    cluster.is_built.set(true);
    probe(&cluster).await;
}

/// Sends a command through any router until it is answered with success.
pub async fn insist(
    cluster: &Cluster,
    command: &RawDocument,
    rng: &mut Rng,
) -> Option<RawDocumentBuf> {
    while !cluster.control().stopped.get() {
        let router = cluster.routers[rng.below(cluster.routers.len() as u64) as usize];
        let patience = match rng.chance(IMPATIENT) {
            true => Duration::from_millis(rng.below(IMPATIENCE_MS) + 1),
            false => PATIENCE,
        };
        let mut client = Client::new(router).within(patience);
        match client.command(command).await {
            Ok(reply) => match error_code(&reply) {
                0 => return Some(reply),
                code if is_of_the_moment(code) || NOT_READY.contains(&code) => {}
                _ => {
                    cluster.fail(format!("{command:?} was refused: {reply:?}"));
                    return None;
                }
            },
            Err(_) => cluster.count("answers to the operator lost"),
        }
        sleep(PAUSE).await;
    }
    None
}

/// Writes into each stable database through each router while that is ordered.
async fn probe(cluster: &Cluster) {
    let routers = cluster.routers.iter();
    let mut clients: Vec<Client> = routers
        .map(|address| Client::new(*address).within(PROBED_WITHIN))
        .collect();
    let probes = &cluster.probes;
    while !cluster.control().stopped.get() {
        probes.is_running.set(probes.wanted.get());
        if !probes.wanted.get() {
            sleep(PAUSE).await;
            continue;
        }
        let mut all = true;
        for client in &mut clients {
            for shared in &cluster.stable {
                let began = now();
                let refused = probe_one(client, shared.db).await.err();
                if let Some(why) = refused {
                    all = false;
                    let took = began.elapsed();
                    *probes.refused.borrow_mut() = format!("{} after {took:?}: {why}", shared.db);
                }
            }
        }
        if all {
            probes.rounds.set(probes.rounds.get() + 1);
        }
        sleep(PAUSE).await;
    }
}

async fn probe_one(client: &mut Client, db: &str) -> Result<(), String> {
    let update = rawdoc! {
        "update": "probes",
        "updates": [{ "q": { "_id": 1_i32 }, "u": { "$inc": { "n": 1_i32 } }, "upsert": true }],
        "writeConcern": { "w": "majority", "wtimeout": WTIMEOUT_MS },
        "$db": db,
    };
    let find = rawdoc! { "find": "probes", "$db": db };
    for command in [&update, &find] {
        match client.command(command).await {
            Ok(reply) if error_code(&reply) == 0 => {}
            Ok(reply) => return Err(format!("{reply:?}")),
            Err(failure) => return Err(format!("{failure:?}")),
        }
    }
    Ok(())
}
