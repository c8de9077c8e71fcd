//! Partitions: a delta over a base, with the reads and writes of one core's share of the keyspace.

mod checkpoint;
mod core;
mod counts;
mod cursor;
mod delta;
mod filter;
mod frozen;
mod history;
mod intents;
mod key_map;
mod layers;
mod load;
mod merging;
mod read;
mod run;
mod run_cursor;
mod run_writer;
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
pub use counts::KeptCounts;
pub use cursor::{Block, BlockRecord, Cursor, Readable};
pub use intents::UnitId;
pub(crate) use intents::{UnitState, cost as intent_cost};
pub(crate) use layers::KeptVersions;
pub use load::TreeLoad;
pub use read::SnapshotPin;
pub(crate) use write::Prepared;
