//! SCRAM: what both sides compute, and the two sides of a conversation.
//!
//! Source: RFC 5802 and RFC 7677. Channel binding is not offered, since connections have no TLS
//! that could be bound to.

mod client;
mod credentials;
mod secrets;
mod server;

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

pub use client::{Challenge, ClientConversation};
pub use credentials::{
    MIN_STORED_ITERATIONS, SHA1_ITERATIONS, StoredCredentials, prepared_password,
};
pub use secrets::{Hash, Secrets};
pub use server::{ClientFirst, ServerConversation};

/// Iterations that a server asks for: MongoDB's `scramSHA256IterationCount`.
pub const ITERATIONS: u32 = 15_000;
/// A server that asks for fewer would make the password cheap to guess: RFC 7677.
pub const MIN_ITERATIONS: u32 = 4096;
/// Iterations that are believed; more would be a way to keep a client busy.
pub const MAX_ITERATIONS: u32 = 10_000_000;

const _: () = assert!(MIN_ITERATIONS <= ITERATIONS && ITERATIONS <= MAX_ITERATIONS);

/// Why a conversation ends without success. It never says what would have been right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScramError(pub(crate) String);

impl ScramError {
    pub(crate) fn new(why: impl Into<String>) -> ScramError {
        ScramError(why.into())
    }
}

impl fmt::Display for ScramError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SCRAM: {}", self.0)
    }
}

impl std::error::Error for ScramError {}

/// Random bytes as the text of a nonce.
pub fn nonce_text(random: &[u8]) -> String {
    STANDARD.encode(random)
}

/// The fields of a message: a letter, `=`, and what stands up to the next comma.
fn fields(message: &str) -> impl Iterator<Item = (&str, &str)> {
    message.split(',').filter_map(|part| part.split_once('='))
}

/// The value of a field of a message.
fn field<'m>(message: &'m str, name: &str) -> Result<&'m str, ScramError> {
    let found = fields(message).find(|(field, _)| *field == name);
    let (_, value) = found.ok_or_else(|| ScramError::new(format!("a message has no '{name}='")))?;
    Ok(value)
}

/// Whether two values are the same. The time it takes says nothing of where they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    let differing = a.iter().zip(b).fold(0, |all, (a, b)| all | (a ^ b));
    a.len() == b.len() && differing == 0
}

#[cfg(test)]
mod tests;
