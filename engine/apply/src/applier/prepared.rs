//! Transactions that are prepared, as entries describe them: their writes are placed as prepared
//! units, which the entries of their outcomes commit or forget.
//!
//! Both entries are fences. What an operation writes, the entries of indexes among it, depends on
//! what is stored before it; so everything before is applied when a unit is placed, and the
//! operations of one transaction see each other.
//!
//! An initial sync places nothing: documents may come that are older than a prepared transaction,
//! and newer than its commit. The entries are kept until the outcome, with which the operations are
//! applied, or until all is applied; the units of those that have no outcome by then are placed at
//! the end. So it is with what recovery looks back at.
//!
//! Source: replication document, "Lifetime of a Prepared Transaction", "Initial Sync", "Startup
//! Recovery".

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::{RawBsonRef, RawDocument};
use pinion_catalog::{ApplyMode, core_catalog};
use pinion_clock::{Term, Timestamp};
use pinion_exec::open_transactions::PreparedTransaction;
use pinion_exec::options::{PlantedFault, node_options};
use pinion_exec::statements::{RecordedEnd, TransactionStamp};
use pinion_exec::transactions::{all_prepared, find, forget, register};
use pinion_runtime::{LocalBoxFuture, yield_if_due};
use pinion_service::metrics::metrics;
use pinion_storage::{ApplyError, Key, PartitionId, TreeId, Write, storage};
use pinion_wire::idl::{Lsid, Namespace, i64_exact};
use pinion_wire::{Error, Result};

use super::command::apply;
use super::decode::{check_namespace, unknown};
use super::documents::{Before, Target, prepared_change, record_write};
use super::entry::{Entry, damaged, document, field, operations, text, validated};
use super::settings::Changed;

/// What an entry says of a transaction that is prepared.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum PreparedStep {
    /// It is prepared by this entry.
    Prepared(TransactionStamp),
    /// It is committed at this time, or aborted.
    Ended(TransactionStamp, Option<Timestamp>),
}

impl PreparedStep {
    /// What a valid entry says; `None` of any other.
    ///
    /// # Errors
    /// It does not say which transaction, or when.
    pub(super) fn of(entry: &RawDocument) -> Result<Option<PreparedStep>> {
        if field(entry, "op") != Some(RawBsonRef::String("c")) {
            return Ok(None);
        }
        let o = document(entry, "o")?;
        let stamp = || {
            let named = TransactionStamp::named(entry);
            named.ok_or_else(|| damaged("an entry of a prepared transaction names none"))
        };
        if is_prepare(o) {
            return Ok(Some(PreparedStep::Prepared(stamp()?)));
        }
        if field(o, "commitTransaction").is_some() {
            let Some(RawBsonRef::Timestamp(at)) = field(o, "commitTimestamp") else {
                return Err(damaged("a commitTransaction has no commitTimestamp"));
            };
            let at = Timestamp::new(at.time, at.increment);
            return Ok(Some(PreparedStep::Ended(stamp()?, Some(at))));
        }
        match field(o, "abortTransaction") {
            Some(_) => Ok(Some(PreparedStep::Ended(stamp()?, None))),
            None => Ok(None),
        }
    }
}

/// Whether the operations of an `applyOps` are prepared by it, and not done.
pub(super) fn is_prepare(o: &RawDocument) -> bool {
    field(o, "applyOps").is_some() && field(o, "prepare") == Some(RawBsonRef::Boolean(true))
}

/// A transaction whose entries are kept until it has its outcome; on the core that applies.
#[derive(Clone, Debug)]
pub struct Kept {
    number: i64,
    first: Timestamp,
    at: Timestamp,
    parts: Vec<Bytes>,
}

/// Those that are kept, while an initial sync or a recovery applies.
pub type KeptTransactions = BTreeMap<Lsid, Kept>;

fn kept_prepared() -> Rc<RefCell<KeptTransactions>> {
    pinion_runtime::core_local()
}

/// Keeps the entries of a transaction that is prepared at `at`; the last of them said so.
pub(super) fn keep(
    stamp: TransactionStamp,
    (first, at): (Timestamp, Timestamp),
    parts: Vec<Bytes>,
) {
    // The log is kept from there.
    storage().transaction_begins(first);
    let number = stamp.txn_number;
    let kept = Kept {
        number,
        first,
        at,
        parts,
    };
    kept_prepared().borrow_mut().insert(stamp.lsid, kept);
}

/// The transaction has its outcome, by the entry at `at`; what was kept of it.
pub(super) fn take_kept(stamp: TransactionStamp, at: Timestamp) -> Option<Vec<Bytes>> {
    let kept_prepared = kept_prepared();
    let mut all = kept_prepared.borrow_mut();
    if all.get(&stamp.lsid)?.number != stamp.txn_number {
        return None;
    }
    let kept = all.remove(&stamp.lsid)?;
    storage().transaction_ends(kept.first, at);
    Some(kept.parts)
}

/// The data is gone, and what was kept of it.
pub(super) fn forget_all_kept() {
    kept_prepared().take();
}

/// Nothing is kept any more: what it is of is given up.
pub(super) fn forget_kept() {
    for kept in std::mem::take(&mut *kept_prepared().borrow_mut()).into_values() {
        storage().transaction_ends(kept.first, kept.at);
    }
}

/// Places the units of all that is kept: it has no outcome in what was applied. What they change
/// may be there already, in a base that an older program has written between the time of a commit
/// and the entry of it.
///
/// # Errors
/// An entry cannot be applied.
pub(super) async fn place_kept() -> std::result::Result<(), ApplyError> {
    let kept = std::mem::take(&mut *kept_prepared().borrow_mut());
    for (lsid, kept) in kept {
        let stamp = TransactionStamp {
            lsid,
            txn_number: kept.number,
        };
        let times = (kept.first, kept.at);
        let placed = place(stamp, times, &kept.parts, ApplyMode::InitialSync).await;
        placed.map_err(|error| {
            ApplyError(format!(
                "what was prepared at {}: {}",
                kept.at, error.message
            ))
        })?;
    }
    Ok(())
}

/// Applies an entry about a prepared transaction, on core 0.
///
/// # Errors
/// It cannot be applied.
pub(super) async fn apply_step(
    entry: &Entry,
    step: PreparedStep,
    mode: ApplyMode,
    settings: &mut Changed,
) -> Result<u64> {
    let _pass = match mode {
        ApplyMode::Recovery => None,
        _ => {
            storage().wait_for_room().await;
            Some(core_catalog().gates().begin_change().await)
        }
    };
    let mut passed_over = 0;
    let (stamp, end) = match step {
        PreparedStep::Prepared(stamp) => {
            let parts: Vec<Bytes> = entry.parts().cloned().collect();
            let times = (entry.first, entry.ts);
            match mode {
                ApplyMode::InitialSync => keep(stamp, times, parts),
                ApplyMode::Recovery if is_lost_at_restart() => {}
                _ => place(stamp, times, &parts, mode).await?,
            }
            // Entries that are made together have timestamps that follow one another.
            let entries = entry.ts.as_u64() - entry.first.as_u64() + 1;
            (stamp, RecordedEnd::Prepared { entries })
        }
        PreparedStep::Ended(stamp, commit) => {
            match mode {
                ApplyMode::InitialSync => {
                    let parts = take_kept(stamp, entry.ts);
                    if commit.is_some() {
                        passed_over += apply_kept(entry.ts, parts, settings).await?;
                    }
                }
                _ => end(entry, stamp, commit).await?,
            }
            let end = match commit {
                Some(_) => RecordedEnd::Committed,
                None => RecordedEnd::Aborted,
            };
            (stamp, end)
        }
    };
    let record = record_write(validated(&entry.bytes)?, stamp, end)?;
    let applied = storage().apply_at(entry.ts, record).await;
    applied.map_err(|error| Error::internal(error.0))?;
    if mode == ApplyMode::Secondary {
        metrics().counters.applied("c");
    }
    Ok(passed_over)
}

/// The operations of a transaction take place with its commit.
async fn apply_kept(
    ts: Timestamp,
    parts: Option<Vec<Bytes>>,
    settings: &mut Changed,
) -> Result<u64> {
    let parts = parts.ok_or_else(|| {
        damaged("an entry commits a prepared transaction whose entries are not before it")
    })?;
    let mut passed_over = 0;
    for part in &parts {
        let whole = validated(part)?;
        for operation in operations(document(whole, "o")?)?.into_iter().flatten() {
            let operation = (operation?, whole);
            passed_over += Box::pin(apply(ts, operation, ApplyMode::InitialSync, settings)).await?;
        }
    }
    Ok(passed_over)
}

async fn end(entry: &Entry, stamp: TransactionStamp, commit: Option<Timestamp>) -> Result<()> {
    let found = find(stamp).await;
    let found = found
        .ok_or_else(|| damaged("an entry is the outcome of a transaction that is not prepared"))?;
    if let Some(commit) = commit
        && (commit < found.at.ts || commit > entry.ts)
    {
        return Err(damaged(format!(
            "an entry commits at {commit} what was prepared at {}",
            found.at.ts
        )));
    }
    let applied = storage().apply_outcome(&found.unit, commit, entry.ts).await;
    applied.map_err(|error| Error::internal(error.0))?;
    forget(stamp.lsid).await;
    Ok(())
}

/// Whether a test has planted that.
fn is_lost_at_restart() -> bool {
    node_options().planted_fault == PlantedFault::PreparedLostAtRestart
}

/// Places what a transaction has written as a prepared unit.
fn place(
    stamp: TransactionStamp,
    (first, at): (Timestamp, Timestamp),
    parts: &[Bytes],
    mode: ApplyMode,
) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let last = parts.last().expect("a transaction has an entry");
        let term = field(validated(last)?, "t")
            .and_then(i64_exact)
            .unwrap_or(-1);
        let (writes, namespaces) = writes_of_all(parts, mode).await?;
        if all_prepared()
            .await
            .iter()
            .any(|known| known.lsid == stamp.lsid)
        {
            return Err(damaged(
                "an entry prepares a second transaction of one session",
            ));
        }
        let unit = storage().restore_prepared(first, at, writes).await;
        let unit = unit.map_err(|error| Error::internal(error.0))?;
        let transaction = PreparedTransaction::restored(stamp, unit, Term(term), namespaces);
        register(transaction).await;
        Ok(())
    })
}

/// What the operations of a transaction write, each key once, and to which collections.
async fn writes_of_all(parts: &[Bytes], mode: ApplyMode) -> Result<(Vec<Write>, Arc<[Namespace]>)> {
    let mut before = Before::default();
    let mut merged: BTreeMap<(PartitionId, TreeId, Key), Write> = BTreeMap::new();
    let mut namespaces = BTreeSet::new();
    for part in parts {
        let whole = validated(part)?;
        for operation in operations(document(whole, "o")?)?.into_iter().flatten() {
            let operation = operation?;
            check_namespace(operation)?;
            match text(operation, "op")? {
                "i" | "u" | "d" => {}
                "n" => continue,
                other => return Err(unknown(other)),
            }
            let Some(target) = Target::of(operation, mode)? else {
                continue;
            };
            namespaces.insert(target.collection.ns.clone());
            let operation = (operation, whole);
            let writes = prepared_change(operation, &target, mode, &mut before).await?;
            for write in writes {
                let key = (write.partition, write.tree, write.key.clone());
                merged.insert(key, write);
            }
            yield_if_due().await;
        }
    }
    let namespaces: Vec<Namespace> = namespaces.into_iter().collect();
    Ok((merged.into_values().collect(), namespaces.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    #[test]
    fn entries_say_what_becomes_of_prepared_transactions() {
        let id = pinion_bson::Binary {
            subtype: pinion_bson::BinarySubtype::Uuid,
            bytes: vec![7; 16],
        };
        let entry = |o: RawDocumentBuf| rawdoc! { "op": "c", "ns": "admin.$cmd", "o": o, "lsid": { "id": id.clone() }, "txnNumber": 3i64 };
        let ts = pinion_bson::Timestamp {
            time: 5,
            increment: 2,
        };
        let step = |o: RawDocumentBuf| {
            let entry = entry(o);
            PreparedStep::of(&entry).map(|step| {
                step.map(|step| match step {
                    PreparedStep::Prepared(stamp) => (stamp.txn_number, None),
                    PreparedStep::Ended(stamp, commit) => (stamp.txn_number, Some(commit)),
                })
            })
        };
        let at = Timestamp::new(5, 2);
        let check = |o: RawDocumentBuf, expected| assert_eq!(step(o).expect("sound"), expected);
        check(rawdoc! { "applyOps": [] }, None);
        check(rawdoc! { "applyOps": [], "prepare": false }, None);
        check(rawdoc! { "applyOps": [], "prepare": true }, Some((3, None)));
        check(
            rawdoc! { "commitTransaction": 1, "commitTimestamp": ts },
            Some((3, Some(Some(at)))),
        );
        check(rawdoc! { "abortTransaction": 1 }, Some((3, Some(None))));
        check(rawdoc! { "drop": "c" }, None);
        assert!(step(rawdoc! { "commitTransaction": 1 }).is_err());
        let nameless = rawdoc! { "op": "c", "o": { "applyOps": [], "prepare": true } };
        assert!(PreparedStep::of(&nameless).is_err());
        let other = rawdoc! { "op": "i", "o": { "abortTransaction": 1 } };
        assert_eq!(PreparedStep::of(&other).expect("sound"), None);
    }
}
