//! Query settings: what all commands of a shape may use, or that they are rejected.

mod settings;
mod table;

pub(crate) use settings::{IndexHints, QuerySettings};
pub(crate) use table::{Entry, QueryShapeHash, SettingsTable};
