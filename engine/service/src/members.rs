//! Membership of this node's set: connections that proved to have a key of the key file, and
//! what they alone may send.
//!
//! Members authenticate as MongoDB's do: by SCRAM-SHA-256, as the user `__system` of the database
//! `local`, whose password is the key. A connection that did not authenticate, or did as a user, is
//! a client, which may do all that is not a member's.

use std::fmt;
use std::rc::Rc;

use pinion_auth::{Hash, ITERATIONS, Secrets};
use pinion_wire::{Error, ErrorCode, Invocation, Result, shown_body};

pub use pinion_auth::{MEMBER_DATABASE, MEMBER_USER, MemberAuth};

use crate::limits::REFUSED_COMMAND_BYTES;

/// Bytes of the salt: MongoDB's.
const SALT_BYTES: usize = 28;

/// The keys of this node's set, and what other members prove to know of them.
#[derive(Clone)]
pub struct MemberAccess {
    pub is_transition: bool,
    salt: [u8; SALT_BYTES],
    /// Of each key.
    secrets: Vec<Secrets>,
}

impl fmt::Debug for MemberAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemberAccess(..)")
    }
}

impl MemberAccess {
    /// Takes some milliseconds for each key: called before the node serves any client.
    pub fn new(auth: &MemberAuth) -> MemberAccess {
        let mut salt = [0; SALT_BYTES];
        pinion_runtime::os_random(&mut salt);
        let derive = |key: &String| Secrets::derive(Hash::Sha256, key, &salt, ITERATIONS);
        MemberAccess {
            is_transition: auth.is_transition,
            secrets: auth.keys.all().iter().map(derive).collect(),
            salt,
        }
    }

    pub(crate) fn salt(&self) -> &[u8] {
        &self.salt
    }

    pub(crate) fn secrets(&self) -> &[Secrets] {
        &self.secrets
    }
}

/// How other members prove to be that; `None` where they have not to.
pub fn member_access() -> Option<Rc<MemberAccess>> {
    pinion_runtime::try_core_local()
}

/// Whether members have to authenticate.
pub fn requires_members() -> bool {
    member_access().is_some_and(|access| !access.is_transition)
}

/// Refuses what only members send to all others, where the set has a key.
///
/// # Errors
/// `Unauthorized`.
pub fn check(cmd: &Invocation) -> Result<()> {
    if !cmd.command.spec.for_members || cmd.ctx.client.is_trusted() || !requires_members() {
        return Ok(());
    }
    Err(refused(cmd))
}

#[cold]
fn refused(cmd: &Invocation) -> Error {
    let body = shown_body(cmd.name(), cmd.body());
    let body = pinion_bson::RawBsonRef::Document(&body);
    let mut command = pinion_query::value_text(body);
    let mut end = command.len().min(REFUSED_COMMAND_BYTES);
    while !command.is_char_boundary(end) {
        end -= 1;
    }
    command.truncate(end);
    Error::new(
        ErrorCode::UNAUTHORIZED,
        format!(
            "not authorized on {} to execute command {command}",
            cmd.db()
        ),
    )
}
