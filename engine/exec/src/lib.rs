//! Executes commands and plans over partitions: data commands, cursors, sessions, diagnostics.
//!
//! `register_commands` puts the data commands into a core's registry. A command runs on the core of
//! its connection; what it reads and changes, it reads and changes on the cores that own the
//! partitions.

// A module uses those of its own group, in no circle, and of the groups above.

// Values and questions that know nothing else of the crate.
pub mod limits;
pub mod own_collections;
pub mod stats;
mod transaction_state;
mod tree_uses;

// What of storage and of the set surrounds a command, whatever it does.
pub mod access_collections;
pub mod capped;
mod cursor_reads;
pub mod fsync_lock;
mod gate_entry;
pub mod guard;
pub mod options;
pub mod parameters;
pub mod placement;
pub mod plan_cache;
pub mod replication;
pub mod topology;
pub mod user_write_block;

// Sessions and their transactions.
pub mod open_transactions;
pub mod sessions;
pub mod statements;

// The way to documents.
mod sharded_view;

pub mod acquire;
mod pipeline;
pub mod read;
pub mod write;

// What the node keeps in collections of its own, and what it promises with them.
pub mod cluster_parameter_store;
pub mod cluster_time;
pub mod concern;
pub mod feature_compatibility;
pub mod local;
pub mod profile;
pub mod session_refresh;
pub mod time_keys;
pub mod transactions;
pub mod user_write_block_store;

// Commands.
pub mod commands;

pub use commands::{attach, register_commands};
pub use concern::forget_everywhere as forget_default_concerns;
pub use concern::has_default_write_concern;
pub use feature_compatibility::{choose_oplog_format, keep_version};
pub use local::{any_local, document_of_uuid, put_local, read_local, write_local};
pub use options::{NodeOptions, PlantedFault};
pub use parameters::{InitialSyncMethod, ReplicationParameters, replication_parameters};
pub use read::from_log_error;
pub use replication::{FlowControlStatus, FlowSample, flow_sample, set_tickets, tickets_ran_out};
pub use sessions::forget_all as forget_sessions;
pub use topology::{
    Buffered, CommitQuorum, Elections, LastWrite, MemberFigures, ReplicaSet, Rounds, SetView,
    Transition, Waiting, replica_set, set_replica_set,
};
pub use transactions::hold_prepared;
pub use tree_uses::TreeMetrics;
