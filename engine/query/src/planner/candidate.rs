//! One index as a candidate: the bounds that a filter gives its fields, and the order that it
//! gives.

use std::sync::Arc;

use pinion_collation::Collation;
use pinion_wire::Result;

use super::bounds::{Constraint, FilterStrings, constraints};
use super::choose::usable;
use super::implication::implies;
use super::interval::{Interval, Intervals};
use super::merge::exploded;
use super::ranges::key_ranges;
use super::{IndexAccess, PlanRequest};
use crate::index::{IndexKind, IndexSpec};
use crate::matcher::Node;
use crate::sort::{Direction, SortPattern};

/// One index with the bounds that the filter gives its fields.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub access: IndexAccess,
    /// How many leading fields are bound to points.
    pub points: usize,
    pub has_range: bool,
    pub sort_provided: bool,
    /// The scans that have to be merged for the order of the sort; none where one has it.
    pub exploded: Vec<IndexAccess>,
    /// It is a wildcard index, which one on the field itself is preferred to.
    pub wildcard: bool,
}

/// The request for candidates of an index.
pub(super) struct Query<'a> {
    /// Lists of predicates all of which hold for each document that is wanted.
    pub predicates: Vec<&'a [Node]>,
    /// What they leave of fields of an index that compares strings as the filter does.
    alike: Vec<Constraint>,
    /// What they leave of fields of an index that compares strings otherwise.
    unlike: Vec<Constraint>,
    /// How the filter compares strings.
    collation: Option<&'a Arc<Collation>>,
    pub sort: Option<&'a SortPattern>,
    pub hinted: bool,
}

impl<'a> Query<'a> {
    /// Of the lists of predicates the first gives the bounds.
    pub fn new(request: &PlanRequest<'a>, predicates: Vec<&'a [Node]>) -> Query<'a> {
        let collation = request.matcher.collation();
        let nodes = predicates.first().copied().unwrap_or_default();
        let strings = match collation {
            None => FilterStrings::Plain,
            Some(collation) => FilterStrings::Collated(collation),
        };
        let unlike = usable(request).any(|(_, index)| index.collation.as_ref() != collation);
        Query {
            alike: constraints(nodes, strings),
            unlike: match unlike {
                true => constraints(nodes, FilterStrings::Incomparable),
                false => Vec::new(),
            },
            predicates,
            collation,
            sort: None,
            hinted: false,
        }
    }

    /// What the predicates leave of the fields of this index.
    pub fn found(&self, index: &IndexSpec) -> &[Constraint] {
        if index.collation.as_ref() == self.collation {
            &self.alike
        } else {
            &self.unlike
        }
    }
}

/// Whether the index holds all documents that are wanted: a partial one lacks those that its filter
/// leaves out, and a hint at it means those in it.
pub(super) fn serves(index: &IndexSpec, query: &Query<'_>) -> bool {
    let filter = index.filter.as_ref().filter(|_| !query.hinted);
    let collation = query.collation.map(Arc::as_ref);
    filter.is_none_or(|filter| implies(&query.predicates, collation, filter))
}

/// The ways in which an index helps with a query: a wildcard index in as many as it has paths that
/// the query is about.
pub(super) fn candidates(
    at: usize,
    index: &IndexSpec,
    query: &Query<'_>,
) -> Result<Vec<Candidate>> {
    if !serves(index, query) {
        return Ok(Vec::new());
    }
    Ok(match index.kind {
        IndexKind::Btree | IndexKind::Hashed => candidate(at, index, query, query.found(index))
            .into_iter()
            .collect(),
        IndexKind::Wildcard => super::wildcard::candidates(at, index, query),
        IndexKind::TwoD | IndexKind::TwoDSphere => match super::geo::bounds(index, query)? {
            Some(bounds) => {
                let mut found = bounded(at, index, query, bounds);
                // Its order is that of cells.
                (found.has_range, found.sort_provided) = (true, false);
                found.access.direction = Direction::Forward;
                vec![found]
            }
            None => Vec::new(),
        },
        IndexKind::Text => super::text::candidate(at, index, query)
            .into_iter()
            .collect(),
    })
}

/// An index by the values of its fields.
fn candidate(
    at: usize,
    index: &IndexSpec,
    query: &Query<'_>,
    found: &[Constraint],
) -> Option<Candidate> {
    // A sparse index lacks the documents that have none of its fields.
    if index.sparse && !query.hinted {
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
    let constrained = bounds.first()?.1;
    let bounds: Vec<Intervals> = bounds.into_iter().map(|(bounds, _)| bounds).collect();
    let exploded = exploded(at, index, query, &bounds);
    let mut candidate = bounded(at, index, query, bounds);
    if let Some(exploded) = exploded.filter(|_| !candidate.sort_provided) {
        (candidate.exploded, candidate.sort_provided) = (exploded, true);
    }
    // Without a bound the whole index would be read for the filter alone.
    let helps = constrained || candidate.sort_provided || query.hinted;
    helps.then_some(candidate)
}

/// The candidate with these bounds of the index's components.
pub(super) fn bounded(
    at: usize,
    index: &IndexSpec,
    query: &Query<'_>,
    bounds: Vec<Intervals>,
) -> Candidate {
    let points = bounds.iter().take_while(|b| b.points_only()).count();
    let has_range = bounds.get(points).is_some_and(|b| !b.is_all());
    let direction = query
        .sort
        .and_then(|sort| sort_direction(index, &bounds, sort));
    let (ranges, decided_fields) = key_ranges(index, &bounds);
    let multikey = index.is_multikey();
    Candidate {
        access: IndexAccess {
            index: at,
            expanded: None,
            bounds,
            ranges,
            decided_fields,
            direction: direction.unwrap_or(Direction::Forward),
            multikey,
            repeats: multikey,
        },
        points,
        has_range,
        sort_provided: direction.is_some(),
        exploded: Vec::new(),
        wildcard: false,
    }
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

/// The bounds of each field of an index, and whether any constraint is behind them.
pub(super) fn field_bounds(index: &IndexSpec, found: &[Constraint]) -> Vec<(Intervals, bool)> {
    let mut bounds = Vec::with_capacity(index.fields());
    let mut used: Vec<Option<&Constraint>> = Vec::new();
    for (at, path) in index.paths().iter().enumerate() {
        let mut here: Vec<&Constraint> = found.iter().filter(|c| c.path == path.text()).collect();
        if index.is_multikey_field(at) {
            here.retain(|c| !c.negates_null && !c.of_whole_values);
        }
        if index.is_hashed_field(at) {
            here.retain(|c| c.intervals.points_only());
        }
        // A later field of an array that an earlier one has bound: only what speaks of the same
        // item combines.
        here.retain(|c| {
            used.iter().enumerate().all(|(earlier, bound)| match bound {
                Some(bound) => !share_array(index, earlier, at) || same_item(bound, c),
                None => true,
            })
        });
        here.sort_by_key(|c| c.breadth);
        let Some(first) = here.first().copied() else {
            bounds.push((Intervals::all(), false));
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
        if index.is_hashed_field(at) {
            intervals = hashed(&intervals);
        }
        bounds.push((intervals, true));
        used.push(Some(first));
    }
    bounds
}

/// The hashes of points.
fn hashed(points: &Intervals) -> Intervals {
    let hashes = points.0.iter().map(|point| {
        let hash = crate::index::hash_value(point.lower.as_raw_bson_ref());
        Interval::point(pinion_bson::RawBson::Int64(hash))
    });
    Intervals::union(hashes.collect())
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

/// The direction in which a scan of the index gives the order of the sort.
pub(super) fn sort_direction(
    index: &IndexSpec,
    bounds: &[Intervals],
    sort: &SortPattern,
) -> Option<Direction> {
    // No index has what is read beside the documents.
    if sort.is_empty() || !sort.reads().is_empty() {
        return None;
    }
    // With an array on the path of a field the order is that of the least key, which bounds may
    // have cut off.
    let is_cut = bounds
        .iter()
        .enumerate()
        .any(|(at, b)| index.is_multikey_field(at) && !b.is_all());
    // Strings are in the order of the index's collation.
    let ordered =
        |at: usize| index.collation.as_ref() == sort.collation() || !bounds[at].may_hold_strings();
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
        while at < index.fields() && index.paths()[at] != *path && bounds[at].single_point() {
            at += 1;
        }
        if at >= index.fields()
            || index.paths()[at] != *path
            || index.is_hashed_field(at)
            || (is_cut && index.is_multikey_field(at))
            || !ordered(at)
        {
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
