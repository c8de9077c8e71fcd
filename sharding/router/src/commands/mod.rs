//! The commands of a router.

mod balancer;
mod bulk_write;
mod chunks;
mod cluster;
mod collection_stats;
mod collections;
mod consistency;
mod cursors;
mod databases;
mod forward;
mod indexes;
mod move_primary;
mod operations;
mod profile;
mod reads;
mod refine;
mod renames;
mod sessions;
mod settings;
mod shard_replies;
mod sharding;
mod shutdown;
mod status;
mod table;
mod writes;

pub use table::{register_commands, register_test_commands};
