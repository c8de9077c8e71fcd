//! What makes a member's data follow the log of its set: recovery, the applier, initial sync,
//! builds of indexes of the whole set, and the expiry of documents.

// A module uses those of its own group, in no circle, and of the groups above.

mod limits;

pub mod applier;
pub mod builds;
mod cloning;
pub mod ttl;

mod apply_ops;
mod index_builds;
mod oplog_note;
mod parameters;
pub mod recovery;
mod table;

pub use applier::{Applier, ApplyCounts, CheckFollower, end_open_chain};
pub use cloning::{
    CloneTarget, ClonedDocument, begin_clone, clone_catalog, clone_listed, end_clone,
    has_partial_clone, parse_catalog_rows,
};
pub use oplog_note::log_note;
pub use parameters::parameter_rows;
pub use recovery::OpenNodeError;
pub use table::register_commands;
