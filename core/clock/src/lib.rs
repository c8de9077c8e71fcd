//! Timestamp, OpTime, the vector clock and its signing.
//!
//! Wall-clock time is never read here: callers pass it in.

mod signing;
mod timestamp;
mod vector;
#[cfg(test)]
mod vector_tests;
mod words;

pub use signing::{KEY_BYTES, Key, KeyId, KeyRing, SignedTime, VerifyError};
pub use timestamp::{OpTime, Term, Timestamp};
pub use vector::{
    AdvanceError, DEFAULT_MAX_DRIFT_SECS, Gossip, MAX_CLUSTER_TIME, VectorClock, VectorTime,
    check_advance,
};
