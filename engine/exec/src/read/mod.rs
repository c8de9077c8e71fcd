//! Reads: plan parts on each partition's owner, merged in order on the core of the connection.

mod access;
mod cursor;
mod hint;
mod item;
mod merge;
mod near;
mod part;
mod pipeline;
mod request;
mod scan;
mod sorted;
mod stream;
mod tail;

pub(crate) use access::{Access, RangeAccess};
pub(crate) use cursor::{
    Cursor, CursorCounts, CursorTable, Filled, IdleCursor, Reads, core_of, fill, not_found,
};
pub(crate) use hint::parse_hint;
pub(crate) use item::PartCounters;
pub(crate) use part::{Output, PartTable};
pub(crate) use pipeline::{Node, PipelineStream, Surroundings};
pub(crate) use request::{
    ReadRequest, Targets, check_still_there, existing_trees, open, open_ids, parse_sort,
};
pub(crate) use stream::Stream;
pub(crate) use tail::TailStream;
