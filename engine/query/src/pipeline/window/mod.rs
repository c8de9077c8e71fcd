//! `$setWindowFields`: functions over the documents around each document, within its partition.
//!
//! The stage is a sort by partition and order, and behind it the functions, which see one partition
//! after the other and give each document as soon as all of its windows are known.

mod bounds;
mod framed;
mod function;
mod held;
mod parse;
mod parse_series;
mod partition;
mod series;

#[cfg(test)]
pub(super) mod tests;

pub(super) use bounds::parse_unit;
pub(super) use parse::{WindowFields, parse};
pub(super) use partition::Windows;
