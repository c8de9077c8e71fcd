//! What is stored of passwords: which mechanisms they are for, and the credentials that are made.

use pinion_auth::{Credentials, Hash, StoredCredentials, UserName, prepared_password};
use pinion_runtime::os_random;
use pinion_service::compute::offload;
use pinion_service::parameters::parameters;
use pinion_wire::{Error, OpContext, Result};

/// A password that a user is given.
#[derive(Clone)]
pub(crate) struct Password {
    pub text: String,
    /// The client sent a digest in its place.
    pub is_digested: bool,
}

/// The mechanisms that a command names; those that are enabled where it names none.
///
/// # Errors
/// `BadValue`: one that users have no passwords for, or that is not enabled; an empty list.
pub(crate) fn mechanisms_of(named: Option<&[String]>) -> Result<Vec<Hash>> {
    let enabled = parameters().borrow().mechanisms;
    let Some(named) = named else {
        return Ok(enabled.enabled().collect());
    };
    if named.is_empty() {
        return Err(Error::bad_value("mechanisms field must not be empty"));
    }
    let mut mechanisms = Vec::new();
    for name in named {
        let known = [Hash::Sha1, Hash::Sha256];
        let found = known.into_iter().find(|hash| hash.mechanism() == name);
        let hash =
            found.ok_or_else(|| Error::bad_value(format!("Unknown auth mechanism '{name}'")))?;
        if !enabled.has(hash) {
            return Err(Error::bad_value(format!(
                "{name} not supported in authMechanisms"
            )));
        }
        if !mechanisms.contains(&hash) {
            mechanisms.push(hash);
        }
    }
    Ok(mechanisms)
}

/// Credentials by these mechanisms. They cost milliseconds, which a compute thread spends.
///
/// # Errors
/// `BadValue` of a password that a mechanism cannot take; the operation is interrupted.
pub(crate) async fn derive(
    ctx: &OpContext,
    name: &UserName,
    password: &Password,
    mechanisms: &[Hash],
) -> Result<Credentials> {
    let mut wanted = Vec::new();
    for hash in mechanisms {
        let prepared = prepared_password(*hash, &name.user, &password.text, password.is_digested)?;
        let mut salt = vec![0; hash.salt_bytes()];
        os_random(&mut salt);
        let iterations = parameters().borrow().scram_iterations.of(*hash);
        wanted.push((*hash, prepared, salt, iterations));
    }
    let derived = offload(ctx, move |_| {
        let derive = |(hash, password, salt, iterations): (Hash, String, Vec<u8>, u32)| {
            StoredCredentials::derive(hash, &password, &salt, iterations)
        };
        Ok(wanted.into_iter().map(derive).collect::<Vec<_>>())
    });
    let (mut sha1, mut sha256) = (None, None);
    for credentials in derived.await? {
        match credentials.hash() {
            Hash::Sha1 => sha1 = Some(credentials),
            Hash::Sha256 => sha256 = Some(credentials),
        }
    }
    Ok(Credentials::Scram { sha1, sha256 })
}
