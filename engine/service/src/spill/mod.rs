//! What operations put on disk for want of memory: one file for each that does, without a name,
//! gone with its cursor.

mod file;
mod memory;

pub use file::{SpillCounts, SpillFile, SpillFiles};
pub use memory::{NodeMemory, memory, node_memory};
