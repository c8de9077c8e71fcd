//! Wildcard indexes in plans: for each path that the query is about, as if it were an index on it.
//!
//! The expanded index has two fields in place of the wildcard: the path, bound to the one that is
//! meant, and the value. Its keys are those of the values that have no parts, so what says that a
//! field exists, or may hold for documents and arrays, reads the keys of all paths below as well.

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef};

use super::bounds::Constraint;
use super::candidate::{Candidate, Query, bounded, field_bounds};
use super::interval::{Interval, Intervals, class_range};
use crate::index::{IndexSpec, WildcardFields};
use crate::limits::MAX_WILDCARD_POSITIONS;
use crate::path::array_index;

/// The ways in which a wildcard index helps.
pub(super) fn candidates(at: usize, index: &IndexSpec, query: &Query<'_>) -> Vec<Candidate> {
    let fields = index.wildcard().expect("a wildcard index has its fields");
    let mut paths: Vec<&str> = query
        .found(index)
        .iter()
        .filter(|c| is_served(c))
        .map(|c| &*c.path)
        .collect();
    paths.sort_unstable();
    paths.dedup();
    let of_paths = paths
        .into_iter()
        .filter_map(|path| of_path(at, index, fields, path, query));
    of_paths
        .chain(of_prefix(at, index, fields, query))
        .collect()
}

/// Whether the keys of a field's parts say something of the predicate.
fn is_served(constraint: &Constraint) -> bool {
    !constraint.matches_missing && constraint.leaf_operands
}

fn of_path(
    at: usize,
    index: &IndexSpec,
    fields: &WildcardFields,
    path: &str,
    query: &Query<'_>,
) -> Option<Candidate> {
    let stored = stored_paths(index, path)?;
    if !stored.iter().all(|path| fields.holds(path)) {
        return None;
    }
    let expanded = index.expanded(path);
    let found: Vec<Constraint> = query
        .found(index)
        .iter()
        .filter(|c| c.path != path || is_served(c))
        .cloned()
        .collect();
    let mut bounds = field_bounds(&expanded, &found);
    let (place, value) = (fields.position, fields.position + 1);
    if !bounds[value].1 {
        return None;
    }
    let parts = has_parts(&bounds[value].0);
    // Positions in arrays are no part of stored paths, and an item that is an array is a value.
    if stored.len() > 1 {
        let mut wider = bounds[value].0.0.clone();
        wider.push(arrays());
        bounds[value].0 = Intervals::union(wider);
    }
    let mut ways: Vec<Interval> = Vec::new();
    for path in &stored {
        ways.push(Interval::point(RawBson::String(path.clone())));
        if parts {
            ways.push(Interval::new(
                RawBson::String(format!("{path}.")),
                true,
                RawBson::String(format!("{path}/")),
                false,
            ));
        }
    }
    if parts {
        bounds[value].0 = Intervals::all();
    }
    bounds[place].0 = Intervals::union(ways);
    // The leading field decides whether anything is gained.
    if place > 0 && !bounds[0].1 && !query.hinted {
        return None;
    }
    let exact = bounds[place].0.single_point();
    Some(finish(at, expanded, query, bounds, exact))
}

/// A compound wildcard index by the fields in front of its wildcard.
fn of_prefix(
    at: usize,
    index: &IndexSpec,
    fields: &WildcardFields,
    query: &Query<'_>,
) -> Option<Candidate> {
    if fields.position == 0 {
        return None;
    }
    let expanded = index.expanded("$**");
    let mut bounds = field_bounds(&expanded, query.found(index));
    if !bounds[0].1 {
        return None;
    }
    // Every document has a key: at the least path where it has no field that the wildcard means.
    bounds[fields.position].0 = Intervals::all();
    bounds[fields.position + 1].0 = Intervals::all();
    Some(finish(at, expanded, query, bounds, false))
}

fn finish(
    at: usize,
    expanded: IndexSpec,
    query: &Query<'_>,
    bounds: Vec<(Intervals, bool)>,
    exact: bool,
) -> Candidate {
    let bounds = bounds.into_iter().map(|(bounds, _)| bounds).collect();
    let mut candidate = bounded(at, &expanded, query, bounds);
    // The path is bound in every use.
    candidate.points = candidate.points.saturating_sub(1);
    candidate.wildcard = true;
    let access = &mut candidate.access;
    access.repeats |= !exact;
    access.multikey |= !exact;
    access.expanded = Some(Arc::new(expanded));
    candidate
}

/// The paths under which the index keeps what a path reaches: a number may be a position in an
/// array, which stored paths leave out. `None` when there are too many to be listed.
fn stored_paths(index: &IndexSpec, path: &str) -> Option<Vec<String>> {
    let mut paths = vec![String::new()];
    let mut positions = 0;
    for name in path.split('.') {
        let mut next = Vec::with_capacity(paths.len());
        for path in paths {
            if array_index(name).is_some() && index.is_wildcard_array(&path) {
                positions += 1;
                next.push(path.clone());
            }
            next.push(if path.is_empty() {
                name.to_owned()
            } else {
                format!("{path}.{name}")
            });
        }
        if positions > MAX_WILDCARD_POSITIONS {
            return None;
        }
        next.sort_unstable();
        next.dedup();
        paths = next;
    }
    Some(paths)
}

fn class_interval(value: RawBson) -> Interval {
    let (least, beyond, belongs) =
        class_range(value.as_raw_bson_ref()).expect("a class with bounds");
    Interval::new(least, true, beyond, belongs)
}

/// All arrays.
fn arrays() -> Interval {
    Interval::new(
        RawBson::Array(pinion_bson::RawArrayBuf::new()),
        true,
        class_interval(RawBson::Binary(pinion_bson::Binary {
            subtype: pinion_bson::BinarySubtype::Generic,
            bytes: Vec::new(),
        }))
        .lower,
        false,
    )
}

/// Whether values with parts lie within: documents with fields, or arrays.
fn has_parts(intervals: &Intervals) -> bool {
    let documents = class_interval(RawBson::Document(pinion_bson::RawDocumentBuf::new()));
    let with_parts = Intervals::union(vec![documents, arrays()]);
    let inside = intervals.intersect(&with_parts);
    !inside.0.iter().all(|interval| {
        interval.is_point()
            && matches!(
                interval.lower.as_raw_bson_ref(),
                RawBsonRef::Document(document) if crate::value::is_empty(document)
            )
    })
}
