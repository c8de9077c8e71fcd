//! Geospatial indexes: what predicates leave of their cells, and scans outward from a point.

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::candidate::{Query, field_bounds, serves};
use super::choose::{find_hinted, planner_error, usable};
use super::interval::{Interval, Intervals};
use super::ranges::key_ranges;
use super::{Access, Hint, KeyRange, Plan, PlanRequest};
use crate::error::bad_value;
use crate::geo::{GeoPredicate, Near, Search};
use crate::index::IndexSpec;
use crate::matcher::{Leaf, Node, Predicate};
use crate::path::Path;
use crate::sort::SortPattern;
use crate::value::elements;

/// A scan of a geospatial index outward from a point.
#[derive(Clone, Debug)]
pub struct NearAccess {
    /// The place in the request's list.
    pub index: usize,
    spec: Arc<IndexSpec>,
    /// The bounds of the fields before the one that is searched.
    leading: Vec<Intervals>,
    near: Arc<Near>,
    path: Path,
}

/// One such scan, as far as it has come.
#[derive(Clone, Debug)]
pub struct NearSearch {
    access: NearAccess,
    search: Search,
}

/// The fields of a geospatial index's pattern that are cells.
fn cell_fields(index: &IndexSpec) -> impl Iterator<Item = bool> {
    elements(&index.key).map(|(_, kind)| matches!(kind, RawBsonRef::String(_)))
}

fn cell_intervals(ranges: Vec<(i64, i64)>) -> Intervals {
    let interval =
        |(low, high)| Interval::new(RawBson::Int64(low), true, RawBson::Int64(high), true);
    Intervals(ranges.into_iter().map(interval).collect())
}

/// The predicates on geometries among these, with their paths.
fn predicates<'a>(nodes: &'a [Node], out: &mut Vec<(&'a Path, &'a GeoPredicate)>) {
    for node in nodes {
        match node {
            Node::And(children) => predicates(children, out),
            Node::Leaf(Leaf {
                path,
                predicate: Predicate::Geo(geo),
                ..
            }) => out.push((path, geo)),
            _ => {}
        }
    }
}

/// The bounds that predicates on values give the fields.
fn bounds_alone(index: &IndexSpec, query: &Query<'_>) -> Vec<Intervals> {
    let bounds = field_bounds(index, query.found(index)).into_iter();
    bounds.map(|(bounds, _)| bounds).collect()
}

/// The bounds of a geospatial index's fields; `None` when none of its geometries is bounded, unless
/// it was hinted at.
pub(super) fn bounds(index: &IndexSpec, query: &Query<'_>) -> Result<Option<Vec<Intervals>>> {
    let Some(geo) = index.geo() else {
        return Ok(None);
    };
    let mut found = Vec::new();
    for nodes in &query.predicates {
        predicates(nodes, &mut found);
    }
    let mut bounds: Vec<Intervals> = bounds_alone(index, query);
    let mut bounded = query.hinted;
    for (at, is_cell) in cell_fields(index).enumerate() {
        if !is_cell {
            continue;
        }
        let path = &index.paths()[at];
        let mut cells: Option<Intervals> = None;
        for (_, predicate) in found.iter().filter(|(on, _)| *on == path) {
            let Some(ranges) = geo.ranges(predicate)? else {
                continue;
            };
            let intervals = cell_intervals(ranges);
            cells = Some(match cells {
                None => intervals,
                // Several cells of one geometry may each satisfy one of the predicates.
                Some(first) if index.is_multikey_field(at) => first,
                Some(first) => first.intersect(&intervals),
            });
        }
        bounded |= cells.is_some();
        bounds[at] = cells.unwrap_or_else(Intervals::all);
    }
    let leads = bounds.first().is_some_and(|first| !first.is_all());
    Ok((bounded && (leads || query.hinted)).then_some(bounds))
}

/// The plan of a query that asks for an order by distance.
pub(super) fn plan(request: &PlanRequest<'_>) -> Result<Plan> {
    if matches!(request.hint, Some(Hint::Natural(_))) {
        return Err(bad_value(
            "geoNear expression not allowed with $natural hint",
        ));
    }
    if request.sort.is_some_and(|sort| sort.natural().is_some()) {
        return Err(bad_value(
            "geoNear expression not allowed with $natural sort order",
        ));
    }
    let hinted = request
        .hint
        .map(|hint| find_hinted(request, hint))
        .transpose()?;
    let root = request.matcher.root();
    let near = root.conjuncts().iter().find_map(|node| match node {
        Node::Leaf(Leaf {
            path,
            predicate: Predicate::Near(near),
            ..
        }) => Some((path, near)),
        _ => None,
    });
    let mut query = Query::new(request, vec![root.conjuncts()]);
    query.hinted = hinted.is_some();
    let best = near.and_then(|(path, near)| {
        usable(request)
            .filter(|(at, _)| hinted.is_none_or(|hinted| hinted == *at))
            .filter(|(_, index)| serves(index, &query))
            .filter_map(|(at, index)| near_access(at, index, &query, path, near))
            .max_by_key(|access| access.leading.len())
    });
    let Some(access) = best else {
        return Err(planner_error(
            request,
            291,
            "unable to find index for $geoNear query",
        ));
    };
    Ok(Plan {
        access: Access::Near(Box::new(access)),
        sort_provided: request.sort.is_none_or(SortPattern::is_empty),
        filter_satisfied: false,
        covered: false,
    })
}

/// A scan of this index, when it has the field, and every field before it is bounded.
fn near_access(
    at: usize,
    index: &IndexSpec,
    query: &Query<'_>,
    path: &Path,
    near: &Arc<Near>,
) -> Option<NearAccess> {
    if !index.geo()?.serves(near) {
        return None;
    }
    let place = cell_fields(index)
        .zip(index.paths())
        .position(|(is_cell, on)| is_cell && on == path)?;
    let mut leading = bounds_alone(index, query);
    leading.truncate(place);
    let bounded = leading.iter().all(|bounds| !bounds.is_all());
    bounded.then(|| NearAccess {
        index: at,
        spec: Arc::new(index.clone()),
        leading,
        near: near.clone(),
        path: path.clone(),
    })
}

impl NearAccess {
    /// Begins a scan.
    pub fn search(&self) -> NearSearch {
        let geo = self.spec.geo().expect("a geospatial index").clone();
        NearSearch {
            search: Search::new(self.near.clone(), self.path.clone(), geo),
            access: self.clone(),
        }
    }

    /// The name of the stage that explain shows.
    pub(super) fn stage(&self) -> &'static str {
        match self.spec.kind {
            crate::index::IndexKind::TwoD => "GEO_NEAR_2D",
            _ => "GEO_NEAR_2DSPHERE",
        }
    }
}

impl NearSearch {
    /// The next ranges of keys, no key of which was given before; they may be none. `None` when
    /// everything has been given. `found` is how many documents those before had.
    pub fn next_ranges(&mut self, found: usize) -> Result<Option<Vec<KeyRange>>> {
        let Some(cells) = self.search.next(found)? else {
            return Ok(None);
        };
        let mut bounds = self.access.leading.clone();
        bounds.push(cell_intervals(cells));
        let (ranges, decided) = key_ranges(&self.access.spec, &bounds);
        if decided < bounds.len() {
            // What leads is no points, or too many: the ranges are the same for every ring.
            self.search.end();
        }
        Ok(Some(ranges))
    }

    /// The distance up to which every document has been in the ranges so far.
    pub fn reach(&self) -> f64 {
        self.search.reach()
    }

    /// How far away a document is; `None` when it is not within the distances that are wanted.
    pub fn distance(&self, document: &RawDocument) -> Result<Option<f64>> {
        self.search.distance(document)
    }
}
