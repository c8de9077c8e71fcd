//! An operation's way to all shards that have to take part in it, and back: each request goes by
//! the version of its shard, and all are sent again once one was refused as stale.
//!
//! Source: sharding document, "Routing" and "Shard versioning and database versioning".

use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_runtime::join_all;
use pinion_service::interrupt::check;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{
    RoutingTable, ShardId, ShardVersion, StaleDatabaseInfo, TargetedShards, Targets,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, Result};

use crate::cursor::close_cursor_of;
use crate::dispatch::{Answer, pause_before_retry, send_to};
use crate::hosts::Retry;
use crate::limits::{MAX_STALE_RETRIES, MAX_TARGETINGS};
use crate::placement::{database_beyond, shard_is_stale, table_of};
use crate::reply::refused;
use crate::request::Request;

/// One of the requests of an operation.
pub(crate) struct ShardCall<'t> {
    pub table: &'t RoutingTable,
    pub version: ShardVersion,
    /// How many shards take part.
    pub shards: usize,
}

/// What the shards of an operation have answered.
pub(crate) struct Gathered {
    pub table: Arc<RoutingTable>,
    /// In the order of their names. An error is as the client gets it.
    pub outcomes: Vec<(ShardId, Result<Answer>)>,
}

impl Gathered {
    /// The answers of all shards.
    ///
    /// # Errors
    /// That of the first shard which has failed. The cursors of the others are closed.
    pub(crate) fn all(self) -> Result<(Arc<RoutingTable>, Vec<Answer>)> {
        let (mut answers, mut failed) = (Vec::new(), None);
        for (_, outcome) in self.outcomes {
            match outcome {
                Ok(answer) => answers.push(answer),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        match failed {
            None => Ok((self.table, answers)),
            Some(error) => {
                answers.iter().for_each(close_cursor_of);
                Err(error)
            }
        }
    }
}

/// Sends a read of a sharded collection to the shards that `target` names; again, up to ten times,
/// when one of them has another version than the table. `None` where the collection is not sharded.
///
/// # Errors
/// `CommandNotSupported` in a transaction; the last stale error; those of `target`; the config
/// servers do not answer; the operation is interrupted. What else shards answer stands in the
/// outcomes.
pub(crate) async fn ask_shards(
    cmd: &Invocation,
    ns: &Namespace,
    target: impl Fn(&RoutingTable) -> Result<TargetedShards>,
    make: impl Fn(&ShardCall<'_>) -> Request,
) -> Result<Option<Gathered>> {
    for attempt in 0.. {
        let Some((table, shards)) = targeted(ns, &target).await? else {
            return Ok(None);
        };
        if is_in(&cmd.ctx) {
            return Err(Error::new(
                ErrorCode::COMMAND_NOT_SUPPORTED,
                format!(
                    "{} on the sharded collection {ns} in a transaction is not supported",
                    cmd.name()
                ),
            ));
        }
        let outcomes = send_all(cmd, &table, shards, &make).await;
        check(&cmd.ctx)?;
        let Some(stale) = note_stale(&outcomes).await? else {
            let outcomes = outcomes.into_iter();
            let outcomes = outcomes.map(|(shard, outcome)| (shard, outcome.map_err(refused)));
            return Ok(Some(Gathered {
                table,
                outcomes: outcomes.collect(),
            }));
        };
        for (_, outcome) in &outcomes {
            outcome.iter().for_each(close_cursor_of);
        }
        if attempt == MAX_STALE_RETRIES {
            return Err(refused(stale));
        }
        pause_before_retry(cmd, attempt).await?;
    }
    unreachable!("it returns at the last attempt")
}

/// The table and the shards of an operation. Where a part of the table is known to be stale, it is
/// waited for if the operation needs that part.
async fn targeted(
    ns: &Namespace,
    target: impl Fn(&RoutingTable) -> Result<TargetedShards>,
) -> Result<Option<(Arc<RoutingTable>, BTreeSet<ShardId>)>> {
    let Some(mut table) = table_of(ns, Targets::Unknown).await? else {
        return Ok(None);
    };
    for _ in 0..MAX_TARGETINGS {
        let found = target(&table)?;
        let shards: BTreeSet<ShardId> = found
            .shards
            .iter()
            .map(|shard| table.shard(*shard).clone())
            .collect();
        let Some(now) = table_of(ns, Targets::Shards(shards.clone())).await? else {
            return Ok(None);
        };
        if Arc::ptr_eq(&now, &table) {
            return Ok(Some((table, shards)));
        }
        table = now;
    }
    Err(Error::new(
        ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
        format!("the routing table of {ns} changes faster than it can be used"),
    ))
}

async fn send_all(
    cmd: &Invocation,
    table: &Arc<RoutingTable>,
    shards: BTreeSet<ShardId>,
    make: impl Fn(&ShardCall<'_>) -> Request,
) -> Vec<(ShardId, Result<Answer>)> {
    let preference = cmd.ctx.args.read_preference.clone().unwrap_or_default();
    let requests: Vec<(ShardId, Request)> = shards
        .iter()
        .map(|shard| {
            let call = ShardCall {
                table,
                version: table.shard_version(shard),
                shards: shards.len(),
            };
            (shard.clone(), make(&call))
        })
        .collect();
    let running = requests
        .iter()
        .map(|(shard, request)| send_to(cmd, shard, &preference, request, Retry::Idempotent));
    let outcomes = join_all(running).await;
    shards.into_iter().zip(outcomes).collect()
}

/// Takes note of all that shards have said of old versions. Gives one of these errors.
async fn note_stale(outcomes: &[(ShardId, Result<Answer>)]) -> Result<Option<Error>> {
    let mut last = None;
    for error in outcomes
        .iter()
        .filter_map(|(_, outcome)| outcome.as_ref().err())
    {
        let is_stale = match StaleDatabaseInfo::from_error(error)? {
            Some(info) => {
                database_beyond(info).await?;
                true
            }
            None => shard_is_stale(error).await?,
        };
        if is_stale {
            last = Some(error.clone());
        }
    }
    Ok(last)
}
