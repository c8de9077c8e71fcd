//! The router role: which shard has what, which of its members answers, and how commands get there.
//!
//! A router is nothing but this. Shards and config servers have the role too, for what they ask of
//! others; it links neither storage nor a catalog.

mod clock;
mod cluster;
mod cluster_parameters;
mod commands;
mod concerns;
mod config_reads;
mod cursor;
mod dispatch;
mod epilogue;
mod gather;
mod hello;
mod hosts;
mod keys;
pub mod limits;
mod placement;
mod planted;
mod presence;
mod process;
mod reads;
mod reply;
mod request;
pub mod session_list;
mod sessions;
mod shards;
mod surround;
mod transaction_counts;
mod transactions;
mod writes;

pub use clock::{ClusterClock, RouterClock};
pub use cluster::{Cluster, ClusterOptions};
pub use commands::{register_commands, register_test_commands};
pub use hello::quiesce;
pub use hosts::{Hosts, HostsOptions, Retry, ShownHost, ShownSet, install as install_hosts};
pub use placement::Database;
pub use planted::PlantedFault;
pub use process::{RouterProcess, close, open};
pub use shards::{Shards, current_shards, keep_shards, reload_shards};
