//! The document by which operators see that a router is there: one in `config.mongos`, written
//! every ten seconds.

use pinion_bson::{DateTime, DocBuilder, RawBsonRef};
use pinion_runtime::{Queue, is_shutdown_requested, sleep, spawn, wall_ms};
use pinion_service::feature_version::compatible_version;
use pinion_service::node_info::node_info;
use pinion_wire::Result;

use crate::config_reads::run_at_config;
use crate::limits::{PRESENCE_PAUSE, PRESENCE_TIME};

/// Keeps the document new while the process runs. Called once, on core 0.
pub fn keep_presence() {
    spawn(Queue::Background, async {
        while !is_shutdown_requested() {
            if let Err(error) = write().await {
                tracing::debug!(target: "SHARDING", id = 7_300_070u64, error = error.message, "The config servers do not take this router's ping");
            }
            sleep(PRESENCE_PAUSE).await;
        }
    });
}

async fn write() -> Result<()> {
    let info = node_info();
    let host = &info.options.host;
    let date = |ms| RawBsonRef::DateTime(DateTime::from_millis(ms));
    let fields = |out: &mut DocBuilder| {
        out.append("update", "mongos").start_array("updates");
        out.push_document();
        out.start_document("q").append("_id", host.as_str()).end();
        out.start_document("u").start_document("$set");
        out.append("created", date(info.started_wall_ms))
            .append("ping", date(wall_ms()))
            .append("up", info.started.elapsed().as_secs() as i64)
            .append("waiting", true)
            .append("mongoVersion", compatible_version().as_str())
            .start_array("advisoryHostFQDNs")
            .end();
        out.end().end().append("upsert", true).end();
        out.end();
        out.start_document("writeConcern").append("w", 1i32).end();
    };
    run_at_config("config", fields, Some(PRESENCE_TIME)).await?;
    Ok(())
}
