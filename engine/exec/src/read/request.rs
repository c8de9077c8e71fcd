//! Opening a read: plan, snapshot, parts.

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{Collection, Uuid, core_catalog};
use pinion_clock::Timestamp;
use pinion_collation::Collation;
use pinion_keystring::Builder;
use pinion_query::{
    Access as PlannedAccess, Direction, Hint, IndexSpec, Intervals, KeyBounds, Matcher, MetaSource,
    PlanRequest, Projection, SortPattern,
};
use pinion_storage::{Key, KeyRange, TreeId};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::access::{Access, NearAccess, RangeAccess};
use super::merge::{MergedStream, StepSize};
use super::part::{Output, PartSpec};
use super::stream::step_for;
use crate::acquire::ReadSource;
use crate::compute::compute_bytes;
use crate::limits::{MAX_POINTS, MAX_SNAPSHOT_RETRIES, PLANNED_PER_BYTE};
use crate::spill::memory;
use crate::state::state;

/// What is to be read.
#[derive(Clone, Debug)]
pub(crate) struct ReadRequest {
    pub collection: Arc<Collection>,
    pub matcher: Matcher,
    pub sort: Option<SortPattern>,
    pub hint: Option<Hint>,
    pub skip: usize,
    pub limit: Option<usize>,
    pub projection: Option<Projection>,
    pub output: Output,
    /// `min` and `max`.
    pub key_bounds: Option<KeyBounds>,
    /// Each document gets the key under which the collection holds it.
    pub show_record_id: bool,
    /// Whether a sort may spill, where the command says so.
    pub allow_disk_use: Option<bool>,
    /// The way to the documents, where it is known: nothing is planned then.
    pub access: Option<Access>,
}

impl ReadRequest {
    /// How much a plan takes: the bounds of a long list have many times its room.
    pub(crate) fn planning_bytes(&self) -> usize {
        self.matcher.filter().as_bytes().len() * PLANNED_PER_BYTE
    }

    /// The same read with its `$text` searching the collection's text index.
    pub(crate) fn bound(self) -> Result<ReadRequest> {
        let matcher = self
            .matcher
            .with_text_index(self.collection.index_specs())?;
        Ok(ReadRequest { matcher, ..self })
    }

    /// How many documents are read until there are enough.
    fn kept(&self) -> Option<usize> {
        let kept = |limit: usize| limit.saturating_add(self.skip);
        self.limit.map(kept)
    }

    /// A read of whole documents.
    pub(crate) fn new(collection: Arc<Collection>, matcher: Matcher) -> ReadRequest {
        ReadRequest {
            collection,
            matcher,
            sort: None,
            hint: None,
            skip: 0,
            limit: None,
            projection: None,
            output: Output::Documents,
            key_bounds: None,
            show_record_id: false,
            allow_disk_use: None,
            access: None,
        }
    }
}

/// A read that has begun.
pub(crate) struct Opened {
    pub stream: MergedStream,
    /// The indexes it uses, which may be dropped under it.
    pub indexes: Vec<String>,
}

/// Plans and opens a read. `wanted` is how many documents the caller takes first.
pub(crate) async fn open(
    ctx: &OpContext,
    source: ReadSource,
    request: ReadRequest,
    wanted: usize,
) -> Result<Opened> {
    let request = request.bound()?;
    let wanted = wanted
        .saturating_add(request.skip)
        .min(request.kept().unwrap_or(usize::MAX));
    let step: StepSize = step_for(wanted);
    let mut attempts = 0;
    loop {
        // The timestamp first, the catalog after: a write that made an index multikey told every core of it before.
        let at = source.timestamp(ctx).await?;
        match open_at(ctx, &request, at, step).await {
            // A checkpoint moved the base past the timestamp before it was pinned.
            Err(error)
                if error.code == ErrorCode::SNAPSHOT_TOO_OLD && attempts < MAX_SNAPSHOT_RETRIES =>
            {
                attempts += 1
            }
            result => return result,
        }
    }
}

/// Plans and opens a read of the state at a timestamp.
///
/// # Errors
/// `SnapshotTooOld` when that is gone.
pub(super) async fn open_at(
    ctx: &OpContext,
    request: &ReadRequest,
    at: Timestamp,
    step: StepSize,
) -> Result<Opened> {
    let planned = compute_bytes(request.planning_bytes(), || plan(request)).await?;
    let indexes = planned.access.indexes();
    let counters = &state().metrics.counters;
    if planned.sort.is_some() {
        counters.sorts_in_memory.inc();
        ctx.work().sorts();
    }
    if matches!(planned.access, Access::Collection(_)) && request.access.is_none() {
        check_table_scan(request)?;
        let tree = request.collection.tree();
        state().metrics.record_collection_scan(tree, existing_trees);
    }
    for tree in planned.access.used_trees(&request.collection) {
        state().metrics.record_index_use(tree, existing_trees);
    }
    let partitions = planned.access.partitions(&request.collection);
    let memory = memory(request.allow_disk_use);
    let spec = Arc::new(PartSpec {
        collection: request.collection.clone(),
        access: planned.access,
        filter: planned.filter,
        sort: planned.sort,
        projection: request.projection.clone(),
        meta_source: request.meta_source(),
        output: request.output,
        show_record_id: request.show_record_id,
        keep: request.kept(),
        at,
        sort_room: memory.shared(memory.limits.sort, partitions.len()),
    });
    let summarised = spec.clone();
    ctx.work()
        .planned(Box::new(move || summarised.access.summary()));
    let stream = MergedStream::open(spec, partitions, ctx, step, request.skip, request.limit);
    let stream = stream.await?;
    Ok(Opened { stream, indexes })
}

/// The trees of all collections and indexes.
pub(crate) fn existing_trees() -> Vec<TreeId> {
    core_catalog().current().trees().collect()
}

/// With `notablescan` a filter needs an index; reading everything, and the node's own collections, are exempt.
fn check_table_scan(request: &ReadRequest) -> Result<()> {
    let ns = &request.collection.ns;
    let exempt = request.matcher.is_empty()
        || matches!(ns.db(), "admin" | "config" | "local")
        || ns.collection().starts_with("system.");
    if exempt || !state().parameters.borrow().notablescan {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::NO_QUERY_EXECUTION_PLANS,
        format!(
            "error processing query: ns={ns}: No indexed plans available, and running with 'notablescan' 1"
        ),
    ))
}

struct Planned {
    access: Access,
    filter: Option<Matcher>,
    sort: Option<SortPattern>,
}

impl ReadRequest {
    /// What tells of the documents what their order or their projection reads beside them.
    fn meta_source(&self) -> Option<MetaSource> {
        self.matcher
            .meta_source_for(self.sort.as_ref(), self.projection.as_ref())
    }

    /// What the planner is asked.
    pub(crate) fn plan_request(&self) -> PlanRequest<'_> {
        PlanRequest {
            namespace: self.collection.ns.as_str(),
            matcher: &self.matcher,
            sort: self.sort.as_ref(),
            projection: self.projection.as_ref(),
            hint: self.hint.as_ref(),
            key_bounds: self.key_bounds.as_ref(),
            return_key: self.output == Output::Keys,
            indexes: self.collection.index_specs(),
        }
    }
}

fn plan(request: &ReadRequest) -> Result<Planned> {
    let filter = || (!request.matcher.is_empty()).then(|| request.matcher.clone());
    if let Some(access) = &request.access {
        return Ok(Planned {
            access: access.clone(),
            filter: filter(),
            sort: request.sort.clone(),
        });
    }
    if request.hint.is_none()
        && request.key_bounds.is_none()
        && let Some(id) = request
            .matcher
            .id_lookup(request.collection.collation.as_ref())
    {
        let access = by_id(&request.collection, id.as_raw_bson_ref());
        let filter = if request.matcher.id_equality_alone().is_some() {
            None
        } else {
            filter()
        };
        // One document is in every order.
        return Ok(Planned {
            access,
            filter,
            sort: None,
        });
    }
    let plan = pinion_query::plan(&request.plan_request())?;
    let sort = if plan.needs_sort(request.sort.as_ref()) {
        request.sort.clone()
    } else {
        None
    };
    let filter = if plan.filter_satisfied {
        None
    } else {
        filter()
    };
    Ok(Planned {
        access: access_of(&request.collection, plan.access),
        filter,
        sort,
    })
}

/// A plan's access in terms of trees and partitions.
fn access_of(collection: &Collection, access: PlannedAccess) -> Access {
    match access {
        PlannedAccess::Nothing => Access::Nothing,
        PlannedAccess::Id(id) => by_id(collection, id.as_raw_bson_ref()),
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
        PlannedAccess::Union(branches) => Access::Union(
            branches
                .into_iter()
                .map(|branch| ranges_of(collection, branch))
                .collect(),
        ),
    }
}

/// The way to the document with this `_id`.
fn by_id(collection: &Collection, id: RawBsonRef<'_>) -> Access {
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

/// The keys of all combinations of points, when every field is bounded by points alone and there are not too many.
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

/// The keys of documents to change.
pub(crate) struct Targets {
    stream: MergedStream,
    /// The names of the indexes that it reads.
    pub indexes: Vec<String>,
}

impl Targets {
    /// The next key.
    pub(crate) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Key>> {
        let bytes = self
            .stream
            .next(ctx, step_for(crate::limits::TARGET_GROUP))
            .await?;
        Ok(bytes.map(|bytes| Key::from_slice(&bytes)))
    }
}

/// Opens a read of keys.
pub(crate) async fn open_ids(
    ctx: &OpContext,
    source: ReadSource,
    mut request: ReadRequest,
) -> Result<Targets> {
    request.output = Output::Ids;
    let wanted = request.limit.unwrap_or(crate::limits::TARGET_GROUP);
    let Opened { stream, indexes } = open(ctx, source, request, wanted).await?;
    Ok(Targets { stream, indexes })
}

/// Whether a read that did not hold its collection's gate for a while can go on.
///
/// # Errors
/// `QueryPlanKilled` when the collection or an index that is read is gone.
pub(crate) fn check_still_there(ns: &Namespace, uuid: Uuid, indexes: &[String]) -> Result<()> {
    let killed = |what: String| Err(Error::new(ErrorCode::QUERY_PLAN_KILLED, what));
    let catalog = core_catalog().current();
    match catalog.by_uuid(uuid) {
        None => killed(format!("collection dropped. UUID {uuid}")),
        Some(collection) if collection.ns != *ns => killed(format!(
            "collection renamed from '{ns}' to '{}'",
            collection.ns
        )),
        Some(collection) => match indexes.iter().find(|name| collection.index(name).is_none()) {
            Some(name) => killed(format!("index '{name}' dropped")),
            None => Ok(()),
        },
    }
}

/// Parses a sort; an empty one is none.
pub(crate) fn parse_sort(
    sort: Option<&RawDocument>,
    collation: Option<&Arc<Collation>>,
) -> Result<Option<SortPattern>> {
    match sort {
        None => Ok(None),
        Some(sort) if sort.is_empty() => Ok(None),
        Some(sort) => Ok(Some(
            SortPattern::parse_find(sort)?.with_collation(collation.cloned()),
        )),
    }
}
