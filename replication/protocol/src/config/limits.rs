//! Named limits of a configuration; each is MongoDB's.

/// Members of a set.
pub const MAX_MEMBERS: usize = 50;
/// Members that vote.
pub const MAX_VOTERS: usize = 7;
/// The highest `_id` of a member.
pub(super) const MAX_MEMBER_ID: i64 = i32::MAX as i64;
/// The highest version of a configuration.
pub const MAX_VERSION: i64 = i32::MAX as i64;
pub(super) const MAX_PRIORITY: f64 = 1000.0;
/// 366 days.
pub(super) const MAX_DELAY_SECS: i64 = 3600 * 24 * 366;
