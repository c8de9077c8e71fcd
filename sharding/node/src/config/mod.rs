//! What config servers do: they make and keep the catalog of the cluster, which they alone change.

mod catalog;
mod changelog;
mod collections;
mod commands;
mod databases;
mod shards;
mod topology;
mod zones;

pub(crate) use catalog::begin as begin_catalog;
pub(crate) use commands::{
    add_shard, add_shard_to_zone, commit_create_collection, commit_drop_collection,
    create_database, drop_database, remove_shard_from_zone, update_zone_key_range,
};
pub(crate) use topology::follow as follow_topology;
