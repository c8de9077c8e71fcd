//! The rows of all commands. It knows neither storage nor a runtime, so a router has the same rows
//! as a node; each attaches the handlers that it has.

#[macro_use]
mod table;
mod rows;

pub use rows::{ROWS, find_row, row};

#[cfg(test)]
mod tests;
