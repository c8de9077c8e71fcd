//! Plans of a `$or`: a scan for each of its branches, where each has an index.

use pinion_wire::Result;

use super::candidate::{Candidate, Query, candidates};
use super::choose::usable;
use super::merge::{SortedAccess, by_sort};
use super::residual::residual;
use super::{Access, IndexAccess, Plan, PlanRequest};
use crate::limits::MAX_EXPLODED_SCANS;
use crate::matcher::Node;
use crate::sort::SortPattern;

/// The branches of the `$or` that the plan is made of.
pub(super) fn branches_of(root: &Node) -> Option<&[Node]> {
    root.conjuncts().iter().find_map(|node| match node {
        Node::Or(branches) => Some(&branches[..]),
        _ => None,
    })
}

/// The plans of the filter's `$or`: in the order of the sort, where scans of all branches have it,
/// and without one, unless that would read the same.
pub(super) fn plans(
    request: &PlanRequest<'_>,
    sort: Option<&SortPattern>,
    hinted: Option<usize>,
) -> Result<Vec<Plan>> {
    let Some(unsorted) = best_of_each(request, hinted, None)? else {
        return Ok(Vec::new());
    };
    let sorted = match sort {
        Some(_) => best_of_each(request, hinted, sort)?,
        None => None,
    };
    let mut plans = Vec::new();
    if let (Some(best), Some(sort)) = (sorted, sort)
        && let Some(access) = merged(request, sort, &best)
    {
        let index = |best: &Candidate| best.access.index;
        let reads_the_same = best.iter().map(index).eq(unsorted.iter().map(index));
        plans.push(plan(request, Access::Merge(access), &best, true));
        if reads_the_same {
            return Ok(plans);
        }
    }
    let scans = unsorted.iter().map(|best| best.access.clone()).collect();
    plans.push(plan(request, Access::Union(scans), &unsorted, false));
    Ok(plans)
}

fn plan(
    request: &PlanRequest<'_>,
    access: Access,
    best: &[Candidate],
    sort_provided: bool,
) -> Plan {
    let root = request.matcher.root();
    let mut branches = branches_of(root).into_iter().flatten().zip(best);
    let is_decided = |(branch, best): (&Node, &Candidate)| {
        residual(request, &best.access, branch.conjuncts()).is_empty()
    };
    Plan {
        access,
        sort_provided,
        filter_satisfied: root.conjuncts().len() == 1 && branches.all(is_decided),
        covered: false,
    }
}

/// The scans of all branches with what they are merged by.
fn merged(
    request: &PlanRequest<'_>,
    sort: &SortPattern,
    best: &[Candidate],
) -> Option<Vec<SortedAccess>> {
    let mut all = Vec::new();
    for (branch, best) in best.iter().enumerate() {
        let scans: &[IndexAccess] = match &best.exploded[..] {
            [] => std::slice::from_ref(&best.access),
            exploded => exploded,
        };
        if all.len() + scans.len() > MAX_EXPLODED_SCANS {
            return None;
        }
        all.extend(by_sort(request, sort, Some(branch), scans)?);
    }
    Some(all)
}

/// For each branch the index that serves it best, of those that have the order of the sort if one
/// is given.
fn best_of_each(
    request: &PlanRequest<'_>,
    hinted: Option<usize>,
    sort: Option<&SortPattern>,
) -> Result<Option<Vec<Candidate>>> {
    let root = request.matcher.root();
    let Some(branches) = branches_of(root) else {
        return Ok(None);
    };
    let mut all = Vec::with_capacity(branches.len());
    for branch in branches {
        let mut query = Query::new(request, vec![branch.conjuncts(), root.conjuncts()]);
        (query.sort, query.hinted) = (sort, hinted.is_some());
        let mut found = Vec::new();
        for (at, index) in usable(request).filter(|(at, _)| hinted.is_none_or(|h| h == *at)) {
            found.extend(candidates(at, index, &query)?);
        }
        let best = found
            .into_iter()
            .filter(|c| c.points > 0 || c.has_range)
            .filter(|c| sort.is_none() || c.sort_provided)
            .max_by_key(|c| (c.points, c.has_range, !c.wildcard));
        match best {
            Some(best) => all.push(best),
            None => return Ok(None),
        }
    }
    Ok(Some(all))
}
