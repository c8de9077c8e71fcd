//! What is made of a password: the keys that both sides prove to have.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The hash of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha1,
    Sha256,
}

impl Hash {
    /// The mechanism's name.
    pub fn mechanism(self) -> &'static str {
        match self {
            Self::Sha1 => "SCRAM-SHA-1",
            Self::Sha256 => "SCRAM-SHA-256",
        }
    }

    pub(super) fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(data).to_vec(),
            Self::Sha256 => Sha256::digest(data).to_vec(),
        }
    }

    pub(super) fn hmac(self, key: &[u8], data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => mac_of::<Hmac<Sha1>>(&keyed(key), data),
            Self::Sha256 => mac_of::<Hmac<Sha256>>(&keyed(key), data),
        }
    }

    /// RFC 5802's `Hi`: PBKDF2 with one block.
    fn stretch(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        match self {
            Self::Sha1 => stretch::<Hmac<Sha1>>(&keyed(password), salt, iterations),
            Self::Sha256 => stretch::<Hmac<Sha256>>(&keyed(password), salt, iterations),
        }
    }
}

fn keyed<M: KeyInit>(key: &[u8]) -> M {
    M::new_from_slice(key).expect("HMAC takes keys of any length")
}

/// The key is taken in once and copied: that halves the work of each iteration.
fn mac_of<M: Mac + Clone>(keyed: &M, data: &[u8]) -> Vec<u8> {
    let mut mac = keyed.clone();
    mac.update(data);
    mac.finalize().into_bytes().to_vec()
}

fn stretch<M: Mac + Clone>(keyed: &M, salt: &[u8], iterations: u32) -> Vec<u8> {
    let mut mac = keyed.clone();
    mac.update(salt);
    mac.update(&1_u32.to_be_bytes());
    let mut block = mac.finalize().into_bytes();
    let mut sum = block.to_vec();
    for _ in 1..iterations {
        let mut mac = keyed.clone();
        mac.update(&block);
        block = mac.finalize().into_bytes();
        sum.iter_mut()
            .zip(&block)
            .for_each(|(sum, byte)| *sum ^= byte);
    }
    sum
}

/// What either side keeps of a password, for one salt and number of iterations. It never shows in
/// logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secrets {
    pub(super) hash: Hash,
    pub(super) client_key: Vec<u8>,
    pub(super) stored_key: Vec<u8>,
    pub(super) server_key: Vec<u8>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets(..)")
    }
}

impl Secrets {
    /// Derives them, which takes about a third of a microsecond for each iteration: not on a core
    /// that has others to serve.
    ///
    /// `password` is as the mechanism wants it: MongoDB's SCRAM-SHA-1 takes a digest.
    pub fn derive(hash: Hash, password: &str, salt: &[u8], iterations: u32) -> Secrets {
        let salted = hash.stretch(password.as_bytes(), salt, iterations);
        let client_key = hash.hmac(&salted, b"Client Key");
        Secrets {
            hash,
            stored_key: hash.digest(&client_key),
            server_key: hash.hmac(&salted, b"Server Key"),
            client_key,
        }
    }
}
