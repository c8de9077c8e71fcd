//! Cores, tasks, timers, files, sockets and the cross-core mesh, with a real and a simulated
//! backend.
//!
//! Everything above this crate uses these functions alone; which backend serves them is decided
//! where the program starts: [`real::run`] or a [`sim::Sim`].

pub mod limits;

mod compute;
mod context;
mod core;
mod dma;
mod file;
pub mod fs;
mod mapped;
pub mod mesh;
mod net;
mod process;
mod random;
pub mod real;
pub mod sim;
pub mod sync;
mod task;
mod time;

pub use crate::compute::{Abandoned, compute, offload_bounded};
pub use crate::core::{
    CoreId, core_count, core_id, core_local, is_core, set_core_local, try_core_local,
};
pub use dma::DmaBuf;
pub use file::{File, OpenOptions};
pub use limits::{ALIGN, BACKGROUND_SHARES, FOREGROUND_SHARES};
pub use mapped::MappedFile;
pub use mesh::{call_on, on_all_cores, submit_to};
pub use net::{Connection, Incoming, Listener, connect, resolve};
pub use process::{
    RuntimeStats, is_shutdown_requested, request_shutdown, shutdown_requested, stats,
};
pub use random::{Rng, os_random, random_stream};
pub use task::{
    Cancelled, JoinHandle, LocalBoxFuture, Queue, YieldNow, foreground_idles, join_all,
    set_background_shares, should_yield, spawn, yield_if_due, yield_now,
};
pub use time::{
    Duration, Elapsed, Instant, Sleep, now, sleep, sleep_until, timeout, timeout_at, wall_ms,
    wall_us,
};
