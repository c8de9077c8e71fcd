//! `aggregate` where something of what it reads is sharded: shards do what they can do of each
//! collection, the rest is done here.

use std::rc::Rc;

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_merge::PipelineStream;
use pinion_query::{MakesDocuments, Pipeline, Variables, stage_row_of};
use pinion_service::operator_counts::compute_counted;
use pinion_service::session_ids::is_in;
use pinion_service::spill::memory;
use pinion_sharding_protocol::{RoutingTable, Targets};
use pinion_wire::idl::{CommandReader, FieldReader, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::options::{CollationOption, shards_of, unsupported};
use super::sources::{Routed, spec_of};
use super::stream::{FIRST_BATCH, FirstBatch, first_batch};
use super::variables::variables;
use crate::cursor::{CursorKind, first_reply};
use crate::gather::{ShardCall, ask_shards};
use crate::placement::{check_is_unsharded, table_of};
use crate::request::{Request, Versions};

/// What a router looks at in an `aggregate`.
pub(super) struct Aggregate<'d> {
    pub ns: Namespace,
    pub stages: &'d RawArray,
    lets: Option<&'d RawDocument>,
    collation: CollationOption<'d>,
    batch_size: Option<usize>,
    pub is_explain: bool,
}

impl<'d> Aggregate<'d> {
    /// Reads a command; `None` where it names no collection, or has no pipeline: what is wrong then
    /// says a shard.
    pub(super) fn read(body: &'d RawDocument, db: &str) -> Result<Option<Aggregate<'d>>> {
        let reader = CommandReader::new("aggregate", body)?;
        let name = reader.value("aggregate").and_then(|name| name.as_str());
        let stages = reader
            .value("pipeline")
            .and_then(|stages| stages.as_array());
        let (Some(name), Some(stages)) = (name, stages) else {
            return Ok(None);
        };
        let Ok(ns) = Namespace::sought(db, name) else {
            return Ok(None);
        };
        let batch_size = match reader.opt_doc("cursor")? {
            None => None,
            Some(cursor) => {
                let path = reader.path().field("cursor");
                FieldReader::object(path, cursor)?.opt_non_negative("batchSize")?
            }
        };
        Ok(Some(Aggregate {
            ns,
            stages,
            lets: reader.opt_doc("let")?,
            collation: CollationOption::read(&reader)?,
            batch_size: batch_size.map(|size| size as usize),
            is_explain: reader.opt_bool("explain")?.unwrap_or(false),
        }))
    }

    /// Whether the pipeline is run by routing: something of what it reads is sharded.
    ///
    /// # Errors
    /// `CommandNotSupported` where it writes into what is.
    pub(super) async fn is_routed(&self, cmd: &Invocation) -> Result<bool> {
        for into in targets_of(self.stages, self.ns.db()) {
            check_is_unsharded("$out or $merge", &into).await?;
        }
        let mut is_routed = table_of(&self.ns, Targets::Unknown).await?.is_some();
        for source in sources_of(self.stages) {
            if let Ok(ns) = Namespace::sought(self.ns.db(), source) {
                is_routed |= table_of(&ns, Targets::Unknown).await?.is_some();
            }
        }
        if !is_routed {
            return Ok(false);
        }
        if is_in(&cmd.ctx) {
            return Err(Error::new(
                ErrorCode::COMMAND_NOT_SUPPORTED,
                format!(
                    "aggregate on sharded collections in a transaction is not supported ({})",
                    self.ns
                ),
            ));
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
        Ok((Pipeline::parse(self.stages, &vars)?, vars))
    }

    pub(super) fn variables(&self) -> Result<Variables> {
        variables(self.lets)
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

/// The collections that a pipeline writes into.
fn targets_of(stages: &RawArray, db: &str) -> Vec<Namespace> {
    let stages = pinion_bson::values(stages).filter_map(|stage| stage.as_document());
    let stages = stages.filter_map(|stage| pinion_bson::elements(stage).next());
    let target = |(name, value): (&str, RawBsonRef<'_>)| {
        let into = match name {
            "$out" => value,
            "$merge" => match value {
                RawBsonRef::Document(spec) => pinion_bson::get(spec, "into")?,
                other => other,
            },
            _ => return None,
        };
        match into {
            RawBsonRef::String(name) => Namespace::sought(db, name).ok(),
            RawBsonRef::Document(into) => {
                let part = |name| pinion_bson::get(into, name).and_then(|part| part.as_str());
                Namespace::sought(part("db").unwrap_or(db), part("coll")?).ok()
            }
            _ => None,
        }
    };
    stages.filter_map(target).collect()
}

/// `aggregate`; `None` where nothing of what it reads is sharded.
///
/// # Errors
/// Those of the command at its shards, of its stages here, and of the way there.
pub(crate) async fn aggregate(cmd: &Invocation) -> Result<Option<Reply>> {
    let Some(command) = Aggregate::read(cmd.body(), cmd.db())? else {
        return Ok(None);
    };
    if !command.is_routed(cmd).await? {
        return Ok(None);
    }
    if command.is_explain {
        let verbosity = "queryPlanner";
        return super::explain::explain_aggregate(cmd, &command, verbosity)
            .await
            .map(Some);
    }
    let vars = command.variables()?;
    let table = table_of(&command.ns, Targets::Unknown).await?;
    let parse = || command.parse(&vars, table.as_deref());
    let (pipeline, bound) = compute_counted(&cmd.ctx, parse).await?;
    if pipeline.output().is_some() {
        return Err(unsupported(cmd, &command.ns, "a stage that writes"));
    }
    if sources_of(command.stages).is_empty()
        && let Some(reply) = at_one_shard(cmd, &command, &vars).await?
    {
        return Ok(Some(reply));
    }
    let routed = command.routed(cmd, bound, table.as_deref(), None);
    let node = routed.over(&cmd.ctx, pipeline).await?;
    let nothing = Pipeline::parse(&pinion_bson::RawArrayBuf::new(), &routed.vars)?;
    let stream = PipelineStream::new(node, nothing, &routed);
    let first = FirstBatch {
        ns: &command.ns,
        kind: CursorKind::default(),
        batch_size: command.batch_size,
        is_single: false,
        is_partial: false,
    };
    first_batch(cmd, Box::new(stream), first).await.map(Some)
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
        let split = pipeline.split(None, &vars)?;
        let targeted = table.target(&split.matcher, super::options::snapshot_time(cmd))?;
        if targeted.shards.len() > 1 {
            is_several.set(true);
            return Err(several());
        }
        shards_of(cmd, table, &split.matcher)
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
