//! `listCommands`, `shutdown`, and what tools ask for and a standalone has little to say to.

use pinion_wire::idl::missing_field;
use pinion_wire::{Error, ErrorCode, Invocation, Registry, Reply, Result};

/// `listCommands`.
pub(crate) async fn list_commands(_: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    let mut out = Reply::new();
    out.start_document("commands");
    if let Some(registry) = pinion_runtime::try_core_local::<Registry>() {
        let mut specs: Vec<_> = registry.iter().map(|command| command.spec).collect();
        specs.sort_by_key(|spec| spec.name);
        for spec in specs {
            out.start_document(spec.name)
                .append("help", spec.help)
                .append("requiresAuth", false)
                .append("secondaryOk", !spec.is_write())
                .append("adminOnly", spec.admin_only);
            out.start_array("apiVersions");
            if spec.in_api_v1 {
                out.push("1");
            }
            out.end().start_array("deprecatedApiVersions").end().end();
        }
    }
    out.end();
    Ok(out)
}

/// `shutdown`: the reply is the closed connection.
pub(crate) async fn shutdown(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.opt_safe_bool("force")?;
    reader.opt_i64("timeoutSecs")?;
    reader.ignore(&["shutdown", "comment"]);
    reader.finish()?;
    tracing::info!(target: "COMMAND", id = 4_695_400u64, ctx = format!("conn{}", cmd.ctx.client.connection_id), remote = cmd.ctx.client.remote.map(tracing::field::display), "Terminating via shutdown command");
    pinion_runtime::request_shutdown();
    let mut out = Reply::new();
    out.close_connection();
    Ok(out)
}

/// `connPoolStats`: this node has no connections to others.
pub(crate) async fn conn_pool_stats(_: Invocation) -> Result<Reply> {
    // Nothing is read of it, and MongoDB passes over fields that it does not know.
    let mut out = Reply::new();
    out.append("numClientConnections", 0i32)
        .append("numAScopedConnections", 0i32)
        .append("totalInUse", 0i32)
        .append("totalAvailable", 0i32)
        .append("totalLeased", 0i32)
        .append("totalCreated", 0i32)
        .append("totalRefreshing", 0i32)
        .append("totalRefreshed", 0i32)
        .append("totalWasNeverUsed", 0i32);
    out.start_document("pools")
        .end()
        .start_document("hosts")
        .end();
    Ok(out)
}

/// `features`.
pub(crate) async fn features(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["features", "oidReset"]);
    reader.finish()?;
    let mut out = Reply::new();
    out.append(
        "oidMachine",
        crate::state::state().shared.options.pid as i32,
    );
    Ok(out)
}

/// `mapReduce`, which needs a JavaScript engine: there is none that could be kept to its time.
pub(crate) async fn map_reduce(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.namespace(cmd.message.command_name(), cmd.db())?;
    for required in ["map", "reduce", "out"] {
        if reader.value(required).is_none() {
            return Err(missing_field(reader.path().field(required)));
        }
    }
    Err(Error::new(
        ErrorCode(31264),
        "Cannot run server-side javascript without the javascript engine enabled: mapReduce is not supported",
    ))
}
