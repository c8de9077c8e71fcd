//! Plans of `distinct`: in the order of an index a scan goes from one value of a field to the next
//! without those between, which have the same.

use std::cmp::Reverse;

use pinion_wire::Result;

use super::candidate::{Query, bounded, field_bounds, serves};
use super::choose::{find_hinted, usable};
use super::covered::has_values;
use super::residual::residual;
use super::{Access, Hint, Plan, PlanRequest};
use crate::matcher::Node;

/// Such a plan.
#[derive(Clone, Debug)]
pub struct DistinctPlan {
    pub plan: Plan,
    /// The place of the field in the index.
    pub field: usize,
}

/// The plan for the values of `key`, where an index has them all and decides the filter alone.
///
/// # Errors
/// When the hint names no index.
pub fn distinct_plan(request: &PlanRequest<'_>, key: &str) -> Result<Option<DistinctPlan>> {
    let matcher = request.matcher;
    // Another document of the same value may be one that is owned.
    if request.shard_key.is_some()
        || matcher.is_near()
        || matcher.has_text()
        || matcher.collation().is_some()
        || matcher.id_equality().is_some()
        || matches!(matcher.root(), Node::AlwaysFalse)
    {
        return Ok(None);
    }
    let hinted = match request.hint.filter(|_| request.filter.is_none()) {
        Some(Hint::Natural(_)) => return Ok(None),
        Some(hint) => Some(find_hinted(request, hint)?),
        None => None,
    };
    let conjuncts = matcher.root().conjuncts();
    let mut query = Query::new(request, vec![conjuncts]);
    query.hinted = hinted.is_some();
    let mut found: Vec<DistinctPlan> = Vec::new();
    for (at, index) in usable(request).filter(|(at, _)| hinted.is_none_or(|h| h == *at)) {
        let field = index.paths().iter().position(|path| path.text() == key);
        let Some(field) = field.filter(|_| has_values(index) && !index.is_id()) else {
            continue;
        };
        // A sparse index lacks documents without any of its fields: those have no value here.
        if !serves(index, &query) || (field > 0 && matcher.is_empty()) {
            continue;
        }
        let bounds = field_bounds(index, query.found(index));
        let bounds = bounds.into_iter().map(|(bounds, _)| bounds).collect();
        let access = bounded(at, index, &query, bounds).access;
        if !residual(request, &access, conjuncts).is_empty() {
            continue;
        }
        let plan = Plan {
            access: Access::Index(access),
            sort_provided: false,
            filter_satisfied: true,
            covered: false,
        };
        found.push(DistinctPlan { plan, field });
    }
    let rank = |found: &DistinctPlan| match &found.plan.access {
        Access::Index(access) => Reverse((found.field, access.bounds.len())),
        _ => unreachable!("it is of an index"),
    };
    Ok(found.into_iter().max_by_key(rank))
}

impl DistinctPlan {
    /// The stages that explain prints.
    pub fn explain(&self, request: &PlanRequest<'_>, key: &str) -> super::ExplainStage {
        let Access::Index(access) = &self.plan.access else {
            unreachable!("it is of an index");
        };
        super::explain::distinct_stages(access, request, key)
    }
}
