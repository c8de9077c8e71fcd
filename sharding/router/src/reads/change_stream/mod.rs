//! Change streams: one at every shard, as chunks may come to any of them, merged by the tokens of
//! their events.
//!
//! Source: sharding document, "Change streams"; what goes out when is decided in
//! `query/change_stream/merge.rs`.

mod look_up;
mod request;
mod shards;
mod stages;
mod stream;

use pinion_runtime::join_all;
use pinion_service::interrupt::interruptible;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::ShardId;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use self::request::ChangesRequest;
use self::stream::ClusterChanges;
use super::stream::{FIRST_BATCH, FirstBatch, first_batch};
use crate::cluster::Cluster;
use crate::cursor::CursorKind;
use crate::dispatch::send_to;
use crate::hosts::Retry;
use crate::request::Request;
use crate::shards::current_shards;

const CHANGE_STREAM: CursorKind = CursorKind {
    is_tail: true,
    awaits_data: true,
    is_change_stream: true,
    no_timeout: false,
};

/// An `aggregate` with `$changeStream` in front.
///
/// # Errors
/// Those of the specification, of the shards, and of the way there.
pub(crate) async fn change_stream(cmd: &Invocation) -> Result<Reply> {
    if is_in(&cmd.ctx) {
        return Err(Error::new(
            ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Stage not supported inside of a multi-document transaction: $changeStream",
        ));
    }
    let mut request = ChangesRequest::read(cmd).await?;
    let shards = interruptible(&cmd.ctx, current_shards()).await??;
    if request.begins_now() {
        learn_time(cmd, shards.iter().map(|shard| ShardId::new(&shard.id))).await;
        request.begin_behind(Cluster::here().clock.time().cluster())?;
    }
    let (ns, batch_size) = (request.ns.clone(), request.batch_size);
    let stream = ClusterChanges::open(&cmd.ctx, request).await?;
    let first = FirstBatch {
        ns: &ns,
        kind: CHANGE_STREAM,
        batch_size: Some(batch_size.unwrap_or(FIRST_BATCH)),
        is_single: false,
        is_partial: false,
    };
    first_batch(cmd, Box::new(stream), first).await
}

/// Hears from the shards what time it is: what was written before a stream is not in it. A shard
/// that does not answer is found out when the stream is opened there.
async fn learn_time(cmd: &Invocation, shards: impl Iterator<Item = ShardId>) {
    let shards: Vec<ShardId> = shards.collect();
    let preference = cmd.ctx.args.read_preference.clone().unwrap_or_default();
    let ping = Request::own("admin", None, |out| {
        out.append("ping", 1i32);
    });
    let running = shards
        .iter()
        .map(|shard| send_to(cmd, shard, &preference, &ping, Retry::Idempotent));
    join_all(running).await;
}
