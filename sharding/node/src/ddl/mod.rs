//! Definitions of a cluster: a shard coordinates those of the databases that it is the primary
//! shard of, and takes part in those of others.
//!
//! The machines are those of the protocol's `ddl`. Here are their locks and critical sections, what
//! they have performed, and their resumption by a new primary.

mod leadership;
mod sections;

mod facts;
mod perform;

mod coordinator;
mod participants;
mod resume;

mod commands;

pub(crate) use commands::{create_collection, drop_collection, drop_database};
pub(crate) use leadership::{
    Definitions, are_resumed, not_resumed_collection, not_resumed_database, resumed,
};
pub(crate) use participants::{
    create_collection_participant, drop_collection_participant, drop_database_participant,
};
pub(crate) use resume::{begin_as_primary, stop_leading};
