//! Transactions that are prepared: they have no outcome yet, and wait for it, whichever member is
//! primary.
//!
//! One is known at its session's home, whether this node has prepared it or has applied that. It
//! outlives the sessions of clients, step-down, failover and restart; the way out is its commit or
//! its abort, here or in the log of another member. Its writes are prepared units of storage. While
//! this node takes writes it holds the gates of what it has written, so no change of the catalog
//! comes between; on other members no such change can come in the log.
//!
//! Source: replication document, "Lifetime of a Prepared Transaction".

use std::sync::Arc;

use pinion_catalog::{
    GateAccess, TransactionEnd, core_catalog, encode_outcome, end_holds, from_write_error,
};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, on_all_cores, submit_to};
use pinion_service::compute::compute_bytes;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::home_of;
use pinion_storage::{WriteError, storage};
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::commit::{entries, failure};
use crate::open_transactions::{
    CatalogUse, OpenShown, OpenTransaction, PreparedTransaction, Running, forget_cursors,
    release_everywhere, release_held_everywhere, transactions,
};
use crate::statements::{RecordCollections, RecordedEnd, TransactionStamp, check_images};
use crate::topology::{is_writable, replica_set};
use crate::transaction_state::TxnState;

/// Makes a prepared transaction known at its session's home.
pub async fn register(transaction: PreparedTransaction) {
    submit_to(
        home_of(&transaction.lsid),
        Queue::Foreground,
        move || async move { transactions().prepared.insert(transaction) },
    )
    .await;
}

/// The prepared transaction with this number in its session.
pub async fn find(stamp: TransactionStamp) -> Option<PreparedTransaction> {
    submit_to(
        home_of(&stamp.lsid),
        Queue::Foreground,
        move || async move {
            let found = transactions().prepared.of(&stamp.lsid);
            found.filter(|found| found.number == stamp.txn_number)
        },
    )
    .await
}

/// A transaction has its outcome.
pub async fn forget(lsid: Lsid) {
    submit_to(home_of(&lsid), Queue::Foreground, move || async move {
        transactions().prepared.remove(&lsid);
    })
    .await;
}

/// Every prepared transaction of the node.
pub async fn all_prepared() -> Vec<PreparedTransaction> {
    let all = on_all_cores(|_| async { transactions().prepared.all() });
    all.await.into_iter().flatten().collect()
}

/// Drops all prepared transactions without an entry in the log: their data are replaced.
///
/// # Errors
/// A unit is not there.
pub async fn give_up_prepared() -> Result<()> {
    for transaction in all_prepared().await {
        let (unit, at) = (&transaction.unit, transaction.at.ts);
        let given_up = storage().apply_outcome(unit, None, at).await;
        given_up.map_err(|error| Error::internal(error.0))?;
        forget(transaction.lsid).await;
    }
    Ok(())
}

/// Releases the gates of prepared transactions: this node takes no writes any more, and the catalog
/// changes only by the log. Operations that wait to change it give up before, and critical sections
/// end.
pub async fn yield_gates() {
    on_all_cores(|_| async { core_catalog().gates().give_up_changes(true) }).await;
    submit_to(CoreId(0), Queue::Foreground, end_holds).await;
    for transaction in all_prepared().await {
        release_held_everywhere(transaction.lsid).await;
    }
}

/// Passes the gates of what prepared transactions have written, before any other operation: this
/// node is about to take writes.
pub fn hold_prepared() -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        on_all_cores(|_| async {
            for transaction in transactions().prepared.all() {
                for ns in transaction.namespaces.iter() {
                    let (ns, access) = (ns.clone(), GateAccess::Write);
                    let pass = core_catalog().gates().enter(&ns, access).await;
                    transactions().hold(transaction.lsid, ns, access, pass);
                }
            }
        })
        .await;
    })
}

/// Prepares the transaction that a command is of, and returns it as prepared.
///
/// Call it where nothing is dropped before its end: a prepared transaction is unknown until it is
/// registered at its session's home.
///
/// # Errors
/// It is aborted then.
pub async fn prepare(ctx: &OpContext, running: &Running) -> Result<PreparedTransaction> {
    pinion_service::interrupt::check(ctx)?;
    let open = running.take_open();
    let open = open.expect("a transaction is prepared once");
    let can_be = match open.known.planned.is_empty() {
        true => check_images(&open.statements),
        false => Err(Error::new(
            ErrorCode::OPERATION_NOT_SUPPORTED_IN_TRANSACTION,
            "Cannot create new collections inside distributed transactions",
        )),
    };
    if let Err(error) = can_be {
        open.abort().await;
        running.end(TxnState::Aborted, OpTime::NULL);
        return Err(error);
    }
    let shown = OpenShown {
        prepared: Some(pinion_runtime::now()),
        ..OpenShown::of(&open, None)
    };
    let OpenTransaction {
        lsid,
        number,
        unit,
        operations,
        operation_bytes,
        known,
        ..
    } = *open;
    let stamp = TransactionStamp {
        lsid,
        txn_number: number,
    };
    let wall_ms = pinion_runtime::wall_ms();
    let encode = || entries(&stamp, &operations, TransactionEnd::Prepare, wall_ms);
    let entries = compute_bytes(operation_bytes, encode).await;
    let term = storage().term();
    let records = RecordCollections::find().expect("they are made before a transaction begins");
    let end = RecordedEnd::Prepared {
        entries: entries.len() as u64,
    };
    let record = stamp.write(&records.records, end, wall_ms, term);
    let metrics = metrics();
    let counters = &metrics.counters;
    let prepared = storage().prepare_unit(unit, entries, vec![record]).await;
    let unit = match prepared {
        Ok(unit) => unit,
        Err(error) => {
            release_everywhere(lsid, number).await;
            running.end(TxnState::Aborted, OpTime::NULL);
            counters.transactions_aborted.inc();
            metrics.transaction_ended(shown.started);
            return Err(failure(error, number));
        }
    };
    let at = OpTime::new(unit.prepare_timestamp(), Term(term));
    let transaction = PreparedTransaction {
        lsid,
        number,
        unit,
        at,
        namespaces: written_to(&known),
        shown,
    };
    register(transaction.clone()).await;
    forget_cursors(lsid, number).await;
    // A node that steps down has released the gates of all that it knew of.
    if !is_writable() {
        release_held_everywhere(lsid).await;
    }
    running.end(TxnState::Prepared, at);
    counters.transactions_prepared.inc();
    counters.session_records.inc();
    Ok(transaction)
}

/// The collections whose gates a transaction has passed in order to write.
fn written_to(known: &CatalogUse) -> Arc<[Namespace]> {
    let writes = |(_, access): &&(Namespace, GateAccess)| *access == GateAccess::Write;
    let mut names: Vec<Namespace> = (known.passed.iter().filter(writes))
        .map(|(ns, _)| ns.clone())
        .collect();
    names.sort();
    names.dedup();
    names.into()
}

/// Commits a prepared transaction at `commit`.
///
/// # Errors
/// It is prepared as before: `InvalidOptions` for a time that it cannot be committed at, or while
/// the entry that it was prepared by is not with a majority.
pub async fn commit_prepared(
    running: &Running,
    transaction: &PreparedTransaction,
    commit: Timestamp,
) -> Result<()> {
    check_commit(transaction, commit)?;
    decide(running, transaction, Some(commit)).await
}

fn check_commit(transaction: &PreparedTransaction, commit: Timestamp) -> Result<()> {
    let invalid = |what: String| Err(Error::new(ErrorCode::INVALID_OPTIONS, what));
    let prepared = transaction.at.ts;
    if commit < prepared {
        return invalid(format!(
            "'commitTimestamp' must be greater than or equal to 'prepareTimestamp': {commit} is below {prepared}"
        ));
    }
    let set = replica_set();
    if set.is_none_or(|set| set.commit_point().ts < prepared) {
        return invalid(
            "commitTransaction for a prepared transaction cannot be run before its prepare oplog entry has been majority \
             committed"
                .into(),
        );
    }
    // The coordinator that decided knows this time, and sends it with the command; the entry of the
    // commit lies above.
    let heard_of = storage().cluster_time();
    if commit > heard_of {
        return invalid(format!(
            "'commitTimestamp' must not be greater than the current clusterTime: {commit} is above {heard_of}"
        ));
    }
    Ok(())
}

/// Aborts a prepared transaction.
///
/// # Errors
/// It is prepared as before.
pub async fn abort_prepared(running: &Running, transaction: &PreparedTransaction) -> Result<()> {
    decide(running, transaction, None).await
}

async fn decide(
    running: &Running,
    transaction: &PreparedTransaction,
    commit: Option<Timestamp>,
) -> Result<()> {
    let PreparedTransaction {
        lsid, number, at, ..
    } = *transaction;
    let wall_ms = pinion_runtime::wall_ms();
    let entry = encode_outcome(&lsid, number, at, commit, wall_ms);
    let term = storage().term();
    let records = RecordCollections::find().expect("they are made before a transaction begins");
    let end = match commit {
        Some(_) => RecordedEnd::Committed,
        None => RecordedEnd::Aborted,
    };
    let record = transaction.stamp();
    let record = vec![record.write(&records.records, end, wall_ms, term)];
    let unit = &transaction.unit;
    let ended = match commit {
        Some(commit) => storage().commit_prepared(unit, commit, entry, record).await,
        None => storage().abort_prepared(unit, entry, record).await,
    };
    let ts = ended.map_err(undecided)?;
    release_everywhere(lsid, number).await;
    forget(lsid).await;
    let metrics = metrics();
    let counters = &metrics.counters;
    counters.session_records.inc();
    metrics.transaction_ended(transaction.shown.started);
    let written = OpTime::new(ts, Term(term));
    match commit {
        Some(_) => {
            // What it has executed of a retryable write is in its records alone.
            if let Some(retries) = running.retries() {
                retries.leave_to_records();
            }
            running.end(TxnState::Committed, written);
            counters.transactions_committed.inc();
            counters.prepared_committed.inc();
        }
        None => {
            running.end(TxnState::AbortedPrepared, written);
            counters.transactions_aborted.inc();
            counters.prepared_aborted.inc();
        }
    }
    Ok(())
}

/// Why an outcome was not logged. No code says that the transaction is aborted: it is prepared,
/// here or where it was taken from the log again, and its outcome is sent once more.
fn undecided(error: WriteError) -> Error {
    match error {
        WriteError::UnitEnded => {
            pinion_wire::interruption(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE)
        }
        WriteError::Conflict => from_write_error(WriteError::CacheFull),
        error => from_write_error(error),
    }
}
