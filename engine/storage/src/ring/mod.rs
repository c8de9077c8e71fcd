//! Rings: the durable log of each core, which is also its share of the oplog.

mod entry;
mod frame;
mod reader;
mod segment;
mod writer;

pub(crate) use entry::{ENTRY_HEADER_BYTES, EntryHeader, EntryKind};
pub(crate) use frame::{FRAME_BYTES, FRAME_PAYLOAD_BYTES, FrameContext, FrameHeader, FrameState, classify, payload};
pub(crate) use reader::{BadFrame, LoggedEntry, Place, RingReader, RingScan};
pub(crate) use segment::{RingDir, SegmentFile, list_rings};
pub(crate) use writer::{FlushBatch, Reservation, Ring, RingStart, RingStats};
