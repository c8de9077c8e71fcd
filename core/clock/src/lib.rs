//! Timestamp, OpTime, the vector clock and its signing.
//!
//! Wall-clock time is never read here: callers pass it in.

mod timestamp;

pub use timestamp::{OpTime, Term, Timestamp};
