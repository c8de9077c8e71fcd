//! `compact`, `autoCompact`, and the compaction of encrypted collections, which there are none of.
//!
//! Documents lie in trees whose pages are rewritten whole when they change, so no page has holes to
//! be closed. What a compaction can do is to merge the changes that wait beside the pages; what
//! becomes free by that is used again by all collections of the partition, and the file keeps its
//! length.

use std::cell::Cell;
use std::rc::Rc;

use pinion_bson::DocBuilder;
use pinion_catalog::{core_catalog, from_fatal};
use pinion_exec::acquire::acquire_stored;
use pinion_exec::commands::namespace_args::not_found;
use pinion_exec::stats::tree_stats;
use pinion_exec::topology::{is_member, is_writable};
use pinion_runtime::{Queue, now, spawn};
use pinion_service::interrupt::interruptible;
use pinion_storage::{TreeId, storage};
use pinion_wire::idl::CommandReader;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use crate::limits::{AUTO_COMPACT_INTERVAL, AUTO_COMPACT_POLL};

/// The task that compacts in the background; core 0 has it.
#[derive(Default)]
pub struct AutoCompact {
    /// Its number, or 0.
    running: Cell<u64>,
    last: Cell<u64>,
}

fn task() -> Rc<AutoCompact> {
    pinion_runtime::core_local()
}

/// Ends the task that compacts in the background, if there is one. Called on core 0.
pub fn end_auto_compact() {
    task().running.set(0);
}

/// `compact`.
pub(crate) async fn compact(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let name = reader.collection("compact")?;
    let ns = reader.sought("compact", cmd.db())?;
    let dry_run = reader.opt_bool("dryRun")?.unwrap_or(false);
    let force = reader.opt_bool("force")?.unwrap_or(false);
    let target = free_space_target(&reader)?;
    reader.finish()?;
    if cmd.db() == "local" && name.starts_with("oplog.") {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "the oplog is no collection that could be compacted",
        ));
    }
    if !force && is_member() && is_writable() {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "will not run compact on an active replica set primary as this will slow down other running operations. use force:true to force",
        ));
    }
    let acquired = acquire_stored(&cmd.ctx, ns, None).await?;
    let Some(collection) = acquired.collection() else {
        return Err(not_found(cmd.db(), name));
    };
    let trees: Vec<TreeId> = collection.trees().collect();
    // Nothing is merged behind the gate.
    drop(acquired);
    let before = Pages::of(&trees).await;
    let mut out = Reply::new();
    if dry_run {
        append_bytes(&mut out, "estimatedBytesFreed", before.excess());
        return Ok(out);
    }
    let is_worth_while = target.is_none_or(|megabytes| {
        let bytes = u64::try_from(megabytes)
            .unwrap_or(0)
            .saturating_mul(1 << 20);
        before.excess() >= bytes
    });
    if !is_worth_while {
        append_bytes(&mut out, "bytesFreed", 0);
        return Ok(out);
    }
    interruptible(&cmd.ctx, storage().checkpoint_merging_all())
        .await?
        .map_err(from_fatal)?;
    let after = Pages::of(&trees).await;
    append_bytes(
        &mut out,
        "bytesFreed",
        before.bytes.saturating_sub(after.bytes),
    );
    Ok(out)
}

/// The pages of a collection and its indexes.
struct Pages {
    bytes: u64,
    /// The bytes of what is in them now, with what waits to be merged.
    content: u64,
}

impl Pages {
    async fn of(trees: &[TreeId]) -> Pages {
        let stats = tree_stats(trees.to_vec()).await;
        Pages {
            bytes: stats.values().map(|of| of.page_bytes).sum(),
            content: stats.values().map(|of| of.key_bytes + of.value_bytes).sum(),
        }
    }

    /// By how much the pages are larger than what is in them: as much as a merge may free, about.
    fn excess(&self) -> u64 {
        self.bytes.saturating_sub(self.content)
    }
}

/// As MongoDB's numbers are: of 32 bits where they fit.
fn append_bytes(out: &mut DocBuilder, name: &str, bytes: u64) {
    match i32::try_from(bytes) {
        Ok(bytes) => out.append(name, bytes),
        Err(_) => out.append(name, bytes as i64),
    };
}

/// The target is what a compaction must at least promise to free before it begins. Without one,
/// merging is worth while whatever becomes free.
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
    let task = task();
    let running = &task.running;
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
    let number = task.last.get() + 1;
    task.last.set(number);
    running.set(number);
    spawn(Queue::Background, compact_daily(number, once));
    Ok(())
}

/// Merges until the task is ended, or another one has started.
async fn compact_daily(number: u64, once: bool) {
    while task().running.get() == number && !pinion_runtime::is_shutdown_requested() {
        // A failure stops the node, which reports it.
        let Ok(_) = storage().checkpoint_merging_all().await else {
            return;
        };
        if once {
            task().running.set(0);
            return;
        }
        let due = now() + AUTO_COMPACT_INTERVAL;
        while now() < due
            && task().running.get() == number
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
    let ns = reader.sought(command, cmd.db())?;
    let tokens = match command {
        "compactStructuredEncryptionData" => "compactionTokens",
        _ => "cleanupTokens",
    };
    reader.doc(tokens)?;
    reader.opt_doc("encryptionInformation")?;
    reader.opt_doc("anchorPaddingFactor")?;
    reader.finish()?;
    let exists = core_catalog().get(&ns).is_some();
    if !exists {
        return Err(not_found(cmd.db(), name));
    }
    Err(Error::new(
        ErrorCode(code),
        "Target namespace is not an encrypted collection",
    ))
}
