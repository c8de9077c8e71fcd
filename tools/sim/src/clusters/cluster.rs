//! What the clients of a cluster, its operator and the run share. All of a simulation is one
//! thread.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;

use super::lives::Lives;
use super::series::Series;
use super::strays::Strays;
use crate::sets::workload::Shared;

/// A replica set of the cluster.
pub struct Set {
    pub name: &'static str,
    pub members: Vec<SocketAddr>,
}

impl Set {
    /// `set/host,host`.
    pub fn string(&self) -> String {
        let hosts: Vec<String> = self.members.iter().map(SocketAddr::to_string).collect();
        format!("{}/{}", self.name, hosts.join(","))
    }
}

/// A database that is dropped and made again on another shard, over and over.
pub struct Place {
    pub db: &'static str,
    pub lives: RefCell<Lives>,
}

/// The whole cluster.
pub struct Cluster {
    pub config: Set,
    pub shards: Vec<Set>,
    pub routers: Vec<SocketAddr>,
    /// Databases that stay on their shards, with what their clients did.
    pub stable: Vec<Rc<Shared>>,
    /// That of writes which are not retryable.
    pub plain: Rc<Shared>,
    /// That of writes which are not retryable, into what moves from shard to shard.
    pub moving: Rc<Shared>,
    pub places: Vec<Place>,
    pub series: Series,
    pub definitions: Definitions,
    /// Documents that every shard has.
    pub strays: Strays,
    /// Documents of databases that a first write made: database and `_id`.
    pub made: RefCell<Vec<(String, i64)>>,
    /// Databases that were put on a shard, and it.
    pub placed: RefCell<Vec<(String, &'static str)>>,
    /// The shards are added, and the stable databases are where they belong.
    pub is_built: Cell<bool>,
    pub verdict: Verdict,
    pub probes: Probes,
}

/// The last check, which is ordered once.
#[derive(Default)]
pub struct Verdict {
    /// The address of a router that has just been started.
    pub wanted: Cell<Option<SocketAddr>>,
    pub done: Cell<bool>,
    /// What does not hold yet.
    pub pending: RefCell<String>,
}

/// Writes of known placement through every router, while they are ordered.
#[derive(Default)]
pub struct Probes {
    pub wanted: Cell<bool>,
    pub is_running: Cell<bool>,
    /// Rounds through all routers and databases that were acknowledged.
    pub rounds: Cell<u64>,
    /// What the last one failed by.
    pub refused: RefCell<String>,
}

/// Definitions that clients have sent.
#[derive(Default)]
pub struct Definitions {
    /// How many were sent.
    pub sent: Cell<u64>,
    /// How many have no outcome yet.
    pub running: Cell<usize>,
    /// How many of these are of the series.
    pub of_series: Cell<usize>,
}

impl Definitions {
    /// Notes that one is sent. It has its outcome when what this returns is dropped.
    pub fn send(&self, is_of_series: bool) -> Definition<'_> {
        self.sent.set(self.sent.get() + 1);
        self.running.set(self.running.get() + 1);
        let of_series = self.of_series.get() + usize::from(is_of_series);
        self.of_series.set(of_series);
        Definition {
            of: self,
            is_of_series,
        }
    }
}

/// A definition without an outcome.
pub struct Definition<'d> {
    of: &'d Definitions,
    is_of_series: bool,
}

impl Drop for Definition<'_> {
    fn drop(&mut self) {
        self.of.running.set(self.of.running.get() - 1);
        let of_series = self.of.of_series.get() - usize::from(self.is_of_series);
        self.of.of_series.set(of_series);
    }
}

impl Cluster {
    /// That by which all clients are paused and stopped, and in which they count.
    pub fn control(&self) -> &Rc<Shared> {
        &self.stable[0]
    }

    /// All that clients of routers share.
    pub fn shared(&self) -> impl Iterator<Item = &Rc<Shared>> {
        self.stable.iter().chain([&self.plain, &self.moving])
    }

    pub fn pause(&self, paused: bool) {
        self.shared().for_each(|shared| shared.paused.set(paused));
    }

    pub fn active(&self) -> usize {
        self.shared().map(|shared| shared.active.get()).sum()
    }

    pub fn fail(&self, problem: String) {
        self.control().fail(problem);
    }

    pub fn count(&self, name: &'static str) {
        self.control().count(name);
    }
}
