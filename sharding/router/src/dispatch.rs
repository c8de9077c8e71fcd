//! A command's way to the node that answers it, and back: the version of the routing table that it
//! goes by, and what is done when a shard says that this is old.
//!
//! Source: sharding document, "Shard versioning and database versioning"; sharding catalog,
//! "Router role".

use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument};
use pinion_runtime::sim::event;
use pinion_runtime::sleep;
use pinion_server::RemoteReply;
use pinion_service::interrupt::{check, interruptible};
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{DatabaseVersion, ShardId, StaleDatabaseInfo, StaleInfo};
use pinion_wire::idl::{Namespace, ReadPreference, ReadPreferenceMode};
use pinion_wire::{
    AllowedOnSecondary, CommandClass, CommandNamespace, CommandRole, Error, ErrorCode, HostPort,
    Invocation, Result,
};

use crate::clock::learn_from;
use crate::cluster::Cluster;
use crate::hosts::{Hosts, Retry};
use crate::limits::{MAX_PAUSE_DOUBLINGS, MAX_STALE_RETRIES, STALE_RETRY_PAUSE};
use crate::placement::{
    Database, check_is_unsharded, database, database_beyond, make_database, shard_is_stale,
};
use crate::planted::PlantedFault;
use crate::reply::refused;
use crate::request::{Request, Versions, time_left};
use crate::transactions;

/// A node's reply, and whose it is.
pub(crate) struct Answer {
    pub shard: ShardId,
    /// The name of its set.
    pub set: String,
    pub host: HostPort,
    pub reply: RemoteReply,
}

impl Answer {
    pub(crate) fn body(&self) -> &RawDocument {
        self.reply.body()
    }
}

/// What becomes of a command on a database that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenAbsent {
    /// The database is made.
    Make,
    /// It is answered as by any node that lacks the database: by the config servers.
    Answer,
}

/// Where a command on a database goes.
pub(crate) struct Route {
    pub shard: ShardId,
    pub version: Option<DatabaseVersion>,
}

impl Route {
    pub(crate) fn to(database: &Database) -> Route {
        Route {
            shard: database.primary.clone(),
            version: Some(database.version),
        }
    }

    /// To a shard, for what it has of a sharded collection.
    pub(crate) fn of_shard(shard: &ShardId) -> Route {
        Route {
            shard: shard.clone(),
            version: None,
        }
    }

    /// To the node that answers for a database that is not there.
    fn nowhere() -> Route {
        Route {
            shard: ShardId::new(ShardId::CONFIG),
            version: None,
        }
    }
}

/// Refuses the database that each node has for itself.
///
/// # Errors
/// `IllegalOperation`.
pub(crate) fn check_is_of_cluster(db: &str) -> Result<()> {
    match db {
        "local" => Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "the database 'local' is of each node alone: it cannot be reached through a router",
        )),
        _ => Ok(()),
    }
}

/// Sends a command to the primary shard of a database, again whenever the routing table was older
/// than the shard's. `make` gives the request for its versions.
///
/// # Errors
/// `CommandNotSupported` where the collection that the command names is sharded; the node's, as a
/// client gets it, and those of the way there.
pub(crate) async fn at_database(
    cmd: &Invocation,
    db: &str,
    absent: WhenAbsent,
    make: impl Fn(Versions) -> Request,
) -> Result<Answer> {
    for attempt in 0.. {
        let named = named_collection(cmd, db);
        if let Some(ns) = &named {
            interruptible(&cmd.ctx, check_is_unsharded(cmd.name(), ns)).await??;
        }
        match at_primary(cmd, db, absent, &make).await {
            Err(error) if may_route_again(cmd, &error, attempt) => {
                before_routing_again(cmd, named.as_ref(), &error, attempt).await?;
            }
            outcome => return outcome,
        }
    }
    unreachable!("it returns at the last attempt")
}

/// Whether an operation whose collection has another place than this process thought may be routed
/// again by what is known now.
pub(crate) fn may_route_again(cmd: &Invocation, error: &Error, attempt: u32) -> bool {
    let is_stale = matches!(error.code, ErrorCode::STALE_CONFIG | ErrorCode::STALE_EPOCH);
    is_stale && attempt < MAX_STALE_RETRIES && !is_in(&cmd.ctx)
}

/// Waits before a stale operation is sent again: at once after the first time, then for longer and
/// longer.
///
/// # Errors
/// The operation is interrupted.
pub(crate) async fn pause_before_retry(cmd: &Invocation, attempt: u32) -> Result<()> {
    let Some(doublings) = attempt.checked_sub(1) else {
        return check(&cmd.ctx);
    };
    let pause = STALE_RETRY_PAUSE * (1 << doublings.min(MAX_PAUSE_DOUBLINGS));
    interruptible(&cmd.ctx, sleep(pause)).await
}

/// Waits before an operation that met a stale table is routed again. If it meets a second one of
/// another collection than it names, it comes to that by a view, which is resolved at the shard.
///
/// # Errors
/// `CommandNotSupported` where that collection is sharded; the operation is interrupted.
pub(crate) async fn before_routing_again(
    cmd: &Invocation,
    ns: Option<&Namespace>,
    error: &Error,
    attempt: u32,
) -> Result<()> {
    if attempt > 0
        && let (Some(named), Some(info)) = (ns, StaleInfo::from_error(error)?)
        && *named != info.ns
    {
        check_is_unsharded(&format!("{} of {named}, which reads", cmd.name()), &info.ns).await?;
    }
    pause_before_retry(cmd, attempt).await
}

/// The collection that a command names, if it names one.
pub(crate) fn named_collection(cmd: &Invocation, db: &str) -> Option<Namespace> {
    let name = match cmd.command.spec.namespace {
        CommandNamespace::FirstField => pinion_bson::elements(cmd.body()).next()?.1,
        CommandNamespace::CollectionField => pinion_bson::get(cmd.body(), "collection")?,
        _ => return None,
    };
    Namespace::sought(db, name.as_str()?).ok()
}

/// As [`at_database`], for a caller that has found out that the collection is not sharded. A shard
/// that says otherwise has been heard when this returns: the caller routes again.
///
/// # Errors
/// The node's, as a client gets it, `StaleConfig` too, and those of the way there.
pub(crate) async fn at_primary(
    cmd: &Invocation,
    db: &str,
    absent: WhenAbsent,
    make: impl Fn(Versions) -> Request,
) -> Result<Answer> {
    // An explained command names one inside.
    let names_one = named_collection(cmd, db).is_some() || cmd.name() == "explain";
    let make = |version| match names_one {
        true => make(Versions::of_unsharded(version)),
        false => make(version.into()),
    };
    let sender = async |route: &Route, version| send(cmd, route, make(version)).await;
    at_version(cmd, db, absent, sender).await
}

/// Has the primary shard of a database coordinate a definition, which goes by the version of the
/// database alone and comes to the same however often it is sent.
///
/// # Errors
/// As of [`at_primary`].
pub(crate) async fn at_coordinator(
    cmd: &Invocation,
    db: &str,
    absent: WhenAbsent,
    make: impl Fn(Versions) -> Request,
) -> Result<Answer> {
    let primary = ReadPreference::default();
    let sender = async |route: &Route, version: Option<DatabaseVersion>| {
        let request = make(version.into());
        send_to(cmd, &route.shard, &primary, &request, Retry::Idempotent).await
    };
    at_version(cmd, db, absent, sender).await
}

/// Sends to the primary shard of a database, again whenever its version was older than the shard's.
async fn at_version(
    cmd: &Invocation,
    db: &str,
    absent: WhenAbsent,
    send: impl AsyncFn(&Route, Option<DatabaseVersion>) -> Result<Answer>,
) -> Result<Answer> {
    check_is_of_cluster(db)?;
    let mut found = interruptible(&cmd.ctx, place_of(db, absent)).await??;
    for attempt in 0.. {
        let route = found.as_deref().map_or_else(Route::nowhere, Route::to);
        let outcome = send(&route, route.version).await;
        let Err(error) = &outcome else { return outcome };
        let Some(stale) = StaleDatabaseInfo::from_error(error)? else {
            shard_is_stale(error).await?;
            if error.code == ErrorCode::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD {
                // A shard that joined with this statement has aborted its part. One that takes
                // part since an earlier one has kept it.
                transactions::may_send_again(cmd, &route).await?;
            }
            return outcome.map_err(refused);
        };
        if attempt == MAX_STALE_RETRIES || !transactions::may_send_again(cmd, &route).await? {
            return outcome.map_err(refused);
        }
        tracing::debug!(target: "SHARDING", id = 7_300_010u64, db, attempt, "A shard does not have this version of a database");
        event("stale database");
        pause_before_retry(cmd, attempt).await?;
        found = match interruptible(&cmd.ctx, database_beyond(stale)).await?? {
            None => interruptible(&cmd.ctx, place_of(db, absent)).await??,
            found => found,
        };
    }
    unreachable!("it returns at the last attempt")
}

async fn place_of(db: &str, absent: WhenAbsent) -> Result<Option<Arc<Database>>> {
    match absent {
        WhenAbsent::Make => make_database(db, None).await.map(Some),
        WhenAbsent::Answer => database(db).await,
    }
}

/// Sends a command, as a statement of its transaction where it is of one.
///
/// # Errors
/// The node's, with its whole reply beside it, and those of the way there.
pub(crate) async fn send(cmd: &Invocation, route: &Route, request: Request) -> Result<Answer> {
    match is_in(&cmd.ctx) {
        true => transactions::send(cmd, route, request).await,
        false => {
            let preference = cmd.ctx.args.read_preference.clone().unwrap_or_default();
            send_to(cmd, &route.shard, &preference, &request, retry_of(cmd)).await
        }
    }
}

/// Whether a command writes: by its own, or by the last stage of its pipeline.
pub(crate) fn writes(cmd: &Invocation) -> bool {
    let spec = cmd.command.spec;
    if spec.role != CommandRole::Pipeline {
        return spec.on_secondary == AllowedOnSecondary::Never;
    }
    let Some(RawBsonRef::Array(stages)) = pinion_bson::get(cmd.body(), "pipeline") else {
        return false;
    };
    let last = pinion_bson::values(stages).last();
    let last = last.and_then(|stage| pinion_bson::elements(stage.as_document()?).next());
    matches!(last, Some(("$out" | "$merge", _)))
}

/// Whether a command may be sent again when it is not known whether it was run.
fn retry_of(cmd: &Invocation) -> Retry {
    let spec = cmd.command.spec;
    let is_read =
        spec.class == CommandClass::Read && spec.role != CommandRole::GetMore && !writes(cmd);
    let starts_again = Cluster::here().planted_fault == PlantedFault::RetryStartsAgain;
    match is_read || cmd.ctx.args.txn_number.is_some() || starts_again {
        true => Retry::Idempotent,
        false => Retry::Never,
    }
}

/// Sends a request to a member of a shard that fits a read preference.
///
/// # Errors
/// The node's, with its whole reply beside it, and those of the way there.
pub(crate) async fn send_to(
    cmd: &Invocation,
    shard: &ShardId,
    preference: &ReadPreference,
    request: &Request,
    retry: Retry,
) -> Result<Answer> {
    let (cluster, ctx) = (Cluster::here(), &cmd.ctx);
    check(ctx)?;
    let set = interruptible(ctx, cluster.set_of(shard)).await??;
    // Whatever a client prefers, what only a primary does is the primary's.
    let of_primary = ReadPreference::from(ReadPreferenceMode::Primary);
    let preference = match writes(cmd) {
        true => &of_primary,
        false => preference,
    };
    let hosts = Hosts::here();
    let running = hosts.run(&set, preference, request.outgoing(), time_left(ctx), retry);
    let outcome = interruptible(ctx, running).await?;
    match outcome {
        Ok((host, reply)) => {
            if let Some(time) = learn_from(&*cluster.clock, reply.body()) {
                ctx.wrote(time);
            }
            Ok(Answer {
                shard: shard.clone(),
                set,
                host,
                reply,
            })
        }
        Err(error) => {
            if let Some(reply) = &error.extra
                && let Some(time) = learn_from(&*cluster.clock, reply)
            {
                ctx.wrote(time);
            }
            Err(error)
        }
    }
}

/// Sends a request to the primary of each shard at once, and gives each one's outcome, by shard.
///
/// # Errors
/// The operation is interrupted. What the shards answer stands in the outcomes.
pub(crate) async fn at_every_shard(
    cmd: &Invocation,
    shards: &[ShardId],
    make: impl Fn(&ShardId) -> Request,
) -> Result<Vec<(ShardId, Result<Answer>)>> {
    let preference = ReadPreference::default();
    let requests: Vec<Request> = shards.iter().map(&make).collect();
    let running = shards
        .iter()
        .zip(&requests)
        .map(|(shard, request)| send_to(cmd, shard, &preference, request, retry_of(cmd)));
    let outcomes = pinion_runtime::join_all(running).await;
    check(&cmd.ctx)?;
    Ok(shards.iter().cloned().zip(outcomes).collect())
}
