//! The cluster's clocks as this process knows them, and their gossip with the other nodes.
//!
//! Source: sharding document, "The vector clock and causal consistency".

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_clock::{Gossip, SignedTime, Timestamp, VectorClock, VectorTime};
use pinion_wire::idl::{append_cluster_time, parse_cluster_time};

/// The clock of a process of a cluster.
pub trait ClusterClock {
    /// All components, in order.
    fn time(&self) -> VectorTime;

    /// Takes in what another node of the cluster sent, or a client whose time was verified.
    fn learn(&self, gossip: Gossip);
}

/// The clock of a router, which writes nothing: no component ticks by it.
pub struct RouterClock(Arc<VectorClock>);

impl RouterClock {
    /// One core's handle of a clock whose words all cores share.
    pub fn new(words: Arc<VectorClock>) -> RouterClock {
        RouterClock(words)
    }
}

impl ClusterClock for RouterClock {
    fn time(&self) -> VectorTime {
        self.0.snapshot(|| Timestamp::MIN)
    }

    fn learn(&self, gossip: Gossip) {
        // A node of the cluster is believed, whatever this machine's clock says.
        let learned = self
            .0
            .advance(gossip, || Timestamp::MIN, u32::MAX, u32::MAX);
        if let Err(error) = learned {
            tracing::warn!(target: "SHARDING", id = 7_300_001u64, error = %error, "Times of another node are passed over");
        }
    }
}

/// Appends what this process knows of the clocks to a request that goes to a node of the cluster.
/// Those trust each other, so the cluster time has no signature.
pub(crate) fn append_gossip(out: &mut DocBuilder, clock: &dyn ClusterClock) {
    let time = clock.time();
    if !time.cluster().is_null() {
        append_cluster_time(out, &SignedTime::unsigned(time.cluster()));
    }
    for (name, component) in [
        ("$configTime", time.config()),
        ("$topologyTime", time.topology()),
    ] {
        if !component.is_null() {
            out.append(name, bson_time(component));
        }
    }
}

/// Takes in what a reply says of the clocks. Gives its `operationTime`.
pub(crate) fn learn_from(clock: &dyn ClusterClock, reply: &RawDocument) -> Option<Timestamp> {
    let time = |name| match pinion_bson::get(reply, name) {
        Some(RawBsonRef::Timestamp(time)) => Some(Timestamp::new(time.time, time.increment)),
        _ => None,
    };
    let cluster = match pinion_bson::get(reply, "$clusterTime") {
        Some(RawBsonRef::Document(document)) => parse_cluster_time(document).ok(),
        _ => None,
    };
    let (config, topology) = (time("$configTime"), time("$topologyTime"));
    let config = config.max(topology);
    let gossip = Gossip {
        cluster: cluster.map(|signed| signed.time).max(config),
        config,
        topology,
    };
    if gossip.cluster.is_some() {
        clock.learn(gossip);
    }
    time("operationTime")
}

/// A time as BSON has it.
pub(crate) fn bson_time(time: Timestamp) -> RawBsonRef<'static> {
    RawBsonRef::Timestamp(pinion_bson::Timestamp {
        time: time.secs(),
        increment: time.inc(),
    })
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    fn at(secs: u32) -> pinion_bson::Timestamp {
        pinion_bson::Timestamp {
            time: secs,
            increment: 1,
        }
    }

    #[track_caller]
    fn check(clock: &RouterClock, cluster: u32, config: u32, topology: u32) {
        let expected = [cluster, config, topology].map(|secs| match secs {
            0 => Timestamp::MIN,
            secs => Timestamp::new(secs, 1),
        });
        let time = clock.time();
        assert_eq!([time.cluster(), time.config(), time.topology()], expected);
    }

    #[test]
    fn times_travel_both_ways() {
        let clock = RouterClock::new(Arc::default());
        let mut nothing = DocBuilder::new();
        append_gossip(&mut nothing, &clock);
        assert!(nothing.is_empty());
        let reply = rawdoc! {
            "ok": 1.0,
            "$clusterTime": { "clusterTime": at(7) },
            "operationTime": at(6),
            "$configTime": at(5),
            "$topologyTime": at(4),
        };
        assert_eq!(learn_from(&clock, &reply), Some(Timestamp::new(6, 1)));
        check(&clock, 7, 5, 4);
        // What is older changes nothing; a component alone raises those above it.
        learn_from(&clock, &rawdoc! { "$configTime": at(9) });
        learn_from(&clock, &rawdoc! { "$configTime": at(2) });
        check(&clock, 9, 9, 4);
        learn_from(&clock, &rawdoc! { "$topologyTime": at(11) });
        check(&clock, 11, 11, 11);
        let mut sent = DocBuilder::new();
        append_gossip(&mut sent, &clock);
        let other = RouterClock::new(Arc::default());
        learn_from(&other, &sent.finish());
        check(&other, 11, 11, 11);
    }
}
