//! The real backend: pinned glommio executors with a network and file ring each, on Linux.

mod limits;
mod sys;

mod options;
mod preflight;

mod shared;
mod task;
mod timer;
mod ring;
mod net;
mod blocking;
mod file;
pub(crate) mod fs;
mod ports;
mod spin;
mod core;
mod queues;
mod monitor;
mod run;

pub use options::{RealOptions, StartError, available_cpus, choose_cpus};
pub use preflight::{PreflightReport, Problem, check_direct_io, preflight, raise_open_files};
pub use run::run;

pub(crate) use core::RealCore;
pub(crate) use file::RealFile;
pub(crate) use fs::RealDirLock;
pub(crate) use net::{RealConnection, RealIncoming, RealListener};
pub(crate) use sys::fill_os_random;
pub(crate) use task::RealYield;
pub(crate) use timer::RealSleep;
