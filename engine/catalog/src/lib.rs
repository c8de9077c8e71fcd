//! The durable and in-memory catalog, index keys, index builds and two-phase drops.
//!
//! The catalog is immutable data, one version on each core, replaced whole. Changes are made one at
//! a time by a coordinator on core 0, behind gates that keep operations on the namespace out on
//! every core.

mod limits;
mod options;
mod text;
mod uuid;

mod catalog;
mod entry;
mod gates;
mod index;
mod names;
mod past;
mod series;
mod tally;
mod view;

mod build;
mod change;
mod ddl;
mod durable;
mod errors;
mod keys;
mod lsid;
mod noop;
mod open;
mod oplog;
mod oplog_format;
mod scattered;
mod specs;
mod v44_checks;

pub use build::{BuildLimits, BuildPhase, HoldBuilds, set_build_hold, set_build_limits};
pub use catalog::{Catalog, CoreCatalog, core_catalog};
pub use change::is_row_of_collection;
pub use ddl::{
    ApplyMode, AwaitedLock, BuildActivity, BuildCounts, BuildInfo, BuildName, BuildSet,
    BuildWaiting, CatalogRows, CollMod, CopyDocuments, DatabaseLocks, Definition, DefinitionGuard,
    DropTarget, Dropped, FindArrays, Hold, IndexChange, IndexName, IndexSelection, IndexesCreated,
    IndexesDropped, ListedCollection, ListedIndex, LoggedCommand, Modified, PlannedChange,
    PropertyChange, ReplacedCollection, abort_build, adjust_multikey, apply_command,
    apply_view_document, awaited_locks, begin_builds, begin_copy, build_counts, clone_as_capped,
    coll_mod, commit_planned, convert_to_capped, create_collection, create_collection_as,
    create_indexes, database_locks, drop_collection, drop_collection_of_no_views,
    drop_collection_unseen, drop_database, drop_database_unseen, drop_indexes, end_builds,
    end_copy, end_holds, ensure_collection, hold, hold_database, hold_database_but, hold_together,
    index_builds, keep_builds, kill_build, mark_copied, plan_collection, plan_indexes,
    plant_unfenced_reads, put_copied, put_listed, reindex, rename_collection,
    rename_collection_unseen, replace_collection, replicated_rows, set_build_set,
    set_definition_guard, set_multikey, show_oplog,
};
pub use durable::stored_collection;
pub use entry::{BadRow, Clustering, Collection, Placement};
pub use errors::{from_fatal, from_read_error, from_write_error};
pub use gates::{
    AccessGuard, ClosedBy, DdlGuard, GateAccess, GateCounts, GateMode, GateOf, GateUse, Gates,
    HeldDatabase, HoldId, Holder, NotDrained,
};
pub use index::{Building, Index, IndexPlacement};
pub use keys::{
    DocumentEntries, IndexEntry, IndexWrites, belongs, document_id, duplicate_entry, duplicate_id,
    entries_of, entry_key, entry_partition, entry_value, id_key, index_writes, partition_of,
    prefix_len, record_key, record_of, stored_document,
};
pub use limits::{BUILD_LEAST_FREE_BYTES, BUILD_MEMORY_BYTES, MAX_ACTIVE_USER_BUILDS, MAX_INDEXES};
pub use lsid::{append_child, append_lsid, lsid_document, read_lsid};
pub use names::{
    check_collection_uuid, check_creatable, check_not_view, check_writable, is_replicated,
};
pub use noop::{Noop, log_alone, log_noop};
pub use open::{drop_temporary, load, reap};
pub use oplog::{
    Observers, OpEvent, OpKind, OpObserver, RetryImage, SessionStamp, TransactionEnd,
    TransactionPart, bson_timestamp, encode_apply_ops, encode_entry, encode_entry_with_image,
    encode_operation, encode_outcome, encode_transaction,
};
pub use oplog_format::{OplogFormat, check_v44_can_follow, oplog_format, set_oplog_format};
pub use options::{
    Capped, Clustered, CollectionKind, CollectionOptions, ValidationAction, ValidationLevel,
    ViewDefinition, check_storage_engine,
};
pub use scattered::{
    RETRY_IMAGES, SESSION_RECORDS, check_not_scattered, scattered_key, session_key, statement_key,
};
pub use specs::{
    check_id_index_spec, check_index_specs, check_stored_spec, listing_of, parse_index_spec,
    series_index_key, to_series as series_index,
};
pub use tally::{Acquisitions, CountedWait};
pub use uuid::Uuid;
pub use view::{ResolvedView, SYSTEM_VIEWS, View, for_each_source};
