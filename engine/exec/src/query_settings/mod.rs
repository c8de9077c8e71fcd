//! Query settings: what all commands of a shape may use, or that they are rejected.

use std::rc::Rc;
use std::sync::Arc;

use pinion_service::settable::Settable;

mod settings;
mod table;

pub(crate) use settings::{IndexHints, QuerySettings};
pub use table::{Entry, QueryShapeHash, SettingsTable};

/// Under which `_id` all of them are stored, among the cluster parameters.
pub(crate) const STORED_AS: &str = "querySettings";

/// The query settings that are set.
pub fn query_settings() -> Rc<Settable<Arc<SettingsTable>>> {
    pinion_runtime::core_local()
}
