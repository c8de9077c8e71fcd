//! `explain` of reads of sharded collections: what each shard says, in the form of MongoDB's
//! routers.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_query::Variables;
use pinion_service::node_info::node_info;
use pinion_sharding_protocol::{RoutingTable, TargetedShards, Targets};
use pinion_wire::idl::{CommandReader, Namespace, i64_exact};
use pinion_wire::{Invocation, Reply, Result};

use super::find::Find;
use super::options::{CollationOption, parse_filter, shards_of};
use super::pipeline::Aggregate;
use super::variables::variables;
use crate::cluster::Cluster;
use crate::dispatch::Answer;
use crate::gather::{ShardCall, ask_shards};
use crate::placement::{check_is_unsharded, table_of};
use crate::request::{Request, Versions};

/// `explain`; `None` where nothing of what the command reads is sharded.
///
/// # Errors
/// `CommandNotSupported` for commands that write; those of the shards and of the way there.
pub(crate) async fn explain(cmd: &Invocation, reads_sharded: bool) -> Result<Option<Reply>> {
    let explained = pinion_bson::elements(cmd.body()).next();
    let Some(inner) = explained.and_then(|(_, inner)| inner.as_document()) else {
        return Ok(None);
    };
    let Some((name, RawBsonRef::String(collection))) = pinion_bson::elements(inner).next() else {
        return Ok(None);
    };
    let Ok(ns) = Namespace::sought(cmd.db(), collection) else {
        return Ok(None);
    };
    let verbosity = pinion_bson::get(cmd.body(), "verbosity").and_then(|v| v.as_str());
    let verbosity = verbosity.unwrap_or("allPlansExecution");
    if name == "aggregate" {
        let command = Aggregate::read(inner, cmd.db(), true)?;
        return match command {
            Some(command) if command.is_routed(cmd, reads_sharded).await? => {
                explain_aggregate(cmd, command, verbosity).await.map(Some)
            }
            _ => Ok(None),
        };
    }
    if !matches!(name, "find" | "count" | "distinct") {
        check_is_unsharded(&format!("explain of {name}"), &ns).await?;
        return Ok(None);
    }
    if table_of(&ns, Targets::Unknown).await?.is_none() {
        return Ok(None);
    }
    explain_read(cmd, &ns, inner, name).await
}

/// The shards of a command that is explained.
fn target(
    cmd: &Invocation,
    inner: &RawDocument,
    name: &str,
    table: &RoutingTable,
) -> Result<TargetedShards> {
    if name == "find" {
        let find = Find::read(inner)?;
        return find.target(cmd, table, &variables(find.lets)?);
    }
    let reader = CommandReader::new(name, inner)?;
    let query = reader.value("query").and_then(|query| query.as_document());
    let collation = CollationOption::read(&reader)?;
    let vars = collation.variables(&Variables::default(), Some(table))?;
    shards_of(cmd, table, &*parse_filter(query, &vars)?)
}

/// The command for a shard, with what it runs in the place of what the client has written.
fn request(cmd: &Invocation, inner: &RawDocument, name: &str, call: &ShardCall<'_>) -> Request {
    let versions = Versions::of_shard(call.version);
    let find = match name == "find" && call.shards > 1 {
        true => Find::read(inner).ok(),
        false => None,
    };
    let Some(find) = find else {
        return Request::of(cmd, cmd.db(), versions);
    };
    Request::with(cmd, cmd.db(), versions, |out| {
        let mut changed = DocBuilder::new();
        find.append_part(&mut changed, call.table);
        let changed = changed.finish();
        out.start_document("explain");
        for elem in pinion_bson::raw_elements(inner) {
            let is_changed = |name| pinion_bson::get(&changed, name).is_some();
            if !elem.name_str().is_some_and(is_changed) {
                out.append_elem(&elem);
            }
        }
        out.append_all(&changed).end();
    })
}

async fn explain_read(
    cmd: &Invocation,
    ns: &Namespace,
    inner: &RawDocument,
    name: &str,
) -> Result<Option<Reply>> {
    let target = |table: &RoutingTable| target(cmd, inner, name, table);
    let make = |call: &ShardCall<'_>| request(cmd, inner, name, call);
    let Some(gathered) = ask_shards(cmd, ns, target, make).await? else {
        return Ok(None);
    };
    let (table, answers) = gathered.all()?;
    let is_sorted = name == "find" && Find::read(inner)?.order(&table)?.is_some();
    let stage = match (answers.len(), is_sorted) {
        (1, _) => "SINGLE_SHARD",
        (_, true) => "SHARD_MERGE_SORT",
        (_, false) => "SHARD_MERGE",
    };
    Ok(Some(explained(stage, &answers, inner)))
}

fn explained(stage: &str, answers: &[Answer], inner: &RawDocument) -> Reply {
    let mut out = Reply::new();
    append_planner(&mut out, stage, answers);
    append_execution(&mut out, stage, answers);
    append_server(&mut out);
    out.append("command", inner);
    out
}

/// The reply to `explain` of a statement that writes.
pub(crate) fn explained_write(answers: &[Answer], inner: &RawDocument) -> Reply {
    let stage = match answers.len() {
        1 => "SINGLE_SHARD",
        _ => "SHARD_WRITE",
    };
    explained(stage, answers, inner)
}

fn document<'a>(reply: &'a RawDocument, name: &str) -> Option<&'a RawDocument> {
    pinion_bson::get(reply, name)?.as_document()
}

/// The name of a shard and its hosts.
fn append_shard(out: &mut DocBuilder, answer: &Answer) {
    out.append("shardName", answer.shard.as_str());
}

fn append_planner(out: &mut DocBuilder, stage: &str, answers: &[Answer]) {
    let shards = Cluster::here().shards();
    out.start_document("queryPlanner");
    out.start_document("winningPlan").append("stage", stage);
    out.start_array("shards");
    for answer in answers {
        out.push_document();
        if let Some(version) = pinion_bson::get(answer.body(), "explainVersion") {
            out.append_raw("explainVersion", version);
        }
        append_shard(out, answer);
        if let Some(shard) = shards.get(&answer.shard) {
            out.append("connectionString", shard.string.to_string().as_str());
        }
        if let Some(server) = pinion_bson::get(answer.body(), "serverInfo") {
            out.append_raw("serverInfo", server);
        }
        if let Some(planner) = document(answer.body(), "queryPlanner") {
            out.append_all(planner);
        }
        out.end();
    }
    out.end().end().end();
}

/// The sums of what the shards have done, of those that were asked to run the command.
fn append_execution(out: &mut DocBuilder, stage: &str, answers: &[Answer]) {
    let stats: Vec<(&Answer, &RawDocument)> = answers
        .iter()
        .filter_map(|answer| Some((answer, document(answer.body(), "executionStats")?)))
        .collect();
    if stats.is_empty() {
        return;
    }
    let number = |stats: &RawDocument, name| pinion_bson::get(stats, name).and_then(i64_exact);
    let values = |name| {
        stats
            .iter()
            .filter_map(move |(_, stats)| number(stats, name))
    };
    let slowest: i64 = values("executionTimeMillis").max().unwrap_or(0);
    let append_sums = |out: &mut DocBuilder| {
        out.append("nReturned", values("nReturned").sum::<i64>());
        out.append("executionTimeMillis", slowest);
        for name in ["totalKeysExamined", "totalDocsExamined"] {
            out.append(name, values(name).sum::<i64>());
        }
    };
    out.start_document("executionStats");
    append_sums(out);
    out.start_document("executionStages").append("stage", stage);
    append_sums(out);
    out.append(
        "totalChildMillis",
        values("executionTimeMillis").sum::<i64>(),
    );
    out.start_array("shards");
    for (answer, stats) in &stats {
        out.push_document();
        append_shard(out, answer);
        for elem in pinion_bson::raw_elements(stats) {
            if elem.name != b"allPlansExecution" {
                out.append_elem(&elem);
            }
        }
        out.end();
    }
    out.end().end();
    let plans = |stats: &RawDocument| pinion_bson::get(stats, "allPlansExecution").is_some();
    if stats.iter().any(|(_, stats)| plans(stats)) {
        out.start_array("allPlansExecution");
        for (answer, stats) in &stats {
            out.push_document();
            append_shard(out, answer);
            if let Some(plans) = pinion_bson::get(stats, "allPlansExecution") {
                out.append_raw("allPlans", plans);
            }
            out.end();
        }
        out.end();
    }
    out.end();
}

fn append_server(out: &mut DocBuilder) {
    let info = node_info();
    let options = &info.options;
    let [major, minor, patch, _] = pinion_wire::COMPATIBLE_VERSION;
    out.start_document("serverInfo")
        .append("host", options.host_info.hostname.as_str())
        .append("port", i32::from(options.port))
        .append("version", format!("{major}.{minor}.{patch}").as_str())
        .append("gitVersion", options.git_version.as_str())
        .end();
}

/// An `aggregate` that is explained: how it is divided, and what each shard says of its part.
///
/// # Errors
/// As those of the command.
pub(super) async fn explain_aggregate(
    cmd: &Invocation,
    command: Aggregate<'_>,
    verbosity: &str,
) -> Result<Reply> {
    let table = table_of(&command.ns, Targets::Unknown).await?;
    let collation = command.collation_of_source(cmd, table.as_deref()).await?;
    let command = command.collated(collation.as_deref());
    let (pipeline, vars) = command.parse(&command.variables()?, table.as_deref())?;
    let routed = command.routed(cmd, vars, table.as_deref(), Some(verbosity.to_owned()));
    let divided = routed.divided(pipeline)?;
    let (answers, _) = routed.answers(&cmd.ctx, &divided).await?;
    let mut out = Reply::new();
    append_server(&mut out);
    out.append("mergeType", "router");
    out.start_document("splitPipeline")
        .start_array("shardsPart");
    for stage in &divided.stages {
        out.push(&**stage);
    }
    out.end().start_array("mergerPart");
    for stage in divided.rest.sources() {
        out.push(stage);
    }
    out.end().end();
    out.start_document("shards");
    for answer in &answers {
        out.start_document(&answer.shard);
        out.append("host", answer.host.to_string().as_str());
        for name in ["explainVersion", "queryPlanner", "executionStats", "stages"] {
            if let Some(value) = pinion_bson::get(answer.body(), name) {
                out.append_raw(name, value);
            }
        }
        out.end();
    }
    out.end();
    Ok(out)
}
