//! What config servers do: they make and keep the catalog of the cluster, which they alone change.

mod balancer;
mod balancer_commands;
mod catalog;
mod changelog;
mod chunk_commands;
mod chunks;
mod collections;
mod commands;
mod databases;
mod migrations;
mod refine;
mod renames;
mod series;
mod settings;
mod shards;
mod topology;
mod zones;

pub(crate) use balancer_commands::{
    balancer_collection_status, balancer_start, balancer_status, balancer_stop,
    configure_collection_balancing,
};
pub(crate) use catalog::begin as begin_catalog;
pub(crate) use changelog::changelog_entry;
pub(crate) use chunk_commands::{
    clear_jumbo_flag, commit_chunk_split, commit_chunks_merge, commit_merge_all_chunks_on_shard,
};
pub(crate) use commands::{
    add_shard, add_shard_to_zone, chunks_in, coll_mod, commit_create_collection,
    commit_drop_collection, commit_move_primary, commit_refine_shard_key, create_database,
    drop_database, remove_shard_from_zone, rename_collection_metadata, set_allow_migrations,
    set_cluster_parameter, set_user_write_block_mode, update_zone_key_range,
};
pub(crate) use settings::{begin as begin_settings, raise_shards, spread_parameter};
pub(crate) use topology::follow as follow_topology;
