//! Commands that one kind of node answers, and the router passes on as they are.

use pinion_bson::DocBuilder;
use pinion_sharding_protocol::ShardId;
use pinion_wire::idl::ReadPreference;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::concerns;
use crate::dispatch::{WhenAbsent, at_database, at_every_shard, send_to};
use crate::hosts::Retry;
use crate::reply::{append_passed_on, passed_on, refused};
use crate::request::Request;
use crate::shards::current_shards;

/// To the primary shard of the database, which is made if there is none.
pub(super) async fn making_database(cmd: Invocation) -> Result<Reply> {
    let db = cmd.db();
    let answer = at_database(&cmd, db, WhenAbsent::Make, |version| {
        Request::of(&cmd, db, version)
    })
    .await?;
    Ok(passed_on(answer.body()))
}

/// To the primary of the config servers.
pub(super) async fn to_config_servers(cmd: Invocation) -> Result<Reply> {
    let shard = ShardId::new(ShardId::CONFIG);
    let request = Request::of(&cmd, cmd.db(), None);
    let preference = ReadPreference::default();
    let answer = send_to(&cmd, &shard, &preference, &request, Retry::Never)
        .await
        .map_err(refused)?;
    Ok(passed_on(answer.body()))
}

/// `setDefaultRWConcern`: the config servers keep it, and this router goes by it from here on.
pub(super) async fn set_default_concerns(cmd: Invocation) -> Result<Reply> {
    let reply = to_config_servers(cmd).await?;
    concerns::reload().await?;
    Ok(reply)
}

/// To the primary of every shard. The first error is the command's, with the shard's name.
pub(super) async fn to_every_shard(cmd: Invocation) -> Result<Reply> {
    let shards = shard_ids().await?;
    let outcomes = at_every_shard(&cmd, &shards, |_| Request::of(&cmd, cmd.db(), None)).await?;
    let mut all = DocBuilder::new();
    for (shard, outcome) in outcomes {
        match outcome {
            Ok(answer) => {
                all.start_document(&shard);
                append_passed_on(&mut all, answer.body(), |_| true);
                all.append("ok", 1.0).end();
            }
            Err(error) => return Err(refused(error).context(format!("failed on shard {shard}"))),
        }
    }
    let mut out = Reply::new();
    out.append("all", &*all.finish());
    Ok(out)
}

/// The names of all shards.
///
/// # Errors
/// `ShardNotFound` where there are none; the config servers do not answer.
pub(super) async fn shard_ids() -> Result<Vec<ShardId>> {
    let shards = current_shards().await?;
    match shards.is_empty() {
        true => Err(Error::new(ErrorCode::SHARD_NOT_FOUND, "No shards found")),
        false => Ok(shards.iter().map(|shard| ShardId::new(&shard.id)).collect()),
    }
}
