//! What runs: `currentOp` and `killOp` over all shards, whose operations are named by shard and
//! number.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_runtime::on_all_cores;
use pinion_service::ops::ops;
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::i64_exact;
use pinion_wire::{Error, Invocation, Reply, Result};

use super::forward::shard_ids;
use crate::dispatch::{at_every_shard, send_to};
use crate::hosts::Retry;
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

/// An aggregation that begins with `$currentOp`, which every shard runs. The stages behind it see
/// the operations of one shard.
///
/// # Errors
/// `CommandNotSupported` for stages that would have to see those of all shards together.
pub(super) async fn current_op_stage(cmd: Invocation) -> Result<Reply> {
    let shards = shard_ids().await?;
    check_is_by_document(cmd.body())?;
    let make = |_: &ShardId| {
        // All operations are in one batch.
        Request::with(&cmd, cmd.db(), None, |out| {
            out.start_document("cursor")
                .append("batchSize", i32::MAX)
                .end();
        })
    };
    let outcomes = at_every_shard(&cmd, &shards, make).await?;
    let mut out = Reply::new();
    out.start_document("cursor").start_array("firstBatch");
    for (shard, outcome) in outcomes {
        let answer = outcome.map_err(refused)?;
        let cursor = pinion_bson::get(answer.body(), "cursor");
        let cursor = cursor.and_then(|cursor| cursor.as_document());
        for operation in cursor
            .iter()
            .flat_map(|cursor| documents_in(cursor, "firstBatch"))
        {
            append_operation(&mut out, &shard, operation);
        }
    }
    out.end()
        .append("id", 0i64)
        .append("ns", "admin.$cmd.aggregate")
        .end();
    Ok(out)
}

/// Stages that look at each document alone.
const BY_DOCUMENT: [&str; 6] = [
    "$currentOp",
    "$match",
    "$project",
    "$addFields",
    "$set",
    "$unset",
];

fn check_is_by_document(body: &RawDocument) -> Result<()> {
    let Some(RawBsonRef::Array(stages)) = pinion_bson::get(body, "pipeline") else {
        return Ok(());
    };
    for stage in pinion_bson::values(stages).filter_map(|stage| stage.as_document()) {
        let name = pinion_bson::elements(stage).next().map(|(name, _)| name);
        if let Some(name) = name.filter(|name| !BY_DOCUMENT.contains(name)) {
            return Err(Error::new(
                pinion_wire::ErrorCode::COMMAND_NOT_SUPPORTED,
                format!("{name} behind $currentOp of all shards is not supported"),
            ));
        }
    }
    Ok(())
}

fn documents_in<'d>(
    reply: &'d RawDocument,
    name: &str,
) -> impl Iterator<Item = &'d RawDocument> + use<'d> {
    let list = pinion_bson::get(reply, name).and_then(|list| list.as_array());
    let list = list.into_iter().flat_map(pinion_bson::values);
    list.filter_map(|document| document.as_document())
}

/// Appends an operation of a shard, under the name that `killOp` knows it by.
fn append_operation(out: &mut DocBuilder, shard: &ShardId, operation: &RawDocument) {
    out.push_document().append("shard", shard.as_str());
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
    out.end();
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
