//! Executes commands and plans over partitions: data commands, cursors, sessions, diagnostics.
//!
//! `open_node` makes a node out of a data directory, on every core; `register_commands` puts the commands into a core's
//! registry. A command runs on the core of its connection; what it reads and changes, it reads and changes on the
//! cores that own the partitions.

// A module uses those of its own group, in no circle, and of the groups above.

// Values and questions that know nothing else of the crate.
mod counter;
mod feature_version;
mod generate;
mod interrupt;
mod latency;
mod limits;
mod own_collections;
mod session_ids;
mod settable;
mod stats;
mod transaction_state;

// What surrounds a command, whatever it does.
mod capped;
mod cluster_parameters;
mod compute;
mod cursors;
mod fail_points;
mod fsync_lock;
mod gate_entry;
mod guard;
pub mod logbuf;
mod members;
mod metrics;
mod node_info;
mod operator_counts;
mod ops;
mod options;
mod parameters;
mod parking;
mod plan_cache;
mod profile_settings;
mod query_settings;
mod replication;
mod spill;
mod topology;

// Sessions and their transactions.
mod open_transactions;
mod sessions;
mod statements;

// The way to documents.
mod acquire;
mod pipeline;
mod read;
mod write;

// What the node keeps in collections of its own, and what it promises with them.
mod cluster_parameter_store;
mod cluster_time;
mod concern;
mod local;
mod profile;
mod session_refresh;
mod time_keys;
mod transactions;
mod version;

// What runs beside commands.
mod builds;
mod db_check;
mod ttl;
mod validate;

// What another member's log and data become.
mod applier;
mod cloning;
mod member;
mod recovery;

// Commands.
mod commands;

// The node: how it is opened, opened again, and closed.
mod adopt;
mod maintenance;
mod node;
mod reopen;
mod startup_log;

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
pub use node::{begin_standalone_builds, close_node, open_node};
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
pub use recovery::OpenNodeError;
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
