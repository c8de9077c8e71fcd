//! A shard behind routers and config servers of MongoDB 4.4: what they ask, and what they are asked
//! in the place of Pinion's own.
//!
//! A collection is sharded by the definition that Pinion's own clusters have, whose steps are
//! translated: the other shards copy the collection from this one, and the shard itself writes the
//! routing table, as the config servers of MongoDB 4.4 expect.

mod catalog;
mod commands;
mod shards;

pub(crate) use catalog::{check_no_chunks, configure};
pub(crate) use commands::{
    clone_collection_options, set_shard_version, shard_collection, unset_sharding,
};
pub(crate) use shards::for_shards;

use pinion_sharding_protocol::Form;
use pinion_wire::{Error, ErrorCode, Result};

use crate::part::form;

/// Refuses what the config servers of MongoDB 4.4 have no part in.
///
/// # Errors
/// `CommandNotSupported` behind such.
pub(crate) fn check_own_cluster(what: &str) -> Result<()> {
    match form() {
        Form::Own => Ok(()),
        Form::Mongo44 => Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            format!("{what} is not supported on a shard behind routers of MongoDB 4.4"),
        )),
    }
}
