//! Reads: plan parts on each partition's owner, merged in order on the core of the connection.

mod access;
mod branch_walk;
mod branches;
mod by_key;
pub mod change_feed;
mod changes;
mod choose;
mod core_part;
mod entry_values;
mod fetch;
mod hint;
mod log;
mod matches;
mod near;
mod part;
mod plan;
mod renew;
mod report;
mod request;
mod scan;
mod sorted;
mod sorted_walk;
mod stage_stats;
mod staged;
mod stream;
mod tail;
mod targets;
mod trial;

pub use access::{Access, RangeAccess};
pub(crate) use by_key::{read_at, read_newest};
pub use change_feed::{ChangeFeed, change_feed};
pub(crate) use changes::{ChangeCounts, ChangeRequest, ChangeStream};
pub(crate) use choose::Choice;
pub use core_part::ReadStream;
pub(crate) use hint::of_buckets;
pub use log::from_log_error;
pub(crate) use log::log_records;
pub(crate) use matches::{next_documents, next_matches};
pub use part::{Output, PartSpec, PartTable, parts};
pub(crate) use plan::is_by_id;
pub(crate) use report::{LeafReport, ReadReport};
pub(crate) use request::{Opened, access_of_plan};
pub use request::{
    Prepared, ReadRequest, choose_to_explain, existing_trees, open, parse_sort, prepare,
};
pub(crate) use scan::{Scan, ScannedDocument};
pub(crate) use stage_stats::{StageFigures, append_execution, append_stage};
pub(crate) use stream::Stream;
pub(crate) use tail::TailStream;
pub(crate) use targets::{Again, Targets, open_ids, target_group};
pub(crate) use trial::Trial;
