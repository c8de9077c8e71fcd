//! Opening a read: plan, snapshot, parts.

use std::sync::Arc;

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_catalog::{Collection, core_catalog};
use pinion_clock::Timestamp;
use pinion_collation::Collation;
use pinion_merge::StepSize;
use pinion_query::{
    Hint, KeyBounds, Matcher, MetaSet, MetaSource, PartStages, Plan, PlanRequest, Projection,
    QueryShape, SortPattern,
};
use pinion_service::compute::compute_bytes;
use pinion_service::metrics::metrics;
use pinion_service::query_settings::{IndexHints, QuerySettings};
use pinion_service::spill::memory;
use pinion_storage::{PartitionId, TreeId, UnitId};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::access::Access;
use super::choose::{self, Choice, Watch, choose};
use super::core_part::{ReadStream, open_parts};
use super::part::{FoundMetadata, Output, PartSpec};
use super::plan::{Planned, by_id};
use super::report::{Chosen, ReadReport};
use crate::acquire::{PrepareConflictBehavior, ReadSource, ReadTarget, Renewal};
use crate::limits::{MAX_SNAPSHOT_RETRIES, PLANNED_PER_BYTE};
use crate::options::{PlantedFault, node_options};
use crate::parameters::parameters;
use crate::placement::Ownership;
use crate::plan_cache::{SetFilter, index_filters};
use crate::tree_uses::tree_metrics;

/// What is to be read.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    pub collection: Arc<Collection>,
    /// What the shard owns of it; `None` where all documents are given. Who keeps the read, keeps
    /// the shard from deleting what it no longer owns.
    pub(crate) ownership: Option<Arc<dyn Ownership>>,
    pub matcher: Matcher,
    pub sort: Option<SortPattern>,
    pub hint: Option<Hint>,
    pub skip: usize,
    pub limit: Option<usize>,
    pub projection: Option<Projection>,
    pub output: Output,
    /// `min` and `max`.
    pub key_bounds: Option<KeyBounds>,
    /// What follows looks at the scores of a text search.
    pub reads_scores: bool,
    /// What follows takes each document with this, as `keyed` writes both.
    pub follow_up_metadata: MetaSet,
    /// Each document gets the key under which the collection holds it.
    pub show_record_id: bool,
    /// Whether a sort may spill, where the command says so.
    pub allow_disk_use: Option<bool>,
    /// The unit whose writes are read beside the snapshot.
    pub unit: Option<UnitId>,
    /// Whether what is prepared is waited for.
    pub prepare_conflicts: PrepareConflictBehavior,
    /// Which newer states it may take while it runs.
    pub renewal: Renewal,
    /// It sees one state from its beginning to its end, whatever its read concern promises.
    pub keeps_snapshot: bool,
    /// The read may outlive its pass of the collection's gate.
    pub is_unguarded: bool,
    /// The way to the documents, where it is known: nothing is planned then.
    pub access: Option<Access>,
    /// The plan, where it was chosen before.
    pub plan: Option<Plan>,
    /// The indexes that the query may use.
    pub index_filter: Option<Arc<SetFilter>>,
    /// The settings of the command's shape, which go before hints and index filters.
    pub settings: Option<Arc<QuerySettings>>,
    /// The projection as it was written, to be shown with the query.
    pub projection_spec: Option<RawDocumentBuf>,
    /// What the parts run over the documents that they find, where they can.
    pub stages: Option<Arc<PartStages>>,
}

impl ReadRequest {
    /// How much a plan takes: the bounds of a long list have many times its room.
    pub(crate) fn planning_bytes(&self) -> usize {
        self.matcher.filter().as_bytes().len() * PLANNED_PER_BYTE
    }

    /// What says which documents are owned, where some may not be.
    pub(crate) fn filtering(&self) -> Option<&Arc<dyn Ownership>> {
        let ownership = self.ownership.as_ref()?;
        let is_filtered = !ownership.owns_all()
            && node_options().planted_fault != PlantedFault::FilterSkippedInScans;
        is_filtered.then_some(ownership)
    }

    /// The same read with its `$text` searching the collection's text index.
    pub(crate) fn bound(self) -> Result<ReadRequest> {
        let matcher = self
            .matcher
            .with_text_index(self.collection.index_specs())?;
        Ok(ReadRequest { matcher, ..self })
    }

    /// How many documents are read until there are enough.
    pub(crate) fn kept(&self) -> Option<usize> {
        let kept = |limit: usize| limit.saturating_add(self.skip);
        self.limit.map(kept)
    }

    /// Takes on which states it reads.
    pub(crate) fn take_source(&mut self, ctx: &OpContext, source: ReadSource) {
        self.unit = source.unit();
        self.prepare_conflicts = source.prepare_conflicts();
        self.renewal = match self.keeps_snapshot {
            true => Renewal::Never,
            false => source.renewal(ctx),
        };
    }

    /// A read of whole documents.
    pub fn new(target: ReadTarget, matcher: Matcher) -> ReadRequest {
        ReadRequest {
            collection: target.collection,
            ownership: target.ownership,
            matcher,
            sort: None,
            hint: None,
            skip: 0,
            limit: None,
            projection: None,
            output: Output::Documents,
            key_bounds: None,
            reads_scores: false,
            follow_up_metadata: MetaSet::default(),
            show_record_id: false,
            allow_disk_use: None,
            unit: None,
            prepare_conflicts: PrepareConflictBehavior::Enforce,
            renewal: Renewal::Never,
            keeps_snapshot: false,
            is_unguarded: false,
            access: None,
            plan: None,
            index_filter: None,
            settings: None,
            projection_spec: None,
            stages: None,
        }
    }
}

/// A read that has started.
pub struct Opened {
    pub stream: ReadStream,
    /// The indexes it uses, which may be dropped under it.
    pub indexes: Vec<String>,
    /// Whether the parts run the stages of the request.
    pub is_staged: bool,
}

/// Plans and opens a read. `wanted` is how many documents the caller takes first.
pub async fn open(
    ctx: &OpContext,
    source: ReadSource,
    request: ReadRequest,
    wanted: usize,
) -> Result<Opened> {
    let mut request = request.bound()?;
    request.take_source(ctx, source);
    request.restrict();
    let request = Arc::new(request);
    let wanted = wanted
        .saturating_add(request.skip)
        .min(request.kept().unwrap_or(usize::MAX));
    let step = StepSize::for_wanted(wanted);
    let mut attempts = 0;
    loop {
        // The timestamp first, the catalog after: a write that made an index multikey has marked
        // that on every core before.
        let at = source.timestamp(ctx).await?;
        match open_at(ctx, &request, at, step).await {
            Err(error) if is_retried(&error, attempts) => attempts += 1,
            result => return result,
        }
    }
}

/// Plans and opens a read of the state at a timestamp.
///
/// # Errors
/// `SnapshotTooOld` when that is gone.
pub(crate) async fn open_at(
    ctx: &OpContext,
    request: &Arc<ReadRequest>,
    at: Timestamp,
    step: StepSize,
) -> Result<Opened> {
    let Prepared {
        spec,
        partitions,
        indexes,
        watch,
        report,
    } = prepare(ctx, request, at).await?;
    let (skip, limit) = (request.skip, request.limit);
    let is_staged = spec.stages.is_some();
    let opening = open_parts(spec, report, partitions, ctx, step, (skip, limit));
    let mut stream = opening.await?;
    stream.observer_mut().watch(watch);
    Ok(Opened {
        stream,
        indexes,
        is_staged,
    })
}

/// A read that is planned and not started.
pub struct Prepared {
    pub spec: Arc<PartSpec>,
    pub partitions: Vec<PartitionId>,
    pub indexes: Vec<String>,
    pub report: Arc<ReadReport>,
    watch: Option<Watch>,
}

/// Plans a read of the state at a timestamp.
pub async fn prepare(
    ctx: &OpContext,
    request: &Arc<ReadRequest>,
    at: Timestamp,
) -> Result<Prepared> {
    let (planned, chosen, watch) = plan(ctx, request, at).await?;
    let indexes = planned.access.indexes();
    let metrics = metrics();
    let uses = tree_metrics();
    if matches!(planned.access, Access::Collection(_)) && request.access.is_none() {
        check_table_scan(request)?;
        uses.record_scan(request.collection.tree(), existing_trees);
    }
    for tree in planned.access.used_trees(&request.collection) {
        uses.record_index(tree, existing_trees);
    }
    let partitions = planned.access.partitions(&request.collection);
    let memory = memory(request.allow_disk_use);
    let metadata = FoundMetadata::of(request, &planned.access);
    // A document that several parts find would be counted as many times by what is behind them.
    let is_staged = !planned.access.repeats_over_parts();
    let spec = Arc::new(PartSpec {
        collection: request.collection.clone(),
        ownership: request.filtering().cloned(),
        access: planned.access,
        filter: planned.filter,
        sort: planned.sort,
        projection: request.projection.clone(),
        covered: planned.covered,
        meta_source: request.meta_source(),
        metadata,
        output: request.output,
        show_record_id: request.show_record_id,
        keep: request.kept(),
        at,
        unit: request.unit,
        prepare_conflicts: request.prepare_conflicts,
        renewal: request.renewal,
        is_unguarded: request.is_unguarded,
        sort_room: memory.shared(memory.limits.sort, partitions.len()),
        stages: request.stages.clone().filter(|_| is_staged),
        memory,
    });
    if spec.sorts() {
        metrics.counters.sorts_in_memory.inc();
        ctx.work().sorts();
    }
    let report = Arc::new(ReadReport::new(request.clone(), spec.clone(), chosen));
    ctx.work().planned(report.clone());
    Ok(Prepared {
        spec,
        partitions,
        indexes,
        report,
        watch,
    })
}

/// Whether a checkpoint moved the base past the timestamp before it was pinned, and another one may
/// be tried.
fn is_retried(error: &Error, attempts: u32) -> bool {
    error.code == ErrorCode::SNAPSHOT_TOO_OLD && attempts < MAX_SNAPSHOT_RETRIES
}

/// What the parts of the read do; and for a plan of the cache, what it promised.
async fn plan(
    ctx: &OpContext,
    request: &ReadRequest,
    at: Timestamp,
) -> Result<(Planned, Chosen, Option<Watch>)> {
    if let Some(access) = &request.access {
        let planned = Planned::by(request, access.clone());
        return Ok((planned, Chosen::default(), None));
    }
    if let Some(plan) = &request.plan {
        let planned = || Planned::new(request, plan.clone());
        let planned = compute_bytes(request.planning_bytes(), planned).await;
        return Ok((planned, Chosen::default(), None));
    }
    if let Some(planned) = by_id(request) {
        return Ok((planned, Chosen::default(), None));
    }
    let began = pinion_runtime::now();
    let choice = choose(ctx, request, at).await?;
    let chosen = Chosen {
        way: choice.way,
        is_tried: choice.trial.is_some(),
        planning_us: began.elapsed().as_micros() as u64,
    };
    let plan = choice.plan;
    let planned = move || Planned::new(request, plan);
    let planned = compute_bytes(request.planning_bytes(), planned).await;
    Ok((planned, chosen, choice.watch))
}

/// Chooses the plan that explain shows, which the read that it runs then takes.
pub async fn choose_to_explain(
    ctx: &OpContext,
    source: ReadSource,
    request: &ReadRequest,
) -> Result<Choice> {
    let mut request = request.clone();
    request.take_source(ctx, source);
    let mut attempts = 0;
    loop {
        let at = source.timestamp(ctx).await?;
        match choose::choose_to_explain(ctx, &request, at).await {
            Err(error) if is_retried(&error, attempts) => attempts += 1,
            chosen => return chosen,
        }
    }
}

/// The way to the documents that a plan takes.
pub(crate) fn access_of_plan(request: &ReadRequest, plan: &Plan) -> Access {
    Planned::new(request, plan.clone()).access
}

/// The trees of all collections and indexes.
pub fn existing_trees() -> Vec<TreeId> {
    core_catalog().current().trees().collect()
}

/// With `notablescan` a filter needs an index; reading everything, and the node's own collections,
/// are exempt.
fn check_table_scan(request: &ReadRequest) -> Result<()> {
    let ns = &request.collection.ns;
    let exempt = request.matcher.is_empty()
        || matches!(ns.db(), "admin" | "config" | "local")
        || ns.collection().starts_with("system.");
    if exempt || !parameters().borrow().notablescan {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::NO_QUERY_EXECUTION_PLANS,
        format!(
            "error processing query: ns={ns}: No indexed plans available, and running with 'notablescan' 1"
        ),
    ))
}

impl ReadRequest {
    /// Gives the metadata of documents that their sort order or their projection reads.
    fn meta_source(&self) -> Option<MetaSource> {
        self.matcher
            .meta_source_for(self.sort.as_ref(), self.projection.as_ref())
    }

    /// Takes on what query settings, or else an index filter, say of the indexes that it may use.
    pub(crate) fn restrict(&mut self) {
        let Some(hints) = self.index_hints() else {
            return self.take_index_filter();
        };
        // The hint of the command is not examined.
        self.hint = match hints.indexes.is_empty() {
            true => hints.natural.clone(),
            false => None,
        };
    }

    /// What the settings allow of the collection's indexes. Bounds of keys are bounds of the index
    /// that the command hints at.
    fn index_hints(&self) -> Option<&IndexHints> {
        let settings = self.settings.as_ref().filter(|_| self.key_bounds.is_none());
        settings?.hints_for(&self.collection.ns)
    }

    fn take_index_filter(&mut self) {
        let index_filters = index_filters();
        let filters = index_filters.borrow();
        let uuid = self.collection.uuid;
        if filters.any_of(uuid) {
            let shape = QueryShape::of(&self.plan_request());
            self.index_filter = filters.find(uuid, &shape).cloned();
        }
    }

    /// The request to the planner.
    pub(crate) fn plan_request(&self) -> PlanRequest<'_> {
        PlanRequest {
            namespace: self.collection.ns.as_str(),
            matcher: &self.matcher,
            sort: self.sort.as_ref(),
            projection: self.projection.as_ref(),
            hint: self.hint.as_ref(),
            key_bounds: self.key_bounds.as_ref(),
            reads_scores: self.reads_scores,
            return_key: self.output == Output::Keys,
            indexes: self.collection.index_specs(),
            shard_key: self.filtering().map(|ownership| ownership.key()),
            filter: match self.index_hints() {
                Some(hints) => Some(&hints.indexes).filter(|allowed| !allowed.is_empty()),
                None => self.index_filter.as_ref().map(|set| &set.filter),
            },
        }
    }
}

/// Parses a sort; an empty one is none.
pub fn parse_sort(
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
