//! What the members of a replica set agree on, as pure functions and state machines: no clock, no
//! socket, no storage.
//!
//! `config` is the set's configuration: read, checked rule by rule, written as clients see it, and
//! which change of it is allowed. `message` is what members say to each other. `decision` is what a
//! member concludes from what it knows. `node` is a member as a state machine: what happens goes
//! in, what is to be done comes out.

pub mod config;
pub mod decision;
pub mod message;
pub mod node;
