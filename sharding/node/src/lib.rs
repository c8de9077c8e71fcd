//! What a node does as a shard, or as a config server, of a sharded cluster.
//!
//! A node becomes one in three phases (sharding document, "Node startup and shutdown"). By its role
//! alone it registers its part with the executor ([`start`]). With the `shardIdentity` document,
//! which it finds at its start, is sent by `_addShard` or applies from the log, it is a shard of a
//! cluster; until then it serves as a plain replica set. As a primary it begins what only primaries
//! do: config servers make the catalog of the cluster and hold its clock.
//!
//! What is kept lies on every core ([`part`]); what changes it runs on core 0. Authoritative are
//! the config servers. What a shard keeps of databases may be dropped at any time; its entries of
//! collections say which are sharded.

pub mod limits;
mod planted;

mod replies;

mod data;
mod local;
mod part;
#[cfg(test)]
mod testing;

mod config_servers;
mod remote_cursor;
mod sessions;
mod times;
mod user_writes;

mod config;
mod shard;

mod ddl;

mod consistency;

mod v44;

mod seam;
mod start;
mod table;

pub use planted::PlantedFault;
pub use start::{start, stop};
pub use table::register_commands;
