//! The commit of a transaction: its entries, its record, and the moment at which all of it takes
//! place.

use pinion_catalog::{
    PlannedChange, TransactionEnd, TransactionPart, commit_planned, encode_transaction,
    from_write_error,
};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_service::compute::compute_bytes;
use pinion_service::metrics::metrics;
use pinion_storage::{Entry, WriteError, storage};
use pinion_wire::idl::Lsid;
use pinion_wire::{Error, OpContext, Result};

use crate::limits::TRANSACTION_ENTRY_BYTES;
use crate::open_transactions::{
    OPERATION_OVERHEAD_BYTES, OpenTransaction, Running, release_everywhere, transactions,
};
use crate::statements::{RecordCollections, RecordedEnd, TransactionStamp, check_images};
use crate::transaction_state::{TxnState, aborted};

/// Commits the transaction that a command is of.
///
/// # Errors
/// It is aborted then: `NoSuchTransaction` if it was so before, `WriteConflict` and the like.
pub(crate) async fn commit(ctx: &OpContext, running: &Running) -> Result<()> {
    pinion_service::interrupt::check(ctx)?;
    let mut open = running
        .take_open()
        .expect("a transaction is committed once");
    let statements = std::mem::take(&mut open.statements);
    if let Err(error) = check_images(&statements) {
        open.abort().await;
        running.end(TxnState::Aborted, OpTime::NULL);
        return Err(error);
    }
    let metrics = metrics();
    let counters = &metrics.counters;
    let (lsid, number, started) = (open.lsid, open.number, open.started);
    if open.operations.is_empty() && open.known.planned.is_empty() {
        storage().abort_unit(open.unit).await;
        release_everywhere(lsid, number).await;
        running.end(TxnState::Committed, OpTime::NULL);
        counters.transactions_committed.inc();
        metrics.transaction_ended(started);
        return Ok(());
    }
    let term = storage().term();
    let committed = match open.known.planned.is_empty() {
        true => write(*open, PlannedChange::default()).await,
        false => write_planned(ctx, open).await,
    };
    release_everywhere(lsid, number).await;
    metrics.transaction_ended(started);
    match committed {
        Ok(ts) => {
            if let Some(retries) = running.retries() {
                retries.committed(statements, ts, Term(term));
            }
            running.end(TxnState::Committed, OpTime::new(ts, Term(term)));
            counters.transactions_committed.inc();
            counters.session_records.inc();
            Ok(())
        }
        Err(error) => {
            running.end(TxnState::Aborted, OpTime::NULL);
            counters.transactions_aborted.inc();
            Err(error)
        }
    }
}

/// Commits what a transaction has written, and collections that it makes with it.
async fn write(open: OpenTransaction, made: PlannedChange) -> Result<Timestamp> {
    let stamp = TransactionStamp {
        lsid: open.lsid,
        txn_number: open.number,
    };
    let wall_ms = pinion_runtime::wall_ms();
    let operations = [made.operations, open.operations].concat();
    let encode = || entries(&stamp, &operations, TransactionEnd::Commit, wall_ms);
    let entries = compute_bytes(open.operation_bytes, encode).await;
    let records = RecordCollections::find().expect("they are made before a transaction begins");
    let record = stamp.write(
        &records.records,
        RecordedEnd::Committed,
        wall_ms,
        storage().term(),
    );
    let beside = [vec![record], made.writes].concat();
    let committed = storage().commit_unit(open.unit, entries, beside).await;
    committed.map_err(|error| failure(error, open.number))
}

/// The same for a transaction that makes collections. Nothing drops this before its end.
async fn write_planned(ctx: &OpContext, open: Box<OpenTransaction>) -> Result<Timestamp> {
    let lsid = open.lsid;
    let planned = open.known.planned.clone();
    let before = { transactions().committing.borrow_mut().insert(lsid, open) };
    assert!(
        before.is_none(),
        "a session commits one transaction at a time"
    );
    let commit = move |made| async move {
        let open = take_committing(&lsid);
        write(*open.expect("it is here until it is taken"), made).await
    };
    let committed = commit_planned(ctx, planned, commit).await;
    // It did not come to that.
    if let Some(open) = take_committing(&lsid) {
        storage().abort_unit(open.unit).await;
    }
    committed
}

fn take_committing(lsid: &Lsid) -> Option<Box<OpenTransaction>> {
    transactions().committing.borrow_mut().remove(lsid)
}

/// Why a transaction was aborted that was to end.
pub(super) fn failure(error: WriteError, number: i64) -> Error {
    match error {
        WriteError::UnitEnded => aborted(number),
        // Memory is free when others have ended: the whole transaction may be tried again.
        WriteError::CacheFull => from_write_error(WriteError::Conflict),
        error => from_write_error(error),
    }
}

/// Aborts the transaction that a command is of.
pub(crate) async fn abort(running: &Running) {
    let open = running.take_open().expect("a transaction is aborted once");
    open.abort().await;
    running.end(TxnState::Aborted, OpTime::NULL);
}

/// The entries of a transaction: one, if its operations fit into one.
pub(super) fn entries(
    stamp: &TransactionStamp,
    operations: &[bytes::Bytes],
    end: TransactionEnd,
    wall_ms: i64,
) -> Vec<Entry> {
    let ranges = divided(operations.iter().map(bytes::Bytes::len));
    let last = ranges.len() - 1;
    let part = |(place, range): (usize, std::ops::Range<usize>)| {
        let part = match (place == last, last) {
            (false, _) => TransactionPart::Partial,
            (true, 0) => TransactionPart::Whole,
            (true, _) => TransactionPart::Last {
                count: operations.len() as i64,
            },
        };
        encode_transaction(
            &stamp.lsid,
            stamp.txn_number,
            part,
            end,
            &operations[range],
            wall_ms,
        )
    };
    ranges.into_iter().enumerate().map(part).collect()
}

/// Which operations go into which entry.
fn divided(lens: impl Iterator<Item = usize>) -> Vec<std::ops::Range<usize>> {
    let (mut ranges, mut first, mut bytes, mut count) = (Vec::new(), 0, 0, 0);
    for (place, len) in lens.enumerate() {
        let cost = len + OPERATION_OVERHEAD_BYTES;
        if place > first && bytes + cost > TRANSACTION_ENTRY_BYTES {
            ranges.push(first..place);
            (first, bytes) = (place, 0);
        }
        bytes += cost;
        count = place + 1;
    }
    ranges.push(first..count);
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_hold_as_much_as_fits() {
        let check = |lens: &[usize], expected: &[(usize, usize)]| {
            let ranges = divided(lens.iter().copied()).into_iter();
            let ranges: Vec<_> = ranges.map(|range| (range.start, range.end)).collect();
            assert_eq!(ranges, expected, "{lens:?}");
        };
        const MB: usize = 1024 * 1024;
        check(&[100], &[(0, 1)]);
        check(&[100; 5], &[(0, 5)]);
        check(&[16 * MB], &[(0, 1)]);
        check(&[16 * MB, 1, 1], &[(0, 1), (1, 3)]);
        check(&[10 * MB, 5 * MB, 5 * MB], &[(0, 2), (2, 3)]);
        check(&[MB; 33], &[(0, 15), (15, 30), (30, 33)]);
    }
}
