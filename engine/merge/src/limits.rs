//! Named limits of merges.

use pinion_service::limits::MAX_BATCH_BYTES;

/// Bytes that one part hands over to the merge in one step.
pub const PART_BATCH_BYTES: usize = 256 * 1024;
/// Documents that one part hands over to the merge in one step.
pub const PART_BATCH_DOCUMENTS: usize = 1024;
/// Documents that are there already and go into a run of stages at once.
pub(crate) const RUN_BATCH_DOCUMENTS: usize = 256;

const _: () = assert!(PART_BATCH_BYTES <= MAX_BATCH_BYTES);
