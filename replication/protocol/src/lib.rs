//! What the members of a replica set agree on, as pure functions: no clock, no socket, no storage.
//!
//! `config` is the set's configuration: read, checked rule by rule, written as clients see it, and which change of it is allowed.

pub mod config;
