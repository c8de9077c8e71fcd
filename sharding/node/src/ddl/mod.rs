//! Definitions of a cluster: a shard coordinates those of the databases that it is the primary
//! shard of, and takes part in those of others.
//!
//! The machines are those of the protocol's `ddl`. Here are their locks and critical sections, what
//! they have performed, and their resumption by a new primary.

mod leadership;
mod sections;

mod facts;
mod moved;
mod perform;
mod rename;

mod block;
mod change_participants;
mod cloning;
mod coordinator;
mod copy;
mod locked;
mod participants;
mod rename_participant;
mod resume;
mod user_writes;

mod commands;
mod renames;

pub(crate) use block::{is_of_run, participant_block, stored_on};
pub(crate) use change_participants::change_participant;
pub(crate) use cloning::{clone_catalog_data, move_primary_abort};
pub(crate) use commands::{
    coll_mod, create_collection, drop_collection, drop_database, drop_indexes, move_primary,
    refine_shard_key, set_allow_migrations, shard_collection,
};
pub(crate) use coordinator::until_indexes_are_dropped;
pub(crate) use facts::shards;
pub(crate) use leadership::{
    Definitions, are_resumed, not_resumed_collection, not_resumed_database, resumed,
};
pub(crate) use locked::locked;
pub(crate) use participants::{
    create as create_copy, create_collection_participant, drop_collection_participant,
    drop_database_participant,
};
pub(crate) use rename_participant::rename_collection_participant;
pub(crate) use renames::{convert_to_capped, rename_collection, rename_if_unchanged};
pub(crate) use resume::{begin_as_primary, stop_leading};
pub(crate) use sections::{is_closed_to_reads, until_open};
pub(crate) use user_writes::set_user_write_block_mode;
