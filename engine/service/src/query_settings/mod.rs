//! Query settings: what all commands of a shape may use, or that they are rejected.

use std::rc::Rc;
use std::sync::Arc;

mod settings;
mod table;

pub use settings::{IndexHints, QuerySettings};
pub use table::{Entry, QueryShapeHash, SettingsTable};

use crate::settable::Settable;

/// Under which `_id` all of them are stored, among the cluster parameters.
pub const STORED_AS: &str = "querySettings";

/// The query settings that are set.
pub fn query_settings() -> Rc<Settable<Arc<SettingsTable>>> {
    pinion_runtime::core_local()
}
