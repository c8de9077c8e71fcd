//! `dbCheck`: whether all members of a set have the same documents, and each member the index
//! entries of its documents.
//!
//! The primary reads batch after batch in the order of `_id`, or of an index, each at one snapshot,
//! and logs the digest of what it has read. A member that applies such an entry reads the same
//! range at the same timestamp and compares. That is done behind the applier, by a task of its own,
//! so that nothing waits for it: an entry changes nothing. Each member keeps what it finds in
//! `local.system.healthlog`.

mod entry;
mod health_log;
mod options;
mod parameters;
mod range;

mod digest;
mod walk;

mod follower;
mod runner;
mod tasks;

mod command;

pub(crate) use command::db_check;
pub use follower::follow;
pub use parameters::DbCheckParameters;
pub(crate) use parameters::ROWS;
pub use tasks::{DbCheckTasks, db_check_tasks, end_runs, start, stop};
