//! What any program of Pinion is as a process: its options, its log, its allocator, and what it
//! knows of the machine.

pub mod alloc;
mod cpus;
pub mod descriptors;
mod early;
pub mod fork;
pub mod log;
pub mod machine;
pub mod options;
mod stop;
pub mod verbosity;

pub use cpus::cpus;
pub use early::Early;
pub use stop::{BAD_OPTIONS, NET_ERROR, Stop, UNCAUGHT, log_control, stop, write_pid};
