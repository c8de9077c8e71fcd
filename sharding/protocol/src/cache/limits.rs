//! How often a refresh is tried.

/// How often a refresh that failed is tried again before the old information is returned, or the
/// error where a shard has refused that.
pub const MAX_REFRESH_RETRIES: u32 = 2;
