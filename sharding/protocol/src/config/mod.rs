//! What the config servers check before they change the routing table, and the documents that they
//! then write.

mod collections;
mod databases;
mod initial_split;
mod shards;
mod zone_ranges;
mod zones;

pub use collections::{CollectionCreation, NewCollection};
pub use databases::{DatabaseCreation, DatabaseRequest, ShardSize, create_database};
pub use initial_split::{InitialChunk, InitialSplit, Zone, check_initial_chunks, initial_chunks};
pub use shards::{
    AddShardRequest, ClusterView, KnownShard, NewShard, ShardAddition, ShardHello, add_shard,
};
pub use zones::{ZoneKeyRange, check_zone_addition, check_zone_removal};
