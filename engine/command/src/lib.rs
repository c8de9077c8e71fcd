//! The rows of all commands, and the syntax of those that a router looks into. It knows neither
//! storage nor a runtime, so a router has the same rows as a node, each with the handlers that it
//! attaches, and refuses the same mistakes in the same words.

#[macro_use]
mod table;
mod rows;

pub mod syntax;

pub use rows::{ROWS, find_row, row};

#[cfg(test)]
mod tests;
