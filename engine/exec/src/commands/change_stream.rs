//! `aggregate` with `$changeStream` in front, on a member of a replica set.

use pinion_bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::{CollectionKind, bson_timestamp, core_catalog};
use pinion_clock::Timestamp;
use pinion_command::syntax::MongosArguments;
use pinion_query::{ChangeStreamOptions, Pipeline, Scope, check_stages, explained_stages};
use pinion_service::operator_counts::compute_counted;
use pinion_service::spill::memory;
use pinion_wire::idl::{Namespace, ReadConcernLevel};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::cursors::{CursorRequest, first_batch};
use super::variables::variables;
use crate::acquire::{PrepareConflictBehavior, ReadSource};
use crate::limits::{AWAIT_DATA, DEFAULT_FIRST_BATCH};
use crate::read::{ChangeCounts, ChangeRequest, ChangeStream, Stream};
use crate::topology::{is_member, is_writable};

/// The specification in front of a pipeline that is a change stream. Only a member has any.
pub(super) fn specification(stages: &RawArray) -> Option<RawBsonRef<'_>> {
    if !is_member() {
        return None;
    }
    match pinion_bson::values(stages).next() {
        Some(RawBsonRef::Document(stage)) => match pinion_bson::elements(stage).next() {
            Some(("$changeStream", spec)) => Some(spec),
            _ => None,
        },
        _ => None,
    }
}

/// What an `aggregate` says beside its specification.
pub(super) struct StreamOptions<'d> {
    pub ns: &'d Namespace,
    pub collectionless: bool,
    pub stages: &'d RawArray,
    pub lets: Option<&'d pinion_bson::RawDocument>,
    pub collation: Option<std::sync::Arc<pinion_collation::Collation>>,
    pub batch_size: Option<usize>,
    pub has_uuid: bool,
    /// A router merges it with those of other shards.
    pub is_of_router: bool,
    /// What a mongos of MongoDB 4.4 says, which does the same.
    pub mongos: MongosArguments,
}

/// Opens a stream.
pub(super) async fn answer(
    cmd: &Invocation,
    asked: StreamOptions<'_>,
    spec: RawBsonRef<'_>,
) -> Result<Reply> {
    let ctx = &cmd.ctx;
    ctx.work().reads_changes();
    let request = parse(ctx, &asked, spec).await?;
    let mut stream = ChangeStream::open(request, now(ctx).await?).await?;
    stream.give_up_at(pinion_runtime::now() + AWAIT_DATA);
    let mut out = Reply::new();
    let cursor = CursorRequest {
        ns: asked.ns.clone(),
        reads: None,
        batch_size: Some(asked.batch_size.unwrap_or(DEFAULT_FIRST_BATCH)),
        single_batch: false,
        no_timeout: false,
    };
    first_batch(
        cmd,
        Box::new(Stream::Changes(Box::new(stream))),
        cursor,
        &mut out,
    )
    .await?;
    Ok(out)
}

/// A stream that is to be explained.
pub(super) struct ToExplain {
    request: ChangeRequest,
    now: Timestamp,
    /// Where in the log it would begin.
    pub begin: Timestamp,
    /// Its stages behind the read of the log, its own first.
    pub stages: Vec<RawDocumentBuf>,
}

/// Reads what a stream would do.
///
/// # Errors
/// Those of [`answer`], but for what opening it meets.
pub(super) async fn to_explain(
    ctx: &OpContext,
    asked: StreamOptions<'_>,
    spec: RawBsonRef<'_>,
) -> Result<ToExplain> {
    let request = parse(ctx, &asked, spec).await?;
    let now = now(ctx).await?;
    let begin = request.begins_at(now);
    let RawBsonRef::Document(spec) = spec else {
        unreachable!("a specification that was read is a document");
    };
    let time = bson_timestamp(begin);
    let mut stages = explained_stages(spec, &request.options, &request.scope, time);
    stages.extend(request.pipeline.sources().map(RawDocument::to_owned));
    if request.splits {
        stages.push(rawdoc! { "$changeStreamSplitLargeEvent": {} });
    }
    Ok(ToExplain {
        request,
        now,
        begin,
        stages,
    })
}

impl ToExplain {
    /// Runs the stream up to what there is by now, and gives how many documents left each of its
    /// own stages, in their order.
    ///
    /// # Errors
    /// Those of the stream.
    pub(super) async fn run(self, ctx: &OpContext) -> Result<Vec<u64>> {
        let own = self.stages.len()
            - self.request.pipeline.sources().count()
            - usize::from(self.request.splits);
        let mut stream = ChangeStream::open(self.request, self.now).await?;
        stream.end_here();
        while stream.next(ctx).await?.is_some() {}
        let ChangeCounts {
            operations,
            events,
            with_invalidates,
            unseen,
        } = stream.counts();
        let first = [operations, events, with_invalidates];
        // Behind the check of the place nothing is left out.
        Ok(first
            .into_iter()
            .chain(std::iter::repeat(unseen))
            .take(own)
            .collect())
    }
}

async fn parse(
    ctx: &OpContext,
    asked: &StreamOptions<'_>,
    spec: RawBsonRef<'_>,
) -> Result<ChangeRequest> {
    check_read_concern(ctx)?;
    if asked.has_uuid {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "Cannot specify 'collectionUUID' with $changeStream",
        ));
    }
    Pipeline::check_form(asked.stages)?;
    check_no_view(asked.ns)?;
    let mut options = ChangeStreamOptions::parse(spec)?;
    if asked.mongos.needs_merge {
        options = options.of_mongos();
    }
    let scope = scope_of(asked, &options)?;
    let splits = check_stages(asked.stages)?;
    let resumes_inside = matches!(&options.start, pinion_query::Start::Behind(resume) if resume.data.fragment.is_some());
    if resumes_inside && !splits {
        return Err(Error::new(
            ErrorCode::CHANGE_STREAM_FATAL_ERROR,
            "To resume from a split event, the pipeline must include a $changeStreamSplitLargeEvent stage",
        ));
    }
    let constants = asked.mongos.constants;
    let vars = variables(ctx, asked.lets, constants, asked.collation.clone()).await?;
    let mut stages = pinion_bson::RawArrayBuf::new();
    let count = pinion_bson::values(asked.stages).count();
    for stage in pinion_bson::values(asked.stages).take(count - usize::from(splits)) {
        stages.push(pinion_bson::RawBson::from(stage));
    }
    let pipeline = compute_counted(ctx, || Pipeline::parse_from(&stages, 1, &vars)).await?;
    Ok(ChangeRequest {
        options,
        scope,
        pipeline,
        splits,
        is_of_router: asked.is_of_router || asked.mongos.needs_merge,
        memory: memory(None),
    })
}

/// What a stream shows, a majority holds.
fn check_read_concern(ctx: &OpContext) -> Result<()> {
    let level = ctx.args.read_concern.and_then(|concern| concern.level);
    let Some(level) = level.filter(|level| *level != ReadConcernLevel::Majority) else {
        return Ok(());
    };
    let text = level.name();
    Err(Error::new(
        ErrorCode::INVALID_OPTIONS,
        format!(
            "Command aggregate does not support {{ readConcern: {{ level: \"{text}\", provenance: \"clientSupplied\" }} }} \
             :: caused by :: Aggregation stage $changeStream cannot run with a readConcern other than 'majority', or in a \
             multi-document transaction. Current readConcern: {text}"
        ),
    ))
}

/// The time of what this member has: a stream without a place begins behind it.
async fn now(ctx: &OpContext) -> Result<Timestamp> {
    let source = match is_writable() {
        true => ReadSource::Newest(PrepareConflictBehavior::Ignore),
        false => ReadSource::LastApplied(PrepareConflictBehavior::Ignore),
    };
    source.timestamp(ctx).await
}

/// A view has no changes of its own, nor has a time series, whose buckets are internal.
fn check_no_view(ns: &Namespace) -> Result<()> {
    let what = match core_catalog().current().kind(ns) {
        Some(CollectionKind::View) => "a view",
        Some(CollectionKind::TimeSeries) => "a timeseries collection",
        _ => return Ok(()),
    };
    Err(Error::new(
        ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
        format!("Namespace {ns} is {what}, on which a $changeStream cannot be opened"),
    ))
}

/// What is watched.
///
/// # Errors
/// `InvalidNamespace` for what is the set's own, `InvalidOptions` where all is asked for anywhere
/// but on `admin`.
fn scope_of(asked: &StreamOptions<'_>, options: &ChangeStreamOptions) -> Result<Scope> {
    let ns = asked.ns;
    if options.all_changes_for_cluster {
        if ns.db() == "admin" && asked.collectionless {
            return Ok(Scope::Cluster);
        }
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and with no \
                 collection name; found {ns}"
            ),
        ));
    }
    let internal = |what: String| {
        Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!("$changeStream may not be opened on the internal {what}"),
        ))
    };
    if matches!(ns.db(), "admin" | "config" | "local") {
        return internal(format!("{} database", ns.db()));
    }
    if asked.collectionless {
        return Ok(Scope::Database(ns.db().to_owned()));
    }
    if ns.collection().starts_with("system.") {
        return internal(format!("{ns} collection"));
    }
    Ok(Scope::Collection(ns.as_str().to_owned()))
}
