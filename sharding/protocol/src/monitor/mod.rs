//! What a node knows of the members of another replica set, and which of them it chooses.
//!
//! Source of the rules: the drivers' specifications of server discovery and monitoring, server
//! selection, and max staleness.

mod hello;
mod machine;
mod selection;
mod topology;
mod watch;

#[cfg(test)]
mod tests;

pub use hello::{HelloReply, TopologyVersion};
pub use machine::{Effect, Failure, Input, Monitor};
pub use selection::cannot_satisfy;
pub use topology::{LastWrite, Member, MemberKind, SetTopology};
