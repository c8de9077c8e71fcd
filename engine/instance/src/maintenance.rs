//! A member's data directory that is opened as a standalone, for maintenance, and as a member
//! again.
//!
//! What is written meanwhile is no part of the set's oplog (`pinion_storage`,
//! `engine/standalone.rs`). The node does none of its set's work then: documents do not expire,
//! temporary collections stay, and builds of indexes that have not ended wait until the node is a
//! member.

use pinion_apply::recovery::{OpenNodeError, recover};
use pinion_bson::rawdoc;
use pinion_catalog::core_catalog;
use pinion_exec::local::{any_local, read_local, write_local};
use pinion_runtime::{Duration, LocalBoxFuture};
use pinion_service::logbuf::push_startup_warning;
use pinion_storage::{LogRetention, OpenError, RecoveryReport, storage};
use pinion_wire::ErrorCode;

use crate::limits::FIRST_OPLOG_BYTES;

/// Where a member keeps its configuration.
const CONFIG: &str = "system.replset";
/// Where it keeps how much of its oplog it keeps.
const OPLOG: &str = "replset.oplog";
const OPLOG_SIZE: &str = "size";

/// How many bytes of oplog a member keeps: what it began with, or what `replSetResizeOplog` made of
/// it.
///
/// # Errors
/// Those of a read.
pub fn stored_oplog_bytes() -> LocalBoxFuture<'static, pinion_wire::Result<Option<u64>>> {
    Box::pin(async {
        let stored = read_local(OPLOG, OPLOG_SIZE).await?;
        let bytes = stored.and_then(|document| document.get_i64("bytes").ok());
        Ok(bytes.and_then(|bytes| u64::try_from(bytes).ok()))
    })
}

/// Keeps how many bytes of oplog this member keeps.
///
/// # Errors
/// Those of a write.
pub fn store_oplog_bytes(bytes: u64) -> LocalBoxFuture<'static, pinion_wire::Result<()>> {
    Box::pin(async move {
        let document = rawdoc! {
            "_id": OPLOG_SIZE,
            "bytes": i64::try_from(bytes).unwrap_or(i64::MAX),
        };
        write_local(OPLOG, OPLOG_SIZE, &document).await
    })
}

/// Makes a directory that was recovered a member's again, if a standalone has written to it. Gives
/// what recovery found then.
pub(crate) async fn rejoin_set() -> Result<Option<RecoveryReport>, OpenNodeError> {
    let closed = storage().rejoin_set().await;
    let Some(closed) = closed.map_err(OpenNodeError::Storage)? else {
        return Ok(None);
    };
    crate::reopen::forget_data().await;
    let opened = closed.open().await.map_err(OpenNodeError::Storage)?;
    let report = recover(opened).await?;
    tracing::info!(
        target: "REPL", id = 7_400_020u64, last = %report.cut,
        "What was written while this node ran without --replSet is part of its data; it follows from the last entry of its oplog"
    );
    Ok(Some(report))
}

/// Begins what a standalone does differently over the data of a member. False where the data are no
/// member's.
pub(crate) async fn begin_as_standalone() -> Result<bool, OpenNodeError> {
    let is_of_member = !core_catalog().current().is_partial()
        && (any_local(CONFIG).await.map_err(OpenNodeError::Catalog)?).is_some();
    let fatal = |fatal| OpenNodeError::Storage(OpenError::Fatal(fatal));
    if !is_of_member {
        storage().leave_set().await.map_err(fatal)?;
        return Ok(false);
    }
    let bytes = stored_oplog_bytes().await.map_err(OpenNodeError::Catalog)?;
    let retention = LogRetention {
        bytes: bytes.unwrap_or(FIRST_OPLOG_BYTES),
        min_age: Duration::ZERO,
    };
    storage().begin_standalone(retention).await.map_err(fatal)?;
    show_oplog_of_member(retention)
        .await
        .map_err(OpenNodeError::Catalog)?;
    tracing::warn!(target: "CONTROL", id = 20_547u64, ctx = "initandlisten", namespace = "local.system.replset", "{WARNING}");
    push_startup_warning(WARNING);
    Ok(true)
}

/// Shows the member's oplog, which does not change: it ends where the standalone begins to write.
async fn show_oplog_of_member(retention: LogRetention) -> pinion_wire::Result<()> {
    let Some(above) = storage().standalone_above() else {
        return Ok(());
    };
    let size = i64::try_from(retention.bytes).unwrap_or(i64::MAX);
    match pinion_catalog::show_oplog(size, above).await {
        // A collection of that name keeps the node from being a member: here it can be dropped.
        Err(error) if error.code == ErrorCode::NAMESPACE_EXISTS => Ok(()),
        shown => shown,
    }
}

/// As MongoDB's.
const WARNING: &str = "Document(s) exist in 'system.replset', but started without --replSet. Database contents may appear inconsistent with the writes that were visible when this node was running as part of a replica set. Restart with --replSet unless you are doing maintenance and no other clients are connected. The TTL collection monitor will not start because of this.";
