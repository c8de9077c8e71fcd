//! Plans of queries with `$text`, which a text index alone serves: a range for each term that is
//! searched for, behind the values of the fields in front of the terms.

use pinion_bson::RawBson;
use pinion_wire::Result;

use super::alternatives;
use super::candidate::{Candidate, Query, candidates};
use super::choose::{find_hinted, planner_error, usable};
use super::interval::{Interval, Intervals};
use super::ranges::key_ranges;
use super::{Access, Hint, IndexAccess, Plan, PlanRequest};
use crate::error::bad_value;
use crate::fulltext::{TextQuery, term_of_key};
use crate::index::{IndexKind, IndexSpec};
use crate::matcher::{CompareOp, Node, Predicate, text_index_missing};
use crate::path::Path;
use crate::sort::{Direction, SortPattern};

/// The plan of a query with `$text`: the text index, or for a `$or` the text index and one for each
/// other branch.
pub(super) fn plan(request: &PlanRequest<'_>) -> Result<Plan> {
    let hinted = match request.hint {
        Some(Hint::Natural(_)) => {
            return Err(bad_value("text expression not allowed with $natural hint"));
        }
        Some(hint) => Some(find_hinted(request, hint)?),
        None => None,
    };
    if request.sort.and_then(SortPattern::natural).is_some() {
        return Err(bad_value(
            "text expression not allowed with $natural sort order",
        ));
    }
    let conjuncts = request.matcher.root().conjuncts();
    let text = conjuncts.iter().find_map(|node| match node {
        Node::Text(text) => Some(text),
        _ => None,
    });
    let Some(text) = text else {
        return plan_alternatives(request, hinted);
    };
    let text = text.query().ok_or_else(text_index_missing)?;
    let query = Query::new(request, vec![conjuncts]);
    for (at, index) in usable(request).filter(|(at, _)| hinted.is_none_or(|h| h == *at)) {
        if index.kind != IndexKind::Text || request.key_bounds.is_some() {
            continue;
        }
        if let Some(found) = candidates(at, index, &query)?.pop() {
            let nothing = text.index_terms.is_empty();
            return Ok(Plan {
                access: match nothing {
                    true => Access::Nothing,
                    false => Access::Index(found.access),
                },
                sort_provided: nothing,
                filter_satisfied: nothing || (conjuncts.len() == 1 && text.is_decided_by_keys()),
                covered: false,
            });
        }
    }
    Err(planner_error(
        request,
        291,
        "failed to use text index to satisfy $text query (if text index is compound, are equality predicates given for \
         all prefix fields?)",
    ))
}

/// The plan of a query whose `$text` stands in a `$or`.
fn plan_alternatives(request: &PlanRequest<'_>, hinted: Option<usize>) -> Result<Plan> {
    let plan = match (hinted, request.key_bounds) {
        (None, None) => alternatives::plans(request, None, None)?.pop(),
        _ => None,
    };
    plan.ok_or_else(|| {
        planner_error(
            request,
            291,
            "Failed to produce a solution for TEXT under OR - other non-TEXT clauses under OR have to be indexed as well.",
        )
    })
}

/// The scan of a text index, where `$text` is among the predicates, and each field that stands in
/// front of the terms is compared with one value.
pub(super) fn candidate(at: usize, index: &IndexSpec, query: &Query<'_>) -> Option<Candidate> {
    let fields = index.text()?;
    let nodes = query.predicates.first()?;
    let text = nodes.iter().find_map(|node| match node {
        Node::Text(text) => text.query(),
        _ => None,
    })?;
    let mut bounds = fields
        .before
        .iter()
        .map(|path| points(index, query, path))
        .collect::<Option<Vec<Intervals>>>()?;
    bounds.push(terms(text));
    bounds.resize(index.fields(), Intervals::all());
    let (ranges, decided_fields) = key_ranges(index, &bounds);
    Some(Candidate {
        access: IndexAccess {
            index: at,
            expanded: None,
            bounds,
            ranges,
            decided_fields,
            direction: Direction::Forward,
            // A document has a key for each of its terms.
            multikey: true,
            repeats: true,
        },
        points: fields.before.len() + 1,
        has_range: true,
        sort_provided: false,
        exploded: Vec::new(),
        wildcard: false,
    })
}

/// The value that a field in front of the terms is compared with for equality.
fn points(index: &IndexSpec, query: &Query<'_>, path: &Path) -> Option<Intervals> {
    let mut nodes = query.predicates.first()?.iter();
    if !nodes.any(|node| compares_with_one(node, path)) {
        return None;
    }
    let mut found = query.found(index).iter();
    let constraint = found.find(|c| c.path == path.text() && c.intervals.points_only());
    constraint.map(|c| c.intervals.clone())
}

/// Whether a predicate compares a field with one value for equality.
pub(super) fn compares_with_one(node: &Node, path: &Path) -> bool {
    match node {
        Node::Leaf(leaf) if leaf.path.text() == path.text() => match &leaf.predicate {
            Predicate::Compare { op, .. } => *op == CompareOp::Eq,
            Predicate::In {
                values, regexes, ..
            } => values.len() == 1 && regexes.is_empty(),
            _ => false,
        },
        _ => false,
    }
}

fn terms(query: &TextQuery) -> Intervals {
    let points = query.index_terms.iter().map(|term| {
        let key = term_of_key(term, query.fields.version).into_owned();
        Interval::point(RawBson::String(key))
    });
    Intervals::union(points.collect())
}
