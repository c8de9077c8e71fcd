//! `compact`, `autoCompact`, and the compaction of encrypted collections, which there are none of.
//!
//! Documents lie in trees whose pages are rewritten whole when they change, so no page has holes to be closed. What a
//! compaction can do is to merge the changes that wait beside the pages; what becomes free by that is used again by all
//! collections of the partition, and the file keeps its length.

use pinion_bson::DocBuilder;
use pinion_catalog::{core_catalog, from_fatal};
use pinion_runtime::{Queue, now, spawn};
use pinion_storage::storage;
use pinion_wire::idl::CommandReader;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::names::{named, not_found};
use crate::acquire::acquire_stored;
use crate::interrupt::interruptible;
use crate::limits::{AUTO_COMPACT_INTERVAL, AUTO_COMPACT_POLL};
use crate::state::state;
use crate::stats::storage_stats;

/// `compact`.
pub(crate) async fn compact(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = reader.collection("compact")?;
    let ns = named(&reader, "compact", cmd.db())?;
    let dry_run = reader.opt_bool("dryRun")?.unwrap_or(false);
    // It would allow to compact a primary.
    reader.opt_bool("force")?;
    free_space_target(&reader)?;
    reader.finish()?;
    let ns = ns.ok_or_else(|| not_found(cmd.db(), name))?;
    if cmd.db() == "local" && name.starts_with("oplog.") {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "the oplog is no collection that could be compacted",
        ));
    }
    let acquired = acquire_stored(&cmd.ctx, ns, None).await?;
    if acquired.collection().is_none() {
        return Err(not_found(cmd.db(), name));
    }
    drop(acquired);
    let mut out = Reply::new();
    if dry_run {
        append_bytes(&mut out, "estimatedBytesFreed", 0);
        return Ok(out);
    }
    let before = storage_stats().await.page_file_bytes;
    interruptible(&cmd.ctx, storage().checkpoint_merging_all())
        .await?
        .map_err(from_fatal)?;
    let after = storage_stats().await.page_file_bytes;
    append_bytes(&mut out, "bytesFreed", before.saturating_sub(after));
    Ok(out)
}

/// As MongoDB's numbers are: of 32 bits where they fit.
fn append_bytes(out: &mut DocBuilder, name: &str, bytes: u64) {
    match i32::try_from(bytes) {
        Ok(bytes) => out.append(name, bytes),
        Err(_) => out.append(name, bytes as i64),
    };
}

/// The target is what a compaction must at least promise to free before it begins. It is read for its errors: merging is
/// worth while whatever becomes free.
fn free_space_target(reader: &CommandReader<'_>) -> Result<Option<i64>> {
    reader.opt_at_least("freeSpaceTargetMB", 1)
}

/// `autoCompact`: merges what waits to be merged now, and then once a day.
pub(crate) async fn auto_compact(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let enable = reader.bool("autoCompact")?;
    let once = reader.opt_bool("runOnce")?.unwrap_or(false);
    let target = free_space_target(&reader)?;
    reader.finish()?;
    if enable && target.is_some_and(|megabytes| megabytes > i64::MAX >> 20) {
        return Err(Error::bad_value(
            "freeSpaceTargetMB is too large: its bytes do not fit into 64 bits",
        ));
    }
    let outcome = pinion_runtime::submit_to(pinion_runtime::CoreId(0), Queue::Foreground, {
        move || async move { switch(enable, once) }
    })
    .await;
    outcome?;
    Ok(Reply::new())
}

/// Begins or ends the task that compacts. Called on core 0.
fn switch(enable: bool, once: bool) -> Result<()> {
    let state = state();
    let running = &state.auto_compact;
    if !enable {
        running.set(0);
        return Ok(());
    }
    if running.get() != 0 {
        return Err(Error::new(
            ErrorCode(314),
            "Cannot reconfigure background compaction while it's already running. Please disable it first",
        ));
    }
    let number = state.last_compact.get() + 1;
    state.last_compact.set(number);
    running.set(number);
    spawn(Queue::Background, compact_daily(number, once));
    Ok(())
}

/// Merges until the task is ended, or another one has begun.
async fn compact_daily(number: u64, once: bool) {
    let state = state();
    while state.auto_compact.get() == number && !pinion_runtime::is_shutdown_requested() {
        // A failure stops the node, which tells it.
        let Ok(_) = storage().checkpoint_merging_all().await else {
            return;
        };
        if once {
            state.auto_compact.set(0);
            return;
        }
        let due = now() + AUTO_COMPACT_INTERVAL;
        while now() < due
            && state.auto_compact.get() == number
            && !pinion_runtime::is_shutdown_requested()
        {
            pinion_runtime::sleep(AUTO_COMPACT_POLL).await;
        }
    }
}

/// `compactStructuredEncryptionData`: of an encrypted collection only, which cannot be made here.
pub(crate) async fn compact_structured_encryption_data(cmd: Invocation) -> Result<Reply> {
    refuse_unencrypted(&cmd, 6_346_807).await
}

/// `cleanupStructuredEncryptionData`, likewise.
pub(crate) async fn cleanup_structured_encryption_data(cmd: Invocation) -> Result<Reply> {
    refuse_unencrypted(&cmd, 7_618_804).await
}

async fn refuse_unencrypted(cmd: &Invocation, code: i32) -> Result<Reply> {
    let (reader, command) = (cmd.reader()?, cmd.name());
    let name = reader.collection(command)?;
    let ns = named(&reader, command, cmd.db())?;
    let tokens = match command {
        "compactStructuredEncryptionData" => "compactionTokens",
        _ => "cleanupTokens",
    };
    reader.doc(tokens)?;
    reader.opt_doc("encryptionInformation")?;
    reader.opt_doc("anchorPaddingFactor")?;
    reader.finish()?;
    let exists = ns.is_some_and(|ns| core_catalog().get(&ns).is_some());
    if !exists {
        return Err(not_found(cmd.db(), name));
    }
    Err(Error::new(
        ErrorCode(code),
        "Target namespace is not an encrypted collection",
    ))
}
