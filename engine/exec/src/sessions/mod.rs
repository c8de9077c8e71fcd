//! Logical sessions: those that clients named lately, and on a member of a replica set the
//! retryable writes of each.
//!
//! A session has a home, the core that its name hashes to. There its latest transaction number is
//! known, and which of that number's statements have been executed; a write takes that along for
//! its time (`catalog`), so two retries of one command do not run beside each other. What is known
//! is read from the records that the statements themselves leave (`records`), whether this node
//! executed them or applied them, so it can be forgotten at any time.
//!
//! A retryable write may be executed in an *internal transaction*, whose session is a child of the
//! client's (`family`): what its statements did is known, and recorded, as if the session itself
//! had executed them.

mod catalog;
mod child;
mod family;
mod retryable;

pub use catalog::forget_all;
pub use catalog::{
    CheckedOut, SessionCatalog, check_out_idle, check_out_transaction, session_catalog,
};
pub(crate) use child::check_child;
pub(crate) use retryable::{RetryableWrite, begin};
