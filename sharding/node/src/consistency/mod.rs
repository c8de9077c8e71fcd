//! `checkMetadataConsistency` of a database: its primary shard compares what all shards have with
//! the catalog, while no definition runs.

mod look;
mod participant;

mod commands;

pub(crate) use commands::check_metadata_consistency;
pub(crate) use participant::check_metadata_consistency_participant;
