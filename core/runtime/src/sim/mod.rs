//! The simulated backend: nodes of several cores in one thread, driven by a seed and a virtual
//! clock.

mod control;
mod core;
mod crash;
mod disk;
mod events;
mod executor;
mod file;
pub(crate) mod fs;
mod life;
mod network;
mod options;
mod socket;
mod trace;
mod world;

pub use control::{
    NodeId, Sim, SimHandle, SimStats, Stuck, block_on, count, event, is_simulated, node_name,
    run_cores,
};
pub use disk::DiskOp;
pub use life::Death;
pub use options::{DiskFaults, LinkFaults, SimOptions};

pub(crate) use self::core::{SimCore, SimSleep, SimYield};
pub(crate) use file::SimFile;
pub(crate) use fs::SimDirLock;
pub(crate) use socket::{SimConnection, SimIncoming, SimListener};
