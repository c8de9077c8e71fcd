//! `fsync`: a checkpoint, and the lock that ends all writes until `fsyncUnlock`.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use pinion_exec::fsync_lock;
use pinion_runtime::{Duration, Queue, spawn};
use pinion_storage::storage;
use pinion_wire::{ErrorCode, Invocation, Reply, Result, interruption};

use crate::limits::FSYNC_LOCK_TIMEOUT;

const SEE_ALSO: &str = "http://dochub.mongodb.org/core/fsynccommand";

/// `fsync`.
pub(crate) async fn fsync(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let lock = reader.opt_safe_bool("lock")?.unwrap_or(false);
    let timeout_ms = reader.opt_int("fsyncLockAcquisitionTimeoutMillis")?;
    let is_async = reader.opt_safe_bool("async")?.unwrap_or(false);
    reader.ignore(&["fsync"]);
    reader.finish()?;
    let connection = format!("conn{}", cmd.ctx.client.connection_id);
    tracing::info!(target: "COMMAND", id = 20_461u64, ctx = connection, lock, "CMD fsync");
    let mut out = Reply::new();
    if !lock {
        if is_async {
            checkpoint_later();
        } else {
            pinion_service::interrupt::interruptible(&cmd.ctx, storage().checkpoint())
                .await?
                .map_err(pinion_catalog::from_fatal)?;
        }
        // Page files, one for each partition.
        out.append("numFiles", i32::from(storage().partition_count()));
        return Ok(out);
    }
    // A negative time is no limit: the lock is then taken only while there is no writer.
    let limit = timeout_ms.map_or(FSYNC_LOCK_TIMEOUT, |ms| {
        Duration::from_millis(ms.max(0) as u64)
    });
    let count = to_its_end(fsync_lock::lock(cmd.ctx.clone(), limit)).await?;
    tracing::warn!(target: "COMMAND", id = 20_462u64, ctx = connection, lockCount = count, seeAlso = SEE_ALSO, "mongod is locked and no writes are allowed");
    out.append(
        "info",
        "now locked against writes, use db.fsyncUnlock() to unlock",
    )
    .append("lockCount", count)
    .append("seeAlso", SEE_ALSO);
    Ok(out)
}

/// Checkpoints of this core that no caller waits for: one under way, and one that starts after it.
#[derive(Default)]
struct Later(Cell<u8>);

/// Has a checkpoint begin that holds what was written until now. A failure stops the node and is
/// logged.
fn checkpoint_later() {
    let later = pinion_runtime::try_core_local::<Later>().unwrap_or_else(|| {
        let later = Rc::<Later>::default();
        pinion_runtime::set_core_local(later.clone());
        later
    });
    // One that has not started will hold this too.
    if later.0.get() == 2 {
        return;
    }
    later.0.set(later.0.get() + 1);
    spawn(Queue::Foreground, async move {
        let _ = storage().checkpoint().await;
        later.0.set(later.0.get() - 1);
    });
}

/// `fsyncUnlock`. MongoDB passes over fields that it does not know here.
pub(crate) async fn fsync_unlock(cmd: Invocation) -> Result<Reply> {
    let connection = format!("conn{}", cmd.ctx.client.connection_id);
    tracing::info!(target: "COMMAND", id = 20_465u64, ctx = connection, "command: unlock requested");
    let count = to_its_end(fsync_lock::unlock(cmd.ctx.clone())).await?;
    tracing::info!(target: "COMMAND", id = 20_466u64, ctx = connection, lockCount = count, "fsyncUnlock complete");
    let mut out = Reply::new();
    out.append("info", "fsyncUnlock completed")
        .append("lockCount", count);
    Ok(out)
}

/// Runs it as a task of its own, which continues when the caller goes away.
async fn to_its_end<R: 'static>(work: impl Future<Output = Result<R>> + 'static) -> Result<R> {
    match pinion_runtime::spawn(Queue::Foreground, work).await {
        Ok(result) => result,
        Err(_) => Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)),
    }
}
