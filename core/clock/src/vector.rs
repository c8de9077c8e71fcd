//! The vector clock: cluster, config and topology time, of which one snapshot is always consistent.
//!
//! Source: sharding document, "The vector clock and causal consistency".

use std::fmt;

use crate::timestamp::Timestamp;
use crate::words::{AtomicU64, Ordering};

/// How far ahead of the wall clock a gossiped time may lie: MongoDB's
/// `maxAcceptableLogicalClockDriftSecs`, one year.
pub const DEFAULT_MAX_DRIFT_SECS: u32 = 365 * 24 * 60 * 60;

/// The highest time a clock may reach: both halves as signed 32-bit numbers, which is what every
/// client can hold.
pub const MAX_CLUSTER_TIME: Timestamp = Timestamp::new(i32::MAX as u32, i32::MAX as u32);

/// One consistent reading of the three components: cluster >= config >= topology.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorTime {
    cluster: Timestamp,
    config: Timestamp,
    topology: Timestamp,
}

impl VectorTime {
    /// `None` if the components are not in order.
    pub fn new(cluster: Timestamp, config: Timestamp, topology: Timestamp) -> Option<VectorTime> {
        (cluster >= config && config >= topology).then_some(VectorTime {
            cluster,
            config,
            topology,
        })
    }

    /// Tracks user data: the time of the latest write known here.
    pub fn cluster(&self) -> Timestamp {
        self.cluster
    }

    /// Tracks the sharding catalog: the majority commit point of the config servers.
    pub fn config(&self) -> Timestamp {
        self.config
    }

    /// Tracks the set of shards.
    pub fn topology(&self) -> Timestamp {
        self.topology
    }
}

/// Times learned from another node. Clients and plain replica sets send the cluster time alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gossip {
    pub cluster: Option<Timestamp>,
    pub config: Option<Timestamp>,
    pub topology: Option<Timestamp>,
}

/// Why a clock refuses times from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdvanceError {
    /// Further ahead of the wall clock than the drift limit allows (ClusterTimeFailsRateLimiter).
    TooFarAhead { time: Timestamp, now_secs: u32 },
    /// Past `MAX_CLUSTER_TIME`, after which no write could be ordered.
    BeyondMaximum { time: Timestamp },
    /// The components would break cluster >= config >= topology.
    OutOfOrder {
        cluster: Timestamp,
        config: Timestamp,
        topology: Timestamp,
    },
}

impl fmt::Display for AdvanceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdvanceError::TooFarAhead { time, now_secs } => write!(
                f,
                "New cluster time, {}, is too far from this node's wall clock time, {now_secs}.",
                time.secs()
            ),
            AdvanceError::BeyondMaximum { time } => {
                write!(
                    f,
                    "cluster time cannot be advanced beyond its maximum value: {time}"
                )
            }
            AdvanceError::OutOfOrder {
                cluster,
                config,
                topology,
            } => write!(
                f,
                "vector clock out of order: cluster {cluster}, config {config}, topology {topology}"
            ),
        }
    }
}

impl std::error::Error for AdvanceError {}

/// Refuses a cluster time from outside that would take a clock too far: past its maximum, or
/// further ahead of the wall clock than `max_drift_secs`.
///
/// # Errors
/// [`AdvanceError::BeyondMaximum`] and [`AdvanceError::TooFarAhead`].
pub fn check_advance(
    time: Timestamp,
    now_secs: u32,
    max_drift_secs: u32,
) -> Result<(), AdvanceError> {
    if time > MAX_CLUSTER_TIME {
        return Err(AdvanceError::BeyondMaximum { time });
    }
    if time.secs().saturating_sub(now_secs) > max_drift_secs {
        return Err(AdvanceError::TooFarAhead { time, now_secs });
    }
    Ok(())
}

/// The clock of one node: words that all its cores share. No component ever goes back.
///
/// The cluster word holds what was heard of. A node allots times too, from a sequencer of its own:
/// the last of them is given where all components are read. A router has none.
///
/// There is no lock. Writers raise the cluster component first, then config, then topology; readers
/// read topology first, then config, then cluster. So every reading has them in order, whatever is
/// raised meanwhile.
#[derive(Debug)]
pub struct VectorClock {
    cluster: AtomicU64,
    config: AtomicU64,
    topology: AtomicU64,
}

impl Default for VectorClock {
    fn default() -> VectorClock {
        VectorClock::new()
    }
}

fn read(word: &AtomicU64) -> Timestamp {
    Timestamp::from_u64(word.load(Ordering::SeqCst))
}

fn raise(word: &AtomicU64, to: Timestamp) {
    word.fetch_max(to.as_u64(), Ordering::SeqCst);
}

impl VectorClock {
    /// A clock at zero.
    pub fn new() -> VectorClock {
        VectorClock {
            cluster: AtomicU64::new(0),
            config: AtomicU64::new(0),
            topology: AtomicU64::new(0),
        }
    }

    /// The highest cluster time heard of.
    pub fn heard(&self) -> Timestamp {
        read(&self.cluster)
    }

    /// All components, in order; the last time allotted is looked up last. Keep it in a variable:
    /// components of two snapshots need not be in order.
    pub fn snapshot(&self, last_allotted: impl FnOnce() -> Timestamp) -> VectorTime {
        let topology = read(&self.topology);
        let config = read(&self.config);
        let cluster = self.heard().max(last_allotted());
        let time = VectorTime::new(cluster, config, topology);
        time.expect("a component is raised after those that lie above it")
    }

    /// Raises the cluster time to one that was allotted elsewhere.
    pub fn tick_cluster_to(&self, time: Timestamp) {
        raise(&self.cluster, time);
    }

    /// Raises the config time to the config servers' majority commit point, and the cluster time
    /// with it.
    pub fn tick_config_to(&self, commit_point: Timestamp) {
        raise(&self.cluster, commit_point);
        raise(&self.config, commit_point);
    }

    /// Raises the topology time to the config time of the write that added or removed a shard, and
    /// the others with it.
    pub fn tick_topology_to(&self, config_time: Timestamp) {
        self.tick_config_to(config_time);
        raise(&self.topology, config_time);
    }

    /// Learns times from another node: all of them or, on error, none. Signatures are checked
    /// before. `max_drift_secs` is how far ahead of the wall clock they may be.
    ///
    /// # Errors
    /// `BeyondMaximum` or `TooFarAhead` for a cluster time that is news; `OutOfOrder` if the result
    /// is not in order.
    pub fn advance(
        &self,
        gossip: Gossip,
        last_allotted: impl FnOnce() -> Timestamp,
        now_secs: u32,
        max_drift_secs: u32,
    ) -> Result<(), AdvanceError> {
        let known = self.snapshot(last_allotted);
        let learned =
            |known: Timestamp, sent: Option<Timestamp>| sent.map_or(known, |sent| sent.max(known));
        let cluster = learned(known.cluster, gossip.cluster);
        let config = learned(known.config, gossip.config);
        let topology = learned(known.topology, gossip.topology);
        if cluster > known.cluster {
            check_advance(cluster, now_secs, max_drift_secs)?;
        }
        if VectorTime::new(cluster, config, topology).is_none() {
            return Err(AdvanceError::OutOfOrder {
                cluster,
                config,
                topology,
            });
        }
        // The last time allotted may be above what was heard of, and a component at it. A reader
        // without the sequencer finds the cluster time there all the same.
        if cluster > known.cluster || config > known.config {
            raise(&self.cluster, gossip.cluster.unwrap_or(config).max(config));
        }
        raise(&self.config, config);
        raise(&self.topology, topology);
        Ok(())
    }
}
