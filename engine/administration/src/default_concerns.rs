//! `getDefaultRWConcern` and `setDefaultRWConcern`, which members of replica sets have.

use pinion_bson::{DateTime, DocBuilder, RawDocument};
use pinion_exec::concern::{
    self, Change, SETTINGS, STORED_AS, default_concerns, forget_everywhere,
};
use pinion_exec::topology::{is_member, set_view};
use pinion_exec::write::upsert_by_id;
use pinion_runtime::{CoreId, Queue};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

fn check_member(command: &str) -> Result<()> {
    if is_member() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode(51300),
        format!("'{command}' is not supported on standalone nodes."),
    ))
}

/// `getDefaultRWConcern`.
pub(crate) async fn get_default_rw_concern(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let in_memory = reader.opt_bool("inMemory")?.unwrap_or(false);
    reader.ignore(&["getDefaultRWConcern"]);
    reader.finish()?;
    check_member("getDefaultRWConcern")?;
    if !in_memory {
        default_concerns().forget();
    }
    let mut out = Reply::new();
    default_concerns().get().await.append_reported(&mut out);
    if in_memory {
        out.append("inMemory", true);
    }
    Ok(out)
}

/// `setDefaultRWConcern`.
pub(crate) async fn set_default_rw_concern(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let read = reader.opt_doc("defaultReadConcern")?;
    let write = reader.opt_doc("defaultWriteConcern")?;
    reader.ignore(&["setDefaultRWConcern"]);
    reader.finish()?;
    check_member("setDefaultRWConcern")?;
    let view = set_view().expect("a member has a view");
    let change = Change::parse(read, write, &view)?;
    let ctx = cmd.ctx.clone();
    pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || store(ctx, change)).await?;
    let newest = storage().last_allotted();
    // Defaults that some members lack are none: what other commands report beside their success is
    // an error here.
    if let Some(failure) = concern::wait_for_setting(&cmd.ctx, newest).await? {
        return Err(failure.error);
    }
    cmd.ctx.wrote(newest);
    let mut out = Reply::new();
    default_concerns().get().await.append_reported(&mut out);
    Ok(out)
}

/// Stores a change. One at a time on core 0, as each is made to what was stored before.
async fn store(ctx: OpContext, change: Change) -> Result<()> {
    let _turn = default_concerns().turn.acquire().await;
    default_concerns().forget();
    let present = default_concerns().get().await;
    let time = storage().cluster_time();
    let now = (
        pinion_bson::Timestamp {
            time: time.secs(),
            increment: time.inc(),
        },
        DateTime::from_millis(pinion_runtime::wall_ms()),
    );
    let changed = present.changed(change, now)?;
    let mut document = DocBuilder::new();
    document.append("_id", STORED_AS);
    changed.append_stored(&mut document);
    let document = document.finish();
    put(&ctx, &document).await?;
    tracing::info!(target: "COMMAND", id = 20_498u64, value = %pinion_bson::to_extended_json(&document, pinion_bson::JsonMode::Relaxed), "Successfully set RWC defaults");
    Ok(())
}

async fn put(ctx: &OpContext, document: &RawDocument) -> Result<()> {
    let ns = Namespace::new(SETTINGS.0, SETTINGS.1)?;
    let stored = upsert_by_id(ctx, ns, STORED_AS, document).await;
    // Also where that failed, as it may have been stored all the same.
    forget_everywhere().await;
    stored
}
