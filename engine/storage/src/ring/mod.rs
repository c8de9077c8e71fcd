//! Rings: the durable log of each core, which is also its share of the oplog.

mod documents;
mod entries;
mod entry;
mod frame;
mod live;
mod reader;
mod seek;
mod segment;
mod tail;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use documents::Documents;
pub(crate) use entry::EntryKind;
pub(crate) use frame::{FRAME_BYTES, Stamps};
pub(crate) use live::{
    FilesAfter, FilesBefore, LogEntry, RingFiles, RingPart, SegmentLook, SegmentSpan,
};
pub(crate) use reader::{BadFrame, LoggedEntry, RingReader, RingScan};
pub(crate) use segment::{RingDir, list_rings};
pub(crate) use writer::{Reservation, Ring, RingStart, RingStats, RingStopped};
