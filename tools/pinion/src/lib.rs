//! The Pinion node as a library: options, start, and the constructor that the binary and the
//! simulator share.

mod directory;
pub mod node;
pub mod options;
pub mod start;
mod system;
