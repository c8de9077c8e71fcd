//! `local.startup_log`: what the node was each time that it started.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef, RawDocumentBuf, rawdoc};
use pinion_exec::capped::ensure_capped;
use pinion_exec::write::upsert;
use pinion_runtime::LocalBoxFuture;
use pinion_service::node_info::{NodeInfo, node_info};
use pinion_service::small_talk::append_build_info;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::limits::STARTUP_LOG_BYTES;

/// Adds an entry for this start. Called once, before the node serves clients.
///
/// # Errors
/// Those of a write.
pub fn log_startup() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let ns = Namespace::new("local", "startup_log")?;
        let now_ns = pinion_runtime::now().as_nanos();
        let ctx = OpContext::internal(0, pinion_command::row("insert"), "local", now_ns);
        ensure_capped(&ctx, &ns, STARTUP_LOG_BYTES).await?;
        let info = node_info();
        let entry = entry(&info);
        let id = entry.get_str("_id").unwrap_or_default();
        upsert(&ctx, ns, rawdoc! { "_id": id }, &entry).await
    })
}

fn entry(info: &NodeInfo) -> RawDocumentBuf {
    let (options, started_ms) = (&info.options, info.started_wall_ms);
    let started = DateTime::from_millis(started_ms);
    let host = options.host.split(':').next().unwrap_or_default();
    let mut out = DocBuilder::new();
    out.append("_id", format!("{host}-{started_ms}").as_str())
        .append("hostname", options.host.as_str())
        .append("startTime", RawBsonRef::DateTime(started))
        .append(
            "startTimeLocal",
            started.try_to_rfc3339_string().unwrap_or_default().as_str(),
        )
        .append("cmdLine", &*options.parsed)
        .append("pid", i64::from(options.pid));
    out.start_document("buildinfo");
    append_build_info(&mut out, info);
    out.end();
    out.finish()
}
