//! The profiler: which operations are written to their database's `system.profile`, and what of
//! them.

mod entry;
mod record;

pub use record::{Profiled, ProfiledStatement, make_collection};
