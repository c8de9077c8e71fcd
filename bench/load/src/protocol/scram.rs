//! SCRAM (RFC 5802, RFC 7677) from the client's side, for MongoDB and PostgreSQL.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Iterations that are believed; more would be a way to keep a client busy.
const MAX_ITERATIONS: u32 = 10_000_000;

/// The hash of a mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha1,
    Sha256,
}

impl Hash {
    pub fn mechanism(self) -> &'static str {
        match self {
            Self::Sha1 => "SCRAM-SHA-1",
            Self::Sha256 => "SCRAM-SHA-256",
        }
    }

    fn digest(self, data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => Sha1::digest(data).to_vec(),
            Self::Sha256 => Sha256::digest(data).to_vec(),
        }
    }

    fn hmac(self, key: &[u8], data: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha1 => {
                let mut mac =
                    Hmac::<Sha1>::new_from_slice(key).expect("HMAC takes keys of any length");
                mac.update(data);
                mac.finalize().into_bytes().to_vec()
            }
            Self::Sha256 => {
                let mut mac =
                    Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
                mac.update(data);
                mac.finalize().into_bytes().to_vec()
            }
        }
    }

    /// RFC 5802's Hi: PBKDF2 with one block.
    fn stretch(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut block = self.hmac(password, &[salt, &1_u32.to_be_bytes()].concat());
        let mut sum = block.clone();
        for _ in 1..iterations {
            block = self.hmac(password, &block);
            sum.iter_mut()
                .zip(&block)
                .for_each(|(sum, byte)| *sum ^= byte);
        }
        sum
    }
}

/// One conversation.
pub struct Scram {
    hash: Hash,
    password: Vec<u8>,
    nonce: String,
    first_bare: String,
    server_signature: Vec<u8>,
}

impl Scram {
    /// `password` as the mechanism wants it (MongoDB's SCRAM-SHA-1 takes a digest). Names and passwords outside ASCII
    /// would need SASLprep, so they are refused.
    pub fn new(hash: Hash, user: &str, password: &str, nonce: String) -> Result<Self, String> {
        if !user.is_ascii() || !password.is_ascii() {
            return Err("SCRAM: names and passwords must be ASCII".into());
        }
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Ok(Self {
            hash,
            password: password.into(),
            first_bare: format!("n={user},r={nonce}"),
            nonce,
            server_signature: Vec::new(),
        })
    }

    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare)
    }

    /// The answer to the server's first message.
    pub fn second(&mut self, server_first: &str) -> Result<String, String> {
        let field = |name: &str| {
            server_first
                .split(',')
                .find_map(|part| part.strip_prefix(name))
                .ok_or_else(|| format!("SCRAM: the server's first message has no {name}"))
        };
        let (nonce, salt, iterations) = (field("r=")?, field("s=")?, field("i=")?);
        let salt = STANDARD
            .decode(salt)
            .map_err(|_| "SCRAM: the salt is not base64")?;
        let iterations = iterations
            .parse()
            .ok()
            .filter(|count| (1..=MAX_ITERATIONS).contains(count));
        let iterations =
            iterations.ok_or("SCRAM: the number of iterations is not to be believed")?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err("SCRAM: the server's nonce does not continue ours".into());
        }
        let salted = self.hash.stretch(&self.password, &salt, iterations);
        let client_key = self.hash.hmac(&salted, b"Client Key");
        let without_proof = format!("c=biws,r={nonce}");
        let message = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = self
            .hash
            .hmac(&self.hash.digest(&client_key), message.as_bytes());
        let proof: Vec<u8> = client_key
            .iter()
            .zip(&signature)
            .map(|(a, b)| a ^ b)
            .collect();
        let server_key = self.hash.hmac(&salted, b"Server Key");
        self.server_signature = self.hash.hmac(&server_key, message.as_bytes());
        Ok(format!("{without_proof},p={}", STANDARD.encode(proof)))
    }

    /// Whether the server knows the password too.
    pub fn verify(&self, server_final: &str) -> Result<(), String> {
        let given = server_final.strip_prefix("v=").and_then(|text| {
            STANDARD
                .decode(text.split(',').next().unwrap_or_default())
                .ok()
        });
        if given.as_deref() == Some(&self.server_signature) {
            Ok(())
        } else {
            Err(format!(
                "SCRAM: the server did not prove itself: {server_final}"
            ))
        }
    }
}

/// A nonce that no two connections share.
pub fn nonce() -> Result<String, String> {
    let mut bytes = [0_u8; 18];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|error| format!("/dev/urandom: {error}"))?;
    Ok(STANDARD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        hash: Hash,
        user: &str,
        nonce: &str,
        server_first: &str,
        second: &str,
        server_final: &str,
    ) {
        let mut scram = Scram::new(hash, user, "pencil", nonce.into()).unwrap();
        assert_eq!(scram.first(), format!("n,,n=user,r={nonce}"));
        assert_eq!(scram.second(server_first).unwrap(), second);
        scram.verify(server_final).unwrap();
        scram.verify("v=AAAA").unwrap_err();
        scram
            .second("r=other,s=QSXCR+Q6sek8bf92,i=4096")
            .unwrap_err();
    }

    #[test]
    fn the_conversations_of_the_rfcs() {
        check(
            Hash::Sha1,
            "user",
            "fyko+d2lbbFgONRv9qkxdawL",
            "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
            "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            "v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        );
        check(
            Hash::Sha256,
            "user",
            "rOprNGfwEbeRWgbNEkqO",
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
            "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        );
    }
}
