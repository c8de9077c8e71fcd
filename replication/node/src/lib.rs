//! A member of a replica set: drives the state machine of `replication/protocol` with the node's
//! clock, its connections to other members and its storage.
//!
//! The machine runs on core 0 ([`driver`]); every core has a copy of what clients need to know of
//! it ([`seam`]), which core 0 replaces whole. Commands of other members and of operators are taken
//! to core 0 from whatever core they come in on.

mod commands;
mod copy_source;
mod driver;
mod effects;
mod fetch;
mod follower;
mod give_up;
mod idle;
mod initial_sync;
mod kept;
mod leave;
mod limits;
mod metrics;
mod peers;
mod persisted;
mod planted;
mod rollback;
mod seam;
mod terms;
mod topology_snapshot;
mod walls;

pub use commands::register_commands;
pub use driver::{join, start};
pub use give_up::{gave_up, give_up};
pub use leave::leave;
pub use planted::PlantedFault;

use pinion_runtime::Duration;
use pinion_storage::LogRetention;

/// What a node is given about the set that it is to be a member of.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberOptions {
    /// `--replSet`.
    pub set_name: String,
    /// Bytes of oplog to keep; a share of the disk when absent.
    pub oplog_bytes: Option<u64>,
    /// For how long the oplog is kept whatever its size.
    pub oplog_min_age: Duration,
    /// A fault that tests plant to see whether they would find it.
    #[doc(hidden)]
    pub planted_fault: PlantedFault,
}

impl MemberOptions {
    /// What storage is opened with, before it is known how large the disk is.
    pub fn first_retention(&self) -> LogRetention {
        LogRetention {
            // Nothing is given up before it is known how much is kept.
            bytes: self.oplog_bytes.unwrap_or(u64::MAX),
            min_age: self.oplog_min_age,
        }
    }
}
