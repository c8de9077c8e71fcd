//! What operations put on disk for want of memory: one file for each that does, without a name, gone with its cursor.

mod file;
mod memory;

pub(crate) use file::{SpillCounts, SpillFile, SpillFiles};
pub(crate) use memory::{NodeMemory, memory, node_memory};
