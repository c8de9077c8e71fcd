//! What a shard knows, and does when its routers and config servers ask it.

mod collections;
mod commands;
mod databases;
mod flushed;
mod identity;
mod observer;
mod refreshes;

pub(crate) use collections::{
    Collections, Known, begin_as_primary as begin_collections_as_primary, check_collection,
    check_unsharded, distrust, flush_collection, forget_collection, get_shard_version,
    is_behind as is_collection_behind, list as list_collections, ownership, refresh_collection,
    settle,
};
pub(crate) use commands::{add_shard, flush_database, get_database_version, sharding_state};
pub(crate) use databases::{
    begin_as_primary, check_database, forget_cached, is_behind, membership, persist, refresh,
};
pub(crate) use identity::{load, reload};
pub(crate) use observer::observe;
pub(crate) use refreshes::{EntryKey, Refreshes, exclusively};
