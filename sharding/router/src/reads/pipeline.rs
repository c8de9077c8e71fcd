//! `aggregate` where something of what it reads is sharded: shards do what they can do of each
//! collection, the rest is done here.

use std::rc::Rc;

use pinion_bson::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_command::syntax::{AggregateSyntax, out_series};
use pinion_merge::{Node, PipelineStream};
use pinion_query::{
    ExternalStage, InViews, MakesDocuments, Pipeline, Variables, check_read_concern, stage_row_of,
};
use pinion_service::operator_counts::compute_counted;
use pinion_service::session_ids::is_in;
use pinion_service::spill::memory;
use pinion_sharding_protocol::{RoutingTable, Targets};
use pinion_wire::idl::{CommandReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::options::{CollationOption, at_snapshot, shards_of, unsupported, with_snapshot};
use super::output::{collation_of, destinations_of, prepare};
use super::sources::{Routed, spec_of};
use super::stream::{FIRST_BATCH, FirstBatch, first_batch};
use super::variables::variables;
use crate::cursor::{CursorKind, first_reply};
use crate::gather::{ShardCall, ask_shards};
use crate::placement::table_of;
use crate::reply::append_concern_error;
use crate::request::{Request, Versions};

/// What a router looks at in an `aggregate`.
pub(super) struct Aggregate<'d> {
    pub ns: Namespace,
    pub stages: &'d RawArray,
    lets: Option<&'d RawDocument>,
    collation: CollationOption<'d>,
    pub batch_size: Option<usize>,
    pub is_explain: bool,
}

impl<'d> Aggregate<'d> {
    /// Reads a command, or one that is explained; `None` where it names no collection.
    ///
    /// # Errors
    /// Those of its syntax.
    pub(super) fn read(
        body: &'d RawDocument,
        db: &str,
        is_explained: bool,
    ) -> Result<Option<Aggregate<'d>>> {
        let syntax = AggregateSyntax::read(body, db, is_explained)?;
        match syntax.collectionless {
            true => Ok(None),
            false => Aggregate::new(syntax, body).map(Some),
        }
    }

    /// Reads a command, or one that names no collection as one over what stands for none.
    ///
    /// # Errors
    /// Those of its syntax.
    pub(super) fn read_any(body: &'d RawDocument, db: &str) -> Result<Aggregate<'d>> {
        Aggregate::new(AggregateSyntax::read(body, db, false)?, body)
    }

    fn new(syntax: AggregateSyntax<'d>, body: &'d RawDocument) -> Result<Aggregate<'d>> {
        let reader = CommandReader::new("aggregate", body)?;
        Ok(Aggregate {
            collation: CollationOption::read(&reader)?,
            ns: syntax.ns,
            stages: syntax.stages,
            lets: syntax.lets,
            batch_size: syntax.batch_size,
            is_explain: reader.opt_bool("explain")?.unwrap_or(false),
        })
    }

    /// Whether the pipeline is run by routing: something of what it reads or writes is sharded, or
    /// it writes at another shard than it reads. `reads_sharded`: a shard says so of what views
    /// read.
    ///
    /// # Errors
    /// `NamespaceCannotBeSharded` for `$out` into a sharded collection; a stage in front cannot be
    /// routed.
    pub(super) async fn is_routed(&self, cmd: &Invocation, reads_sharded: bool) -> Result<bool> {
        let mut is_routed = reads_sharded;
        is_routed |= table_of(&self.ns, Targets::Unknown).await?.is_some();
        for into in destinations_of(self.stages, self.ns.db()) {
            is_routed |= into.is_routed(self.ns.db()).await?;
        }
        for source in sources_of(self.stages) {
            if let Ok(ns) = Namespace::sought(self.ns.db(), source) {
                is_routed |= table_of(&ns, Targets::Unknown).await?.is_some();
            }
        }
        if !is_routed {
            return Ok(false);
        }
        self.check_front(cmd)?;
        Ok(true)
    }

    /// Refuses stages in front that do more than look at documents.
    fn check_front(&self, cmd: &Invocation) -> Result<()> {
        let first = pinion_bson::values(self.stages).next();
        let Some(RawBsonRef::Document(first)) = first else {
            return Ok(());
        };
        match stage_row_of(first) {
            Some(row) if row.name == "$geoNear" => Ok(()),
            Some(row) if row.in_views == InViews::WithoutCollection => Err(Error::new(
                ErrorCode::INVALID_NAMESPACE,
                format!(
                    "{} must be run with {{aggregate: 1}}, and not on a collection",
                    row.name
                ),
            )),
            Some(row) if row.first_only || row.makes_documents != MakesDocuments::No => {
                Err(unsupported(cmd, &self.ns, row.name))
            }
            _ => Ok(()),
        }
    }

    /// The pipeline with the collation beside that of a table.
    pub(super) fn parse(
        &self,
        vars: &Variables,
        table: Option<&RoutingTable>,
    ) -> Result<(Pipeline, Variables)> {
        let vars = self.collation.variables(vars, table)?;
        let pipeline = Pipeline::parse(self.stages, &vars)?;
        self.check_output(&pipeline)?;
        Ok((pipeline, vars))
    }

    /// Refuses options of a time series that is to be written, before anything is read.
    fn check_output(&self, pipeline: &Pipeline) -> Result<()> {
        if let Some(ExternalStage::Out(stage)) = pipeline.output() {
            out_series(stage, self.ns.db())?;
        }
        Ok(())
    }

    /// The collation of what is read, where that has no table which says it.
    pub(super) async fn collation_of_source(
        &self,
        cmd: &Invocation,
        table: Option<&RoutingTable>,
    ) -> Result<Option<RawDocumentBuf>> {
        match table.is_some() || self.collation.named().is_some() || is_in(&cmd.ctx) {
            true => Ok(None),
            false => collation_of(cmd, &self.ns).await,
        }
    }

    /// The same command with that.
    pub(super) fn collated<'c>(self, default: Option<&'c RawDocument>) -> Aggregate<'c>
    where
        'd: 'c,
    {
        Aggregate {
            collation: self.collation.or(default),
            ..self
        }
    }

    /// The variables with the collation that the command names.
    pub(super) fn with_collation(&self, vars: &Variables) -> Result<Variables> {
        self.collation.variables(vars, None)
    }

    pub(super) fn variables(&self) -> Result<Variables> {
        variables(self.lets)
    }

    /// Whether the pipeline writes into something that it reads.
    fn writes_into_source(&self) -> bool {
        let db = self.ns.db();
        let is_read = |into: &Namespace| {
            *into == self.ns
                || into.db() == db && sources_of(self.stages).contains(&into.collection())
        };
        destinations_of(self.stages, db)
            .iter()
            .any(|into| is_read(&into.ns))
    }

    /// What the stages share.
    pub(super) fn routed(
        &self,
        cmd: &Invocation,
        vars: Variables,
        table: Option<&RoutingTable>,
        verbosity: Option<String>,
    ) -> Rc<Routed> {
        let wanted = self.batch_size.filter(|size| *size > 0);
        Rc::new(Routed {
            cmd: cmd.clone(),
            ns: self.ns.clone(),
            vars,
            collation: spec_of(self.collation.spec(table)),
            // There is no disk to put anything on.
            memory: memory(Some(false)),
            wanted: wanted.unwrap_or(FIRST_BATCH),
            is_named: true,
            verbosity,
            writes_into_source: self.writes_into_source(),
            concern_error: Rc::default(),
            replaced: Rc::default(),
            views: Rc::default(),
        })
    }
}

/// The collections that stages read beside that of their pipeline, those in stages of stages too.
pub(super) fn sources_of(stages: &RawArray) -> Vec<&str> {
    let mut found = Vec::new();
    add_sources(stages, &mut found);
    found
}

fn add_sources<'a>(stages: &'a RawArray, found: &mut Vec<&'a str>) {
    let stages = pinion_bson::values(stages).filter_map(|stage| stage.as_document());
    for (name, value) in stages.filter_map(|stage| pinion_bson::elements(stage).next()) {
        let from = match (name, value) {
            ("$unionWith", RawBsonRef::String(from)) => {
                found.push(from);
                continue;
            }
            ("$unionWith", _) => "coll",
            ("$lookup" | "$graphLookup", _) => "from",
            ("$facet", RawBsonRef::Document(facets)) => {
                for (_, pipeline) in pinion_bson::elements(facets) {
                    if let RawBsonRef::Array(pipeline) = pipeline {
                        add_sources(pipeline, found);
                    }
                }
                continue;
            }
            _ => continue,
        };
        let Some(spec) = value.as_document() else {
            continue;
        };
        found.extend(pinion_bson::get(spec, from).and_then(|from| from.as_str()));
        if let Some(RawBsonRef::Array(inner)) = pinion_bson::get(spec, "pipeline") {
            add_sources(inner, found);
        }
    }
}

/// `aggregate`; `None` where nothing of what it reads is sharded.
///
/// # Errors
/// Those of the command at its shards, of its stages here, and of the way there.
pub(crate) async fn aggregate(cmd: &Invocation, reads_sharded: bool) -> Result<Option<Reply>> {
    let Some(command) = Aggregate::read(cmd.body(), cmd.db(), false)? else {
        return Ok(None);
    };
    if super::statistics::is_in_front(command.stages) && !is_in(&cmd.ctx) {
        return super::statistics::statistics(cmd, &command).await;
    }
    if !command.is_routed(cmd, reads_sharded).await? {
        return Ok(None);
    }
    if command.is_explain {
        let verbosity = "queryPlanner";
        return super::explain::explain_aggregate(cmd, command, verbosity)
            .await
            .map(Some);
    }
    match destinations_of(command.stages, command.ns.db()).is_empty() {
        true => at_snapshot(cmd, read_at).await,
        // What is written is not written twice.
        false => {
            let ns = command.ns.clone();
            reply_of(&with_snapshot(cmd), command, &ns, false)
                .await
                .map(Some)
        }
    }
}

/// An `aggregate` that reads, whose snapshot, if it asks for one, has a time.
async fn read_at(cmd: &Invocation) -> Result<Option<Reply>> {
    let Some(command) = Aggregate::read(cmd.body(), cmd.db(), false)? else {
        return Ok(None);
    };
    if sources_of(command.stages).is_empty()
        && let Some(reply) = at_one_shard(cmd, &command, &command.variables()?).await?
    {
        return Ok(Some(reply));
    }
    let ns = command.ns.clone();
    reply_of(cmd, command, &ns, false).await.map(Some)
}

/// The reply to a pipeline that is run from here, over a collection or a view of this name.
///
/// # Errors
/// As of [`stream_of`], and those of its first documents.
pub(super) async fn reply_of(
    cmd: &Invocation,
    command: Aggregate<'_>,
    ns: &Namespace,
    is_single: bool,
) -> Result<Reply> {
    if super::statistics::is_in_front(command.stages) && !is_in(&cmd.ctx) {
        let shown = super::statistics::statistics(cmd, &command).await?;
        return shown.ok_or_else(|| unsupported(cmd, &command.ns, "statistics"));
    }
    command.is_routed(cmd, true).await?;
    if command.is_explain {
        return super::explain::explain_aggregate(cmd, command, "queryPlanner").await;
    }
    let batch_size = command.batch_size;
    let (stream, routed, writes) = stream_of(cmd, command).await?;
    let first = FirstBatch {
        ns,
        kind: CursorKind::default(),
        // What writes has nothing to give, and nothing of it may be left to a first getMore.
        batch_size: batch_size.filter(|_| !writes),
        is_single,
        is_partial: false,
    };
    let mut reply = first_batch(cmd, Box::new(stream), first).await?;
    if let Some(error) = routed.concern_error.take() {
        append_concern_error(&mut reply, &error);
    }
    Ok(reply)
}

/// The documents of a pipeline that is run from here, and whether it writes.
///
/// # Errors
/// Those of the command at its shards, of its stages, and of the way there.
pub(super) async fn stream_of(
    cmd: &Invocation,
    command: Aggregate<'_>,
) -> Result<(PipelineStream<Routed>, Rc<Routed>, bool)> {
    let vars = command.variables()?;
    let table = table_of(&command.ns, Targets::Unknown).await?;
    let collation = command.collation_of_source(cmd, table.as_deref()).await?;
    let command = command.collated(collation.as_deref());
    let parse = || command.parse(&vars, table.as_deref());
    let (pipeline, bound) = compute_counted(&cmd.ctx, parse).await?;
    let writes = pipeline.output().is_some();
    if writes && let Some(level) = cmd.ctx.args.read_concern.and_then(|read| read.level) {
        check_read_concern(command.stages, level)?;
    }
    let routed = command.routed(cmd, bound, table.as_deref(), None);
    prepare(&routed, &pipeline).await?;
    let node = routed.over(&cmd.ctx, pipeline).await?;
    let nothing = Pipeline::parse(&pinion_bson::RawArrayBuf::new(), &routed.vars)?;
    Ok((PipelineStream::new(node, nothing, &routed), routed, writes))
}

/// A pipeline without a collection whose last stage would not write where the others are run;
/// `None` where it would.
///
/// # Errors
/// `CommandNotSupported` for other stages in front than `$documents`;
/// `NamespaceCannotBeSharded` for `$out` into a sharded collection; those of the stages.
pub(crate) async fn write_documents(cmd: &Invocation) -> Result<Option<Reply>> {
    let command = Aggregate::read_any(cmd.body(), cmd.db())?;
    let mut routed_to = None;
    for into in destinations_of(command.stages, cmd.db()) {
        if into.is_routed(cmd.db()).await? {
            routed_to = Some(into.ns);
        }
    }
    let Some(into) = routed_to else {
        return Ok(None);
    };
    let vars = command.with_collation(&command.variables()?)?;
    let made = compute_counted(&cmd.ctx, || Pipeline::documents(command.stages, &vars)).await?;
    let Some(made) = made.filter(|_| !command.is_explain) else {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            format!(
                "a pipeline without a collection that writes into {into}, which is sharded or on another shard, is supported behind $documents alone"
            ),
        ));
    };
    let parse = || Pipeline::parse_from(command.stages, 1, &vars);
    let pipeline = compute_counted(&cmd.ctx, parse).await?;
    command.check_output(&pipeline)?;
    let routed = command.routed(cmd, vars, None, None);
    let list = made.into_iter().collect();
    let stream = PipelineStream::new(Node::List(list), pipeline, &routed);
    let first = FirstBatch {
        ns: &command.ns,
        kind: CursorKind::default(),
        batch_size: None,
        is_single: false,
        is_partial: false,
    };
    let mut reply = first_batch(cmd, Box::new(stream), first).await?;
    if let Some(error) = routed.concern_error.take() {
        append_concern_error(&mut reply, &error);
    }
    Ok(Some(reply))
}

/// Sends the whole pipeline to the one shard that has all of what it matches; `None` if there are
/// several.
async fn at_one_shard(
    cmd: &Invocation,
    command: &Aggregate<'_>,
    vars: &Variables,
) -> Result<Option<Reply>> {
    let several = || Error::new(ErrorCode::COMMAND_NOT_SUPPORTED, "several shards");
    let is_several = std::cell::Cell::new(false);
    let target = |table: &RoutingTable| {
        let (pipeline, vars) = command.parse(vars, Some(table))?;
        let divided = pipeline.divided(&vars)?;
        let targeted = table.target(&divided.matcher, super::options::snapshot_time(cmd))?;
        if targeted.shards.len() > 1 {
            is_several.set(true);
            return Err(several());
        }
        shards_of(cmd, table, &divided.matcher)
    };
    let make = |call: &ShardCall<'_>| Request::of(cmd, cmd.db(), Versions::of_shard(call.version));
    match ask_shards(cmd, &command.ns, target, make).await {
        Err(_) if is_several.get() => Ok(None),
        Err(error) => Err(error),
        Ok(None) => Ok(None),
        Ok(Some(gathered)) => {
            let (_, answers) = gathered.all()?;
            first_reply(cmd, &answers[0], CursorKind::default()).map(Some)
        }
    }
}
