//! What a shard knows, and does when its routers and config servers ask it.

mod collections;
mod commands;
mod databases;
mod flushed;
mod identity;
mod observer;
mod parameters;
mod refreshes;

mod chunks;

pub(crate) use chunks::{
    check_sharding_index, merge_all_chunks_on_shard, merge_chunks, split_chunk, split_vector,
};
pub(crate) use collections::{
    Collections, Known, batches, begin_as_primary as begin_collections_as_primary,
    check_collection, check_unsharded, distrust, flush_collection, forget_collection,
    get_shard_version, is_behind as is_collection_behind, list as list_collections, ownership,
    refresh_collection, settle, shard_version,
};
pub(crate) use commands::{add_shard, flush_database, get_database_version, sharding_state};
pub(crate) use databases::{
    begin_as_primary, check_database, forget_cached, is_behind, membership, persist, refresh,
};
pub(crate) use identity::{load, reload};
pub(crate) use observer::observe;
pub(crate) use parameters::set_cluster_parameter;
pub(crate) use refreshes::{EntryKey, Refreshes, exclusively};
