//! Administrative commands: what operators, dashboards and backups ask of a node.

// A module uses those of its own group, in no circle, and of the groups above.

mod limits;

pub mod db_check;
mod validate;

mod absent;
mod cluster_parameters;
mod compact;
mod connections;
mod data_size;
mod db_hash;
mod default_concerns;
mod fail_points;
mod feature_compatibility;
mod fsync;
mod lock_info;
mod metadata;
mod profile;
mod server_status;
mod shutdown;
mod small;
mod status_sections;
mod user_write_block;

mod table;

pub use absent::register_unreplicated;
pub use compact::{AutoCompact, end_auto_compact};
pub use fail_points::register_test_commands;
pub use status_sections::SystemSource;
pub use table::{parameter_rows, register_commands};
pub use validate::ValidateMemory;
