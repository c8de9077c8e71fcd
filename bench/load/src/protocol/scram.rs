//! SCRAM with a name and a password, for MongoDB and PostgreSQL.

pub use pinion_auth::Hash;
use pinion_auth::{ClientConversation, Secrets, nonce_text};

/// One conversation.
pub struct Scram {
    hash: Hash,
    password: String,
    conversation: ClientConversation,
}

impl Scram {
    /// `password` as the mechanism wants it (MongoDB's SCRAM-SHA-1 takes a digest). Names and
    /// passwords outside ASCII would need SASLprep, so they are refused.
    pub fn new(hash: Hash, user: &str, password: &str, nonce: String) -> Result<Self, String> {
        if !password.is_ascii() {
            return Err("SCRAM: passwords must be ASCII".into());
        }
        Ok(Self {
            hash,
            password: password.into(),
            conversation: ClientConversation::new(hash, user, nonce).map_err(text)?,
        })
    }

    pub fn first(&self) -> String {
        self.conversation.first()
    }

    /// The answer to the server's first message.
    pub fn second(&mut self, server_first: &str) -> Result<String, String> {
        let challenge = self.conversation.challenge(server_first).map_err(text)?;
        let (salt, iterations) = (&challenge.salt, challenge.iterations);
        let secrets = Secrets::derive(self.hash, &self.password, salt, iterations);
        Ok(self.conversation.answer(&challenge, &secrets))
    }

    /// Whether the server knows the password too.
    pub fn verify(&self, server_final: &str) -> Result<(), String> {
        self.conversation.verify(server_final).map_err(text)
    }
}

fn text(error: pinion_auth::ScramError) -> String {
    error.to_string()
}

/// A nonce that no two connections share.
pub fn nonce() -> Result<String, String> {
    let mut bytes = [0_u8; 18];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut bytes))
        .map_err(|error| format!("/dev/urandom: {error}"))?;
    Ok(nonce_text(&bytes))
}
