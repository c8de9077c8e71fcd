//! Named limits of a member's state machine; where MongoDB has the limit, it is MongoDB's.

/// A heartbeat that fails is sent again so often before its member counts as down.
pub(super) const MAX_HEARTBEAT_RETRIES: u32 = 2;
/// Until each member was asked so often, heartbeats follow each other faster than the configuration
/// says: the choice of a sync source waits for their pings.
pub(super) const FIRST_HEARTBEATS: u32 = 2;
pub(super) const FIRST_HEARTBEATS_INTERVAL_MS: u64 = 200;
/// When no sync source was found, the search is repeated after this.
pub(super) const SOURCE_RETRY_MS: u64 = 1_000;
/// A position that could not be sent is sent again after this.
pub(super) const POSITION_RETRY_MS: u64 = 1_000;
/// A source that cannot be reached, or whose oplog is empty.
pub(super) const DENY_UNREACHABLE_MS: u64 = 10_000;
/// A source whose oplog does not reach back to this node's end.
pub(super) const DENY_TOO_STALE_MS: u64 = 60_000;
/// A member that lags by more makes `replSetSyncFrom` warn.
pub(super) const SYNC_FROM_WARNING_SECS: u32 = 10;
/// A node whose process is to end does not stand for election again, even if that takes long: as
/// MongoDB's a day.
pub(super) const LEAVES_FOR_MS: u64 = 24 * 60 * 60 * 1000;
/// A configuration that is forced gets a version beyond all that others may have made meanwhile.
pub(super) const FORCED_VERSION_STEP: i64 = 10_000;
pub(super) const FORCED_VERSION_SPREAD: u64 = 100_000;

const _: () = assert!(DENY_UNREACHABLE_MS < DENY_TOO_STALE_MS);

/// What keeps members apart that learn together that the primary is gone: each one stands for
/// election so much later than the one before it by priority, and at a random time of its turn.
/// There are no more turns than these.
pub(super) const STANDING_STEP_MS: u64 = 100;
pub(super) const STANDING_RANKS: usize = 6;

/// A driver that has found a member down looks at it again after so long, unless it misses a
/// primary: `heartbeatFrequencyMS` by default.
pub(super) const DRIVERS_LOOK_MS: u64 = 10_000;

/// For how long a member that would vote for another does not stand itself: so long an election
/// takes on a slow disk.
pub(super) const GIVE_WAY_MS: u64 = 500;

/// So often a primary is asked that is silent for as long as it may be.
pub(super) const PROBES_A_LIMIT: u64 = 3;

/// A member that comes so much too late to its own work, as a part of the silence that it bears,
/// does not trust what it has not heard meanwhile.
pub(super) const STALLS_A_LIMIT: u64 = 6;

/// Another member is not asked again before whether it hears the primary.
pub(super) const RE_ASK_MS: u64 = 20;

/// `electionTimeoutMillis` by default. Under a longer one a primary may be silent for as much
/// longer.
pub(super) const USUAL_ELECTION_TIMEOUT_MS: u64 = 10_000;

const _: () = assert!(PROBES_A_LIMIT >= 2 && STALLS_A_LIMIT > PROBES_A_LIMIT);

/// For how long a new primary waits for every member to report what it has. The reports of a
/// majority are enough afterwards: one that is gone would not do so before its heartbeat times out.
pub(crate) const CATCH_UP_HEARING_MS: u64 = 500;
