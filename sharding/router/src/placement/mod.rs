//! Where databases and collections are, as this process last heard.
//!
//! Core 0 asks the config servers, once however many wait for one namespace; a core keeps what it
//! was given until a shard says that it is old.
//!
//! Source: sharding document, "The routing table cache".

mod caches;
mod collections;
mod databases;
mod load;

pub(crate) use caches::Caches;
pub(crate) use collections::{
    check_is_unsharded, check_uuid_is_unsharded, chunks_have_changed, defined_by, error_is_stale,
    flush_all, flush_collection, flush_database, shard_is_stale, table_of, write_error_is_stale,
};
pub use databases::Database;
pub(crate) use databases::{database, database_beyond, forget_database, make_database};
