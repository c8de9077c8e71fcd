//! `explain`: the plan that would be chosen, and what running it takes.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_catalog::{bson_timestamp, core_catalog};
use pinion_command::syntax::{parse_delete, parse_update};
use pinion_merge::{PART_BATCH_DOCUMENTS, PartCounters};
use pinion_query::{
    ExplainStage, MAX_EXPLAIN_BYTES, Matcher, Plan, ShownPlans, SplitPipeline, append_if_room,
    query_planner, shown_hash,
};
use pinion_service::compute::{compute, compute_bytes};
use pinion_service::interrupt::pause;
use pinion_service::node_info::{is_behind_v44, node_info};
use pinion_service::parameters::parameters;
use pinion_wire::idl::{Namespace, Path};
use pinion_wire::{
    COMPATIBLE_VERSION, Error, ErrorCode, ExplainedCommand, Invocation, OpContext, Registry, Reply,
    Result,
};

use super::change_stream::{ToExplain, to_explain};
use super::count::{Count, FAST_COUNT, count_all, sum};
use super::delete::delete_statement;
use super::distinct::Distinct;
use super::query_settings::settings_of;
use super::update::{read_options, update_statement};
use super::{aggregate, count, distinct, find, find_and_modify};
use crate::acquire::{AcquiredCollection, ReadTarget, acquire_stored, acquire_viewed};
use crate::read::{
    Choice, ReadRequest, StageFigures, Trial, access_of_plan, append_execution, append_stage,
    choose_to_explain, log_records, open,
};
use crate::write::{ModifyStatement, series_targets};

/// What change streams read.
const OPLOG: &str = "local.oplog.rs";

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Verbosity {
    QueryPlanner,
    ExecutionStats,
    AllPlansExecution,
}

/// A command to explain, as a read and what stands on top of it.
struct Explained {
    acquired: AcquiredCollection,
    matcher: Matcher,
    /// The read, if there is a collection.
    request: Option<ReadRequest>,
    skip: Option<i64>,
    limit: Option<i64>,
    projection: Option<RawDocumentBuf>,
    top: Top,
    distinct: Option<Distinct>,
    /// The stages of a pipeline behind the read.
    rest: Vec<RawDocumentBuf>,
    /// How they are split between the parts of the read and what is behind those.
    split: Option<SplitPipeline>,
    /// The change stream that reads the log.
    changes: Option<Box<ToExplain>>,
}

/// The stage above the read.
enum Top {
    None,
    Count(Arc<Count>),
    Update(Arc<ModifyStatement>),
    Delete,
    /// What changes the buckets of a series, by its name.
    Buckets(&'static str),
}

/// `explain`.
pub(crate) async fn explain(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let inner = reader.doc("explain")?;
    let verbosity = reader
        .opt_one_of(
            "verbosity",
            &[
                ("queryPlanner", Verbosity::QueryPlanner),
                ("executionStats", Verbosity::ExecutionStats),
                ("allPlansExecution", Verbosity::AllPlansExecution),
            ],
        )?
        .unwrap_or(Verbosity::AllPlansExecution);
    if is_behind_v44() {
        // A mongos of MongoDB 4.4 has these of an `aggregate` beside it too.
        reader.ignore(&["collation", "use44SortKeys", "useNewUpsert"]);
    }
    reader.finish()?;
    if let Some(RawBsonRef::String(db)) = pinion_bson::get(inner, "$db")
        && db != cmd.db()
    {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            format!(
                "Mismatched $db in explain command. Expected {} but got {db}",
                cmd.db()
            ),
        ));
    }
    let explained = parse(&cmd, inner).await?;
    answer(&cmd, &cmd.ctx, explained, inner, verbosity).await
}

/// An `aggregate` with `explain: true`.
pub(super) async fn explain_aggregate(cmd: &Invocation, body: &RawDocument) -> Result<Reply> {
    let explained = parse(cmd, body).await?;
    answer(cmd, &cmd.ctx, explained, body, Verbosity::QueryPlanner).await
}

async fn parse(cmd: &Invocation, inner: &RawDocument) -> Result<Explained> {
    let name = pinion_bson::elements(inner)
        .next()
        .map(|(name, _)| name)
        .unwrap_or_default();
    let (ctx, db) = (&cmd.ctx, cmd.db());
    match explained_as(name)? {
        ExplainedCommand::Find => {
            let command = find::read(inner, db)?;
            let acquired = acquire_viewed(ctx, command.ns.clone(), command.uuid).await?;
            if acquired.view().is_some() {
                return parse_rewritten(ctx, &command.rewritten(inner)?, db, acquired).await;
            }
            let parsed = command.parse(ctx, &acquired).await?;
            acquired.check_text(&parsed.matcher)?;
            let mut explained = plain(acquired, parsed.matcher.clone());
            explained.skip = Some(parsed.skip as i64);
            explained.limit = parsed.limit.map(|n| n as i64);
            explained.projection = parsed.projection_spec.clone();
            explained.reads(|target| parsed.into_request(target));
            Ok(explained)
        }
        ExplainedCommand::Count => {
            let command = count::read(inner, db)?;
            let acquired = acquire_viewed(ctx, command.ns.clone(), command.uuid).await?;
            if acquired.view().is_some() {
                return parse_rewritten(ctx, &command.rewritten(inner), db, acquired).await;
            }
            let parsed = command.parse(ctx, &acquired).await?;
            acquired.check_text(&parsed.matcher)?;
            let mut explained = plain(acquired, parsed.matcher.clone());
            explained.reads(|target| parsed.request(target));
            explained.top = Top::Count(Arc::new(parsed));
            Ok(explained)
        }
        ExplainedCommand::Distinct => {
            let command = distinct::read(inner, db)?;
            let acquired = acquire_viewed(ctx, command.ns.clone(), command.uuid).await?;
            if acquired.view().is_some() {
                return parse_rewritten(ctx, &command.rewritten(inner), db, acquired).await;
            }
            let parsed = command.parse(ctx, &acquired).await?;
            acquired.check_text(&parsed.matcher)?;
            let mut explained = plain(acquired, parsed.matcher.clone());
            explained.reads(|target| parsed.request(target));
            explained.distinct = Some(parsed);
            Ok(explained)
        }
        ExplainedCommand::Update | ExplainedCommand::Delete => {
            parse_write(ctx, name, inner, db).await
        }
        ExplainedCommand::FindAndModify => parse_find_and_modify(cmd, name, inner).await,
        ExplainedCommand::Aggregate => {
            let command = aggregate::read(inner, db, true)?;
            if let Some((spec, asked)) = command.changes() {
                let stream = to_explain(ctx, asked, spec).await?;
                return parse_changes(ctx, stream).await;
            }
            let acquired = command.acquire(ctx).await?;
            parse_pipeline(ctx, command, acquired).await
        }
    }
}

/// Which command this is, of those that can be explained.
///
/// # Errors
/// `IllegalOperation` for another command, `CommandNotFound` if the node has none of this name.
fn explained_as(name: &str) -> Result<ExplainedCommand> {
    let registry = pinion_runtime::core_local::<Registry>();
    let Some(command) = registry.lookup(name) else {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_FOUND,
            format!("Explain failed due to unknown command: {name}"),
        ));
    };
    command.spec.explain.ok_or_else(|| {
        Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("Cannot explain cmd: {name}"),
        )
    })
}

/// The pipeline that another command is on a view.
async fn parse_rewritten(
    ctx: &OpContext,
    body: &RawDocument,
    db: &str,
    acquired: AcquiredCollection,
) -> Result<Explained> {
    let command = aggregate::read(body, db, true)?;
    parse_pipeline(ctx, command, acquired).await
}

async fn parse_pipeline(
    ctx: &OpContext,
    command: aggregate::AggregateCommand<'_>,
    acquired: AcquiredCollection,
) -> Result<Explained> {
    let parsed = command.parse(ctx, &acquired).await?;
    let collection = acquired.collection().map(|collection| &**collection);
    let split = parsed.split(ctx, collection).await?;
    let mut explained = plain(acquired, split.matcher.clone());
    explained.limit = split.limit;
    let whole = split.clone().into_whole();
    explained.rest = whole.sources().map(RawDocument::to_owned).collect();
    explained.reads(|target| parsed.request(&split, target));
    explained.split = Some(split);
    Ok(explained)
}

/// A change stream is a read of the log from where it begins on, and its stages behind that.
async fn parse_changes(ctx: &OpContext, stream: ToExplain) -> Result<Explained> {
    let acquired = acquire_viewed(ctx, Namespace::parse(OPLOG)?, None).await?;
    let begin = bson_timestamp(stream.begin);
    let matcher = Matcher::parse(&rawdoc! { "ts": { "$gte": begin } })?;
    let mut explained = plain(acquired, matcher.clone());
    explained.reads(|log| ReadRequest::new(log, matcher));
    explained.rest = stream.stages.clone();
    explained.changes = Some(Box::new(stream));
    Ok(explained)
}

/// A read of nothing so far.
fn plain(acquired: AcquiredCollection, matcher: Matcher) -> Explained {
    Explained {
        acquired,
        matcher,
        request: None,
        skip: None,
        limit: None,
        projection: None,
        top: Top::None,
        distinct: None,
        rest: Vec::new(),
        split: None,
        changes: None,
    }
}

impl Explained {
    /// Sets the read, if there is a collection.
    fn reads(&mut self, make: impl FnOnce(ReadTarget) -> ReadRequest) {
        let target = |found| self.acquired.target(found);
        self.request = self.acquired.collection().map(target).map(make);
    }

    /// Sets the read that finds the documents of a statement.
    fn targets(&mut self, statement: &ModifyStatement) {
        self.reads(|target| {
            let mut request = ReadRequest::new(target, statement.matcher.clone());
            request.hint = statement.hint.clone();
            request.sort = statement.sort.clone();
            request.limit = (!statement.multi).then_some(1);
            request
        });
    }
}

async fn parse_find_and_modify(
    cmd: &Invocation,
    name: &str,
    inner: &RawDocument,
) -> Result<Explained> {
    let command = find_and_modify::read(&cmd.ctx, inner, name, cmd.db()).await?;
    let acquired = acquire_stored(&cmd.ctx, command.syntax.ns.clone(), command.syntax.uuid).await?;
    let parsed = command.parse(&cmd.ctx, &acquired, acquired.collection().is_some());
    let parsed = parsed.await?;
    let db = cmd.db();
    if core_catalog().current().collections_of(db).next().is_none() {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("database {db} does not exist"),
        ));
    }
    let statement = Arc::new(parsed.statement.bound(&acquired)?);
    let top = if parsed.remove {
        Top::Delete
    } else {
        Top::Update(statement.clone())
    };
    writing(&cmd.ctx, acquired, &statement, top).await
}

async fn parse_write(
    ctx: &OpContext,
    name: &str,
    inner: &RawDocument,
    db: &str,
) -> Result<Explained> {
    let reader = pinion_wire::idl::CommandReader::new(
        if name == "update" { "update" } else { "delete" },
        inner,
    )?;
    let field = if name == "update" {
        "updates"
    } else {
        "deletes"
    };
    let mut statements = Vec::new();
    match reader.opt_objects(field)? {
        None => return Err(pinion_wire::idl::missing_field(reader.path().field(field))),
        Some(objects) => {
            for object in objects {
                statements.push(object?.1);
            }
        }
    }
    let root = Path::root("explain");
    let is_update = name == "update";
    let [document] = statements[..] else {
        // All statements are read before they are counted.
        for document in &statements {
            if is_update {
                parse_update(root, document, is_behind_v44())?;
            } else {
                parse_delete(root, document, is_behind_v44())?;
            }
        }
        return Err(Error::new(
            ErrorCode::INVALID_LENGTH,
            format!(
                "explained write batches must be of size 1, but was {}",
                statements.len()
            ),
        ));
    };
    let options = read_options(ctx, &reader, db, name, field).await?;
    let acquired = acquire_stored(ctx, options.ns.clone(), options.uuid).await?;
    let (statement, top) = if is_update {
        let spec = parse_update(root, document, is_behind_v44())?;
        let default = acquired.collation();
        let statement = || update_statement(&spec, &options.vars, default, options.update);
        let statement = compute(ctx, statement).await?;
        let statement = Arc::new(statement.bound(&acquired)?);
        (statement.clone(), Top::Update(statement))
    } else {
        let spec = parse_delete(root, document, is_behind_v44())?;
        let default = acquired.collation();
        let statement = compute(ctx, || delete_statement(&spec, &options.vars, default)).await?;
        (Arc::new(statement.bound(&acquired)?), Top::Delete)
    };
    writing(ctx, acquired, &statement, top).await
}

/// A statement that writes: what finds its documents, or the buckets of its measurements, and what
/// stands on top of that.
async fn writing(
    ctx: &OpContext,
    acquired: AcquiredCollection,
    statement: &ModifyStatement,
    top: Top,
) -> Result<Explained> {
    let Some(of_series) = series_targets(ctx, &acquired, statement).await? else {
        let mut explained = plain(acquired, statement.matcher.clone());
        explained.targets(statement);
        explained.top = top;
        return Ok(explained);
    };
    let mut explained = plain(acquired, of_series.request.matcher.clone());
    explained.top = Top::Buckets(match top {
        Top::Delete if !of_series.of_sources => "TS_MODIFY",
        Top::Delete => "DELETE",
        _ => "UPDATE",
    });
    explained.request = Some(of_series.request);
    Ok(explained)
}

/// What running the read took.
#[derive(Clone, Copy, Default)]
struct Execution {
    returned: u64,
    /// Documents that an update would change.
    modified: u64,
    /// Whether it would insert one.
    upserted: bool,
    millis: u64,
    /// How often it let others run.
    yields: u64,
    counters: PartCounters,
}

/// Runs the read; an update is worked out for each document, so its errors are those of the command
/// itself.
async fn execute(
    ctx: &OpContext,
    acquired: &AcquiredCollection,
    request: ReadRequest,
    top: &Top,
) -> Result<Execution> {
    let started = pinion_runtime::now();
    let millis = || started.elapsed().as_millis() as u64;
    let yields_before = ctx.work().yields();
    if let Top::Count(count) = top
        && count.counts_all(acquired)
    {
        return Ok(Execution {
            returned: count_all(&request.collection).await?,
            millis: millis(),
            ..Execution::default()
        });
    }
    let opened = open(ctx, acquired.source(), request, PART_BATCH_DOCUMENTS).await?;
    let mut stream = opened.stream;
    let (mut returned, mut modified, mut upserted) = (0, 0, false);
    if let Top::Count(_) = top {
        returned = sum(ctx, &mut stream).await?;
    }
    while let Some(document) = stream.next_wanted(ctx, PART_BATCH_DOCUMENTS).await? {
        pause(ctx).await?;
        returned += 1;
        if let Top::Update(statement) = top {
            let document = pinion_catalog::stored_document(&document);
            modified += u64::from(statement.would_change(ctx, document).await?);
        }
    }
    if let Top::Update(statement) = top
        && returned == 0
    {
        upserted = statement.would_upsert(ctx).await?;
    }
    Ok(Execution {
        returned,
        modified,
        upserted,
        millis: millis(),
        yields: ctx.work().yields() - yields_before,
        counters: *stream.observer().counters(),
    })
}

/// What explain says of the plans.
struct PlanReport {
    planner: RawDocumentBuf,
    stage: ExplainStage,
    execution: Execution,
    /// What each of the plans did in the trial, if there were several.
    trials: Vec<(ExplainStage, Trial)>,
    /// The stages that the parts of the read run, and those behind them.
    parts: Option<[Vec<RawDocumentBuf>; 2]>,
}

/// Plans the read, and runs it if that is asked for.
async fn plan_report(
    ctx: &OpContext,
    explained: &mut Explained,
    verbosity: Verbosity,
) -> Result<PlanReport> {
    let mut execution = Execution::default();
    let ns = explained.acquired.ns().as_str();
    let Some(request) = explained.request.take() else {
        let stage = explained
            .top_stage()
            .above(ExplainStage::without_collection());
        let shown = ShownPlans {
            winning: &stage,
            rejected: &[],
            shape_hash: &shown_hash([]),
            key_hash: &shown_hash([]),
            millis: 0,
        };
        return Ok(PlanReport {
            planner: query_planner(ns, &explained.matcher, false, &shown),
            stage,
            execution,
            trials: Vec::new(),
            parts: None,
        });
    };
    let mut request = request.bound()?;
    request.restrict();
    let started = pinion_runtime::now();
    let source = explained.acquired.source();
    let by_index = match &explained.distinct {
        Some(distinct) => distinct.by_index(&request)?,
        None => None,
    };
    let choice = match &by_index {
        Some((found, _)) => Choice::without_trial(vec![found.plan.clone()]),
        None => choose_to_explain(ctx, source, &request).await?,
    };
    let by_distinct = by_index.as_ref().zip(explained.distinct.as_ref());
    let by_distinct = by_distinct.map(|((found, _), distinct)| (found, distinct.key()));
    let is_count = matches!(explained.top, Top::Count(_));
    let (skip, limit) = (explained.skip, explained.limit);
    let projection = explained.projection.as_deref();
    let (matcher, top) = (&explained.matcher, explained.top_stage());
    let millis = started.elapsed().as_millis() as i64;
    // Of a large filter this is as much work as to plan it.
    let show = || {
        let plan_request = request.plan_request();
        let bounds = match request.collection.is_oplog() {
            true => log_records(request.matcher.filter()),
            false => [None, None],
        };
        let stages = |plan: &Plan| {
            let stage = match by_distinct {
                Some((found, key)) => found.explain(&plan_request, key),
                None if is_count => plan.explain_count(&plan_request),
                None => plan.explain(&plan_request, skip, limit, projection),
            };
            stage.within_records(bounds)
        };
        let winning = stages(&choice.plan);
        let rejected: Vec<ExplainStage> = choice.rejected.iter().map(stages).collect();
        let mut tried = Vec::new();
        if let Some((_, best)) = choice.trial {
            tried.clone_from(&rejected);
            tried.insert(best, winning.clone());
        }
        let stage = top.above(winning);
        let key = choice.key(&request);
        let shown = ShownPlans {
            winning: &stage,
            rejected: &rejected,
            shape_hash: &key.shape_hash(),
            key_hash: &key.key_hash(),
            millis,
        };
        let filtered = request.index_filter.is_some();
        let planner = query_planner(ns, matcher, filtered, &shown);
        (planner, stage, tried)
    };
    let (planner, stage, tried) = compute_bytes(request.planning_bytes(), show).await;
    let mut trials = Vec::new();
    if let Some((found, best)) = choice.trial {
        trials = tried.into_iter().zip(found).collect();
        trials.swap(0, best);
    }
    let access = access_of_plan(&request, &choice.plan);
    let (reads_elsewhere, repeats) = (access.reads_elsewhere(), access.repeats_over_parts());
    let parts =
        (explained.split.as_ref()).and_then(|split| split.shown_parts(!reads_elsewhere, !repeats));
    if verbosity >= Verbosity::ExecutionStats {
        request = by_index.map_or(request, |(_, by_index)| by_index);
        request.plan = Some(choice.plan);
        execution = execute(ctx, &explained.acquired, request, &explained.top).await?;
    }
    Ok(PlanReport {
        planner,
        stage,
        execution,
        trials,
        parts,
    })
}

async fn answer(
    cmd: &Invocation,
    ctx: &OpContext,
    mut explained: Explained,
    inner: &RawDocument,
    verbosity: Verbosity,
) -> Result<Reply> {
    if let Some(request) = &mut explained.request
        && explained.changes.is_none()
    {
        request.settings = settings_of(ctx, inner, cmd.db()).await?;
    }
    let report = plan_report(ctx, &mut explained, verbosity).await?;
    let started = pinion_runtime::now();
    let left = match explained.changes.take() {
        Some(stream) if verbosity >= Verbosity::ExecutionStats => Box::pin(stream.run(ctx)).await?,
        _ => Vec::new(),
    };
    let millis = started.elapsed().as_millis() as i64;
    let mut out = Reply::new();
    out.append("explainVersion", "1");
    if explained.rest.is_empty() {
        append_plan(&mut out, &explained, &report, verbosity);
    } else {
        out.start_array("stages")
            .push_document()
            .start_document("$cursor");
        append_plan(&mut out, &explained, &report, verbosity);
        out.end();
        if verbosity >= Verbosity::ExecutionStats {
            out.append("nReturned", report.execution.returned as i64)
                .append(
                    "executionTimeMillisEstimate",
                    report.execution.millis as i64,
                );
        }
        out.end();
        for (place, stage) in explained.rest.iter().enumerate() {
            out.push_document();
            for (name, value) in pinion_bson::elements(stage) {
                append_if_room(&mut out, name, value, MAX_EXPLAIN_BYTES);
            }
            if let Some(returned) = left.get(place) {
                out.append("nReturned", *returned as i64)
                    .append("executionTimeMillisEstimate", millis);
            }
            out.end();
        }
        out.end();
    }
    if let Some(parts) = &report.parts {
        let shown = shown_parts(parts);
        let shown = RawBsonRef::Document(&shown);
        append_if_room(&mut out, "splitPipeline", shown, MAX_EXPLAIN_BYTES);
    }
    let db = cmd.db();
    let shown = compute_bytes(inner.as_bytes().len(), || shown_command(inner, db)).await;
    let shown = RawBsonRef::Document(&shown);
    append_if_room(&mut out, "command", shown, MAX_EXPLAIN_BYTES);
    append_server(&mut out);
    Ok(out)
}

/// Appends what explain says of the server.
fn append_server(out: &mut DocBuilder) {
    let shared = &node_info();
    let [major, minor, patch, _] = COMPATIBLE_VERSION;
    out.start_document("serverInfo")
        .append("host", shared.options.host_info.hostname.as_str())
        .append("port", i32::from(shared.options.port))
        .append("version", format!("{major}.{minor}.{patch}").as_str())
        .append("gitVersion", shared.options.git_version.as_str())
        .end();
    out.start_document("serverParameters")
        .append(
            "internalQueryMaxBlockingSortMemoryUsageBytes",
            parameters().borrow().memory.sort as i64,
        )
        .end();
}

/// What the parts of a read run, and what runs over what they give; MongoDB shows the same of a
/// pipeline over shards.
fn shown_parts([part, merger]: &[Vec<RawDocumentBuf>; 2]) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    for (name, stages) in [("partsPart", part), ("mergerPart", merger)] {
        out.start_array(name);
        for stage in stages {
            out.push(RawBsonRef::Document(stage));
        }
        out.end();
    }
    out.finish()
}

fn shown_command(inner: &RawDocument, db: &str) -> RawDocumentBuf {
    let mut out = DocBuilder::with_capacity(inner.as_bytes().len() + 64);
    for elem in pinion_bson::raw_elements(inner) {
        let name = elem.name_str().unwrap_or_default();
        if name == "$db" || !pinion_wire::idl::is_generic_argument(name) {
            out.append_elem(&elem);
        }
    }
    if pinion_bson::get(inner, "$db").is_none() {
        out.append("$db", db);
    }
    out.finish()
}

/// What the command does to the documents of the read's stages.
#[derive(Clone, Copy)]
enum TopStage {
    None,
    Above(&'static str),
    /// There is no read.
    InPlace(&'static str),
}

impl TopStage {
    fn above(self, read: ExplainStage) -> ExplainStage {
        match self {
            TopStage::None => read,
            TopStage::Above(name) => read.below(name),
            TopStage::InPlace(name) => ExplainStage::leaf(name),
        }
    }
}

impl Explained {
    fn top_stage(&self) -> TopStage {
        match self.top {
            Top::None => TopStage::None,
            Top::Count(ref count)
                if count.counts_all(&self.acquired) && self.acquired.collection().is_some() =>
            {
                TopStage::InPlace(FAST_COUNT)
            }
            Top::Count(_) => TopStage::Above("COUNT"),
            Top::Update(_) => TopStage::Above("UPDATE"),
            Top::Delete => TopStage::Above("DELETE"),
            Top::Buckets(name) => TopStage::Above(name),
        }
    }
}

fn append_plan(
    out: &mut DocBuilder,
    explained: &Explained,
    report: &PlanReport,
    verbosity: Verbosity,
) {
    out.append("queryPlanner", &*report.planner);
    if verbosity < Verbosity::ExecutionStats {
        return;
    }
    let execution = &report.execution;
    let writes = !matches!(explained.top, Top::None);
    let returned = if writes { 0 } else { execution.returned };
    out.start_document("executionStats")
        .append("executionSuccess", true)
        .append("nReturned", returned as i32)
        .append("executionTimeMillis", execution.millis as i32)
        .append("totalKeysExamined", execution.counters.keys_examined as i32)
        .append("totalDocsExamined", execution.counters.docs_examined as i32);
    out.start_document("executionStages");
    let statistics = |stage: &ExplainStage, out: &mut DocBuilder| {
        append_stats(stage, out, execution, &explained.top)
    };
    report.stage.write_plan(out, &statistics);
    out.end();
    if verbosity == Verbosity::AllPlansExecution {
        out.start_array("allPlansExecution");
        for (stage, trial) in &report.trials {
            out.push_document();
            append_execution(out, stage, &StageFigures::of_trial(trial));
            out.end();
        }
        out.end();
    }
    out.end();
}

/// What a stage did: what the command does on top gives nothing.
fn append_stats(stage: &ExplainStage, out: &mut DocBuilder, execution: &Execution, top: &Top) {
    let is_top = matches!(
        stage.name,
        "COUNT" | FAST_COUNT | "UPDATE" | "DELETE" | "TS_MODIFY"
    );
    let figures = StageFigures {
        counters: execution.counters,
        returned: if is_top { 0 } else { execution.returned },
        millis: execution.millis,
        yields: execution.yields,
        is_eof: true,
        score: None,
    };
    append_stage(stage, out, &figures);
    match (stage.name, top) {
        ("COUNT" | FAST_COUNT, Top::Count(count)) => {
            let skipped = execution.returned.min(count.skip as u64);
            out.append("nCounted", count.bounded(execution.returned) as i32)
                .append("nSkipped", skipped as i32);
        }
        ("UPDATE", _) => {
            out.append("nMatched", execution.returned as i32)
                .append("nWouldModify", execution.modified as i32)
                .append("nWouldUpsert", i32::from(execution.upserted));
        }
        ("DELETE", _) => {
            out.append("nWouldDelete", execution.returned as i32);
        }
        _ => {}
    }
}
