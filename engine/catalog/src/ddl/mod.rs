//! Changes of the catalog: when each may be made, and what it does.

mod guard;
mod hold;
mod locks;

mod build_run;
mod build_set;
mod builds;
mod coordinator;
mod logged_builds;

mod cloning;
mod coll_mod;
mod create;
mod drop;
mod indexes;
mod multikey;
mod planned;
mod reindex;
mod rename;
mod replace;
mod series;
mod shard_key;

mod adapt;
mod copied;
mod foreign;
mod logged;

pub use build_set::{BuildName, BuildSet, Waiting as BuildWaiting, set_build_set};
pub use builds::{
    BuildActivity, BuildCounts, BuildInfo, abort_build, build_counts, end_builds, index_builds,
    keep_builds, kill_build,
};
pub use cloning::{CopyDocuments, clone_as_capped, convert_to_capped};
pub use coll_mod::{CollMod, IndexChange, IndexName, Modified, PropertyChange, coll_mod};
pub(crate) use coordinator::Coordinator;
pub(crate) use coordinator::skip_numbers;
pub use coordinator::{awaited_locks, database_locks, show_oplog};
pub use copied::{
    CatalogRows, ListedCollection, begin_copy, end_copy, mark_copied, put_copied, put_listed,
    replicated_rows,
};
pub use create::{create_collection, create_collection_as, ensure_collection};
pub(crate) use drop::drop_temporary;
pub use drop::{
    Dropped, drop_collection, drop_collection_of_no_views, drop_collection_unseen, drop_database,
    drop_database_unseen,
};
pub use foreign::ListedIndex;
pub use guard::{Definition, DefinitionGuard, set_definition_guard};
pub use hold::{Hold, end_holds, hold, hold_database, hold_database_but, hold_together};
pub use indexes::{IndexSelection, IndexesCreated, IndexesDropped, create_indexes, drop_indexes};
pub use locks::{AwaitedLock, DatabaseLocks};
pub use logged::{
    ApplyMode, LoggedCommand, apply_command, apply_view_document, plant_unfenced_reads,
};
pub use logged_builds::begin_builds;
pub use multikey::{FindArrays, adjust_multikey, set_multikey};
pub use planned::{PlannedChange, commit_planned, plan_collection, plan_indexes};
pub use reindex::reindex;
pub use rename::{DropTarget, rename_collection, rename_collection_unseen};
pub use replace::{ReplacedCollection, replace_collection};
