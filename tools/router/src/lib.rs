//! A router as a library: options, start, and the constructor that the binary and the simulator
//! share.

pub mod options;
pub mod router;
pub mod start;
