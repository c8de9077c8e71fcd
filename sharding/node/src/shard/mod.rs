//! What a shard knows, and does when its routers and config servers ask it.

mod commands;
mod databases;
mod drop_database;
mod identity;
mod observer;
mod refreshes;

pub(crate) use commands::{add_shard, flush_database, get_database_version, sharding_state};
pub(crate) use databases::{
    begin_as_primary, check_collection, check_database, forget_cached, is_behind, refresh,
};
pub(crate) use drop_database::drop_database;
pub(crate) use identity::{load, reload};
pub(crate) use observer::observe;
pub(crate) use refreshes::Refreshes;
