//! The lock of `fsync {lock: true}`: it ends all writes of the node until it is given back, so that
//! the files can be copied.
//!
//! Core 0 has the count. An operation that changes it takes the turn there. The turn is a flag that
//! other operations poll, so one that is stopped while it waits leaves nothing behind. The first to
//! lock sets the flag of every core's gates, waits until the operations behind them have left,
//! takes a checkpoint and has storage take no other. Each step can be undone until the count is
//! returned.

use std::cell::Cell;
use std::rc::Rc;

use pinion_catalog::{Gates, core_catalog, from_fatal};
use pinion_runtime::{CoreId, Duration, Instant, Queue, now, on_all_cores, sim, sleep, submit_to};
use pinion_service::interrupt::{check, interruptible};
use pinion_storage::storage;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::limits::FSYNC_LOCK_POLL;

/// The lock's state; core 0's is the node's.
#[derive(Default)]
pub struct FsyncLock {
    /// An operation locks or unlocks.
    turn_taken: Cell<bool>,
    /// How often the node was locked and not unlocked.
    count: Cell<i64>,
}

/// This core's part of the lock of `fsync`.
pub(crate) fn fsync_lock() -> Rc<FsyncLock> {
    pinion_runtime::core_local()
}

impl FsyncLock {
    /// Takes the turn and returns the count, unless another has the turn.
    fn take_turn(&self) -> Option<i64> {
        let free = !self.turn_taken.replace(true);
        free.then(|| self.count.get())
    }

    fn give_turn(&self, count: i64) {
        assert!(count >= 0, "unlocked more often than locked");
        self.count.set(count);
        let taken = self.turn_taken.replace(false);
        assert!(taken, "a turn was given that nobody had");
    }
}

/// Runs `act` with the node's lock.
async fn node_lock<R: Send + 'static>(act: impl FnOnce(&FsyncLock) -> R + Send + 'static) -> R {
    submit_to(CoreId(0), Queue::Foreground, move || async move {
        act(&fsync_lock())
    })
    .await
}

async fn take_turn(ctx: &OpContext) -> Result<i64> {
    loop {
        check(ctx)?;
        if let Some(count) = node_lock(FsyncLock::take_turn).await {
            return Ok(count);
        }
        sleep(FSYNC_LOCK_POLL).await;
    }
}

async fn give_turn(count: i64) {
    node_lock(move |lock| lock.give_turn(count)).await;
}

/// Locks the node, or once more; returns the count. Writers are waited for until `limit` is over.
/// Run it as a task of its own: a caller that goes away in the middle must not leave it half done.
///
/// # Errors
/// `LockTimeout`; the operation was stopped; the checkpoint failed. The count is as before then.
pub async fn lock(ctx: OpContext, limit: Duration) -> Result<i64> {
    let before = take_turn(&ctx).await?;
    let locked = match before {
        0 => end_writes(&ctx, now() + limit).await,
        _ => Ok(()),
    };
    let count = before + i64::from(locked.is_ok());
    give_turn(count).await;
    locked.map(|()| count)
}

/// Takes back one lock; gives how many are left. Run it as a task of its own.
///
/// # Errors
/// `IllegalOperation` when the node is not locked; the operation was stopped. The count is as
/// before then.
pub async fn unlock(ctx: OpContext) -> Result<i64> {
    let before = take_turn(&ctx).await?;
    if before == 1 {
        storage().release_checkpoints().await;
        on_gates(Gates::unlock).await;
        sim::event("fsync unlock");
    }
    let count = (before - 1).max(0);
    give_turn(count).await;
    match before {
        0 => Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "fsyncUnlock called when not locked",
        )),
        _ => Ok(count),
    }
}

async fn on_gates<R: Send + 'static>(act: fn(&Gates) -> R) -> Vec<R> {
    on_all_cores(move |_| async move { act(core_catalog().gates()) }).await
}

async fn end_writes(ctx: &OpContext, deadline: Instant) -> Result<()> {
    // Every core knows before any is asked whether it is drained, so no operation passes a gate
    // after the question.
    on_gates(Gates::lock).await;
    sim::event("fsync gates");
    let ended = drain_and_checkpoint(ctx, deadline).await;
    match ended {
        Ok(()) => {
            storage().hold_checkpoints().await;
            on_gates(Gates::lock_acquired).await;
            sim::event("fsync lock");
        }
        Err(_) => {
            on_gates(Gates::unlock).await;
        }
    }
    ended
}

async fn drain_and_checkpoint(ctx: &OpContext, deadline: Instant) -> Result<()> {
    let catalog = core_catalog();
    let mut waits = None;
    while on_gates(Gates::is_drained).await.contains(&false) {
        waits.get_or_insert_with(|| catalog.gates().lock_waits());
        check(ctx)?;
        if now() >= deadline {
            return Err(Error::new(ErrorCode::LOCK_TIMEOUT, "Fsync lock timed out"));
        }
        sleep(FSYNC_LOCK_POLL).await;
    }
    drop(waits);
    interruptible(ctx, storage().checkpoint())
        .await?
        .map_err(from_fatal)?;
    Ok(())
}
