//! The engine of one node: what the cores do together.

mod allotment;
mod batch;
mod checkpoint;
mod durability;
mod entry;
mod error;
mod execute;
mod horizon;
mod live_log;
mod loads;
mod log_source;
mod open;
mod options;
mod pace;
mod pressure;
mod progress;
mod recover;
mod retention;
mod stats;
mod storage;
mod visibility;
mod waiters;

pub use entry::{ENTRY_TERM_OFFSET, ENTRY_TS_OFFSET, Entry};
pub use error::{ApplyError, OpenError};
pub use execute::Statement;
pub use live_log::{LogCursor, LogReadError};
pub(crate) use open::partition_dir;
pub use open::{Opened, open};
pub use options::{PlantedFault, StorageOptions};
pub use recover::{Applier, RecoveryReport};
pub use retention::{LogPin, LogRetention, LogStats};
pub use stats::StorageStats;
pub use storage::{PartitionHash, Storage, storage, try_storage};
