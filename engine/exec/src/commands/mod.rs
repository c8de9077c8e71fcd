//! The commands: what surrounds each of them, and the handlers of those that the executor has.

pub mod aggregate;
mod bulk_replies;
mod bulk_write;
pub mod capped;
mod change_stream;
pub mod coll_mod;
mod collation;
pub mod collections;
mod count;
pub mod create;
mod current_op;
mod cursors;
mod delete;
mod distinct;
mod explain;
mod express;
mod find;
mod find_and_modify;
mod first_stage;
mod hello;
pub mod indexes;
pub mod insert;
pub mod namespace_args;
pub mod plan_cache;
pub mod query_settings;
mod reply;
pub mod sessions;
pub mod stage_counts;
pub mod stats;
pub mod status_member;
mod table;
pub mod transactions;
mod update;
mod variables;
pub mod views;

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;

use pinion_service::cluster_parameters::cluster_parameters;
use pinion_service::command_checks::check_retryable;
use pinion_service::counter::Counter;
use pinion_service::fail_points::fail_points;
use pinion_service::interrupt::poll_once;
use pinion_service::login::{forget_users, refresh_user};
use pinion_service::members;
use pinion_service::metrics::{Counters, Gauge, Metrics, OpClass, metrics};
use pinion_service::ops::ops;
use pinion_service::parking::{park, parking};
use pinion_service::profile_settings::profiles;
use pinion_service::session_ids::is_in;
use pinion_service::session_table::session_table;
use pinion_wire::idl::Namespace;
use pinion_wire::{
    CommandClass, CommandNamespace, CommandRole, Error, ErrorCode, Handler, Invocation, LogicalOp,
    OpContext, Registry, Reply, Result, collection_named,
};

pub use crate::concern::acknowledge;
pub use stage_counts::StageCounts;
pub use table::register_commands;

use crate::cluster_time;
use crate::concern;
use crate::placement::{SentVersions, stops_batch};
use crate::profile::Profiled;
use crate::sessions::check_child;
use crate::topology;
use crate::topology::{is_member, replica_set};

/// Attaches its handler to the command of this name, with everything that surrounds a command.
///
/// # Panics
/// If there is no such command, or it has a handler already.
pub fn attach<F, Fut>(registry: &mut Registry, name: &str, handler: F)
where
    F: Fn(Invocation) -> Fut + Copy + 'static,
    Fut: Future<Output = Result<Reply>> + 'static,
{
    let handler: Handler = Rc::new(move |cmd| Box::pin(handler(cmd)));
    registry.attach_handler(pinion_command::row(name), surrounded(handler));
}

/// What a handler becomes with everything that surrounds it. The handler gives a boxed future, so
/// that the surroundings are compiled once and not for each command.
fn surrounded(handler: Handler) -> Handler {
    Rc::new(move |cmd| Box::pin(run(cmd, handler.clone())))
}

async fn run(cmd: Invocation, handler: Handler) -> Result<Reply> {
    if cmd.ctx.args.help {
        return Ok(help(&cmd));
    }
    if let Some(routing) = &cmd.ctx.args.routing {
        SentVersions::of(routing).check_accepted(cmd.db())?;
    }
    members::check(&cmd)?;
    let _inside = match parking().enter() {
        Some(inside) if !cmd.command.spec.during_reopen => Some(inside),
        _ => Box::pin(park(&cmd)).await?,
    };
    refresh_user(&cmd.ctx.client).await;
    if fail_points().any_is_on() {
        let handled = |cmd| run_counted(cmd, handler);
        return Box::pin(pinion_service::fail_points::around(cmd, handled)).await;
    }
    run_counted(cmd, handler).await
}

async fn run_counted(mut cmd: Invocation, handler: Handler) -> Result<Reply> {
    let metrics = &metrics();
    // First, since a member that has no data yet cannot know which member signed a time.
    topology::check_runs_here(&cmd)?;
    if let Some(claimed) = cluster_time::learn(&cmd.ctx)? {
        Box::pin(cluster_time::learn_signed(&cmd.ctx, &claimed)).await?;
    }
    check_child(&cmd)?;
    if is_member() {
        match cmd.ctx.args.txn_number {
            Some(_) if is_in(&cmd.ctx) => crate::transactions::check_command(&cmd)?,
            Some(_) => check_retryable(&cmd)?,
            None => {}
        }
    }
    if let Some(routing) = &cmd.ctx.args.routing {
        Box::pin(admit_versions(&cmd, SentVersions::of(routing))).await?;
    }
    concern::check(&cmd)?;
    concern::count_read(&cmd);
    if let Some(lsid) = &cmd.ctx.args.lsid {
        session_table().touch(lsid, cmd.ctx.started_ns)?;
    }
    let spec = cmd.command.spec;
    let class = match spec.class {
        CommandClass::Read => OpClass::Read,
        CommandClass::Write => OpClass::Write,
        CommandClass::Command => OpClass::Command,
    };
    type Active = fn(&Counters) -> &Counter;
    let active: Option<Active> = match class {
        OpClass::Read => Some(|counters| &counters.active_readers),
        OpClass::Write => Some(|counters| &counters.active_writers),
        OpClass::Command => None,
    };
    if spec.counts_as_command {
        metrics.counters.command.inc();
    }
    if class == OpClass::Read {
        give_default_time(&mut cmd);
    }
    let top = spec
        .top
        .and_then(|kind| namespace_of(&cmd).map(|ns| (kind, ns)));
    let started = cmd.ctx.started_ns;
    let (ctx, command) = (cmd.ctx.clone(), cmd.message.body_bytes());
    let is_member = is_member();
    let profiled = match profiles().borrow().is_on() {
        true => Profiled::begin(&ctx, &command),
        false => None,
    };
    let mut handled = pin!(async move {
        match is_member {
            false => handler(cmd).await,
            true if is_in(&cmd.ctx) => Box::pin(crate::transactions::run(cmd, handler)).await,
            true => concern::surround(cmd, handler).await,
        }
    });
    // Most reads end in their first poll: no client can see or stop them before, so they are not
    // listed. But `$currentOp` lists the aggregation that it stands in.
    let first = match active {
        Some(_) if spec.role != CommandRole::Pipeline => poll_once(handled.as_mut()).await,
        _ => None,
    };
    let mut result = match first {
        Some(result) => result,
        None => {
            let _running = ops().enter(ctx.clone(), command);
            let _gauge = active.map(Gauge::up);
            handled.await
        }
    };
    if (ctx.args.asks_repl_data || ctx.args.asks_oplog_query_data)
        && let (Ok(reply), Some(set)) = (&mut result, replica_set())
    {
        set.append_metadata(&ctx.args, reply);
    }
    let top = top.as_ref().map(|(kind, ns)| (*kind, ns.as_str()));
    let started = started + ctx.work().awaited_ns();
    let ended = finished(metrics, class, top, started);
    if let Some(profiled) = profiled {
        Box::pin(profiled.end(&result, ended.saturating_sub(started) / 1000)).await;
    }
    if let Err(error) = &result {
        count_failure(metrics, &ctx, error);
        if concern::may_write_users(&ctx) {
            // Some of its statements may have taken place.
            forget_users().await;
        }
    }
    result
}

/// Compares the versions that a router sent before anything is done.
async fn admit_versions(cmd: &Invocation, sent: SentVersions) -> Result<()> {
    let explained = pinion_bson::get(cmd.body(), "explain").filter(|_| cmd.name() == "explain");
    let explained = explained.and_then(|explained| explained.as_document());
    let named = collection_named(cmd.command.spec, explained.unwrap_or(cmd.body()));
    let ns = match (named, cmd.command.spec.namespace) {
        (Some(name), CommandNamespace::FullName) => Namespace::parse(name).ok(),
        (named, _) => named.and_then(|name| Namespace::new(cmd.db(), name).ok()),
    };
    let db = ns.as_ref().map_or(cmd.db(), |ns| ns.db());
    let mut admitted = pin!(sent.admit(&cmd.ctx, ns.as_ref(), db));
    let outcome = match poll_once(admitted.as_mut()).await {
        Some(outcome) => outcome,
        // It waits for other nodes: it can be seen, and stopped.
        None => {
            let _running = ops().enter(cmd.ctx.clone(), cmd.message.body_bytes());
            admitted.await
        }
    };
    match outcome {
        // The door refuses each of its statements.
        Err(error) if has_statements(cmd) && stops_batch(&error) => Ok(()),
        outcome => outcome,
    }
}

/// Whether a command has statements, whose errors stand beside each other in its reply. In a
/// transaction they are errors of the whole command.
fn has_statements(cmd: &Invocation) -> bool {
    let writes = matches!(
        cmd.command.spec.op,
        LogicalOp::Insert | LogicalOp::Update | LogicalOp::Remove
    );
    writes && !is_in(&cmd.ctx)
}

/// Counts an operation that failed, by what was wrong.
#[cold]
fn count_failure(metrics: &Metrics, ctx: &OpContext, error: &Error) {
    let counters = &metrics.counters;
    if is_not_primary(error.code) && is_unacknowledged(ctx) {
        counters.unacknowledged_not_primary.inc();
    }
    match error.code {
        ErrorCode::INTERNAL_ERROR => counters.assert_regular.inc(),
        _ => counters.assert_user.inc(),
    }
    match error.code {
        // Its own time, or the one that reads have by default.
        ErrorCode::MAX_TIME_MS_EXPIRED
            if ctx.args.max_time_ms.or(ctx.args.op_time_ms).is_some() =>
        {
            counters.killed_by_time.inc()
        }
        ErrorCode::MAX_TIME_MS_EXPIRED => counters.killed_by_default_time.inc(),
        ErrorCode::CLIENT_DISCONNECT => counters.killed_by_disconnect.inc(),
        ErrorCode::TRANSACTION_TOO_LARGE_FOR_CACHE => counters.too_large.inc(),
        _ => {}
    }
}

/// Whether a write was sent to a node that is no primary.
fn is_not_primary(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NOT_WRITABLE_PRIMARY
            | ErrorCode::NOT_PRIMARY_NO_SECONDARY_OK
            | ErrorCode::NOT_PRIMARY_OR_SECONDARY
            | ErrorCode::PRIMARY_STEPPED_DOWN
            | ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
    )
}

/// Whether the client of a command does not hear how it ended.
fn is_unacknowledged(ctx: &OpContext) -> bool {
    let concern = ctx.args.write_concern.as_ref();
    concern.is_some_and(|concern| concern.is_unacknowledged())
}

/// The help of a command.
fn help(cmd: &Invocation) -> Reply {
    let mut out = Reply::new();
    let (name, text) = (cmd.name(), cmd.command.spec.help);
    out.append("help", format!("help for: {name} {text}").as_str());
    out
}

/// Reads whose commands name no time have that of the cluster parameter. What a `getMore` has left
/// is kept by its cursor.
fn give_default_time(cmd: &mut Invocation) {
    let ctx = &mut cmd.ctx;
    let is_of_cursor = ctx.command.role == CommandRole::GetMore;
    if ctx.deadline_ns.is_some() || ctx.args.max_time_ms.is_some() || is_of_cursor {
        return;
    }
    let given = cluster_parameters().borrow().default_max_time_ms();
    ctx.deadline_ns = given.map(|ms| ctx.started_ns + ms * 1_000_000);
}

/// Records an operation that ends now, and of which namespace it was. Gives the present time.
fn finished(
    metrics: &Metrics,
    class: OpClass,
    top: Option<(LogicalOp, &str)>,
    started_ns: u64,
) -> u64 {
    let ended_ns = pinion_runtime::now().as_nanos();
    let us = ended_ns.saturating_sub(started_ns) / 1000;
    metrics.record(class, us);
    if let Some((kind, ns)) = top {
        metrics.record_top(ns, (kind, class), us, |ns| {
            pinion_catalog::core_catalog()
                .current()
                .get_full(ns)
                .is_some()
        });
    }
    ended_ns
}

/// The namespace that a command names.
fn namespace_of(cmd: &Invocation) -> Option<String> {
    let collection = collection_named(cmd.command.spec, cmd.body())?;
    // Cheaper than formatting, and every command does it.
    Some([cmd.db(), ".", collection].concat())
}
