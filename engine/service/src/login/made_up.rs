//! The secret of which the credentials of users are made that do not exist.

use pinion_auth::{Hash, StoredCredentials, UserName};

use crate::parameters::parameters;

const SECRET_BYTES: usize = 32;

/// Random, and the same on all cores of a process.
#[derive(Clone)]
pub struct LoginSecret([u8; SECRET_BYTES]);

impl LoginSecret {
    /// A new one.
    pub fn generate() -> LoginSecret {
        let mut secret = [0; SECRET_BYTES];
        pinion_runtime::os_random(&mut secret);
        LoginSecret(secret)
    }
}

/// Credentials that look like a user's and that no proof fits: the same each time, for one user.
pub(super) fn made_up_credentials(hash: Hash, user: &UserName) -> Option<StoredCredentials> {
    let secret = pinion_runtime::try_core_local::<LoginSecret>()?;
    let iterations = parameters().borrow().scram_iterations.of(hash);
    Some(StoredCredentials::made_up(
        hash, &secret.0, user, iterations,
    ))
}
