//! What a core of this process knows of its cluster: where the config servers are, the shards, the
//! places of databases and collections, and the clocks.
//!
//! Core 0 asks the config servers, for all cores; each core keeps what it was given. Nothing here
//! is more than a copy: all of it may be dropped at any time without a wrong answer.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_clock::VectorTime;
use pinion_runtime::CoreId;
use pinion_sharding_protocol::{CachedCollection, CachedDatabase, ConnectionString, ShardId};
use pinion_wire::{Error, ErrorCode, Result};

use crate::clock::ClusterClock;
use crate::placement::Caches;
use crate::planted::PlantedFault;
use crate::shards::{Readings, Shards, reload_shards};

/// The core that asks the config servers.
pub(crate) const ASKING_CORE: CoreId = CoreId(0);

/// How a process came to its cluster.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The set of config servers, with the hosts that the process was given.
    pub config_servers: ConnectionString,
    #[doc(hidden)]
    pub planted_fault: PlantedFault,
}

/// One core's part of a process in a cluster.
pub struct Cluster {
    pub(crate) config_servers: ConnectionString,
    pub(crate) clock: Rc<dyn ClusterClock>,
    pub(crate) databases: Caches<CachedDatabase>,
    pub(crate) collections: Caches<CachedCollection>,
    pub(crate) planted_fault: PlantedFault,
    shards: RefCell<Arc<Shards>>,
}

impl Cluster {
    /// Makes this core a part of a cluster.
    pub fn install(options: &ClusterOptions, clock: Rc<dyn ClusterClock>) {
        pinion_runtime::set_core_local(Rc::new(Readings::default()));
        pinion_runtime::set_core_local(Rc::new(Cluster {
            config_servers: options.config_servers.clone(),
            clock,
            databases: Caches::default(),
            collections: Caches::default(),
            planted_fault: options.planted_fault,
            shards: RefCell::default(),
        }));
    }

    /// This core's.
    ///
    /// # Panics
    /// The process is in no cluster.
    pub fn here() -> Rc<Cluster> {
        pinion_runtime::core_local()
    }

    /// The same, if the process is in a cluster.
    pub fn try_here() -> Option<Rc<Cluster>> {
        pinion_runtime::try_core_local()
    }

    /// All components of the cluster's clock, as this process knows them.
    pub fn time(&self) -> VectorTime {
        self.clock.time()
    }

    /// The shards, as they were when they were last read.
    pub fn shards(&self) -> Arc<Shards> {
        self.shards.borrow().clone()
    }

    pub(crate) fn replace_shards(&self, shards: Arc<Shards>) {
        self.shards.replace(shards);
    }

    /// The name of the set of a shard, or of the config servers. A shard that is not known may just
    /// have been added.
    ///
    /// # Errors
    /// `ShardNotFound`; the config servers do not answer.
    pub(crate) async fn set_of(&self, shard: &ShardId) -> Result<String> {
        if *shard == ShardId::CONFIG {
            return Ok(self.config_servers.set.clone());
        }
        let set = || {
            self.shards()
                .get(shard)
                .map(|found| found.string.set.clone())
        };
        if let Some(set) = set() {
            return Ok(set);
        }
        reload_shards().await?;
        set().ok_or_else(|| {
            Error::new(
                ErrorCode::SHARD_NOT_FOUND,
                format!("Shard {shard} not found"),
            )
        })
    }
}
