//! What the nodes of a sharded cluster agree on, as pure functions and state machines: no clock, no
//! socket, no storage.
//!
//! `documents` are those of the `config` database, in which the routing table is kept. `config` is
//! what the config servers check before they change them. `monitor` is what a node knows of another
//! replica set. `txn` is a transaction over shards. `balancer` decides on chunks. `ddl` are the
//! definitions of a cluster. `consistency` compares the shards with the catalog.

pub mod balancer;
pub mod config;
pub mod consistency;
pub mod ddl;
pub mod documents;
pub mod limits;
pub mod txn;

mod cache;
mod chunk;
mod connection_string;
mod filter;
mod key;
mod monitor;
mod registry;
mod series;
mod shard_id;
mod stale;
mod table;
mod target;
#[cfg(test)]
mod testing;
mod values;
mod version;

pub use cache::{
    Accessor, Cacheable, CachedCollection, CachedDatabase, Effect, Input, LoadError,
    MAX_REFRESH_RETRIES, NamespaceCache, Staleness, Targets,
};
pub use chunk::{ChunkInfo, ChunkRange, ShardIdx};
pub use connection_string::ConnectionString;
pub use filter::{OwnershipFilter, TableHistory};
pub use key::{IndexedValue, KeyBytes, MatchedKeys, ShardKeyPattern};
pub use monitor::{
    Effect as MonitorEffect, Failure, HelloReply, Input as MonitorInput, LastWrite, Member,
    MemberKind, Monitor, SetTopology, TopologyVersion, cannot_satisfy,
};
pub use registry::{CONFIG_ID, ShardChanges, ShardEntry, ShardRegistry};
pub use series::{bucket_shard_key, change_to};
pub use shard_id::ShardId;
pub use stale::{StaleDatabaseInfo, StaleEpochInfo, StaleInfo, StaleReason};
pub use table::{RoutingTable, TableError};
pub use target::{ModifyStatement, TargetedShards, WritePlan};
pub use version::{
    ChunkVersion, DatabaseVersion, Form, Incarnation, MovedVersions, ShardVersion,
    has_fixed_placement,
};
