//! Named limits of opening and closing a node.

use pinion_runtime::Duration;

/// Bytes of the log of starts, as mongod's.
pub(crate) const STARTUP_LOG_BYTES: i64 = 10 << 20;
/// How much of its oplog a member keeps, where it has not noted how much, while it runs as a
/// standalone.
pub(crate) const FIRST_OPLOG_BYTES: u64 = 990 << 20;
/// How often idle cursors and sessions are looked for.
pub(crate) const REAP_INTERVAL: Duration = Duration::from_secs(4);
/// How often operations that hold up the opening of the data directory are asked again to end.
pub(crate) const PARKING_POLL: Duration = Duration::from_millis(10);
