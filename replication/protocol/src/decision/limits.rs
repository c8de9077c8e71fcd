//! Named limits of the decisions; each is MongoDB's.

use crate::config::MAX_MEMBERS;

/// How far behind the primary a sync source may be while another one is there
/// (`maxSyncSourceLagSecs`).
pub const MAX_SYNC_SOURCE_LAG_SECS: u32 = 30;
/// The random part of an election timeout, of the whole (`replElectionTimeoutOffsetLimitFraction`).
pub const ELECTION_OFFSET_FRACTION: f64 = 0.15;
/// Heartbeats of each other member that are waited for before pings are compared.
pub(super) const PINGS_PER_MEMBER: u64 = 2;
/// Hosts that are kept away from. A configuration has no more.
pub(super) const MAX_DENIED: usize = MAX_MEMBERS;
