//! What is stored of a user's password, and what stands in for it where there is no such user.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest, Md5};
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, get};

use super::{Hash, MAX_ITERATIONS, Secrets};
use crate::access_error::{AccessError, AccessErrorCode};

/// MongoDB's `scramIterationCount`: iterations of new credentials by SCRAM-SHA-1.
pub const SHA1_ITERATIONS: u32 = 10_000;
/// The fewest that `scramIterationCount` and `scramSHA256IterationCount` may be set to.
pub const MIN_STORED_ITERATIONS: u32 = 5000;

impl Hash {
    /// Bytes of the salt of new credentials: those of a digest, less four for the number of the
    /// block that is hashed with it.
    pub const fn salt_bytes(self) -> usize {
        match self {
            Self::Sha1 => 16,
            Self::Sha256 => 28,
        }
    }

    const fn digest_bytes(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha256 => 32,
        }
    }
}

/// What a server keeps of a password for one mechanism: enough to check a proof, not to make one.
/// It never shows in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredCredentials {
    pub(super) hash: Hash,
    pub(super) iterations: u32,
    pub(super) salt: Vec<u8>,
    pub(super) stored_key: Vec<u8>,
    pub(super) server_key: Vec<u8>,
    /// No proof fits, whatever it is.
    pub(super) is_made_up: bool,
}

impl fmt::Debug for StoredCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredCredentials(..)")
    }
}

/// A password as the mechanism hashes it: of SCRAM-SHA-1 the digest that MongoDB defines, of
/// SCRAM-SHA-256 the text prepared by SASLprep (RFC 4013).
///
/// `is_digested`: the client sent the digest instead of the password (`digestPassword: false`).
///
/// # Errors
/// `BadValue`: the password is empty, has characters that SASLprep prohibits, or is a digest where
/// the mechanism needs the password.
pub fn prepared_password(
    hash: Hash,
    user: &str,
    password: &str,
    is_digested: bool,
) -> Result<String, AccessError> {
    if password.is_empty() {
        return Err(AccessError::bad_value("Password cannot be empty"));
    }
    match hash {
        Hash::Sha1 if is_digested => Ok(password.to_owned()),
        Hash::Sha1 => {
            let digest = Md5::digest(format!("{user}:mongo:{password}"));
            Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
        }
        Hash::Sha256 if is_digested => Err(AccessError::bad_value(
            "Use of SCRAM-SHA-256 requires undigested passwords",
        )),
        Hash::Sha256 => match stringprep::saslprep(password) {
            Ok(prepared) => Ok(prepared.into_owned()),
            Err(error) => Err(AccessError::bad_value(format!(
                "Error preparing password with SASLprep: {error}"
            ))),
        },
    }
}

impl StoredCredentials {
    /// Derives them, which takes as long as `Secrets::derive`: not on a core that has others to
    /// serve. `password` is prepared; `salt` is random and of `Hash::salt_bytes` bytes.
    ///
    /// # Panics
    /// If the salt has another length, or the iterations are out of bounds.
    pub fn derive(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> StoredCredentials {
        assert_eq!(salt.len(), hash.salt_bytes(), "bytes of the salt");
        assert!((1..=MAX_ITERATIONS).contains(&iterations), "iterations");
        let secrets = Secrets::derive(hash, password, salt, iterations);
        StoredCredentials {
            hash,
            iterations,
            salt: salt.to_vec(),
            stored_key: secrets.stored_key,
            server_key: secrets.server_key,
            is_made_up: false,
        }
    }

    /// Credentials of a user that does not exist. They are the same each time for one secret, so
    /// that a client cannot find out by asking twice; no proof fits them.
    ///
    /// `secret` is random and known to this server alone, or to its whole cluster. Takes a few
    /// microseconds; make them for users that exist too, so that both take the same time.
    pub fn made_up(
        hash: Hash,
        secret: &[u8],
        user: &crate::UserName,
        iterations: u32,
    ) -> StoredCredentials {
        let derived = |label: &str, bytes: usize| {
            let message = format!("{label}\0{}\0{}", user.db, user.user);
            let mut derived = Hash::Sha256.hmac(secret, message.as_bytes());
            derived.truncate(bytes);
            derived
        };
        StoredCredentials {
            hash,
            iterations,
            salt: derived("salt", hash.salt_bytes()),
            stored_key: derived("storedKey", hash.digest_bytes()),
            server_key: derived("serverKey", hash.digest_bytes()),
            is_made_up: true,
        }
    }

    /// The hash of their mechanism.
    pub fn hash(&self) -> Hash {
        self.hash
    }

    /// Whether this is the password that they were derived from, prepared. Takes as long as
    /// deriving them.
    pub fn fits(&self, password: &str) -> bool {
        let secrets = Secrets::derive(self.hash, password, &self.salt, self.iterations);
        let is_it = super::same(&secrets.stored_key, &self.stored_key);
        is_it && !self.is_made_up
    }

    /// Reads `{iterationCount, salt, storedKey, serverKey}` of a stored user.
    ///
    /// # Errors
    /// `UnsupportedFormat`.
    pub fn parse(hash: Hash, document: &RawDocument) -> Result<StoredCredentials, AccessError> {
        let broken = |field: &str| {
            let mechanism = hash.mechanism();
            AccessError::new(
                AccessErrorCode::UnsupportedFormat,
                format!("{mechanism} credential has no valid field '{field}'"),
            )
        };
        let iterations = match get(document, "iterationCount") {
            Some(RawBsonRef::Int32(count)) => u32::try_from(count).ok(),
            Some(RawBsonRef::Int64(count)) => u32::try_from(count).ok(),
            // A shell stores numbers so.
            Some(RawBsonRef::Double(count)) if count.fract() == 0.0 => Some(count as u32),
            _ => None,
        };
        let iterations = iterations.filter(|count| (1..=MAX_ITERATIONS).contains(count));
        let bytes = |field: &str, is_fitting: &dyn Fn(usize) -> bool| {
            let text = match get(document, field) {
                Some(RawBsonRef::String(text)) => text,
                _ => return Err(broken(field)),
            };
            let bytes = STANDARD.decode(text).map_err(|_| broken(field))?;
            if is_fitting(bytes.len()) {
                Ok(bytes)
            } else {
                Err(broken(field))
            }
        };
        let is_digest = |length: usize| length == hash.digest_bytes();
        Ok(StoredCredentials {
            hash,
            iterations: iterations.ok_or_else(|| broken("iterationCount"))?,
            salt: bytes("salt", &|length| length > 0)?,
            stored_key: bytes("storedKey", &is_digest)?,
            server_key: bytes("serverKey", &is_digest)?,
            is_made_up: false,
        })
    }

    /// Writes them into the document that is open, under the mechanism's name.
    ///
    /// # Panics
    /// If they are made up: those are not to be stored.
    pub fn append_to(&self, out: &mut DocBuilder) {
        assert!(!self.is_made_up, "credentials of a user");
        out.start_document(self.hash.mechanism())
            .append("iterationCount", self.iterations as i32)
            .append("salt", &*STANDARD.encode(&self.salt))
            .append("storedKey", &*STANDARD.encode(&self.stored_key))
            .append("serverKey", &*STANDARD.encode(&self.server_key))
            .end();
    }
}

const _: () = assert!(MAX_ITERATIONS <= i32::MAX as u32);
const _: () = assert!(MIN_STORED_ITERATIONS <= SHA1_ITERATIONS);
const _: () = assert!(super::MIN_ITERATIONS <= MIN_STORED_ITERATIONS);

#[cfg(test)]
mod tests {
    use pinion_bson::{RawDocumentBuf, rawdoc};

    use super::*;
    use crate::UserName;

    #[test]
    fn passwords_are_prepared() {
        let check = |hash, password: &str, is_digested, expected: Result<&str, &str>| {
            let prepared = prepared_password(hash, "user", password, is_digested);
            let prepared = prepared.map_err(|error| error.message);
            assert_eq!(prepared, expected.map(str::to_owned).map_err(str::to_owned));
        };
        // The example of the drivers' specification of authentication.
        check(
            Hash::Sha1,
            "pencil",
            false,
            Ok("1c33006ec1ffd90f9cadcbcc0e118200"),
        );
        check(Hash::Sha1, "1c33", true, Ok("1c33"));
        check(Hash::Sha256, "pencil", false, Ok("pencil"));
        // RFC 4013, section 3.
        check(Hash::Sha256, "I\u{ad}X", false, Ok("IX"));
        check(Hash::Sha256, "\u{aa}", false, Ok("a"));
        check(Hash::Sha256, "\u{2168}", false, Ok("IX"));
        let undigested = "Use of SCRAM-SHA-256 requires undigested passwords";
        check(Hash::Sha256, "1c33", true, Err(undigested));
        check(Hash::Sha1, "", false, Err("Password cannot be empty"));
        check(Hash::Sha256, "", false, Err("Password cannot be empty"));
        for prohibited in ["\u{7}", "\u{627}\u{31}"] {
            let error = prepared_password(Hash::Sha256, "user", prohibited, false).unwrap_err();
            assert_eq!(error.code, AccessErrorCode::BadValue, "{prohibited:?}");
        }
    }

    fn derived(hash: Hash) -> StoredCredentials {
        StoredCredentials::derive(hash, "pencil", &vec![7; hash.salt_bytes()], 50)
    }

    #[test]
    fn credentials_are_written_and_read() {
        for hash in [Hash::Sha1, Hash::Sha256] {
            let credentials = derived(hash);
            let mut out = DocBuilder::new();
            credentials.append_to(&mut out);
            let written = out.finish();
            let document = written.get_document(hash.mechanism()).unwrap();
            assert_eq!(
                StoredCredentials::parse(hash, document),
                Ok(credentials.clone())
            );
            assert!(credentials.fits("pencil") && !credentials.fits("pen"));
        }
        assert_eq!(
            format!("{:?}", derived(Hash::Sha1)),
            "StoredCredentials(..)"
        );
    }

    #[test]
    fn broken_credentials_are_refused() {
        let good = rawdoc! {
            "iterationCount": 15000,
            "salt": STANDARD.encode([1; 28]),
            "storedKey": STANDARD.encode([2; 32]),
            "serverKey": STANDARD.encode([3; 32]),
        };
        let with = |field: &str, value: Option<RawBsonRef<'_>>| -> RawDocumentBuf {
            let mut out = DocBuilder::new();
            for (name, known) in pinion_bson::elements(&good) {
                match value {
                    _ if name != field => out.append(name, known),
                    Some(value) => out.append(name, value),
                    None => &mut out,
                };
            }
            out.finish()
        };
        let check = |field: &str, value: Option<RawBsonRef<'_>>, is_good: bool| {
            let read = StoredCredentials::parse(Hash::Sha256, &with(field, value));
            let expected = format!("SCRAM-SHA-256 credential has no valid field '{field}'");
            match read {
                Ok(_) => assert!(is_good, "{field} {value:?}"),
                Err(error) => {
                    assert!(!is_good, "{field} {value:?}");
                    assert_eq!(error.code, AccessErrorCode::UnsupportedFormat);
                    assert_eq!(error.message, expected);
                }
            }
        };
        let short = STANDARD.encode([2; 20]);
        for field in ["salt", "storedKey", "serverKey"] {
            check(field, None, false);
            check(field, Some(RawBsonRef::Int32(1)), false);
            check(field, Some(RawBsonRef::String("?")), false);
            check(field, Some(RawBsonRef::String("")), false);
            check(field, Some(RawBsonRef::String(&short)), field == "salt");
        }
        check("iterationCount", None, false);
        check("iterationCount", Some(RawBsonRef::Int32(-1)), false);
        check("iterationCount", Some(RawBsonRef::Int32(0)), false);
        check("iterationCount", Some(RawBsonRef::Int32(i32::MAX)), false);
        check("iterationCount", Some(RawBsonRef::Double(f64::NAN)), false);
        check("iterationCount", Some(RawBsonRef::Double(1.5)), false);
        check("iterationCount", Some(RawBsonRef::Double(5000.0)), true);
        check("iterationCount", Some(RawBsonRef::Int64(5000)), true);
        // Those of the other mechanism are none of this one.
        StoredCredentials::parse(Hash::Sha1, &good).unwrap_err();
    }

    #[test]
    fn made_up_credentials_are_stable_and_of_one_user() {
        let made_up = |hash, secret: &[u8], user: &str, db: &str| {
            StoredCredentials::made_up(hash, secret, &UserName::new(user, db), 15_000)
        };
        for hash in [Hash::Sha1, Hash::Sha256] {
            let one = made_up(hash, b"secret", "u", "d");
            assert_eq!(one, made_up(hash, b"secret", "u", "d"));
            assert_eq!(one.salt.len(), hash.salt_bytes());
            let others = [
                made_up(hash, b"other", "u", "d"),
                made_up(hash, b"secret", "v", "d"),
                made_up(hash, b"secret", "u", "e"),
            ];
            assert!(others.iter().all(|other| other.salt != one.salt));
        }
    }
}
