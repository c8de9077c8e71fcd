//! SCRAM (RFC 5802, RFC 7677) from both sides, and the keys by which members of a replica set know
//! each other.
//!
//! Nothing here reads a clock, a file or a random number: nonces, salts and the text of a key file
//! are passed in.

mod key_file;
mod member;
mod scram;

pub use key_file::{KeyFileError, MAX_KEY_CHARS, MAX_KEYS, MIN_KEY_CHARS, MemberKeys};
pub use member::{MEMBER_DATABASE, MEMBER_USER, MemberAuth};
pub use scram::{
    Challenge, ClientConversation, ClientFirst, Hash, ITERATIONS, MAX_ITERATIONS, MIN_ITERATIONS,
    ScramError, Secrets, ServerConversation, nonce_text,
};
