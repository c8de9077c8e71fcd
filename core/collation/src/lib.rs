//! Collations: MongoDB's settings and locales over ICU4X's comparison and sort keys.
//!
//! A collation replaces the order of strings by their bytes, wherever values are compared and
//! wherever they become keys. Sort keys compare by `memcmp` as the collation compares the strings,
//! so keys that are stored and comparisons that are made agree. Stored keys depend on the tables
//! that ICU4X brings: see [`TABLES`].

mod collation;
mod locales;
mod provider;
mod settings;
#[cfg(test)]
mod tests;

pub use collation::{Collation, TABLES, compare_documents, compare_values, values_equal};
pub use settings::{
    Alternate, CaseFirst, Invalid, MaxVariable, Options, Settings, Strength, VERSION,
};
