//! `aggregate`.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument};
use pinion_catalog::{Catalog, Collection, ResolvedView, core_catalog};
use pinion_command::syntax::{AggregateSyntax, out_series};
use pinion_query::{
    Document, ExternalStage, Hint, Pipeline, SplitPipeline, TimeSeries, Variables, check_api_v1,
};
use pinion_service::compute::compute;
use pinion_service::node_info::is_behind_v44;
use pinion_service::operator_counts::compute_counted;
use pinion_service::query_settings::QuerySettings;
use pinion_service::spill::memory;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::collation::check_sources;
use super::cursors::{CursorRequest, first_batch};
use super::first_stage::{
    FirstStage, PipelineTarget, documents_of, first_stage, without_list_sessions,
};
use super::query_settings::admitted;
use super::variables::variables;
use super::{acknowledge, change_stream};
use crate::acquire::{AcquiredCollection, ReadTarget, acquire_viewed, check_view};
use crate::commands::stage_counts::stage_counts;
use crate::cursor_reads::Reads;
use crate::limits::DEFAULT_FIRST_BATCH;
use crate::pipeline::{Node, PipelineStream, Surroundings, open_split, request_of};
use crate::read::{ReadRequest, of_buckets};
use crate::write::Validation;

/// An `aggregate` as it is written.
pub(super) struct AggregateCommand<'d>(AggregateSyntax<'d>);

impl<'d> std::ops::Deref for AggregateCommand<'d> {
    type Target = AggregateSyntax<'d>;

    fn deref(&self) -> &AggregateSyntax<'d> {
        &self.0
    }
}

/// A parsed `aggregate`.
pub(super) struct Aggregate {
    first: Option<FirstStage>,
    pipeline: Pipeline,
    vars: Variables,
    hint: Option<Hint>,
    validation: Validation,
    allow_disk_use: Option<bool>,
    /// What `$out` makes, if that is a time series.
    out_series: Option<TimeSeries>,
    /// Those of the command, or of that in whose place it stands.
    settings: Option<Arc<QuerySettings>>,
}

/// Reads the command; `explaining` when it stands inside an `explain`, which has no cursor.
pub(super) fn read<'d>(
    body: &'d RawDocument,
    db: &str,
    explaining: bool,
) -> Result<AggregateCommand<'d>> {
    let syntax = match is_behind_v44() {
        true => AggregateSyntax::read_behind_v44(body, db, explaining)?,
        false => AggregateSyntax::read(body, db, explaining)?,
    };
    if syntax.from_router && change_stream::specification(syntax.stages).is_none() {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            "'fromRouter' is only supported with $changeStream",
        ));
    }
    Ok(AggregateCommand(syntax))
}

impl AggregateCommand<'_> {
    /// Refuses what version 1 of the stable API does not have.
    fn check_strict(&self) -> Result<()> {
        if self.explain {
            return Err(Error::new(
                ErrorCode::API_STRICT_ERROR,
                "BSON field 'aggregate.explain' is not allowed with apiStrict:true.",
            ));
        }
        check_api_v1(self.stages)
    }

    /// The specification in front, if it is a change stream, and what is said beside that.
    pub(super) fn changes(&self) -> Option<(RawBsonRef<'_>, change_stream::StreamOptions<'_>)> {
        let spec = change_stream::specification(self.stages)?;
        let asked = change_stream::StreamOptions {
            ns: &self.ns,
            collectionless: self.collectionless,
            stages: self.stages,
            lets: self.lets,
            collation: self.collation.clone().or(None),
            batch_size: self.batch_size,
            has_uuid: self.uuid.is_some(),
            is_of_router: self.from_router,
            mongos: self.mongos,
        };
        Some((spec, asked))
    }

    /// Acquires the collection that the pipeline reads.
    pub(super) async fn acquire(&self, ctx: &OpContext) -> Result<AcquiredCollection> {
        // Without a collection there is none whose UUID could be meant.
        let uuid = self.uuid.filter(|_| !self.collectionless);
        acquire_viewed(ctx, self.ns.clone(), uuid).await
    }

    /// Parses the pipeline, for what was acquired: behind that of a view.
    pub(super) async fn parse(
        self,
        ctx: &OpContext,
        acquired: &AcquiredCollection,
    ) -> Result<Aggregate> {
        let collation = self.collation.or(acquired.collation());
        let vars = variables(ctx, self.lets, self.mongos.constants, collation).await?;
        let stages = match acquired.view() {
            None => Cow::Borrowed(self.stages),
            Some(view) => {
                check_view(&self.ns, view, vars.collation.as_ref())?;
                Cow::Owned(behind(view, self.stages)?)
            }
        };
        check_sources(self.ns.db(), &stages, vars.collation.as_ref())?;
        let stages = match without_list_sessions(&stages, &self.ns)? {
            Some(replaced) => Cow::Owned(replaced),
            None => stages,
        };
        let place = PipelineTarget {
            ns: &self.ns,
            collectionless: self.collectionless,
        };
        let first = compute(ctx, || first_stage(&stages, place)).await?;
        let taken = usize::from(first.is_some());
        let mut pipeline =
            compute_counted(ctx, || Pipeline::parse_from(&stages, taken, &vars)).await?;
        if first.is_none() {
            place.check_front(&stages)?;
        }
        if self.mongos.needs_merge {
            pipeline = pipeline.as_shards_part()?;
        }
        let out_series = match pipeline.output() {
            Some(ExternalStage::Out(stage)) => out_series(stage, self.ns.db())?,
            _ => None,
        };
        Ok(Aggregate {
            out_series,
            first,
            pipeline,
            vars,
            validation: Validation::unless(self.bypasses_validation),
            allow_disk_use: self.allow_disk_use,
            hint: of_buckets(self.0.hint, acquired.series()),
            settings: None,
        })
    }
}

/// The stages of a command behind those of a view.
fn behind(view: &ResolvedView, stages: &RawArray) -> Result<RawArrayBuf> {
    let first = match pinion_bson::values(stages).next() {
        Some(RawBsonRef::Document(first)) => pinion_bson::elements(first).next(),
        _ => None,
    };
    let first = first.map(|(name, _)| name);
    let row = first.and_then(pinion_query::stage_row);
    let shows_collection = row.is_some_and(|row| row.shows_collection);
    if let Some(name @ ("$collStats" | "$rankFusion")) = first
        && (view.series.is_none() || name == "$rankFusion")
    {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!("{name} is not supported on a view"),
        ));
    }
    let mut all = RawArrayBuf::new();
    // What shows the collection itself shows that of the buckets.
    let unpacks = !shows_collection || view.series.is_none();
    for stage in view.pipeline.iter().filter(|_| unpacks) {
        all.push(stage.clone());
    }
    for stage in pinion_bson::values(stages) {
        all.push(RawBson::from(stage));
    }
    Ok(all)
}

impl Aggregate {
    /// What the stages share.
    fn surroundings(
        &self,
        acquired: &AcquiredCollection,
        opened: Arc<Catalog>,
    ) -> Rc<Surroundings> {
        Rc::new(Surroundings {
            ns: acquired.ns().clone(),
            opened,
            vars: self.vars.clone(),
            validation: self.validation,
            memory: memory(self.allow_disk_use),
            out_series: self.out_series.clone(),
            settings: self.settings.clone(),
            merges_into_source: self.merges_into_source(acquired),
            written: Default::default(),
        })
    }

    /// Whether `$merge` may write into what the pipeline is still reading: its own collection, or
    /// that of a `$unionWith`.
    fn merges_into_source(&self, acquired: &AcquiredCollection) -> bool {
        let (Some(ExternalStage::Merge(merge)), Some(collection)) =
            (self.pipeline.output(), acquired.collection())
        else {
            return false;
        };
        let source = &collection.ns;
        let is_own = merge.db.as_deref().is_none_or(|db| db == source.db())
            && merge.collection == source.collection();
        let is_union = |stage: &RawDocument| {
            let mut fields = pinion_bson::elements(stage);
            fields.next().is_some_and(|(name, _)| name == "$unionWith")
        };
        is_own || self.pipeline.sources().any(is_union)
    }

    /// The pipeline over this collection, if there is one: what the parts of its read do, and what
    /// is left.
    pub(super) async fn split(
        &self,
        ctx: &OpContext,
        collection: Option<&Collection>,
    ) -> Result<SplitPipeline> {
        let split = || {
            let mut pipeline = self.pipeline.clone();
            if let Some(collection) = collection {
                let collation = collection.collation.as_ref();
                pipeline.locate(collection.index_specs(), collation, collection.ns.as_str())?;
            }
            pipeline.split(collection.map(Collection::index_specs), &self.vars)
        };
        compute(ctx, split).await
    }

    /// The read in front of the pipeline.
    pub(super) fn request(&self, split: &SplitPipeline, target: ReadTarget) -> ReadRequest {
        let mut request = request_of(split, target);
        request.hint = self.hint.clone();
        request.allow_disk_use = self.allow_disk_use;
        request.settings = self.settings.clone();
        request
    }
}

/// `aggregate`.
pub(crate) async fn aggregate(cmd: Invocation) -> Result<Reply> {
    let command = read(cmd.body(), cmd.db(), false)?;
    if cmd.ctx.args.api.strict {
        command.check_strict()?;
    }
    if command.explain {
        return super::explain::explain_aggregate(&cmd, cmd.body()).await;
    }
    stage_counts().count(command.stages);
    if let Some((spec, asked)) = command.changes() {
        return Box::pin(change_stream::answer(&cmd, asked, spec)).await;
    }
    let acquired = command.acquire(&cmd.ctx).await?;
    answer(&cmd, command, acquired, false).await
}

/// An `aggregate` in the place of another command on a view, which is acquired already.
pub(super) async fn answer_for(
    cmd: &Invocation,
    body: &RawDocument,
    acquired: AcquiredCollection,
    single_batch: bool,
) -> Result<Reply> {
    let command = read(body, cmd.db(), false)?;
    answer(cmd, command, acquired, single_batch).await
}

/// All documents of an `aggregate` in the place of another command on a view.
pub async fn stream_for(
    cmd: &Invocation,
    body: &RawDocument,
    acquired: &AcquiredCollection,
) -> Result<Box<PipelineStream>> {
    let opened = core_catalog().current();
    let command = read(body, cmd.db(), false)?;
    let mut parsed = command.parse(&cmd.ctx, acquired).await?;
    parsed.settings = admitted(cmd).await?;
    let around = parsed.surroundings(acquired, opened);
    Ok(open_stream(&cmd.ctx, parsed, acquired, usize::MAX, &around)
        .await?
        .0)
}

async fn answer(
    cmd: &Invocation,
    command: AggregateCommand<'_>,
    acquired: AcquiredCollection,
    single_batch: bool,
) -> Result<Reply> {
    // Behind the gate of the collection, and before anything else is waited for.
    let opened = core_catalog().current();
    let first = command.batch_size.unwrap_or(DEFAULT_FIRST_BATCH);
    let mut parsed = command.parse(&cmd.ctx, &acquired).await?;
    parsed.settings = admitted(cmd).await?;
    pinion_runtime::yield_if_due().await;
    let mut out = Reply::new();
    let writes = parsed.pipeline.output().is_some();
    let around = parsed.surroundings(&acquired, opened);
    let (stream, reads) = open_stream(&cmd.ctx, parsed, &acquired, first, &around).await?;
    let cursor = CursorRequest {
        ns: acquired.ns().clone(),
        reads,
        // What writes has nothing to give, and nothing of it may be left to a first getMore.
        batch_size: Some(if writes { DEFAULT_FIRST_BATCH } else { first }),
        single_batch,
        no_timeout: false,
    };
    // What writes takes other gates, also that of the collection that is read.
    let _acquired = (!writes).then_some(acquired);
    first_batch(cmd, stream, cursor, &mut out).await?;
    if writes {
        acknowledge(&cmd.ctx, around.written.get(), &mut out).await?;
    }
    Ok(out)
}

/// The documents that come out of a pipeline, and what it reads. `first` is how many of them are
/// wanted first.
async fn open_stream(
    ctx: &OpContext,
    parsed: Aggregate,
    acquired: &AcquiredCollection,
    first: usize,
    around: &Rc<Surroundings>,
) -> Result<(Box<PipelineStream>, Option<Reads>)> {
    let over = |source, pipeline| Box::new(PipelineStream::new(source, pipeline, around));
    if let Some(stage) = &parsed.first {
        let documents = documents_of(ctx, stage, acquired, &parsed.vars).await?;
        let documents = documents.into_iter().map(Document::from).collect();
        return Ok((over(Node::List(documents), parsed.pipeline), None));
    }
    let Some(collection) = acquired.collection() else {
        let nothing = Node::List(VecDeque::new());
        return Ok((over(nothing, parsed.pipeline), None));
    };
    let split = parsed.split(ctx, Some(collection)).await?;
    let mut request = parsed.request(&split, acquired.target(collection));
    request.is_unguarded = parsed.pipeline.output().is_some();
    let opened = open_split(
        ctx,
        acquired.source(),
        request,
        split,
        (first, true),
        around,
    )
    .await?;
    let reads = Reads {
        ns: collection.ns.clone(),
        uuid: collection.uuid,
        indexes: opened.indexes,
    };
    Ok((over(opened.source, opened.merger), Some(reads)))
}
