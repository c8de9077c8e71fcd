//! `validate`: whether a collection, its indexes and its row in the catalog are what they should
//! be.
//!
//! All is read at one snapshot, beside writers. A first phase checks each document alone and sums
//! the keys that documents ask for and those that indexes have; where the sums differ, a second one
//! looks at the few keys that can be the cause.

mod conformance;
mod findings;
mod key_table;
mod options;
mod parameters;
mod report;

mod job;
mod snapshot;
mod tree_walk;

mod count;
mod examine;
mod inconsistencies;
mod metadata;
mod multikey;
mod oplog;
mod repair;
mod verify;

mod command;

pub(crate) use command::validate;
pub(crate) use examine::{Form, form_of};
pub(crate) use job::read;
pub(crate) use parameters::ROWS;
pub use parameters::ValidateMemory;
pub(crate) use snapshot::Snapshot;
pub(crate) use verify::{Unverified, Verifier};
