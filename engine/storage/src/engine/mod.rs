//! The engine of one node: what the cores do together.
//!
//! In reading order: `options` and `error`; `storage` is the face of one core; `progress` is how
//! far all cores are, `write` and `units` are what moves it, `log` and `checkpoint` make it
//! durable; `copy` takes a checkpoint to another node. `open`, `applier`, `recover` and
//! `standalone` are the beginning and the end of a life, `stats` its figures.

mod applier;
mod checkpoint;
mod copy;
mod error;
mod log;
mod open;
mod options;
mod progress;
mod recover;
mod standalone;
mod stats;
mod storage;
mod units;
mod write;

pub use applier::Applier;
pub use copy::{
    CheckpointCopy, CopiedEntry, CopyError, FreezeError, FrozenCheckpoint, FrozenPages,
    PageFileCopy,
};
pub use error::{ApplyError, OpenError};
pub(crate) use log::own_entry;
pub use log::{LogCursor, LogPin, LogReadError, LogRetention, LogStats};
pub(crate) use open::partition_dir;
pub use open::{Opened, Reopening, open};
pub use options::{PlantedFault, StorageOptions};
pub use progress::Timeline;
pub use recover::RecoveryReport;
pub use stats::StorageStats;
pub use storage::{PartitionHash, Storage, storage, try_storage};
pub use units::{OpenUnit, PreparedUnit, SnapshotHold};
pub use write::{ENTRY_TERM_OFFSET, ENTRY_TS_OFFSET, Entry, ForeignEntry, Statement};
