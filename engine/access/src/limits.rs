//! Limits of what is kept of users.

/// Users that a core keeps before it forgets all of them.
pub(crate) const MAX_KNOWN_USERS: usize = 4096;
