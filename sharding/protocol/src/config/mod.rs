//! What the config servers check before they change the routing table, and the documents that they
//! then write.

mod databases;
mod shards;

pub use databases::{DatabaseCreation, DatabaseRequest, ShardSize, create_database};
pub use shards::{
    AddShardRequest, ClusterView, KnownShard, NewShard, ShardAddition, ShardHello, add_shard,
};
