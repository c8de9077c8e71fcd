//! Start options: the command line and the YAML file, in mongod's names, checked against a table.

mod file;
mod general;
mod key_file;
mod reader;
mod spec;

use std::fmt;

pub use general::{DEFAULT_MAX_CONNECTIONS, bind_addresses, fork, log_rotate, nested, verbosity};
pub use key_file::{KeyFileUse, member_auth};
pub use reader::{Arguments, Program, Reader};
pub use spec::{OptionSpec, Shape, Support, no, yes};

/// The value of an option as it was given.
#[derive(Clone, Debug, PartialEq)]
pub enum OptionValue {
    /// A switch.
    Switch(bool),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Double(f64),
    /// Anything else.
    Text(String),
}

/// One line that says what is wrong with the options, or the help text asked for.
#[derive(Debug, PartialEq)]
pub struct OptionError(pub String);

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for OptionError {}
