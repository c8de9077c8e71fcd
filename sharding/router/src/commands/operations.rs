//! What runs: `currentOp` and `killOp` over all shards, whose operations are named by shard and
//! number.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_runtime::on_all_cores;
use pinion_service::node_info::node_info;
use pinion_service::ops::{OpSnapshot, ops};
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::{i64_exact, is_number, truthy};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::forward::shard_ids;
use super::shard_replies::{all_or_first_error, append_raw};
use crate::dispatch::{at_every_shard, send_to};
use crate::hosts::Retry;
use crate::limits::METADATA_REPLY_BYTES;
use crate::reads::over_documents;
use crate::reply::{passed_on, refused};
use crate::request::Request;

/// `currentOp`: of every shard.
pub(super) async fn current_op(cmd: Invocation) -> Result<Reply> {
    let shards = shard_ids().await?;
    let outcomes = at_every_shard(&cmd, &shards, |_| Request::of(&cmd, cmd.db(), None)).await?;
    let mut out = Reply::new();
    out.start_array("inprog");
    for (shard, outcome) in outcomes {
        let answer = outcome.map_err(refused)?;
        for operation in documents_in(answer.body(), "inprog") {
            append_operation(&mut out, &shard, operation);
        }
    }
    out.end();
    Ok(out)
}

/// An aggregation that begins with `$currentOp`, which every shard runs; the stages behind it run
/// here.
///
/// # Errors
/// Those of the shards, and of the stages.
pub(super) async fn current_op_stage(cmd: Invocation) -> Result<Reply> {
    let shards = shard_ids().await?;
    let stages = pinion_bson::get(cmd.body(), "pipeline").and_then(|stages| stages.as_array());
    let first = stages.and_then(|stages| pinion_bson::values(stages).next());
    let make = |_: &ShardId| {
        Request::with(&cmd, cmd.db(), None, |out| {
            out.start_array("pipeline");
            first.into_iter().for_each(|first| {
                out.push(first);
            });
            // All operations are in one batch.
            out.end().start_document("cursor");
            out.append("batchSize", i32::MAX).end();
        })
    };
    let outcomes = at_every_shard(&cmd, &shards, make).await?;
    let mut operations = Vec::new();
    for (shard, outcome) in outcomes {
        let answer = outcome.map_err(refused)?;
        let cursor = pinion_bson::get(answer.body(), "cursor");
        let cursor = cursor.and_then(|cursor| cursor.as_document());
        for operation in cursor
            .iter()
            .flat_map(|cursor| documents_in(cursor, "firstBatch"))
        {
            let mut out = DocBuilder::new();
            append_fields(&mut out, &shard, operation);
            operations.push(out.finish());
        }
    }
    Box::pin(over_documents(&cmd, operations)).await
}

/// The same with `localOps`: the operations of this process.
///
/// # Errors
/// `InvalidNamespace` anywhere but on `admin`; those of the stages.
pub(super) async fn local_operations(cmd: Invocation) -> Result<Reply> {
    let is_collectionless = pinion_bson::elements(cmd.body())
        .next()
        .is_some_and(|(_, value)| is_number(value));
    if cmd.db() != "admin" || !is_collectionless {
        return Err(Error::new(
            ErrorCode::INVALID_NAMESPACE,
            "$currentOp must be run against the 'admin' database with {aggregate: 1}",
        ));
    }
    let running = on_all_cores(|_| async { ops().snapshot() }).await;
    let operations = running.iter().flatten().map(describe).collect();
    Box::pin(over_documents(&cmd, operations)).await
}

/// An operation of this process.
fn describe(operation: &OpSnapshot) -> RawDocumentBuf {
    let (ctx, client) = (&operation.ctx, &operation.ctx.client);
    let mut out = DocBuilder::new();
    out.append("type", "op")
        .append("host", node_info().options.host.as_str())
        .append("desc", format!("conn{}", client.connection_id).as_str())
        .append("connectionId", client.connection_id);
    if let Some(remote) = client.remote {
        out.append("client", remote.to_string().as_str());
    }
    if let Some(metadata) = client.metadata() {
        if let Some(name) = &metadata.app_name {
            out.append("appName", name.as_str());
        }
        out.append("clientMetadata", &*metadata.document);
    }
    let command = RawDocument::from_bytes(&operation.command).ok();
    let collection = command.and_then(|command| pinion_bson::elements(command).next());
    let collection = collection.and_then(|(_, name)| name.as_str());
    out.append("active", true)
        .append("opid", ctx.op_id)
        .append("secs_running", operation.running.as_secs() as i64)
        .append("microsecs_running", operation.running.as_micros() as i64)
        .append("op", "command")
        .append(
            "ns",
            format!("{}.{}", ctx.db, collection.unwrap_or("$cmd")).as_str(),
        );
    if let Some(command) = command {
        out.append("command", command);
    }
    out.finish()
}

fn documents_in<'d>(
    reply: &'d RawDocument,
    name: &str,
) -> impl Iterator<Item = &'d RawDocument> + use<'d> {
    let list = pinion_bson::get(reply, name).and_then(|list| list.as_array());
    let list = list.into_iter().flat_map(pinion_bson::values);
    list.filter_map(|document| document.as_document())
}

/// `lockInfo`: of every shard, under `raw`.
pub(super) async fn lock_info(cmd: Invocation) -> Result<Reply> {
    let shards = shard_ids().await?;
    let outcomes = at_every_shard(&cmd, &shards, |_| Request::of(&cmd, cmd.db(), None)).await?;
    all_or_first_error(&outcomes)?;
    let mut out = Reply::new();
    append_raw(&mut out, &outcomes);
    Ok(out)
}

/// `validateDBMetadata`: what every shard finds, with its name.
pub(super) async fn validate_db_metadata(cmd: Invocation) -> Result<Reply> {
    let shards = shard_ids().await?;
    let outcomes = at_every_shard(&cmd, &shards, |_| Request::of(&cmd, cmd.db(), None)).await?;
    let mut out = Reply::new();
    out.start_array("apiVersionErrors");
    let mut has_more = false;
    for (shard, outcome) in outcomes {
        let answer = outcome.map_err(refused)?;
        for found in documents_in(answer.body(), "apiVersionErrors") {
            if out.len() >= METADATA_REPLY_BYTES {
                has_more = true;
                break;
            }
            out.push_document().append_all(found);
            out.append("shard", shard.as_str()).end();
        }
        has_more |= pinion_bson::get(answer.body(), "hasMoreErrors").is_some_and(truthy);
    }
    out.end();
    if has_more {
        out.append("hasMoreErrors", true);
    }
    Ok(out)
}

/// `compact`, which each member does for itself.
///
/// # Errors
/// Always `CommandNotSupported`.
pub(super) async fn compact(_: Invocation) -> Result<Reply> {
    Err(Error::new(
        ErrorCode::COMMAND_NOT_SUPPORTED,
        "compact not allowed through mongos",
    ))
}

/// Appends an operation of a shard, under the name that `killOp` knows it by.
fn append_operation(out: &mut DocBuilder, shard: &ShardId, operation: &RawDocument) {
    append_fields(out.push_document(), shard, operation);
    out.end();
}

fn append_fields(out: &mut DocBuilder, shard: &ShardId, operation: &RawDocument) {
    out.append("shard", shard.as_str());
    for elem in pinion_bson::raw_elements(operation) {
        match (elem.name, elem.to_value()) {
            (b"shard", _) => {}
            (b"opid", Some(number)) => {
                let number = i64_exact(number).unwrap_or_default();
                out.append("opid", format!("{shard}:{number}").as_str());
            }
            (b"client", _) => {
                out.append_elem_as("client_s", &elem);
            }
            _ => {
                out.append_elem(&elem);
            }
        }
    }
}

/// `killOp`: of a shard, by its name there, or of this router, by its number.
pub(super) async fn kill_op(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let op = reader.value("op");
    reader.ignore(&["killOp"]);
    reader.finish()?;
    match op {
        Some(RawBsonRef::String(name)) => kill_at_shard(&cmd, name).await,
        Some(number) if i64_exact(number).is_some() => {
            let number = i64_exact(number).and_then(|number| i32::try_from(number).ok());
            if let Some(number) = number {
                on_all_cores(move |_| async move { ops().kill(number) }).await;
            }
            let mut out = Reply::new();
            out.append("info", "attempting to kill op");
            Ok(out)
        }
        _ => Err(Error::bad_value("Did not provide \"op\" field")),
    }
}

async fn kill_at_shard(cmd: &Invocation, name: &str) -> Result<Reply> {
    let malformed = || {
        Error::bad_value(format!(
            "The op argument to killOp must be of the format shardid:opid but found \"{name}\""
        ))
    };
    let (shard, number) = name.rsplit_once(':').ok_or_else(malformed)?;
    let number: i32 = number.parse().map_err(|_| malformed())?;
    let request = Request::own("admin", None, |out| {
        out.append("killOp", 1i32).append("op", number);
    });
    let shard = ShardId::new(shard);
    let answer = send_to(cmd, &shard, &Default::default(), &request, Retry::Never)
        .await
        .map_err(refused)?;
    Ok(passed_on(answer.body()))
}
