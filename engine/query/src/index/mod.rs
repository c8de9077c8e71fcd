//! Indexes as data: what their specification says, and the keys that a document puts into them.

mod geo;
mod hashed;
mod key;
mod keys;
mod kind;
mod multikey;
mod spec;
mod wildcard;

#[cfg(test)]
mod tests;

pub use hashed::hash_value;
pub use key::IndexKey;
pub use keys::{IndexKeys, index_keys};
pub use kind::IndexKind;
pub use multikey::MultikeyPaths;
pub use spec::IndexSpec;
pub(crate) use wildcard::{PATH_FIELD, WildcardFields};
pub use wildcard::{check_wildcard_overlap, check_wildcard_projection};
