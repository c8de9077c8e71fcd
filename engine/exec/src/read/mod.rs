//! Reads: plan parts on each partition's owner, merged in order on the core of the connection.

mod item;
mod merge;
mod part;
mod request;

pub(crate) use item::{Batch, Item, PartCounters};
pub(crate) use merge::MergedStream;
pub(crate) use part::{PartSpec, PartTable};
