//! Plans that were found to be the best for the queries of a shape, and the indexes that are left
//! to queries of a shape.

mod cache;
mod filters;

pub(crate) use cache::{Decision, PlanCache, PlanKey, ShownPlan};
pub(crate) use filters::{IndexFilters, SetFilter};
