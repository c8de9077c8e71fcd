//! Inspection of a data directory that no node has open: what its files say, and everything that is
//! wrong with them.
//!
//! Nothing is written, and nothing found in a file stops the inspection of the others.

mod directory;
mod problem;
mod rings;

pub use directory::{Inspector, PartitionReport, SuperblockCopy};
pub use problem::{InspectError, Problem};
pub use rings::{
    LogReader, OwnChange, RingEntry, RingReport, RingsReport, SegmentReport, own_changes,
};
