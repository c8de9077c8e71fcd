//! An operation's way to all shards that have to take part in it, and back: each request goes by
//! the version of its shard, and all are sent again once one was refused as stale.
//!
//! Source: sharding document, "Routing" and "Shard versioning and database versioning".

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pinion_runtime::join_all;
use pinion_service::interrupt::check;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{
    DatabaseVersion, RoutingTable, ShardId, ShardVersion, StaleDatabaseInfo, TargetedShards,
    Targets,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, Result};

use crate::cursor::close_cursor_of;
use crate::dispatch::{
    Answer, Route, WhenAbsent, at_primary, before_routing_again, may_route_again,
    pause_before_retry, send_to,
};
use crate::hosts::Retry;
use crate::limits::{MAX_STALE_RETRIES, MAX_TARGETINGS};
use crate::placement::{Database, database, database_beyond, shard_is_stale, table_of};
use crate::reply::refused;
use crate::request::{Request, Versions};
use crate::transactions;

/// One of the requests of an operation.
pub(crate) struct ShardCall<'t> {
    pub table: &'t RoutingTable,
    pub version: ShardVersion,
    /// That of the database, where the shard is asked as its primary.
    pub database: Option<DatabaseVersion>,
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
/// In a transaction the shards take part from here on.
///
/// # Errors
/// The last stale error, in a transaction the first that may not be repeated; those of `target`;
/// the config servers do not answer; the operation is interrupted. What else shards answer stands
/// in the outcomes.
pub(crate) async fn ask_shards(
    cmd: &Invocation,
    ns: &Namespace,
    target: impl Fn(&RoutingTable) -> Result<TargetedShards>,
    make: impl Fn(&ShardCall<'_>) -> Request,
) -> Result<Option<Gathered>> {
    ask_shards_within((cmd, cmd), ns, target, make).await
}

/// The same where shards have the time of another command, `sending`: what takes them longer stands
/// in the outcomes.
///
/// # Errors
/// As [`ask_shards`].
pub(crate) async fn ask_shards_within(
    (cmd, sending): (&Invocation, &Invocation),
    ns: &Namespace,
    target: impl Fn(&RoutingTable) -> Result<TargetedShards>,
    make: impl Fn(&ShardCall<'_>) -> Request,
) -> Result<Option<Gathered>> {
    for attempt in 0.. {
        let Some((table, shards)) = targeted(ns, &target).await? else {
            return Ok(None);
        };
        let outcomes = send_all(sending, &table, shards, None, Retry::Idempotent, &make).await;
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
        if attempt == MAX_STALE_RETRIES || !may_send_again(cmd, &outcomes).await? {
            return Err(refused(stale));
        }
        pause_before_retry(cmd, attempt).await?;
    }
    unreachable!("it returns at the last attempt")
}

fn check_no_transaction(cmd: &Invocation, ns: &Namespace) -> Result<()> {
    match is_in(&cmd.ctx) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            format!(
                "Cannot run '{}' on the sharded collection {ns} in a multi-document transaction.",
                cmd.name()
            ),
        )),
    }
}

/// Sends a definition of a sharded collection to every shard that owns chunks of it and to the
/// primary shard of the database. Those that refuse it as stale, and those that own chunks by now,
/// get it again, up to ten times; one that has run it does not. `None` where the collection is not
/// sharded.
///
/// # Errors
/// As [`ask_shards`]; those of `check`, which looks at the table first.
pub(crate) async fn define_at_owners(
    cmd: &Invocation,
    ns: &Namespace,
    retry: Retry,
    check_table: impl Fn(&RoutingTable) -> Result<()>,
    make: impl Fn(&ShardCall<'_>) -> Request,
) -> Result<Option<Gathered>> {
    let mut done: BTreeMap<ShardId, Result<Answer>> = BTreeMap::new();
    let mut of = None;
    for attempt in 0.. {
        let owners = |table: &RoutingTable| {
            check_table(table)?;
            owners_of(table)
        };
        let Some((table, mut shards)) = targeted(ns, owners).await? else {
            return Ok(None);
        };
        check_no_transaction(cmd, ns)?;
        let database = database(ns.db()).await?;
        if let Some(database) = &database {
            shards.insert(database.primary.clone());
        }
        // What was done to another collection of that name was not done to this one.
        if of.replace(table.of).is_some_and(|of| of != table.of) {
            done.clear();
        }
        shards.retain(|shard| !done.contains_key(shard));
        let primary = database.as_deref();
        let outcomes = send_all(cmd, &table, shards, primary, retry, &make).await;
        check(&cmd.ctx)?;
        let stale = note_stale(&outcomes).await?;
        for (shard, outcome) in outcomes {
            if !outcome.as_ref().is_err_and(is_stale) {
                done.insert(shard, outcome.map_err(refused));
            }
        }
        let Some(stale) = stale else {
            return Ok(Some(Gathered {
                table,
                outcomes: done.into_iter().collect(),
            }));
        };
        if attempt == MAX_STALE_RETRIES {
            return Err(refused(stale));
        }
        pause_before_retry(cmd, attempt).await?;
    }
    unreachable!("it returns at the last attempt")
}

/// Asks for a collection wherever it is: the shards that `target` names where it is sharded, and
/// the primary shard of its database where it is not.
///
/// # Errors
/// As [`ask_shards`], and those of the shards.
pub(crate) async fn ask_wherever(
    cmd: &Invocation,
    ns: &Namespace,
    target: impl Fn(&RoutingTable) -> Result<TargetedShards>,
    make: impl Fn(Versions) -> Request,
) -> Result<Vec<Answer>> {
    for attempt in 0.. {
        let sharded = ask_shards(cmd, ns, &target, |call| {
            make(Versions::of_shard(call.version))
        });
        if let Some(gathered) = sharded.await? {
            return Ok(gathered.all()?.1);
        }
        let primary = at_primary(cmd, ns.db(), WhenAbsent::Answer, |versions| {
            make(Versions::of_unsharded(versions.database))
        });
        match primary.await {
            Ok(answer) => return Ok(vec![answer]),
            Err(error) if may_route_again(cmd, &error, attempt) => {
                before_routing_again(cmd, Some(ns), &error, attempt).await?;
            }
            Err(error) => return Err(error),
        }
    }
    unreachable!("it returns at the last attempt")
}

/// The shards that own chunks.
///
/// # Errors
/// None: it is as [`RoutingTable::target`] is.
pub(crate) fn owners_of(table: &RoutingTable) -> Result<TargetedShards> {
    Ok(TargetedShards {
        shards: table.shards().collect(),
        key: None,
    })
}

/// Whether a shard says that it does not have the version of a request.
fn is_stale(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::STALE_CONFIG | ErrorCode::STALE_EPOCH | ErrorCode::STALE_DB_VERSION
    )
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
    primary: Option<&Database>,
    retry: Retry,
    make: impl Fn(&ShardCall<'_>) -> Request,
) -> Vec<(ShardId, Result<Answer>)> {
    let preference = cmd.ctx.args.read_preference.clone().unwrap_or_default();
    let requests: Vec<(ShardId, Request)> = shards
        .iter()
        .map(|shard| {
            let call = ShardCall {
                table,
                version: table.shard_version(shard),
                database: (primary.filter(|primary| primary.primary == *shard))
                    .map(|primary| primary.version),
                shards: shards.len(),
            };
            (shard.clone(), make(&call))
        })
        .collect();
    let outcomes = match is_in(&cmd.ctx) {
        true => {
            let running = requests.into_iter();
            let send = async |(shard, request): (ShardId, Request)| {
                transactions::send_read(cmd, &shard, request).await
            };
            join_all(running.map(send)).await
        }
        false => {
            let running = requests
                .iter()
                .map(|(shard, request)| send_to(cmd, shard, &preference, request, retry));
            join_all(running).await
        }
    };
    shards.into_iter().zip(outcomes).collect()
}

/// Whether the read may be sent again to the shards that have refused it: in a transaction, if each
/// has joined with it.
async fn may_send_again(cmd: &Invocation, outcomes: &[(ShardId, Result<Answer>)]) -> Result<bool> {
    if !is_in(&cmd.ctx) {
        return Ok(true);
    }
    for (shard, outcome) in outcomes {
        let is_stale = |error: &Error| {
            matches!(
                error.code,
                ErrorCode::STALE_CONFIG | ErrorCode::STALE_DB_VERSION | ErrorCode::STALE_EPOCH
            )
        };
        if outcome.as_ref().is_err_and(is_stale)
            && !transactions::may_send_again(cmd, &Route::of_shard(shard)).await?
        {
            return Ok(false);
        }
    }
    Ok(true)
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
