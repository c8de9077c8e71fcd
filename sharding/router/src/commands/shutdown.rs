//! `shutdown`.

use pinion_runtime::request_shutdown;
use pinion_service::users::check_may_stop;
use pinion_wire::{Invocation, Reply, Result};

/// `shutdown`: the reply is the closed connection.
pub(super) async fn shutdown(cmd: Invocation) -> Result<Reply> {
    check_may_stop(&cmd.ctx.client)?;
    let reader = cmd.reader()?;
    reader.opt_safe_bool("force")?;
    reader.opt_non_negative("timeoutSecs")?;
    reader.ignore(&["shutdown", "comment"]);
    reader.finish()?;
    tracing::info!(target: "COMMAND", id = 4_695_400u64, ctx = format!("conn{}", cmd.ctx.client.connection_id), remote = cmd.ctx.client.remote.map(tracing::field::display), "Terminating via shutdown command");
    request_shutdown();
    let mut out = Reply::new();
    out.close_connection();
    Ok(out)
}
