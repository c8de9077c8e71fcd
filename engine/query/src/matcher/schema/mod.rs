//! `$jsonSchema`: parsed once, checked against values, and explained rule by rule where one is
//! broken.

mod details;
mod eval;
mod parse;
mod parse_encrypt;
mod parse_object;
mod parse_type;
mod rules;
mod unordered;

#[cfg(test)]
mod tests;

pub(crate) use details::{Details, schema_details};
pub(super) use parse::parse_schema;
pub(crate) use rules::Schema;
