//! Partitions: a delta over a base, with the reads and writes of one core's share of the keyspace.

mod checkpoint;
mod core;
mod cursor;
mod delta;
mod frozen;
mod intents;
mod key_map;
mod load;
mod merging;
mod read;
mod spill;
mod units;
mod view;
mod write;

#[cfg(test)]
mod load_tests;
#[cfg(test)]
mod measure;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

pub use self::core::{PageStats, Partition, PartitionMemory};
pub use cursor::Cursor;
pub use intents::UnitId;
pub(crate) use intents::{UnitState, cost as intent_cost};
pub use load::TreeLoad;
pub use read::SnapshotPin;
pub(crate) use write::Prepared;
