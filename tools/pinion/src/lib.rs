//! The Pinion node as a library: options, log, and the constructor that the binary and the
//! simulator share.

pub mod alloc;
mod descriptors;
mod directory;
pub mod fork;
pub mod log;
pub mod machine;
pub mod node;
pub mod options;
pub mod start;
mod system;
mod verbosity;
