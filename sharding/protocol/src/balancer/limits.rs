//! Sizes and counts of splits and of what counts as even.

/// How many points one commit of a split has at most; more are committed in turn.
pub const MAX_SPLIT_POINTS: usize = 8192;
/// How many documents a part of a split chunk is made for at most.
pub const MAX_CHUNK_OBJECTS: u64 = 250_000;
/// By how many chunks' sizes the data of two shards differs at least before any is moved. A move
/// changes the difference by twice the size of a chunk, so that it never turns it round.
pub const IMBALANCE_CHUNKS: u64 = 3;
/// How many keys a search for the middle keeps at most.
pub(super) const MAX_MIDDLE_SAMPLES: usize = 4096;

const _: () = assert!(MAX_MIDDLE_SAMPLES.is_multiple_of(2));
const _: () = assert!(IMBALANCE_CHUNKS > 2);
