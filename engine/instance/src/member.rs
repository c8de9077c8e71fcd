//! What a member of a replica set asks of the executor beside commands: entries of its own, its
//! log, and the end of its clients' writes.

use pinion_catalog::{core_catalog, stored_document};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_exec::read::from_log_error;
use pinion_runtime::LocalBoxFuture;
use pinion_service::ops::ops;
use pinion_storage::{LogRetention, storage};
use pinion_wire::idl::i64_exact;
use pinion_wire::{ErrorCode, Result};

/// What a node does first of all as a primary: it takes over or ends what the previous primary left
/// unfinished, and publishes the version of the data. Builds of indexes continue independently.
///
/// # Errors
/// It is no primary any more, or storage takes no writes.
pub fn begin_as_primary() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let taken_over = take_over().await;
        // What could not be taken over is no part of the cluster's.
        pinion_exec::placement::became_primary().await;
        taken_over
    })
}

async fn take_over() -> Result<()> {
    pinion_catalog::drop_temporary().await?;
    pinion_exec::time_keys::wake().await;
    pinion_exec::feature_compatibility::keep_version().await?;
    pinion_apply::builds::forget_ended().await
}

/// Interrupts every write that a client has under way, on all cores, and aborts all transactions
/// that are not prepared: this node is no primary any more. Gives how many operations were
/// interrupted, and how many continue.
pub fn interrupt_writers() -> LocalBoxFuture<'static, (u64, u64)> {
    Box::pin(async move {
        // Requests with versions find this node behind before its critical sections end.
        pinion_exec::placement::stopped_leading().await;
        let cores = pinion_runtime::on_all_cores(|_| async {
            let code = ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE;
            let ops = &ops();
            let killed = ops.kill_writers(code);
            pinion_storage::storage().end_waits_for_memory();
            (killed, ops.count() as u64 - killed)
        });
        let (killed, running): (Vec<u64>, Vec<u64>) = cores.await.into_iter().unzip();
        pinion_administration::db_check::end_runs(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE)
            .await;
        pinion_exec::transactions::abort_all(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE).await;
        pinion_exec::transactions::yield_gates().await;
        (killed.iter().sum(), running.iter().sum())
    })
}

/// How many operations of clients run on all cores.
pub fn running_operations() -> LocalBoxFuture<'static, u64> {
    Box::pin(async {
        let cores = pinion_runtime::on_all_cores(|_| async { ops().count() as u64 });
        cores.await.into_iter().sum()
    })
}

/// The node follows, and changes of the catalog come by the log, after [`interrupt_writers`].
pub fn writes_ended() -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        pinion_runtime::on_all_cores(|_| async { core_catalog().gates().give_up_changes(false) })
            .await;
    })
}

/// Whether nothing on this core writes behind a gate, or changes the catalog. Of a node that takes
/// no writes any more this holds for good once it was seen.
pub fn no_writer_is_behind_a_gate() -> bool {
    core_catalog().gates().is_drained()
}

/// The last entry of the node's log; null while there is none.
///
/// # Errors
/// The log cannot be read.
pub fn last_logged() -> LocalBoxFuture<'static, Result<OpTime>> {
    Box::pin(async move {
        let mut newest = storage().log_backward(Timestamp::MAX);
        let read = newest.next_batch(1, 1).await.map_err(from_log_error)?;
        let Some((ts, entry)) = read.first() else {
            return Ok(OpTime::NULL);
        };
        let term = pinion_bson::get(stored_document(entry), "t").and_then(i64_exact);
        Ok(OpTime::new(
            *ts,
            Term(term.unwrap_or(Term::UNINITIALIZED.0)),
        ))
    })
}

/// Refuses a data directory with collections that are this node's own and that an older program
/// keeps among those which all members share: they would be copied over, and be written while
/// others lead.
///
/// # Errors
/// There are some; the message says what to do.
pub fn check_own_collections() -> Result<()> {
    let found = core_catalog().current().wrongly_shared();
    if found.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = found.iter().map(|ns| ns.as_str()).collect();
    Err(pinion_wire::Error::new(
        ErrorCode::ILLEGAL_OPERATION,
        format!(
            "an older version of Pinion made {} of this data directory, in a form that a member of a replica set cannot use: \
             start the node without --replSet, drop what is named here (dump first what is still wanted), and start it with \
             --replSet again",
            names.join(", ")
        ),
    ))
}

/// Shows the node's log as `local.oplog.rs`, and keeps as much of it as is wanted; again with other
/// limits.
///
/// # Errors
/// A collection has that name already.
pub fn show_oplog(retention: LogRetention) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let size = retention.bytes.min(i64::MAX as u64) as i64;
        pinion_catalog::show_oplog(size, Timestamp::MAX).await?;
        storage().set_log_retention(Some(retention)).await;
        Ok(())
    })
}
