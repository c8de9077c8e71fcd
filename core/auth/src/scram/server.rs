//! The server's side of a conversation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Hash, ScramError, Secrets, StoredCredentials, field, same};

/// The shortest nonce of a client that is taken, as MongoDB has it.
const MIN_CLIENT_NONCE: usize = 4;

/// The client's first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientFirst {
    /// Whom the client wants to be.
    pub user: String,
    nonce: String,
    /// What stands before the name: it comes back in the second message.
    header: String,
    bare: String,
}

impl ClientFirst {
    /// Reads it.
    ///
    /// # Errors
    /// It is none, or wants channel binding or an extension, of which there are none.
    pub fn parse(message: &str) -> Result<ClientFirst, ScramError> {
        let malformed = || ScramError::new("the client's first message is malformed");
        let (binding, rest) = message.split_once(',').ok_or_else(malformed)?;
        if !matches!(binding, "n" | "y") {
            return Err(ScramError::new("there is no channel binding"));
        }
        let (authorization, bare) = rest.split_once(',').ok_or_else(malformed)?;
        let (first, _) = bare.split_once(',').ok_or_else(malformed)?;
        let name = first.strip_prefix("n=").ok_or_else(malformed)?;
        let user = name.replace("=2C", ",").replace("=3D", "=");
        let acts_for = authorization.strip_prefix("a=");
        if name.is_empty() || !(authorization.is_empty() || acts_for == Some(name)) {
            return Err(malformed());
        }
        let nonce = field(bare, "r")?.to_owned();
        if nonce.len() < MIN_CLIENT_NONCE {
            return Err(malformed());
        }
        Ok(ClientFirst {
            user,
            nonce,
            header: format!("{binding},{authorization},"),
            bare: bare.to_owned(),
        })
    }

    /// The answer to it, and the conversation in its next step. `nonce` is random text without
    /// commas, used by this conversation alone.
    pub fn challenge(
        self,
        hash: Hash,
        nonce: &str,
        salt: &[u8],
        iterations: u32,
    ) -> (ServerConversation, String) {
        let nonce = format!("{}{nonce}", self.nonce);
        let challenge = format!("r={nonce},s={},i={iterations}", STANDARD.encode(salt));
        let conversation = ServerConversation {
            hash,
            nonce,
            binding: STANDARD.encode(&self.header),
            messages: format!("{},{challenge}", self.bare),
        };
        (conversation, challenge)
    }

    /// The answer to it for a user with stored credentials, or with made-up ones.
    pub fn challenge_of(
        self,
        credentials: &StoredCredentials,
        nonce: &str,
    ) -> (ServerConversation, String) {
        let StoredCredentials {
            hash,
            salt,
            iterations,
            ..
        } = credentials;
        self.challenge(*hash, nonce, salt, *iterations)
    }
}

/// The keys by which a server checks a proof, and proves itself.
struct Keys<'k> {
    stored_key: &'k [u8],
    server_key: &'k [u8],
    /// No proof fits.
    is_made_up: bool,
}

/// One conversation, as the server has it between the client's two messages.
#[derive(Clone, Debug)]
pub struct ServerConversation {
    hash: Hash,
    nonce: String,
    binding: String,
    messages: String,
}

impl ServerConversation {
    /// Checks the client's proof against each of these secrets, and gives the server's own: its
    /// last message.
    ///
    /// # Errors
    /// The message is malformed, of another conversation, or proves none of them.
    pub fn finish(self, message: &str, secrets: &[Secrets]) -> Result<String, ScramError> {
        self.check(
            message,
            secrets.iter().map(|secrets| Keys {
                stored_key: &secrets.stored_key,
                server_key: &secrets.server_key,
                is_made_up: false,
            }),
        )
    }

    /// Checks the client's proof against a user's credentials, and gives the server's own: its last
    /// message. Made-up credentials take the same time, and no proof fits them.
    ///
    /// # Errors
    /// The message is malformed, of another conversation, or proves nothing.
    ///
    /// # Panics
    /// If the credentials are of another mechanism.
    pub fn finish_of(
        self,
        message: &str,
        credentials: &StoredCredentials,
    ) -> Result<String, ScramError> {
        assert_eq!(self.hash, credentials.hash, "credentials of this mechanism");
        let keys = Keys {
            stored_key: &credentials.stored_key,
            server_key: &credentials.server_key,
            is_made_up: credentials.is_made_up,
        };
        self.check(message, std::iter::once(keys))
    }

    fn check<'k>(
        self,
        message: &str,
        keys: impl Iterator<Item = Keys<'k>>,
    ) -> Result<String, ScramError> {
        let (without_proof, proof) = message
            .rsplit_once(",p=")
            .ok_or_else(|| ScramError::new("the client's second message has no proof"))?;
        let proof = STANDARD
            .decode(proof)
            .map_err(|_| ScramError::new("the client's proof is not base64"))?;
        if field(without_proof, "c")? != self.binding || field(without_proof, "r")? != self.nonce {
            return Err(ScramError::new(
                "the client's second message is of another conversation",
            ));
        }
        let messages = format!("{},{without_proof}", self.messages);
        // Every one of them is tried, so that the time taken does not reveal which one matched.
        let mut proven = None;
        for keys in keys {
            let signature = self.hash.hmac(keys.stored_key, messages.as_bytes());
            let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
            let is_it = same(&self.hash.digest(&client_key), keys.stored_key);
            if is_it && proof.len() == signature.len() && !keys.is_made_up && proven.is_none() {
                proven = Some(keys);
            }
        }
        let proven = proven.ok_or_else(|| ScramError::new("the client's proof is wrong"))?;
        let signature = self.hash.hmac(proven.server_key, messages.as_bytes());
        Ok(format!("v={}", STANDARD.encode(signature)))
    }
}
