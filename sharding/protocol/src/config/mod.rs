//! What the config servers check before they change the routing table, and the documents that they
//! then write.

mod collections;
mod databases;
mod initial_split;
mod key_refinement;
mod migration_permission;
mod primary;
mod rename;
mod series_change;
mod settings_change;
mod shards;
mod zone_ranges;
mod zones;

mod balancing;
mod chunk_change;
#[cfg(test)]
mod chunk_tests;
mod merges;
mod splits;

pub use balancing::{BalancingRequest, settings_validator};
pub use chunk_change::{ChunkChange, CommittedCollection, epoch_changed};
pub use collections::{CollectionCreation, NewCollection};
pub use databases::{DatabaseCreation, DatabaseRequest, ShardSize, create_database};
pub use initial_split::{InitialChunk, InitialSplit, Zone, check_initial_chunks, initial_chunks};
pub use key_refinement::{KeyRefinement, KeyRefinementStep};
pub use merges::{ClearJumboRequest, MergeRequest, mergeable_runs, merged};
pub use migration_permission::{MigrationPermission, MigrationPermissionStep};
pub use primary::{PrimaryChange, change_primary};
pub use rename::{MetadataRename, RenameChange, ShardedEntry};
pub(crate) use rename::{append_incarnation, incarnation};
pub use series_change::{SeriesChange, SeriesChangeStep};
pub use settings_change::{
    BlockPhase, BlockStep, Blocked, CONFIG_COORDINATORS, SettingsChange, parameter,
};
pub use shards::{
    AddShardRequest, ClusterView, KnownShard, NewShard, ShardAddition, ShardHello, add_shard,
};
pub use splits::SplitRequest;
pub use zones::{ZoneKeyRange, check_zone_addition, check_zone_removal};
