//! Plans that were found to be the best for the queries of a shape, and the indexes that are left
//! to queries of a shape.

use std::rc::Rc;

use pinion_service::settable::Settable;

mod cache;
mod filters;

pub use cache::{Decision, PlanCache, PlanKey, ShownPlan, plan_cache};
pub use filters::{IndexFilters, SetFilter};

/// The index filters that are set.
pub(crate) fn index_filters() -> Rc<Settable<IndexFilters>> {
    pinion_runtime::core_local()
}
