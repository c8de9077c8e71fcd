//! `shutdown`: a primary steps down first, so that what it has acknowledged is not lost.

use pinion_exec::topology::replica_set;
use pinion_runtime::Duration;
use pinion_service::users::check_may_stop;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::limits::{MAX_SHUTDOWN_PATIENCE, SHUTDOWN_PATIENCE};

/// `shutdown`: the reply is the closed connection.
pub(crate) async fn shutdown(cmd: Invocation) -> Result<Reply> {
    check_may_stop(&cmd.ctx.client)?;
    let reader = cmd.reader()?;
    let force = reader.opt_safe_bool("force")?.unwrap_or(false);
    let limit = match reader.opt_non_negative("timeoutSecs")? {
        Some(secs) => Duration::from_secs(secs.unsigned_abs()).min(MAX_SHUTDOWN_PATIENCE),
        None => SHUTDOWN_PATIENCE,
    };
    reader.ignore(&["shutdown", "comment"]);
    reader.finish()?;
    if !force {
        check_no_builds()?;
    }
    tracing::info!(target: "COMMAND", id = 4_695_400u64, ctx = format!("conn{}", cmd.ctx.client.connection_id), remote = cmd.ctx.client.remote.map(tracing::field::display), "Terminating via shutdown command");
    if let Some(set) = replica_set() {
        set.leave(limit, force).await?;
    }
    pinion_runtime::request_shutdown();
    let mut out = Reply::new();
    out.close_connection();
    Ok(out)
}

/// A build would start again from its beginning at the next start.
///
/// # Errors
/// `ConflictingOperationInProgress`.
fn check_no_builds() -> Result<()> {
    let catalog = pinion_catalog::core_catalog().current();
    let of_each = catalog.collections().map(|found| found.builds().len());
    let builds: usize = of_each.sum();
    match builds {
        0 => Ok(()),
        builds => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("Index builds in progress: {builds}"),
        )),
    }
}
