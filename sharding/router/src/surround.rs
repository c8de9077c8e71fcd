//! What surrounds every command of a router.

use std::future::Future;
use std::rc::Rc;

use pinion_service::command_checks::check_retryable;
use pinion_service::fail_points::fail_points;
use pinion_service::members;
use pinion_service::metrics::{Gauge, Metrics, OpClass, metrics};
use pinion_service::ops::ops;
use pinion_service::session_ids::is_in;
use pinion_service::session_table::session_table;
use pinion_service::transaction_checks::check_command;
use pinion_wire::{
    CommandClass, Error, ErrorCode, Handler, Invocation, OpContext, Registry, Reply, Result,
};

use crate::cluster_parameters::give_default_time;
use crate::{keys, transactions};

/// Attaches its handler to the command of this name, with everything that surrounds a command.
///
/// # Panics
/// If there is no such command, or it has a handler already.
pub(crate) fn attach<F, Fut>(registry: &mut Registry, name: &str, handler: F)
where
    F: Fn(Invocation) -> Fut + Copy + 'static,
    Fut: Future<Output = Result<Reply>> + 'static,
{
    let handler: Handler = Rc::new(move |cmd| Box::pin(handler(cmd)));
    registry.attach_handler(
        pinion_command::row(name),
        Rc::new(move |cmd| Box::pin(run(cmd, handler.clone()))),
    );
}

async fn run(cmd: Invocation, handler: Handler) -> Result<Reply> {
    if cmd.ctx.args.help {
        let mut out = Reply::new();
        let text = format!("help for: {} {}", cmd.name(), cmd.command.spec.help);
        out.append("help", text.as_str());
        return Ok(out);
    }
    members::check(&cmd)?;
    if fail_points().any_is_on() {
        let handled = |cmd| run_counted(cmd, handler);
        return Box::pin(pinion_service::fail_points::around(cmd, handled)).await;
    }
    run_counted(cmd, handler).await
}

async fn run_counted(mut cmd: Invocation, handler: Handler) -> Result<Reply> {
    let metrics = &metrics();
    keys::learn(&cmd.ctx).await?;
    if let Some(lsid) = &cmd.ctx.args.lsid {
        session_table().touch(lsid, cmd.ctx.started_ns)?;
    }
    match cmd.ctx.args.txn_number {
        Some(_) if is_in(&cmd.ctx) => check_command(&cmd)?,
        Some(_) => check_retryable(&cmd)?,
        None => {}
    }
    let spec = cmd.command.spec;
    if spec.counts_as_command {
        metrics.counters.command.inc();
    }
    give_default_time(&mut cmd);
    let ctx = cmd.ctx.clone();
    let _running = ops().enter(ctx.clone(), cmd.message.body_bytes());
    let (class, _gauge) = match spec.class {
        CommandClass::Read => (OpClass::Read, Some(Gauge::up(|c| &c.active_readers))),
        CommandClass::Write => (OpClass::Write, Some(Gauge::up(|c| &c.active_writers))),
        CommandClass::Command => (OpClass::Command, None),
    };
    let outcome = match is_in(&ctx) {
        true => Box::pin(transactions::run(cmd, handler)).await,
        false => handler(cmd).await,
    };
    // What broke is a connection of the router's, not the client's.
    let outcome = outcome.map_err(|error| match error.code {
        ErrorCode::SOCKET_EXCEPTION => Error {
            code: ErrorCode::HOST_UNREACHABLE,
            ..error
        },
        _ => error,
    });
    let started_ns = ctx.started_ns + ctx.work().awaited_ns();
    let took_ns = pinion_runtime::now().as_nanos().saturating_sub(started_ns);
    metrics.record(class, took_ns / 1000);
    if let Err(error) = &outcome {
        count_failure(metrics, &ctx, error);
    }
    outcome
}

#[cold]
fn count_failure(metrics: &Metrics, ctx: &OpContext, error: &Error) {
    let counters = &metrics.counters;
    match error.code {
        ErrorCode::INTERNAL_ERROR => counters.assert_regular.inc(),
        _ => counters.assert_user.inc(),
    }
    match error.code {
        ErrorCode::MAX_TIME_MS_EXPIRED if ctx.deadline_ns.is_some() => {
            counters.killed_by_time.inc();
        }
        ErrorCode::CLIENT_DISCONNECT => counters.killed_by_disconnect.inc(),
        _ => {}
    }
}
