//! The user that processes of one set or cluster are to each other, and the keys that prove it.

use crate::key_file::MemberKeys;

/// The user that members are, and the database that it is of.
pub const MEMBER_USER: &str = "__system";
pub const MEMBER_DATABASE: &str = "local";

/// The options of a process about the key file of its set or cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAuth {
    pub keys: MemberKeys,
    /// `--transitionToAuth`: members without a key are served too, and spoken to, while the set is
    /// given one.
    pub is_transition: bool,
}
