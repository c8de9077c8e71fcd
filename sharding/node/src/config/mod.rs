//! What config servers do: they make and keep the catalog of the cluster, which they alone change.

mod catalog;
mod changelog;
mod commands;
mod databases;
mod shards;
mod topology;

pub(crate) use catalog::begin as begin_catalog;
pub(crate) use commands::{add_shard, create_database, drop_database};
pub(crate) use topology::follow as follow_topology;
