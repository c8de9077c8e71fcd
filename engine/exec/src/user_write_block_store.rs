//! How it is stored that writes of users are blocked, how that is changed, and how every core comes
//! to know it.
//!
//! Every core refuses what comes from the first moment on. Then builds of indexes are aborted, and
//! what has passed a gate before is waited for. Only then it is stored: a node that fails before is
//! as it was. What comes meanwhile is refused although it may not have to be.

use pinion_bson::{RawBsonRef, RawDocument, rawdoc};
use pinion_catalog::{abort_build, core_catalog, id_key, index_builds, partition_of};
use pinion_query::Matcher;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, on_all_cores, sleep, spawn, submit_to};
use pinion_service::interrupt::check;
use pinion_wire::idl::Namespace;
use pinion_wire::{ErrorCode, OpContext, Result, interruption};

use crate::acquire::{acquire_read, acquire_write};
use crate::limits::USER_WRITES_POLL;
use crate::own_collections::is_node_database;
use crate::read::read_newest;
use crate::topology::{is_writable, not_primary};
use crate::user_write_block::{BlockChange, BlockedUserWork, ID, NAMESPACE, user_write_block};
use crate::write::{Change, ModifyOutcome, ModifyStatement, run, upsert_by_id};

fn context() -> OpContext {
    let row = pinion_command::row("setUserWriteBlockMode");
    OpContext::internal(0, row, "config", pinion_runtime::now().as_nanos())
}

/// Changes what is blocked, and has every core know it. It comes to its end, or is as if it had not
/// been, although the caller goes away.
///
/// # Errors
/// As of [`BlockedUserWork::changed`]; the operation is stopped while it waits; the node is no
/// primary; those of a write.
pub async fn change(ctx: OpContext, change: BlockChange) -> Result<()> {
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        match spawn(Queue::Foreground, change_on_core_0(ctx, change)).await {
            Ok(changed) => changed,
            Err(_) => Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)),
        }
    })
    .await
}

async fn change_on_core_0(ctx: OpContext, change: BlockChange) -> Result<()> {
    let block = user_write_block();
    let _turn = block.turn.acquire().await;
    if !is_writable() {
        return Err(not_primary());
    }
    let before = stored().await?;
    let after = before.changed(change)?;
    if after == before {
        return Ok(());
    }
    if after.writes && !before.writes {
        use_everywhere(BlockedUserWork {
            writes: true,
            ..before
        })
        .await;
        if let Err(error) = end_user_writes(&ctx).await {
            use_everywhere(before).await;
            return Err(error);
        }
    }
    let written = store(after).await;
    let now = match &written {
        Ok(()) => after,
        // It may have been written all the same.
        Err(_) => stored().await.unwrap_or(before),
    };
    use_everywhere(now).await;
    written?;
    tracing::info!(
        target: "COMMAND", id = 7_300_080u64, writes = after.writes, definitions = after.definitions,
        "What is blocked of the work of users has changed"
    );
    Ok(())
}

/// Waits until no write of a user is under way, each of which has started before all cores knew
/// that no other does.
async fn end_user_writes(ctx: &OpContext) -> Result<()> {
    while abort_user_builds().await {
        pause(ctx).await?;
    }
    let is_drained = |_| async {
        core_catalog()
            .gates()
            .is_drained_of(|db| !is_node_database(db))
    };
    let mut drained = Vec::new();
    loop {
        // One that has none once has none again but those that are refused at once.
        let now = on_all_cores(is_drained).await;
        drained.resize(now.len(), false);
        for (drained, now) in drained.iter_mut().zip(now) {
            *drained |= now;
        }
        if !drained.contains(&false) {
            return Ok(());
        }
        pause(ctx).await?;
    }
}

/// Has the builds of indexes of users end; whether there are any.
async fn abort_user_builds() -> bool {
    let builds = index_builds().await;
    let of_users = builds
        .iter()
        .filter(|build| !is_node_database(build.ns.db()));
    let mut any = false;
    for build in of_users {
        any = true;
        abort_build(build.uuid, "User writes blocked".to_owned()).await;
    }
    any
}

async fn pause(ctx: &OpContext) -> Result<()> {
    check(ctx)?;
    if !is_writable() {
        return Err(not_primary());
    }
    sleep(USER_WRITES_POLL).await;
    Ok(())
}

/// Stores what is blocked.
async fn store(blocked: BlockedUserWork) -> Result<()> {
    let (ctx, ns) = (context(), Namespace::parse(NAMESPACE)?);
    if let Some(document) = blocked.to_bson() {
        return upsert_by_id(&ctx, ns, ID, &document).await;
    }
    let filter = rawdoc! { "_id": ID };
    let statement = ModifyStatement::plain(Matcher::parse(&filter)?, filter, Change::Delete);
    let acquired = acquire_write(&ctx, ns, None).await?;
    run(&ctx, acquired, &statement, &mut ModifyOutcome::default()).await
}

/// What is stored: the newest version, which may be applied and not be visible yet.
async fn stored() -> Result<BlockedUserWork> {
    let acquired = acquire_read(&context(), Namespace::parse(NAMESPACE)?, None).await?;
    let Some(collection) = acquired.collection() else {
        return Ok(BlockedUserWork::default());
    };
    let key = id_key(RawBsonRef::String(ID));
    let partition = partition_of(collection, &key);
    let found = read_newest(collection.tree(), partition, key).await?;
    found.map_or(Ok(BlockedUserWork::default()), |found| {
        let document: &RawDocument = pinion_catalog::stored_document(&found);
        BlockedUserWork::parse(document)
    })
}

async fn use_everywhere(blocked: BlockedUserWork) {
    on_all_cores(move |_| async move { user_write_block().set(blocked) }).await;
}

/// Has every core use what is stored: when the node opens or has copied another one's data, and
/// when another member has changed it.
///
/// # Errors
/// Those of a read; a document that is none.
pub fn load() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(submit_to(CoreId(0), Queue::Foreground, || async {
        // A task that reads later has seen more, and has it used later.
        let block = user_write_block();
        let _turn = block.turn.acquire().await;
        use_everywhere(stored().await?).await;
        Ok(())
    }))
}
