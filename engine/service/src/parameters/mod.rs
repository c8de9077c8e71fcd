//! Server parameters: what operators set, at the start or while the process runs.
//!
//! Each is a row in one registry. This crate gives the rows of what it owns itself; the others come
//! from the crates that own what they set.

mod authentication;
mod log_verbosity;
mod memory;
mod registry;
mod row;
mod rows;
mod values;

pub use authentication::{Mechanisms, ScramIterations};
pub use log_verbosity::LogControl;
pub use registry::{ParameterRegistry, parameter_registry};
pub use row::{ParameterChanges, Row, SetAt, Setting, parameter_changes};
pub use rows::{Parameters, parameters, rows, server_counters, test_commands_enabled};
pub use values::{flag, unreadable, whole, within};
