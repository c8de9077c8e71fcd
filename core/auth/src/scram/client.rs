//! The client's side of a conversation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Hash, MAX_ITERATIONS, MIN_ITERATIONS, ScramError, Secrets, field, same};

/// One conversation, as the client has it.
pub struct ClientConversation {
    hash: Hash,
    nonce: String,
    first_bare: String,
    server_signature: Vec<u8>,
}

/// What the server's first message asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge {
    message: String,
    nonce: String,
    pub salt: Vec<u8>,
    pub iterations: u32,
}

impl ClientConversation {
    /// Begins one. The nonce is random text without commas.
    ///
    /// # Errors
    /// Names outside ASCII would need SASLprep.
    pub fn new(hash: Hash, user: &str, nonce: String) -> Result<ClientConversation, ScramError> {
        if !user.is_ascii() {
            return Err(ScramError::new("names must be ASCII"));
        }
        let user = user.replace('=', "=3D").replace(',', "=2C");
        Ok(ClientConversation {
            hash,
            first_bare: format!("n={user},r={nonce}"),
            nonce,
            server_signature: Vec::new(),
        })
    }

    /// The client's first message.
    pub fn first(&self) -> String {
        format!("n,,{}", self.first_bare)
    }

    /// Reads the server's first message.
    ///
    /// # Errors
    /// It is none, answers another conversation, or asks for a number of iterations that is not to
    /// be believed.
    pub fn challenge(&self, server_first: &str) -> Result<Challenge, ScramError> {
        if server_first.starts_with("m=") {
            return Err(ScramError::new(
                "the server wants an extension that is not known",
            ));
        }
        let nonce = field(server_first, "r")?;
        let salt = STANDARD.decode(field(server_first, "s")?);
        let salt = salt.map_err(|_| ScramError::new("the salt is not base64"))?;
        let iterations = field(server_first, "i")?.parse().ok();
        let iterations =
            iterations.filter(|count| (MIN_ITERATIONS..=MAX_ITERATIONS).contains(count));
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(ScramError::new("the server's nonce does not continue ours"));
        }
        Ok(Challenge {
            message: server_first.to_owned(),
            nonce: nonce.to_owned(),
            salt,
            iterations: iterations
                .ok_or_else(|| ScramError::new("the number of iterations is not to be believed"))?,
        })
    }

    /// The client's second message: the proof that it has the secrets, which were derived as the
    /// challenge asks.
    ///
    /// # Panics
    /// If the secrets are of another hash.
    pub fn answer(&mut self, challenge: &Challenge, secrets: &Secrets) -> String {
        assert_eq!(self.hash, secrets.hash, "secrets of this mechanism");
        // "biws" is "n,," as base64: no channel binding.
        let without_proof = format!("c=biws,r={}", challenge.nonce);
        let message = format!("{},{},{without_proof}", self.first_bare, challenge.message);
        let signature = self.hash.hmac(&secrets.stored_key, message.as_bytes());
        let proof: Vec<u8> = secrets
            .client_key
            .iter()
            .zip(&signature)
            .map(|(a, b)| a ^ b)
            .collect();
        self.server_signature = self.hash.hmac(&secrets.server_key, message.as_bytes());
        format!("{without_proof},p={}", STANDARD.encode(proof))
    }

    /// Checks that the server knows the password too.
    ///
    /// # Errors
    /// It does not, or says that the client does not.
    pub fn verify(&self, server_final: &str) -> Result<(), ScramError> {
        let given = field(server_final, "v")
            .ok()
            .and_then(|text| STANDARD.decode(text).ok());
        match given {
            Some(given) if !given.is_empty() && same(&given, &self.server_signature) => Ok(()),
            _ => Err(ScramError::new(format!(
                "the server did not prove itself: {server_final}"
            ))),
        }
    }
}
