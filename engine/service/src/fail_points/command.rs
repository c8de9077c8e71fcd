//! What the fail points that are on do to a command.

use std::future::Future;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_runtime::{Duration, sleep};
use pinion_wire::idl::{i64_exact, truthy};
use pinion_wire::{
    CommandRole, CommandSpec, Error, ErrorCode, Invocation, OpContext, Reply, Result,
    collection_named,
};

use super::{FailPoint, Set, enter};
use crate::fail_points::fail_points;
use crate::interrupt::{check, interruptible};
use crate::ops::ops;

/// Runs a command among the fail points that are on.
pub async fn around<Fut>(
    mut cmd: Invocation,
    handler: impl FnOnce(Invocation) -> Fut,
) -> Result<Reply>
where
    Fut: Future<Output = Result<Reply>>,
{
    let (ctx, spec) = (cmd.ctx.clone(), cmd.command.spec);
    // Banned even where it is named: nothing could be set back.
    if spec.role == CommandRole::FailPoint {
        return handler(cmd).await;
    }
    let ns = collection_named(spec, cmd.body()).map(|name| [cmd.db(), ".", name].concat());
    let candidate = Candidate {
        spec,
        app_name: app_name(&cmd).map(str::to_owned),
        ctx: &ctx,
        ns: ns.as_deref(),
    };
    {
        let _running = ops().enter(ctx.clone(), cmd.message.body_bytes());
        if let Some(reply) = candidate.before().await? {
            return Ok(reply);
        }
        // That of a `getMore` is its cursor's, which is not known here.
        if spec.role != CommandRole::GetMore {
            cmd.ctx.deadline_ns = time_out(ctx.deadline_ns).await;
            check(&cmd.ctx)?;
        }
    }
    let outcome = handler(cmd).await;
    let fail_points = fail_points();
    let closing = &fail_points.closing;
    if closing.borrow_mut().remove(&ctx.client.connection_id) {
        let mut reply = Reply::new();
        reply.withhold();
        return Ok(reply);
    }
    candidate.behind(outcome).await
}

/// What a fail point does to a statement that is retryable and about to be executed: its connection
/// is closed when the command has ended, unless it says otherwise, and the statement fails with the
/// error that it names.
///
/// Source: the drivers' specification of retryable writes.
///
/// # Errors
/// That which the fail point is set to: nothing may be written.
pub async fn on_retryable_write(ctx: &OpContext) -> Result<()> {
    if !fail_points().any_is_on() {
        return Ok(());
    }
    let Some(set) = enter(FailPoint::OnPrimaryTransactionalWrite, |_| true).await else {
        return Ok(());
    };
    if pinion_bson::get(&set.data, "closeConnection").is_none_or(truthy) {
        let fail_points = fail_points();
        let closing = &fail_points.closing;
        closing.borrow_mut().insert(ctx.client.connection_id);
    }
    match code_of(&set.data, "failBeforeCommitExceptionCode") {
        None => Ok(()),
        Some(code) => Err(Error::new(
            code,
            "Failing write due to failpoint. The write must not be reflected.",
        )),
    }
}

/// The deadline of an operation that has one, as the fail points for it have it.
pub async fn time_out(deadline_ns: Option<u64>) -> Option<u64> {
    deadline_ns?;
    if enter(FailPoint::MaxTimeNeverTimeOut, |_| true)
        .await
        .is_some()
    {
        return None;
    }
    match enter(FailPoint::MaxTimeAlwaysTimeOut, |_| true).await {
        Some(_) => Some(0),
        None => deadline_ns,
    }
}

/// Fails a `getMore` that has its cursor, if the fail point is set to.
///
/// # Errors
/// That which the fail point is set to.
pub async fn fails_get_more(ctx: &OpContext, ns: &str) -> Result<()> {
    let app_name = ctx.client.app_name();
    let wants = |data: &RawDocument| is_for(data, ctx, app_name, Some(ns));
    match enter(FailPoint::FailGetMoreAfterCursorCheckout, wants).await {
        None => Ok(()),
        Some(set) => Err(Error::new(
            error_code(&set.data).unwrap_or(ErrorCode::INTERNAL_ERROR),
            "Hit the 'failGetMoreAfterCursorCheckout' failpoint",
        )),
    }
}

/// The client's name for itself, which the command that brings it has to say already.
fn app_name(cmd: &Invocation) -> Option<&str> {
    let describes = matches!(
        cmd.command.spec.role,
        CommandRole::Hello | CommandRole::IsMaster
    );
    if !describes {
        return cmd.ctx.client.app_name();
    }
    let path = |name| pinion_bson::get(cmd.body(), name)?.as_document();
    let named = path("client")
        .and_then(|client| pinion_bson::get(client, "application")?.as_document())
        .and_then(|application| pinion_bson::get(application, "name")?.as_str());
    named.or_else(|| cmd.ctx.client.app_name())
}

/// A command that `failCommand` may fail.
struct Candidate<'c> {
    spec: &'static CommandSpec,
    ctx: &'c OpContext,
    app_name: Option<String>,
    ns: Option<&'c str>,
}

impl Candidate<'_> {
    /// What happens in front of the command; a reply is in its place.
    async fn before(&self) -> Result<Option<Reply>> {
        let wants = |data: &RawDocument| {
            let acts = flag(data, "closeConnection")
                || flag(data, "blockConnection")
                || error_code(data).is_some();
            acts && self.is_named(data)
        };
        let Some(set) = enter(FailPoint::FailCommand, wants).await else {
            return Ok(None);
        };
        let data = &set.data;
        let command = self.spec.name;
        if flag(data, "blockConnection") {
            let ms = block_time_ms(data)?;
            tracing::info!(target: "COMMAND", id = 20_432u64, command, millis = ms, "Blocking command via 'failCommand' failpoint");
            interruptible(self.ctx, sleep(Duration::from_millis(ms))).await?;
        }
        if flag(data, "closeConnection") {
            tracing::info!(target: "COMMAND", id = 20_431u64, command, "Failing command via 'failCommand' failpoint: closing connection");
            let mut reply = Reply::new();
            reply.withhold();
            return Ok(Some(reply));
        }
        match error_code(data) {
            None => Ok(None),
            Some(code) => {
                tracing::info!(target: "COMMAND", id = 20_434u64, command, code = code.0, "Failing command via 'failCommand' failpoint: returning error");
                Err(planted_error(code, data))
            }
        }
    }

    /// Adds the write concern error that the command is to have, if it is one that takes a write
    /// concern.
    async fn behind(&self, outcome: Result<Reply>) -> Result<Reply> {
        let wants = |data: &RawDocument| {
            self.spec.supports_write_concern && write_concern_error(data) && self.is_named(data)
        };
        let Some(set) = enter(FailPoint::FailCommand, wants).await else {
            return outcome;
        };
        match outcome {
            Ok(mut reply) => {
                if !reply.contains("writeConcernError") && !reply.is_withheld() {
                    append_write_concern_error(&set, &mut reply);
                }
                Ok(reply)
            }
            Err(error) => {
                let mut extra = DocBuilder::new();
                if let Some(before) = &error.extra {
                    extra.append_all(before);
                }
                if !extra.contains("writeConcernError") {
                    append_write_concern_error(&set, &mut extra);
                }
                Err(error.with_extra(extra.finish()))
            }
        }
    }

    /// Whether the fail point is for this command, of this client, on this namespace.
    fn is_named(&self, data: &RawDocument) -> bool {
        if !is_for(data, self.ctx, self.app_name.as_deref(), self.ns) {
            return false;
        }
        if flag(data, "failAllCommands") {
            return true;
        }
        let Some(RawBsonRef::Array(names)) = pinion_bson::get(data, "failCommands") else {
            return false;
        };
        let named = |name: &str| self.spec.is_named(name);
        pinion_bson::values(names).any(|name| name.as_str().is_some_and(named))
    }
}

/// Whether a fail point is for commands of this client on this namespace.
fn is_for(data: &RawDocument, ctx: &OpContext, app_name: Option<&str>, ns: Option<&str>) -> bool {
    let text = |name| pinion_bson::get(data, name).map(|value| value.as_str());
    let thread = || format!("conn{}", ctx.client.connection_id);
    // What members ask of each other would use up what a test counts on: `{ times: 1 }` of
    // `getMore` is for the test's cursor.
    let (is_local, client) = (ctx.client.is_internal(), &ctx.client);
    if is_local && !flag(data, "failLocalClients")
        || (is_local || client.says_internal()) && !flag(data, "failInternalCommands")
    {
        return false;
    }
    text("threadName").is_none_or(|wanted| wanted == Some(&thread()))
        && text("appName").is_none_or(|wanted| wanted.unwrap_or("") == app_name.unwrap_or(""))
        && text("namespace").is_none_or(|wanted| wanted == ns)
}

fn flag(data: &RawDocument, name: &str) -> bool {
    pinion_bson::get(data, name).is_some_and(truthy)
}

/// The code of the error to answer with.
fn error_code(data: &RawDocument) -> Option<ErrorCode> {
    code_of(data, "errorCode")
}

/// The code in a field; 0 is none.
fn code_of(data: &RawDocument, name: &str) -> Option<ErrorCode> {
    let code = pinion_bson::get(data, name).and_then(i64_exact)?;
    i32::try_from(code)
        .ok()
        .filter(|code| *code != 0)
        .map(ErrorCode)
}

fn block_time_ms(data: &RawDocument) -> Result<u64> {
    let invalid = |what: &str| Error::new(ErrorCode::INVALID_OPTIONS, what);
    let ms = pinion_bson::get(data, "blockTimeMS").and_then(i64_exact);
    let ms =
        ms.ok_or_else(|| invalid("must specify 'blockTimeMS' when 'blockConnection' is true"))?;
    u64::try_from(ms).map_err(|_| invalid("'blockTimeMS' must be non-negative"))
}

/// The error that the command answers. Labels that the fail point names stand for all others, none
/// at all too.
fn planted_error(code: ErrorCode, data: &RawDocument) -> Error {
    let mut extra = DocBuilder::new();
    if let Some(RawBsonRef::Document(more)) = pinion_bson::get(data, "errorExtraInfo") {
        extra.append_all(more);
    }
    append_labels(data, &mut extra);
    let error = Error::new(code, "Failing command via 'failCommand' failpoint");
    error.with_extra(extra.finish())
}

fn append_labels(data: &RawDocument, out: &mut DocBuilder) {
    if let Some(labels @ RawBsonRef::Array(_)) = pinion_bson::get(data, "errorLabels")
        && !out.contains("errorLabels")
    {
        out.append_raw("errorLabels", labels);
    }
}

fn write_concern_error(data: &RawDocument) -> bool {
    pinion_bson::get(data, "writeConcernError").is_some()
}

fn append_write_concern_error(set: &Arc<Set>, out: &mut DocBuilder) {
    if let Some(error) = pinion_bson::get(&set.data, "writeConcernError") {
        out.append_raw("writeConcernError", error);
    }
    append_labels(&set.data, out);
}
