//! What a shard knows of its sharded collections: compared with what requests carry, learned from
//! the config servers, kept in `config.cache.*` for the secondaries and for the next start.
//!
//! A collection without an entry is not sharded: its definition installs one on every member before
//! anything is written by the new table. An entry is stale until it is refreshed where the node may
//! have missed a change: after its start, as a new primary, and on a secondary to which the primary
//! has written a newer one.
//!
//! Source: sharding document, "The routing table cache".

mod known;

mod check;
mod ownership;

mod cached;
mod load;
mod persist;

mod refresh;
mod settle;

mod commands;
#[cfg(test)]
mod testing;

pub(crate) use check::{check_collection, check_unsharded, is_behind, shard_version};
pub(super) use commands::append_versions;
pub(crate) use commands::{flush_collection, get_shard_version};
pub(crate) use known::{Collections, Known};
pub(crate) use ownership::ownership;
pub(crate) use persist::batches;
pub(crate) use refresh::{forget_collection, refresh_collection};
pub(crate) use settle::{begin_as_primary, distrust, list, settle};
