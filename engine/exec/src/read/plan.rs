//! A plan in terms of trees and partitions.

use std::sync::Arc;

use pinion_bson::{RawBson, RawBsonRef};
use pinion_catalog::Collection;
use pinion_keystring::Builder;
use pinion_query::{
    Access as PlannedAccess, Direction, IndexSpec, Intervals, Matcher, Plan, SortPattern,
};
use pinion_storage::{Key, KeyRange};

use super::access::{Access, MergeAccess, NearAccess, RangeAccess};
use super::log::log_range;
use super::part::Output;
use super::request::ReadRequest;
use crate::limits::MAX_POINTS;

/// What the parts of a read do of its plan.
pub(super) struct Planned {
    pub access: Access,
    pub filter: Option<Matcher>,
    pub sort: Option<SortPattern>,
    /// The paths that are read from the entries of the index.
    pub covered: Option<Vec<String>>,
}

impl Planned {
    /// Of a read that says itself which way it goes.
    pub(super) fn by(request: &ReadRequest, access: Access) -> Planned {
        Planned {
            access,
            filter: whole_filter(request),
            sort: request.sort.clone(),
            covered: None,
        }
    }

    pub(super) fn new(request: &ReadRequest, plan: Plan) -> Planned {
        let is_sorted = !plan.needs_sort(request.sort.as_ref());
        let is_filtered = plan.filter_satisfied;
        let covered = covered_paths(request, &plan);
        let mut access = access_of(&request.collection, plan.access);
        if request.collection.is_oplog() {
            access.narrow(log_range(request.matcher.filter()));
        }
        Planned {
            access,
            filter: whole_filter(request).filter(|_| !is_filtered),
            sort: request.sort.clone().filter(|_| !is_sorted),
            covered,
        }
    }
}

/// The paths that the parts read from the entries of an index: what the projection keeps, and what
/// says whether a document is owned. Nothing else is read of documents that are counted, or whose
/// keys alone are wanted.
fn covered_paths(request: &ReadRequest, plan: &Plan) -> Option<Vec<String>> {
    let key = request.filtering().map(|ownership| ownership.key());
    let key = key.into_iter().flat_map(pinion_bson::elements);
    let key = key.map(|(path, _)| path.to_owned());
    match request.output {
        Output::Documents if plan.covered && !request.show_record_id => {
            let kept = request.projection.as_ref().and_then(|p| p.kept_paths());
            kept.map(|mut kept| {
                let others: Vec<String> = key.filter(|path| !kept.contains(path)).collect();
                kept.extend(others);
                kept
            })
        }
        Output::Count | Output::Ids
            if plan.filter_satisfied && !plan.needs_sort(request.sort.as_ref()) =>
        {
            let key: Vec<String> = key.collect();
            let is_there = !key.is_empty() && plan.has_shard_key(&request.plan_request());
            is_there.then_some(key)
        }
        _ => None,
    }
}

fn whole_filter(request: &ReadRequest) -> Option<Matcher> {
    (!request.matcher.is_empty()).then(|| request.matcher.clone())
}

/// The `_id` of the one document that is read, where nothing else has a say in the plan.
fn sought_id(request: &ReadRequest) -> Option<&RawBson> {
    if request.hint.is_some() || request.key_bounds.is_some() {
        return None;
    }
    let collation = request.collection.collation.as_ref();
    request.matcher.id_lookup(collation)
}

/// Whether a read is of one document by its `_id`.
pub(crate) fn is_by_id(request: &ReadRequest) -> bool {
    sought_id(request).is_some()
}

/// The plan of a read of one document by its `_id`, which needs no look at the indexes.
pub(super) fn by_id(request: &ReadRequest) -> Option<Planned> {
    let id = sought_id(request)?;
    let matcher = &request.matcher;
    let alone = matcher.id_equality_alone().is_some();
    Some(Planned {
        access: id_access(&request.collection, id.as_raw_bson_ref()),
        filter: whole_filter(request).filter(|_| !alone),
        // One document is in every order.
        sort: None,
        covered: None,
    })
}

/// A plan's access in terms of trees and partitions.
fn access_of(collection: &Collection, access: PlannedAccess) -> Access {
    match access {
        PlannedAccess::Nothing => Access::Nothing,
        PlannedAccess::Id(id) => id_access(collection, id.as_raw_bson_ref()),
        PlannedAccess::Collection(direction) => {
            Access::Collection(RangeAccess::everything(direction == Direction::Backward))
        }
        PlannedAccess::Index(access) => Access::Index(ranges_of(collection, access)),
        PlannedAccess::Near(near) => {
            let index = collection.index_at(near.index);
            let index = index
                .expect("the collection's tree is of another kind")
                .clone();
            let repeats = index.spec.is_multikey();
            Access::Near(NearAccess {
                branch: RangeAccess {
                    index: Some(index),
                    ranges: Vec::new(),
                    descending: false,
                    points: None,
                    repeats,
                },
                planned: Arc::from(near),
            })
        }
        PlannedAccess::Merge(sorted) => {
            let is_disjoint = sorted.iter().all(|sorted| sorted.branch.is_none());
            let (branches, orders) = sorted
                .into_iter()
                .map(|sorted| (ranges_of(collection, sorted.scan), sorted.order))
                .unzip();
            Access::Merge(MergeAccess {
                branches,
                orders,
                is_disjoint,
            })
        }
        PlannedAccess::Union(branches) => Access::Union(
            branches
                .into_iter()
                .map(|branch| ranges_of(collection, branch))
                .collect(),
        ),
    }
}

/// The way to the document with this `_id`.
fn id_access(collection: &Collection, id: RawBsonRef<'_>) -> Access {
    let Some(index) = collection.id_index_beside_tree() else {
        return Access::Id(collection.id_key(id));
    };
    let mut builder = Builder::new(index.spec.ordering);
    builder.append_as(id, index.spec.strings(0));
    let point = Key::from_slice(&builder.finish().bytes);
    Access::Index(RangeAccess {
        index: Some(index.clone()),
        ranges: vec![KeyRange::prefix(&point)],
        descending: false,
        repeats: false,
        points: Some(vec![point]),
    })
}

fn ranges_of(collection: &Collection, access: pinion_query::IndexAccess) -> RangeAccess {
    let index = collection.index_at(access.index).cloned();
    let points = points_of(access.spec(collection.index_specs()), &access.bounds);
    let ranges = access
        .ranges
        .iter()
        .map(|range| KeyRange::half_open(&range.lower, &range.upper))
        .collect();
    RangeAccess {
        index,
        ranges,
        descending: access.direction == Direction::Backward,
        repeats: access.repeats,
        points,
    }
}

/// The keys of all combinations of points, when every field is bounded by points alone and there
/// are not too many.
fn points_of(spec: &IndexSpec, bounds: &[Intervals]) -> Option<Vec<Key>> {
    let count = bounds
        .iter()
        .try_fold(1usize, |count, field| count.checked_mul(field.0.len()))?;
    if count > MAX_POINTS
        || bounds.len() != spec.fields()
        || !bounds
            .iter()
            .all(|field| field.0.iter().all(|i| i.is_point()))
    {
        return None;
    }
    let mut values: Vec<Vec<RawBsonRef<'_>>> = vec![Vec::new()];
    for field in bounds {
        let extend = |prefix: &Vec<_>| {
            let prefix = prefix.clone();
            field.0.iter().map(move |interval| {
                let mut longer: Vec<RawBsonRef<'_>> = prefix.clone();
                longer.push(interval.lower.as_raw_bson_ref());
                longer
            })
        };
        values = values.iter().flat_map(extend).collect();
    }
    let mut builder = Builder::new(spec.ordering);
    let key = |fields: Vec<RawBsonRef<'_>>| {
        for (component, value) in (0..).zip(fields) {
            builder.append_as(value, spec.bound_strings(component));
        }
        Key::from_slice(&builder.finish().bytes)
    };
    Some(values.into_iter().map(key).collect())
}
