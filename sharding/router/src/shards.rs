//! The shards of the cluster, and how this process learns of them: `config.shards`, read at the
//! start, every 30 seconds, when an unknown shard is named, and when another node has heard of a
//! later change than this one.
//!
//! Source: sharding document, "The shard registry".

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use pinion_runtime::{
    Queue, core_local, is_shutdown_requested, on_all_cores, sleep, spawn, submit_to,
};
use pinion_sharding_protocol::documents;
use pinion_sharding_protocol::{ConnectionString, ShardEntry, ShardRegistry};
use pinion_wire::Result;

use crate::cluster::{ASKING_CORE, Cluster};
use crate::config_reads::{find_all, run_at_config};
use crate::hosts::Hosts;
use crate::limits::{SHARDS_RELOAD_PAUSE, SHARDS_RETRY_PAUSE};

/// All shards at one time.
#[derive(Clone, Debug, Default)]
pub struct Shards {
    registry: ShardRegistry,
    documents: Vec<RawDocumentBuf>,
    /// The topology time that this reading was made at.
    at: Timestamp,
}

impl Shards {
    /// The shard of this name.
    pub fn get(&self, id: &str) -> Option<&ShardEntry> {
        self.registry.shard(id)
    }

    /// The name of a shard, which is named by that, its set, a host or its connection string.
    pub(crate) fn id_of(&self, name: &str) -> Option<&str> {
        self.registry.id_of(name)
    }

    /// All shards, by their names.
    pub fn iter(&self) -> impl Iterator<Item = &ShardEntry> {
        self.registry.shards()
    }

    pub fn len(&self) -> usize {
        self.documents.len()
    }

    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }

    /// Their documents in `config.shards`.
    pub(crate) fn documents(&self) -> &[RawDocumentBuf] {
        &self.documents
    }
}

/// The readings of the core that asks.
#[derive(Default)]
pub(crate) struct Readings {
    /// How many have been started.
    started: Cell<u64>,
    /// The number of the last one that has succeeded.
    succeeded: Cell<u64>,
    runs: Cell<bool>,
    ended: Notify,
}

/// A reading that is under way.
struct Reading(Rc<Readings>);

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.runs.set(false);
        self.0.ended.notify_all();
    }
}

/// Reads the shards again, and has every core know them. Any number of callers that wait for one
/// reading have the next one in common.
///
/// # Errors
/// The config servers do not answer.
pub async fn reload_shards() -> Result<()> {
    submit_to(ASKING_CORE, Queue::Foreground, || async {
        let readings: Rc<Readings> = core_local();
        let known = readings.started.get();
        while readings.runs.get() {
            readings.ended.notified().await;
            // One that was started before this call may have read what was there before it.
            if readings.succeeded.get() > known {
                return Ok(());
            }
        }
        let number = known.max(readings.started.get()) + 1;
        readings.started.set(number);
        readings.runs.set(true);
        let _reading = Reading(readings.clone());
        reload().await?;
        readings.succeeded.set(number);
        Ok(())
    })
    .await
}

async fn reload() -> Result<()> {
    let cluster = Cluster::here();
    // What is read is at least as new as this.
    let at = cluster.clock.time().topology();
    let found = find_all(documents::SHARDS, rawdoc! {}, None).await?;
    let config_servers = cluster.config_servers.clone();
    let registry = ShardRegistry::new(found.iter().map(|found| &**found), Some(config_servers))?;
    let before = cluster.shards();
    // A reading that was overtaken by another one is not used.
    if before.at > at {
        return Ok(());
    }
    let hosts = Hosts::here();
    for shard in registry.shards() {
        hosts.watch(&shard.string).await;
    }
    for gone in before
        .iter()
        .filter(|shard| registry.shard(&shard.id).is_none())
    {
        // Another shard may be of the same set, and the config servers are always asked.
        let set = &gone.string.set;
        if registry.id_of_set(set).is_none() && *set != cluster.config_servers.set {
            hosts.unwatch(set).await;
        }
    }
    let shards = Arc::new(Shards {
        registry,
        documents: found,
        at,
    });
    on_all_cores(move |_| {
        let shards = shards.clone();
        async move { Cluster::here().replace_shards(shards) }
    })
    .await;
    Ok(())
}

/// The shards, once there was a reading that is as new as what other nodes know.
///
/// # Errors
/// The config servers do not answer.
pub async fn current_shards() -> Result<Arc<Shards>> {
    let cluster = Cluster::here();
    let shards = cluster.shards();
    if shards.at >= cluster.clock.time().topology() && !shards.is_empty() {
        return Ok(shards);
    }
    reload_shards().await?;
    Ok(cluster.shards())
}

/// Keeps the list of shards new while the process runs. Called once, on core 0.
pub fn keep_shards() {
    spawn(Queue::Background, async {
        while !is_shutdown_requested() {
            let pause = match reload_shards().await {
                Ok(()) => SHARDS_RELOAD_PAUSE,
                Err(error) => {
                    tracing::warn!(target: "SHARDING", id = 7_300_004u64, error = error.message, "The list of shards could not be read");
                    SHARDS_RETRY_PAUSE
                }
            };
            sleep(pause).await;
        }
    });
}

/// Has the config servers know when a shard has other members than `config.shards` names. Called
/// once, on core 0.
pub fn keep_strings() {
    Hosts::here().on_new_string(|string| {
        let string = string.clone();
        spawn(Queue::Background, async move {
            if let Err(error) = store_string(&string).await {
                tracing::warn!(target: "SHARDING", id = 7_300_005u64, error = error.message, string = %string, "The members of a shard could not be stored");
            }
        });
    });
}

async fn store_string(string: &ConnectionString) -> Result<()> {
    let shards = Cluster::here().shards();
    let mut found = shards.iter();
    let Some(shard) = found.find(|shard| shard.string.set == string.set) else {
        // That of the config servers stands nowhere.
        return Ok(());
    };
    let host = string.to_string();
    let write = |out: &mut DocBuilder| {
        out.append("update", "shards").start_array("updates");
        out.push_document();
        out.append(
            "q",
            &*rawdoc! { "_id": &*shard.id, "host": { "$ne": &*host } },
        );
        out.append("u", &*rawdoc! { "$set": { "host": &*host } })
            .end();
        out.end();
        out.start_document("writeConcern")
            .append("w", "majority")
            .end();
    };
    run_at_config("config", write, None).await?;
    tracing::info!(target: "SHARDING", id = 7_300_006u64, shard = %shard.id, string = %string, "A shard has other members");
    reload_shards().await
}
