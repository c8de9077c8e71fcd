//! Expiry: a task of core 0 that deletes the documents whose time is over, by TTL indexes and by
//! the dates of clustered collections.
//!
//! It sleeps, and then makes a pass. A pass consists of sub-passes; each finds the collections that
//! expire again, and deletes from them in turn, up to a number of documents or a time at each
//! visit, until nothing is left or the sub-pass has taken its time. So a collection with many old
//! documents does not keep another one waiting. Deletions are those of any client: on the owners of
//! the documents, with their index entries, and in the oplog.

mod expiring;
mod monitor;
mod parameters;

pub use monitor::{TtlMonitor, start, stop};
pub(crate) use parameters::ROWS;
pub use parameters::TtlParameters;
