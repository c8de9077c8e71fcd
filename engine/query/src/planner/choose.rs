//! The choice among the indexes: by the fields bound to points, then by the sort, then by ranges.

use pinion_wire::Result;

use super::candidate::{Candidate, Query, candidates};
use super::covered::is_covered;
use super::merge::by_sort;
use super::residual::residual;
use super::{Access, Hint, Plan, PlanRequest, alternatives};
use crate::error::error;
use crate::index::{IndexKind, IndexSpec};
use crate::limits::MAX_PLANS;
use crate::matcher::Node;
use crate::sort::{Direction, SortPattern};
use crate::value::elements;

/// The indexes that plans may use, with their places.
pub(super) fn usable<'a>(
    request: &PlanRequest<'a>,
) -> impl Iterator<Item = (usize, &'a IndexSpec)> + use<'a> {
    let left = request.filter;
    request
        .indexes
        .iter()
        .enumerate()
        .filter(|(_, index)| index.is_usable())
        .filter(move |(_, index)| left.is_none_or(|filter| filter.allows(index)))
}

pub(super) fn plans(request: &PlanRequest<'_>) -> Result<Vec<Plan>> {
    // The filter on indexes was made by the node's operator, and wins over what a client hints.
    let request = &PlanRequest {
        hint: request.hint.filter(|_| request.filter.is_none()),
        ..*request
    };
    if request.matcher.is_near() {
        return Ok(vec![super::geo::plan(request)?]);
    }
    if request.matcher.has_text() {
        return Ok(vec![super::text::plan(request)?]);
    }
    if let Some(wanted) = request.key_bounds {
        return Ok(vec![super::key_bounds::plan(request, wanted)?]);
    }
    let sort = request
        .sort
        .filter(|sort| !sort.is_empty() || sort.natural().is_some());
    let hinted = match request.hint {
        Some(Hint::Natural(direction)) => return Ok(vec![collection(request, sort, *direction)]),
        Some(hint) => Some(find_hinted(request, hint)?),
        None => None,
    };
    if hinted.is_none()
        && let Some(plan) = without_choice(request, sort)
    {
        return Ok(vec![plan]);
    }
    indexed(request, sort, hinted)
}

/// The plan of a query for which there is but one way.
fn without_choice(request: &PlanRequest<'_>, sort: Option<&SortPattern>) -> Option<Plan> {
    if matches!(request.matcher.root(), Node::AlwaysFalse) {
        return Some(Plan {
            access: Access::Nothing,
            sort_provided: true,
            filter_satisfied: true,
            covered: false,
        });
    }
    let index = request.indexes.iter().find(|index| index.is_id());
    let collation = index.and_then(|index| index.collation.as_ref());
    if let Some(id) = request.matcher.id_lookup(collation) {
        let alone = request.matcher.id_equality_alone().is_some();
        return Some(Plan {
            access: Access::Id(id.clone()),
            sort_provided: true,
            filter_satisfied: alone,
            covered: false,
        });
    }
    let direction = sort.and_then(SortPattern::natural)?;
    Some(collection(request, sort, direction))
}

/// The plans by the indexes, or over the collection where none of them helps.
fn indexed(
    request: &PlanRequest<'_>,
    sort: Option<&SortPattern>,
    hinted: Option<usize>,
) -> Result<Vec<Plan>> {
    let root = request.matcher.root();
    let mut query = Query::new(request, vec![root.conjuncts()]);
    (query.sort, query.hinted) = (sort, hinted.is_some());
    let mut found = Vec::new();
    for (at, index) in usable(request).filter(|(at, _)| hinted.is_none_or(|h| h == *at)) {
        found.extend(candidates(at, index, &query)?);
    }
    // Of those that are alike the one that was made last comes first.
    found.sort_by_key(rank);
    found.reverse();
    let at_points = found.partition_point(|candidate| candidate.points > 0);
    let finished = found.iter().filter_map(|best| finish(request, best));
    let mut plans: Vec<Plan> = finished.collect();
    if hinted.is_none() || plans.is_empty() {
        let alternatives = alternatives::plans(request, sort, hinted)?;
        let place = at_points.min(plans.len());
        plans.splice(place..place, alternatives);
    }
    plans.truncate(MAX_PLANS);
    if plans.is_empty() {
        plans.push(match hinted {
            Some(at) => return Err(hinted_in_vain(request, at)),
            None => collection(request, sort, Direction::Forward),
        });
    }
    Ok(plans)
}

/// What makes a candidate better than another one.
fn rank(candidate: &Candidate) -> impl Ord + use<> {
    (
        candidate.points.min(1),
        candidate.sort_provided && candidate.points > 0,
        candidate.points,
        candidate.has_range,
        candidate.sort_provided,
        !candidate.wildcard,
        std::cmp::Reverse(candidate.access.bounds.len()),
    )
}

/// An index without a key for what is asked, of a kind that cannot be read as a whole.
fn hinted_in_vain(request: &PlanRequest<'_>, at: usize) -> pinion_wire::Error {
    let message = match request.indexes[at].kind {
        IndexKind::Wildcard => {
            "$hint: refusing to build whole-index solution, because it's a wildcard index"
        }
        _ => "No query solutions",
    };
    planner_error(request, 291, message)
}

fn finish(request: &PlanRequest<'_>, candidate: &Candidate) -> Option<Plan> {
    let access = &candidate.access;
    let conjuncts = request.matcher.root().conjuncts();
    let filter_satisfied = residual(request, access, conjuncts).is_empty();
    let is_sorted = request.sort.is_none_or(SortPattern::is_empty) || candidate.sort_provided;
    let covered = filter_satisfied && is_sorted && is_covered(request, access);
    let access = match (&candidate.exploded[..], request.sort) {
        ([], _) | (_, None) => Access::Index(access.clone()),
        (scans, Some(sort)) => Access::Merge(by_sort(request, sort, None, scans)?),
    };
    Some(Plan {
        covered,
        access,
        sort_provided: candidate.sort_provided,
        filter_satisfied,
    })
}

/// A scan of the collection, which is in `_id` order.
fn collection(request: &PlanRequest<'_>, sort: Option<&SortPattern>, direction: Direction) -> Plan {
    let sort_provided = sort.is_some_and(|sort| sort.natural().is_some());
    Plan {
        access: Access::Collection(direction),
        sort_provided,
        filter_satisfied: request.matcher.is_empty(),
        covered: false,
    }
}

pub(super) fn find_hinted(request: &PlanRequest<'_>, hint: &Hint) -> Result<usize> {
    let same = |index: &IndexSpec| match hint {
        Hint::Name(name) => index.name == *name,
        Hint::Pattern(pattern) => pinion_bson::compare_documents(&index.key, pattern).is_eq(),
        Hint::Natural(_) => false,
    };
    let mut matching = usable(request).filter(|(_, index)| same(index));
    let found = matching.next().map(|(at, _)| at);
    if let (Some(first), Some((_, second))) = (found, matching.next()) {
        return Err(error(
            27,
            format!(
                "Hint matched multiple indexes, must hint by index name. Matched: {} and {}",
                request.indexes[first].name, second.name
            ),
        ));
    }
    found.ok_or_else(|| {
        planner_error(
            request,
            2,
            "hint provided does not correspond to an existing index",
        )
    })
}

/// An error of planning, with the query it was about.
pub(super) fn planner_error(
    request: &PlanRequest<'_>,
    code: i32,
    message: &str,
) -> pinion_wire::Error {
    let sort = request.sort.map_or_else(
        || "{}".to_string(),
        |sort| crate::text::document_text(sort.source()),
    );
    error(
        code,
        format!(
            "error processing query: ns={}Tree: {}Sort: {sort}\nProj: {{}}\n planner returned error :: caused by :: {message}",
            request.namespace,
            super::explain::tree_text(request.matcher.root()),
        ),
    )
}

/// The names of an index's pattern.
pub(super) fn pattern_names(index: &IndexSpec) -> impl Iterator<Item = &str> {
    elements(&index.key).map(|(name, _)| name)
}
