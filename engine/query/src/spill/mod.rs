//! What does not fit into memory: sorted runs on disk, as machines that say what has to be written
//! and read.

mod block;
mod memory;
mod queue;
mod request;
mod runs;
mod sorter;

#[cfg(test)]
pub(crate) mod tests;

pub use memory::{Held, Memory, MemoryLimits, Room, SharedRoom};
pub use request::{DiskReply, DiskRequest, Place, Spiller};
pub use sorter::{DiskSorter, Next, Spilled};

pub(crate) use queue::{DiskQueue, First};
pub(crate) use runs::{DiskRuns, Head};
