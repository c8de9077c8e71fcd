//! The commands of a router.

mod bulk_write;
mod cluster;
mod collection_stats;
mod collections;
mod cursors;
mod databases;
mod forward;
mod indexes;
mod operations;
mod profile;
mod reads;
mod sessions;
mod shard_replies;
mod sharding;
mod shutdown;
mod status;
mod table;
mod writes;

pub use table::{register_commands, register_test_commands};
