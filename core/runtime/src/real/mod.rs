//! The real backend: pinned glommio executors with a network and file ring each, on Linux.

mod limits;
mod sys;

mod options;
mod preflight;

mod blocking;
mod compute;
mod core;
mod file;
pub(crate) mod fs;
mod mapped;
mod memory;
mod monitor;
mod net;
mod ports;
mod processor;
mod queues;
mod ring;
mod run;
mod shared;
mod spin;
mod task;
mod timer;

pub use memory::{lock_around, map_locked};
pub use options::{OnLarge, RealOptions, StartError, available_cpus, choose_cpus};
pub use preflight::{
    PreflightReport, Problem, check_direct_io, load_code, preflight, raise_open_files,
};
pub use run::run;

pub(crate) use compute::compute;
pub(crate) use core::RealCore;
pub(crate) use file::RealFile;
pub(crate) use fs::RealDirLock;
pub(crate) use mapped::RealMapped;
pub(crate) use net::{RealConnection, RealIncoming, RealListener, resolve};
pub(crate) use sys::fill_os_random;
pub(crate) use task::RealYield;
pub(crate) use timer::RealSleep;
