//! The log of the running node: made durable, read, and cut off at its beginning.
//!
//! In reading order: `flusher` flushes the ring of each core; `own_entry` and `own_log` are the
//! ring of writes that are not replicated; `live_log` reads all rings as one sequence, each by a
//! `log_source`; `retention` gives up what is old.

mod flusher;
mod live_log;
mod log_source;
pub(crate) mod own_entry;
mod own_log;
mod retention;

pub(super) use flusher::{Flusher, RecordedDurable};
pub use live_log::{LogCursor, LogReadError};
pub(super) use own_log::OwnLog;
pub(super) use retention::LogWords;
pub use retention::{LogPin, LogRetention, LogStats};
