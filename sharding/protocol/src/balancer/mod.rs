//! The balancer's decisions: which chunks are split at the boundaries of zones, which are moved
//! where, and at which keys a chunk is split that has grown.
//!
//! Source: sharding document, "Auto-balancing", "Jumbo Chunks" and "Auto-splitting".

mod distribution;
mod limits;
mod policy;
mod splits;
#[cfg(test)]
mod tests;
mod zones;

pub use distribution::{BalanceBy, CollectionState, ShardState};
pub use limits::{IMBALANCE_CHUNKS, MAX_CHUNK_OBJECTS, MAX_SPLIT_POINTS};
pub use policy::{
    ChunkMove, MoveReason, PolicySettings, ZoneSplit, first_violation, plan_moves, plan_splits,
};
pub use splits::{
    ChunkSize, SplitCommit, SplitLimits, SplitSearch, TopChunkSplit, in_turns, split_top_chunk,
};
pub use zones::{ZoneOf, Zones};
