//! The vector clock: cluster, config and topology time, of which one snapshot is always consistent.
//!
//! Source: sharding document, "The vector clock and causal consistency".

use std::fmt;

use crate::timestamp::Timestamp;

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

/// The clock of one node. Ticking is this node's own doing; advancing is learning from others. No
/// component ever goes back.
#[derive(Clone, Debug)]
pub struct VectorClock {
    time: VectorTime,
    max_drift_secs: u32,
}

impl Default for VectorClock {
    fn default() -> VectorClock {
        VectorClock::new(DEFAULT_MAX_DRIFT_SECS)
    }
}

impl VectorClock {
    /// A clock at zero. `max_drift_secs` is how far ahead of the wall clock gossip may be.
    pub fn new(max_drift_secs: u32) -> VectorClock {
        VectorClock {
            time: VectorTime::default(),
            max_drift_secs,
        }
    }

    /// A clock that continues where it was stored.
    pub fn restored(time: VectorTime, max_drift_secs: u32) -> VectorClock {
        VectorClock {
            time,
            max_drift_secs,
        }
    }

    /// All components as of one instant. Keep it in a variable: components of two snapshots need
    /// not be in order.
    pub fn snapshot(&self) -> VectorTime {
        self.time
    }

    /// Ticks the cluster time for `n` writes and gives the first of their `n` consecutive times:
    /// right after the latest known, or the first of the wall clock's second if that is later.
    ///
    /// # Panics
    /// If `n` is zero, or the clock would pass its maximum, which the drift limit keeps decades
    /// away.
    pub fn tick_cluster(&mut self, n: u32, now_secs: u32) -> Timestamp {
        assert!(n > 0, "a tick allots at least one time");
        let first = self.time.cluster.next().max(Timestamp::new(now_secs, 1));
        let last = first.plus(u64::from(n) - 1);
        assert!(
            last <= MAX_CLUSTER_TIME,
            "the cluster time is at its end: {last}"
        );
        self.time.cluster = last;
        self.checked();
        first
    }

    /// Raises the cluster time to a time allotted elsewhere in the node (the sequencer).
    pub fn tick_cluster_to(&mut self, time: Timestamp) {
        self.time.cluster = self.time.cluster.max(time);
        self.checked();
    }

    /// Raises the config time to the config servers' majority commit point.
    ///
    /// # Panics
    /// If it is above the cluster time: a commit point is the time of a write that was ticked
    /// before.
    pub fn tick_config_to(&mut self, commit_point: Timestamp) {
        assert!(
            commit_point <= self.time.cluster,
            "the config time lags the cluster time"
        );
        self.time.config = self.time.config.max(commit_point);
        self.checked();
    }

    /// Raises the topology time to the config time of the write that added or removed a shard.
    ///
    /// # Panics
    /// If it is above the config time.
    pub fn tick_topology_to(&mut self, config_time: Timestamp) {
        assert!(
            config_time <= self.time.config,
            "the topology time lags the config time"
        );
        self.time.topology = self.time.topology.max(config_time);
        self.checked();
    }

    /// Learns times from another node: all of them or, on error, none. Signatures are checked
    /// before.
    pub fn advance(&mut self, gossip: Gossip, now_secs: u32) -> Result<(), AdvanceError> {
        let learned =
            |known: Timestamp, sent: Option<Timestamp>| sent.map_or(known, |sent| sent.max(known));
        let cluster = learned(self.time.cluster, gossip.cluster);
        let config = learned(self.time.config, gossip.config);
        let topology = learned(self.time.topology, gossip.topology);
        if cluster > self.time.cluster {
            check_advance(cluster, now_secs, self.max_drift_secs)?;
        }
        match VectorTime::new(cluster, config, topology) {
            Some(time) => {
                self.time = time;
                Ok(())
            }
            None => Err(AdvanceError::OutOfOrder {
                cluster,
                config,
                topology,
            }),
        }
    }

    fn checked(&self) {
        let VectorTime {
            cluster,
            config,
            topology,
        } = self.time;
        assert!(
            cluster >= config && config >= topology,
            "vector clock out of order: {:?}",
            self.time
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u32 = 1_700_000_000;

    fn at(secs: u32, inc: u32) -> Timestamp {
        Timestamp::new(secs, inc)
    }

    #[test]
    fn ticking() {
        let mut clock = VectorClock::default();
        assert_eq!(clock.tick_cluster(1, NOW), at(NOW, 1));
        assert_eq!(clock.tick_cluster(3, NOW), at(NOW, 2));
        assert_eq!(clock.tick_cluster(1, NOW), at(NOW, 5));
        // A wall clock that goes back changes nothing.
        assert_eq!(clock.tick_cluster(1, NOW - 100), at(NOW, 6));
        assert_eq!(clock.tick_cluster(2, NOW + 1), at(NOW + 1, 1));
        assert_eq!(clock.snapshot().cluster(), at(NOW + 1, 2));
    }

    #[test]
    fn advancing_is_limited() {
        let mut clock = VectorClock::new(10);
        let cluster = |time| Gossip {
            cluster: Some(time),
            ..Gossip::default()
        };
        assert_eq!(clock.advance(cluster(at(NOW + 10, 7)), NOW), Ok(()));
        let far = at(NOW + 11, 0);
        assert_eq!(
            clock.advance(cluster(far), NOW),
            Err(AdvanceError::TooFarAhead {
                time: far,
                now_secs: NOW
            })
        );
        let end = at(u32::MAX, u32::MAX);
        assert_eq!(
            clock.advance(cluster(end), NOW),
            Err(AdvanceError::BeyondMaximum { time: end })
        );
        assert_eq!(clock.snapshot().cluster(), at(NOW + 10, 7));
        // What is not ahead of the clock is no news, whatever the wall clock says.
        assert_eq!(clock.advance(cluster(at(NOW + 5, 0)), 0), Ok(()));
        assert_eq!(clock.tick_cluster(1, NOW), at(NOW + 10, 8));
    }

    #[test]
    fn order_is_kept_or_the_gossip_refused() {
        let mut clock = VectorClock::default();
        clock.tick_cluster(5, NOW);
        clock.tick_config_to(at(NOW, 3));
        clock.tick_topology_to(at(NOW, 2));
        let before = clock.snapshot();
        let gossip = Gossip {
            config: Some(at(NOW, 9)),
            ..Gossip::default()
        };
        assert!(matches!(
            clock.advance(gossip, NOW),
            Err(AdvanceError::OutOfOrder { .. })
        ));
        assert_eq!(clock.snapshot(), before);
        let gossip = Gossip {
            cluster: Some(at(NOW, 9)),
            config: Some(at(NOW, 9)),
            topology: None,
        };
        assert_eq!(clock.advance(gossip, NOW), Ok(()));
        assert_eq!(clock.snapshot().config(), at(NOW, 9));
    }

    #[test]
    #[should_panic(expected = "lags")]
    fn config_time_lags_cluster_time() {
        VectorClock::default().tick_config_to(at(1, 1));
    }

    /// Random ticks, gossip and snapshots: the order holds, nothing goes back, a refusal changes
    /// nothing, and every allotted time is new.
    #[test]
    fn random_walks() {
        for seed in 1..200u64 {
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut next = |below: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % below
            };
            let mut clock = VectorClock::new(20);
            let mut highest = Timestamp::MIN;
            for _ in 0..300 {
                let now = NOW + next(40) as u32;
                let before = clock.snapshot();
                let near = |n: u64| Timestamp::new(now - 20 + (n % 60) as u32, (n / 60 % 5) as u32);
                match next(5) {
                    0 => {
                        let n = next(4) as u32 + 1;
                        let first = clock.tick_cluster(n, now);
                        assert!(first > highest && first > before.cluster());
                        highest = first.plus(u64::from(n) - 1);
                        assert_eq!(clock.snapshot().cluster(), highest);
                    }
                    1 => clock.tick_config_to(near(next(300)).min(before.cluster())),
                    2 => clock.tick_topology_to(near(next(300)).min(before.config())),
                    _ => {
                        let mut pick = || (next(3) > 0).then(|| near(next(300)));
                        let gossip = Gossip {
                            cluster: pick(),
                            config: pick(),
                            topology: pick(),
                        };
                        if clock.advance(gossip, now).is_err() {
                            assert_eq!(clock.snapshot(), before);
                        } else {
                            assert!(Some(clock.snapshot().cluster()) >= gossip.cluster);
                        }
                        highest = highest.max(clock.snapshot().cluster());
                    }
                }
                let after = clock.snapshot();
                assert!(after.cluster() >= after.config() && after.config() >= after.topology());
                assert!(after.cluster() >= before.cluster());
                assert!(after.config() >= before.config() && after.topology() >= before.topology());
            }
        }
    }
}
