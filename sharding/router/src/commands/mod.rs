//! The commands of a router.

mod bulk_write;
mod cluster;
mod cursors;
mod databases;
mod forward;
mod operations;
mod profile;
mod reads;
mod sessions;
mod shutdown;
mod status;
mod table;
mod writes;

pub use table::{register_commands, register_test_commands};
