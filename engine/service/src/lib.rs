//! What surrounds a command, whatever it does and wherever its documents are: a node and a router
//! have the same.
//!
//! Each module keeps its own value on each core, which the process sets as it starts.

// A module uses those of its own group, in no circle, and of the groups above.

// Values and questions that know nothing else of the crate.
pub mod connections;
pub mod counter;
pub mod feature_version;
pub mod generate;
pub mod interrupt;
pub mod key_document;
pub mod latency;
pub mod limits;
pub mod session_ids;
pub mod settable;

// What is counted and logged, and what takes long.
pub mod compute;
pub mod logbuf;
pub mod metrics;
pub mod operator_counts;

// A process, those that know it, and what it runs.
pub mod cluster_parameters;
pub mod members;
pub mod node_info;
pub mod ops;
pub mod options;
pub mod parking;
pub mod process_usage;
pub mod query_settings;
pub mod session_table;

// What is wrong with a command, wherever it is executed.
pub mod command_checks;

// What operators set, for all commands or for tests, and what goes by that.
pub mod cursors;
pub mod fail_points;
pub mod parameters;
pub mod profile_settings;
pub mod spill;

// How connections authenticate.
pub mod login;

// Commands that any process answers.
pub mod authenticate;
pub mod hello;
pub mod listing;
pub mod parameter_commands;
pub mod small_talk;
pub mod test_commands;
pub mod transaction_checks;
pub mod users;
