//! Executes commands and plans over partitions: data commands, cursors, sessions, diagnostics.
//!
//! `open_node` makes a node out of a data directory, on every core; `register_commands` puts the commands into a core's
//! registry. A command runs on the core of its connection; what it reads and changes, it reads and changes on the
//! cores that own the partitions.

mod counter;
mod latency;
mod limits;
pub mod logbuf;
mod metrics;
mod options;
mod parameters;

mod acquire;
mod adopt;
mod builds;
mod capped;
mod cluster_parameters;
mod cluster_time;
mod compute;
mod concern;
mod fail_points;
mod feature_version;
mod fsync_lock;
mod generate;
mod guard;
mod interrupt;
mod local;
mod maintenance;
mod member;
mod members;
mod node_info;
mod operator_counts;
mod ops;
mod own_collections;
mod parking;
mod plan_cache;
mod profile;
mod profile_settings;
mod query_settings;
mod replication;
mod session_ids;
mod sessions;
mod settable;
mod spill;
mod startup_log;
mod stats;
mod time_keys;
mod topology;
mod transactions;

mod applier;
mod cloning;
mod commands;
mod db_check;
mod node;
mod read;
mod reopen;
mod ttl;
mod validate;
mod version;
mod write;

pub use adopt::reopen_as_copy;
pub use applier::{Applier, ApplyCounts, end_open_chain};
pub use cloning::{
    CloneTarget, ClonedDocument, begin_clone, clone_catalog, clone_listed, end_clone,
    has_partial_clone, parse_catalog_rows,
};
pub use commands::{
    MAX_WIRE_VERSION, ProcessSource, ProcessUsage, SystemSource, register_command,
    register_commands, register_test_commands, set_start_parameters,
};
pub use concern::forget_everywhere as forget_default_concerns;
pub use concern::has_default_write_concern;
pub use fail_points::fetching_goes_on;
pub use feature_version::compatible_version;
pub use generate::new_object_id;
pub use local::{any_local, document_of_uuid, put_local, read_local, write_local};
pub use maintenance::{store_oplog_bytes, stored_oplog_bytes};
pub use member::{
    begin_as_primary, check_own_collections, interrupt_writers, last_logged, log_note,
    no_writer_is_behind_a_gate, running_operations, show_oplog, writes_ended,
};
pub use members::{MEMBER_DATABASE, MEMBER_USER, MemberAuth};
pub use metrics::{CounterValues, Counters};
pub use node::{OpenNodeError, begin_standalone_builds, close_node, open_node};
pub use node_info::{NodeInfo, node_info};
pub use ops::client_operations;
pub use options::{HostInfo, NodeOptions, PlantedFault};
pub use parameters::{InitialSyncMethod, ReplicationParameters, replication_parameters};
pub use parameters::{LogControl, test_commands_enabled};
#[doc(hidden)]
pub use pinion_catalog::plant_unfenced_reads;
pub use pinion_catalog::{
    ApplyMode, CatalogRows, ListedCollection, ListedIndex, Uuid, is_replicated,
};
pub use pinion_catalog::{begin_builds, from_fatal};
pub use profile_settings::set_profile_defaults;
pub use read::from_log_error;
pub use reopen::reopen_at;
pub use replication::{FlowControlStatus, FlowSample, flow_sample, set_tickets, tickets_ran_out};
pub use sessions::forget_all as forget_sessions;
pub use startup_log::log_startup;
pub use topology::{
    Buffered, CommitQuorum, Elections, HostConnections, LastWrite, MemberFigures, ReplicaSet,
    Rounds, SetView, Transition, Waiting, replica_set, set_replica_set,
};
pub use transactions::hold_prepared;
pub use version::{choose_log_form, keep_version};
