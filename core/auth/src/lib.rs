//! Who may do what: SCRAM (RFC 5802, RFC 7677) from both sides, users, roles and privileges, and
//! the keys by which members of a replica set know each other.
//!
//! Nothing here reads a clock, a file or a random number: nonces, salts and the text of a key file
//! are passed in.

mod access_error;
mod action;
mod fields;
mod key_file;
mod member;
mod name;
mod privilege;
mod resolved_user;
mod resource;
mod restriction;
mod role;
mod scram;
mod user;

pub use access_error::{AccessError, AccessErrorCode};
pub use action::{Action, ActionSet};
pub use key_file::{KeyFileError, MAX_KEY_CHARS, MAX_KEYS, MIN_KEY_CHARS, MemberKeys};
pub use member::{MEMBER_DATABASE, MEMBER_USER, MemberAuth};
pub use name::{ADMIN_DATABASE, EXTERNAL_DATABASE, RoleName, UserName};
pub use privilege::{Privilege, Privileges};
pub use resolved_user::ResolvedUser;
pub use resource::{Resource, ResourcePattern, is_system_collection};
pub use restriction::Restrictions;
pub use role::{
    ResolvedRoles, RoleClosure, RoleDefinition, built_in_privileges, built_in_roles,
    check_contained_roles, check_modifiable, check_privileges, is_built_in,
};
pub use scram::{
    Challenge, ClientConversation, ClientFirst, Hash, ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS,
    MIN_STORED_ITERATIONS, SHA1_ITERATIONS, ScramError, Secrets, ServerConversation,
    StoredCredentials, nonce_text, prepared_password,
};
pub use user::{Credentials, UserDefinition, UserId};
