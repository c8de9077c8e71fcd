//! Progress: how far all cores have applied, logged and flushed, and the timestamps that follow
//! from it.
//!
//! In reading order: `waiters` are the tasks of one core that wait for a timestamp, `reached` wakes
//! them as the marks of all cores move, `visibility` is what readers wait for, `timeline` what
//! history and checkpoints are bounded by.

mod reached;
mod timeline;
mod visibility;
mod waiters;

pub(super) use reached::Progress;
pub(super) use timeline::Bounds;
pub use timeline::Timeline;
pub(super) use waiters::TimestampWaiters;
