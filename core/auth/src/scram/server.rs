//! The server's side of a conversation.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{Hash, ScramError, Secrets, field, same};

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
        let proven = secrets.iter().fold(None, |proven, secrets| {
            let signature = self.hash.hmac(&secrets.stored_key, messages.as_bytes());
            let client_key: Vec<u8> = proof.iter().zip(&signature).map(|(a, b)| a ^ b).collect();
            let is_it = proof.len() == signature.len()
                && same(&self.hash.digest(&client_key), &secrets.stored_key);
            proven.or(is_it.then_some(secrets))
        });
        let proven = proven.ok_or_else(|| ScramError::new("the client's proof is wrong"))?;
        let signature = self.hash.hmac(&proven.server_key, messages.as_bytes());
        Ok(format!("v={}", STANDARD.encode(signature)))
    }
}
