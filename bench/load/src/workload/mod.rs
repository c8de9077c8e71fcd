//! What is asked of a server: operations, keys, documents and how both are chosen.

mod choose;
mod distribution;
mod document;
mod properties;
mod random;
mod sequence;
mod spec;

pub use choose::{Chooser, Shared};
#[cfg(test)]
pub use document::Document;
pub use document::{check_value, value};
pub use properties::Properties;
pub use random::{Random, derive};
pub use spec::{Kind, Request, Spec};

#[cfg(test)]
mod tests;
