//! A node: its data directory opened, opened again and closed, what its parts keep on each core,
//! and all of its commands.

// A module uses those of its own group, in no circle, and of the groups above.

mod limits;

mod member;

mod maintenance;
mod reopen;
mod startup_log;

mod adopt;
mod node;

pub use adopt::reopen_as_copy;
pub use maintenance::{store_oplog_bytes, stored_oplog_bytes};
pub use member::{
    begin_as_primary, check_own_collections, interrupt_writers, last_logged,
    no_writer_is_behind_a_gate, running_operations, show_oplog, writes_ended,
};
pub use node::{begin_standalone_builds, close_node, open_node, register_commands};
pub use reopen::reopen_at;
pub use startup_log::log_startup;
