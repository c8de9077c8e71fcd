//! Named limits of what the nodes of a cluster keep and wait for.

use std::time::Duration;

/// Hosts that a monitor watches, and that a connection string names: more than a replica set has
/// members, as those of an old and of a new configuration can be known at once.
pub const MAX_SET_HOSTS: usize = 128;
/// How often a member is asked for its state, and how long one that streams may wait with its next
/// reply: `heartbeatFrequencyMS`.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
/// The least time between two such requests: `minHeartbeatFrequencyMS`.
pub const EXPEDITED_INTERVAL: Duration = Duration::from_millis(500);
/// How long a member may take to answer one.
pub const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long requests are expedited for a reader that waits for a member, unless it repeats that it
/// waits.
pub const WAIT_LEASE: Duration = Duration::from_secs(1);
/// How much slower than the fastest member one may be and still be chosen: `localThresholdMS`.
pub const LOCAL_THRESHOLD: Duration = Duration::from_millis(15);
/// Round trips of which the least is kept.
pub const RTT_SAMPLES: usize = 10;

/// Ranges of keys that one alternative of a filter may leave. With more the fields behind those
/// that make them are not looked at.
pub const MAX_TARGETED_RANGES: usize = 10_000;

/// Chunks that a collection starts with.
pub const MAX_INITIAL_CHUNKS: u64 = 1_000_000;

/// The name of a sharded collection, behind `config.cache.chunks.`: MongoDB's limit.
pub const MAX_SHARDED_NAMESPACE_BYTES: usize = 235;

const _: () = assert!(EXPEDITED_INTERVAL.as_millis() < HEARTBEAT_INTERVAL.as_millis());
const _: () = assert!(WAIT_LEASE.as_millis() > EXPEDITED_INTERVAL.as_millis());

/// Bytes of what a collection that is being sharded is to be, with its first chunks: they are one
/// document of the definition's state, and one command.
pub const MAX_CREATE_PLAN_BYTES: usize = 12 << 20;

/// Inconsistencies of the metadata that one check reports.
pub const MAX_INCONSISTENCIES: usize = 10_000;
