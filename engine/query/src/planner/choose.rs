//! The choice among the indexes: by the fields bound to points, then by the sort, then by ranges.

use pinion_wire::Result;

use super::bounds::{Constraint, constraints};
use super::implication::implies;
use super::interval::Intervals;
use super::ranges::key_ranges;
use super::residual::residual;
use super::{Access, Hint, IndexAccess, Plan, PlanRequest};
use crate::error::error;
use crate::index::{IndexKind, IndexSpec};
use crate::matcher::Node;
use crate::sort::{Direction, SortPattern};
use crate::value::elements;

/// One index with the bounds that the filter gives its fields.
struct Candidate {
    access: IndexAccess,
    points: usize,
    has_range: bool,
    sort_provided: bool,
}

/// What is asked of an index.
pub(super) struct Query<'a> {
    /// Lists of predicates all of which hold for each document that is wanted.
    pub predicates: Vec<&'a [Node]>,
    /// What they leave of fields.
    pub found: Vec<Constraint>,
    pub sort: Option<&'a SortPattern>,
    pub hinted: bool,
}

/// The indexes that plans may use, with their places.
pub(super) fn usable<'a>(
    request: &PlanRequest<'a>,
) -> impl Iterator<Item = (usize, &'a IndexSpec)> + use<'a> {
    request
        .indexes
        .iter()
        .enumerate()
        .filter(|(_, index)| index.is_usable())
}

pub(super) fn plan(request: &PlanRequest<'_>) -> Result<Plan> {
    if request.matcher.is_near() {
        return super::geo::plan(request);
    }
    if let Some(wanted) = request.key_bounds {
        return super::key_bounds::plan(request, wanted);
    }
    let root = request.matcher.root();
    let sort = request
        .sort
        .filter(|sort| !sort.is_empty() || sort.natural().is_some());
    let hinted = match request.hint {
        Some(Hint::Natural(direction)) => return Ok(collection(request, sort, *direction)),
        Some(hint) => Some(find_hinted(request, hint)?),
        None => None,
    };
    if hinted.is_none() {
        if matches!(root, Node::AlwaysFalse) {
            return Ok(Plan {
                access: Access::Nothing,
                sort_provided: true,
                filter_satisfied: true,
            });
        }
        if let Some(id) = request.matcher.id_equality() {
            let alone = request.matcher.id_equality_alone().is_some();
            return Ok(Plan {
                access: Access::Id(id.clone()),
                sort_provided: true,
                filter_satisfied: alone,
            });
        }
        if let Some(direction) = sort.and_then(SortPattern::natural) {
            return Ok(collection(request, sort, direction));
        }
    }
    let query = Query {
        predicates: vec![root.conjuncts()],
        found: constraints(root.conjuncts()),
        sort,
        hinted: hinted.is_some(),
    };
    let indexes = usable(request).filter(|(at, _)| hinted.is_none_or(|h| h == *at));
    let best = candidates(indexes, &query)?.into_iter().max_by_key(|c| {
        (
            c.points.min(1),
            c.sort_provided && c.points > 0,
            c.points,
            c.has_range,
            c.sort_provided,
            std::cmp::Reverse(c.access.bounds.len()),
        )
    });
    if let Some(best) = best.as_ref().filter(|best| best.points > 0) {
        return Ok(finish(request, best));
    }
    if hinted.is_none()
        && let Some(branches) = union(request, root)?
    {
        return Ok(Plan {
            access: Access::Union(branches),
            sort_provided: false,
            filter_satisfied: false,
        });
    }
    match best {
        Some(best) => Ok(finish(request, &best)),
        None => Ok(collection(request, sort, Direction::Forward)),
    }
}

fn finish(request: &PlanRequest<'_>, candidate: &Candidate) -> Plan {
    let access = candidate.access.clone();
    let conjuncts = request.matcher.root().conjuncts();
    let rest = residual(&request.indexes[access.index], &access, conjuncts);
    Plan {
        access: Access::Index(access),
        sort_provided: candidate.sort_provided,
        filter_satisfied: rest.is_empty(),
    }
}

/// A scan of the collection, which is in `_id` order.
fn collection(request: &PlanRequest<'_>, sort: Option<&SortPattern>, direction: Direction) -> Plan {
    let sort_provided = sort.is_some_and(|sort| sort.natural().is_some());
    Plan {
        access: Access::Collection(direction),
        sort_provided,
        filter_satisfied: request.matcher.is_empty(),
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

/// Whether constraints on two fields of an index may hold for different items of one array.
fn share_array(index: &IndexSpec, a: usize, b: usize) -> bool {
    let (a_path, b_path) = (index.paths()[a].components(), index.paths()[b].components());
    a_path
        .iter()
        .zip(b_path)
        .take_while(|(x, y)| x.name == y.name)
        .enumerate()
        .any(|(component, _)| {
            index.is_multikey_component(a, component) && index.is_multikey_component(b, component)
        })
}

/// Whether two constraints come from one `$elemMatch` on the arrays that the paths share.
fn same_item(a: &Constraint, b: &Constraint) -> bool {
    matches!((&a.group, &b.group), (Some(a), Some(b)) if a == b)
}

/// The bounds of each field of an index, and the constraints they come from.
pub(super) fn field_bounds(index: &IndexSpec, found: &[Constraint]) -> Vec<Intervals> {
    let mut bounds = Vec::with_capacity(index.fields());
    let mut used: Vec<Option<&Constraint>> = Vec::new();
    for (at, path) in index.paths().iter().enumerate() {
        let mut here: Vec<&Constraint> = found.iter().filter(|c| c.path == path.text()).collect();
        // A later field of an array that an earlier one has bound: only what speaks of the same item combines.
        here.retain(|c| {
            used.iter().enumerate().all(|(earlier, bound)| match bound {
                Some(bound) => !share_array(index, earlier, at) || same_item(bound, c),
                None => true,
            })
        });
        here.sort_by_key(|c| c.breadth);
        let Some(first) = here.first().copied() else {
            bounds.push(Intervals::all());
            used.push(None);
            continue;
        };
        let mut intervals = first.intervals.clone();
        for other in &here[1..] {
            // Another item of an array may satisfy the other predicate.
            let combines = !index.is_multikey_field(at)
                || (same_item(first, other) && deepest_array_is_group(index, at, first));
            if combines {
                intervals = intervals.intersect(&other.intervals);
            }
        }
        bounds.push(intervals);
        used.push(Some(first));
    }
    bounds
}

/// Whether no array stands on the field's path below the one that the `$elemMatch` speaks of.
fn deepest_array_is_group(index: &IndexSpec, at: usize, constraint: &Constraint) -> bool {
    let Some((group, _)) = &constraint.group else {
        return false;
    };
    let depth = group.split('.').count();
    (depth..index.paths()[at].components().len())
        .all(|component| !index.is_multikey_component(at, component))
}

/// What these indexes have to offer.
fn candidates<'a>(
    indexes: impl Iterator<Item = (usize, &'a IndexSpec)>,
    query: &Query<'_>,
) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    for (at, index) in indexes.filter(|(_, index)| serves(index, query)) {
        let found = match index.kind {
            IndexKind::Btree => candidate(at, index, query),
            IndexKind::TwoD | IndexKind::TwoDSphere => geo_candidate(at, index, query)?,
            IndexKind::Hashed | IndexKind::Wildcard | IndexKind::Text => None,
        };
        candidates.extend(found);
    }
    Ok(candidates)
}

/// Whether the index holds all documents that are wanted: a partial one lacks those that its filter leaves out, and who
/// hints at it wants only those in it.
pub(super) fn serves(index: &IndexSpec, query: &Query<'_>) -> bool {
    let filter = index.filter.as_ref().filter(|_| !query.hinted);
    filter.is_none_or(|filter| implies(&query.predicates, filter.root()))
}

/// A geospatial index, where the filter bounds a geometry.
fn geo_candidate(at: usize, index: &IndexSpec, query: &Query<'_>) -> Result<Option<Candidate>> {
    let Some(bounds) = super::geo::bounds(index, query)? else {
        return Ok(None);
    };
    let points = bounds.iter().take_while(|b| b.points_only()).count();
    let (ranges, decided_fields) = key_ranges(index, &bounds);
    Ok(Some(Candidate {
        access: IndexAccess {
            index: at,
            bounds,
            ranges,
            decided_fields,
            direction: Direction::Forward,
            multikey: index.is_multikey(),
        },
        points,
        has_range: true,
        sort_provided: false,
    }))
}

fn candidate(at: usize, index: &IndexSpec, query: &Query<'_>) -> Option<Candidate> {
    let (found, sort, hinted) = (&query.found, query.sort, query.hinted);
    // A sparse index lacks the documents that have none of its fields.
    if index.sparse && !hinted {
        let usable = index.paths().iter().any(|path| {
            found
                .iter()
                .any(|c| c.path == path.text() && !c.matches_missing)
        });
        if !usable {
            return None;
        }
    }
    let bounds = field_bounds(index, found);
    let leading = index.paths().first()?;
    let constrained = found.iter().any(|c| c.path == leading.text());
    let points = bounds.iter().take_while(|b| b.points_only()).count();
    let has_range = bounds.get(points).is_some_and(|b| !b.is_all());
    let direction = sort.and_then(|sort| sort_direction(index, &bounds, sort));
    if !constrained && direction.is_none() && !hinted {
        return None;
    }
    // Without a bound the whole index would be read for the filter alone.
    if !constrained && !hinted && points == 0 && !has_range && direction.is_none() {
        return None;
    }
    let (ranges, decided_fields) = key_ranges(index, &bounds);
    let multikey = index.is_multikey();
    Some(Candidate {
        access: IndexAccess {
            index: at,
            bounds,
            ranges,
            decided_fields,
            direction: direction.unwrap_or(Direction::Forward),
            multikey,
        },
        points,
        has_range,
        sort_provided: direction.is_some(),
    })
}

/// The direction in which a scan of the index gives the order of the sort.
pub(super) fn sort_direction(
    index: &IndexSpec,
    bounds: &[Intervals],
    sort: &SortPattern,
) -> Option<Direction> {
    if sort.is_empty() {
        return None;
    }
    // With an array on the path of a field the order is that of the least key, which bounds may have cut off.
    if index.is_multikey()
        && bounds
            .iter()
            .enumerate()
            .any(|(at, b)| index.is_multikey_field(at) && !b.is_all())
    {
        return None;
    }
    let fixed = |at: usize| bounds[at].single_point() && !index.is_multikey_field(at);
    let mut direction: Option<Direction> = None;
    let mut at = 0;
    for (path, descending) in sort.fields() {
        let bound_to_point = index
            .paths()
            .iter()
            .enumerate()
            .any(|(i, p)| p == path && fixed(i));
        if bound_to_point {
            continue;
        }
        while at < index.fields() && index.paths()[at] != *path && fixed(at) {
            at += 1;
        }
        if at >= index.fields() || index.paths()[at] != *path {
            return None;
        }
        let same = index.ordering.is_descending(at as u32) == descending;
        let wanted = if same {
            Direction::Forward
        } else {
            Direction::Backward
        };
        if *direction.get_or_insert(wanted) != wanted {
            return None;
        }
        at += 1;
    }
    Some(direction.unwrap_or(Direction::Forward))
}

/// A scan for each branch of a `$or`, where each has an index.
fn union(request: &PlanRequest<'_>, root: &Node) -> Result<Option<Vec<IndexAccess>>> {
    let branches = root.conjuncts().iter().find_map(|node| match node {
        Node::Or(branches) => Some(branches),
        _ => None,
    });
    let Some(branches) = branches else {
        return Ok(None);
    };
    let mut scans = Vec::new();
    for branch in branches {
        let query = Query {
            predicates: vec![branch.conjuncts(), root.conjuncts()],
            found: constraints(branch.conjuncts()),
            sort: None,
            hinted: false,
        };
        let best = candidates(usable(request), &query)?
            .into_iter()
            .filter(|c| c.points > 0 || c.has_range)
            .max_by_key(|c| (c.points, c.has_range));
        match best {
            Some(best) => scans.push(best.access),
            None => return Ok(None),
        }
    }
    Ok(Some(scans))
}

/// The pattern of an index as names with directions.
pub(super) fn pattern_names(index: &IndexSpec) -> impl Iterator<Item = &str> {
    elements(&index.key).map(|(name, _)| name)
}
