//! Named limits of a member's state machine; where MongoDB has the limit, it is MongoDB's.

/// A heartbeat that fails is sent again so often before its member counts as down.
pub(super) const MAX_HEARTBEAT_RETRIES: u32 = 2;
/// Until each member was asked so often, heartbeats follow each other faster than the configuration says: the choice of a sync
/// source waits for their pings.
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
/// A configuration that is forced gets a version beyond all that others may have made meanwhile.
pub(super) const FORCED_VERSION_STEP: i64 = 10_000;
pub(super) const FORCED_VERSION_SPREAD: u64 = 100_000;

const _: () = assert!(DENY_UNREACHABLE_MS < DENY_TOO_STALE_MS);

/// How long at most a member waits before it stands for election when it knows that the primary is gone: as long as that
/// keeps apart those who have noticed together.
pub(crate) const SUSPICION_MS: u64 = 200;

/// For how long a new primary waits for every member to tell what it has. That a majority has told it is enough afterwards:
/// one that is gone would not do so before its heartbeat times out.
pub(crate) const CATCH_UP_HEARING_MS: u64 = 500;
