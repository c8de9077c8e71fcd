//! Logins of connections: as users, and as members of this node's set.
//!
//! Where users are kept is behind a trait, which the process sets on each core: a node reads them
//! from its data.

mod conversation;
mod counts;
mod directory;
mod made_up;

pub(crate) use conversation::not_enabled;
pub use conversation::{
    About, Conversations, Refused, StartRequest, Step, continue_with, conversations, start,
};
pub use counts::{AuthenticationCounts, AuthenticationValues, authentication_counts};
pub use directory::{
    ROLES, USERS, UserDirectory, Users, forget_users, forget_users_here, holds_users,
    is_user_current, log_out, refresh_user, set_user_directory, user_directory,
};
pub use made_up::LoginSecret;
