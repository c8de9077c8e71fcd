//! The write path: a statement from its checks to its entry in the log and its place in the
//! partitions.
//!
//! In reading order: `roles` says whether a core may write, and in which term; `batch` cuts
//! statements into what each partition gets, `entry` is what they log, `execute` runs them,
//! `allotment` guards the timestamps that they have taken. `unreplicated` and `follow` are the same
//! for writes that stay on this node and for entries of another. `memory` delays or refuses writes
//! for want of memory.

mod allotment;
mod batch;
mod entry;
mod execute;
mod follow;
mod memory;
mod roles;
mod unreplicated;

pub(super) use allotment::Allotment;
pub(super) use batch::{Part, Placement, divide, write_fits};
pub(super) use entry::{Chain, append_to};
pub use entry::{ENTRY_TERM_OFFSET, ENTRY_TS_OFFSET, Entry};
pub use execute::Statement;
pub use follow::ForeignEntry;
pub(super) use memory::{CHECKPOINT_AT, Memory, Pressures};
pub(super) use roles::Roles;
