//! Copies of checkpoints.
//!
//! In reading order: the source keeps a checkpoint `frozen`, another node writes what it has
//! `copied` beside its own files, and `transplant` puts that in their place.

mod copied;
mod frozen;
mod transplant;

pub use copied::{CheckpointCopy, CopiedEntry, CopyError, PageFileCopy};
pub(super) use frozen::FrozenCheckpoints;
pub use frozen::{FreezeError, FrozenCheckpoint, FrozenPages};
