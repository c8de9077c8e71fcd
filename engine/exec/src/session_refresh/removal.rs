//! What retryable writes left behind, removed: that of sessions that are over.
//!
//! A removal is a deletion of the session's document, in the log too; a member that applies it
//! removes what it has of the session in all of its partitions.

use std::collections::BTreeMap;
use std::ops::Bound;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};
use pinion_catalog::{
    Collection, GateAccess, Observers, OpEvent, OpKind, Placement, append_lsid, core_catalog,
    from_read_error, from_write_error, read_lsid, session_key, stored_document,
};
use pinion_runtime::on_all_cores;
use pinion_service::interrupt::{interruptible, pause};
use pinion_storage::{
    Direction, Expect, Key, KeyRange, Op, PartitionId, ReadAt, Statement, TreeId, Write, storage,
};
use pinion_wire::idl::Lsid;
use pinion_wire::{OpContext, Result};

use crate::limits::{REAPED_RECORDS, REAPED_SESSIONS};
use crate::session_refresh::session_refresh;
use crate::sessions::check_out_idle;
use crate::statements::RecordCollections;
use crate::topology::{is_writable, not_primary};

/// Whether an entry of one document removes what a session has left behind.
pub fn is_removal(entry: &RawDocument, collection: &Collection) -> bool {
    collection.placement == Placement::Scattered
        && matches!(pinion_bson::get(entry, "op"), Some(RawBsonRef::String("d")))
}

/// What removes the documents of a session from the partitions of this core.
///
/// # Errors
/// A page cannot be read.
pub async fn removals_here(tree: TreeId, session: &Key) -> Result<Vec<Write>> {
    let storage = storage();
    let mut writes = Vec::new();
    for partition in (0..storage.partition_count()).map(PartitionId) {
        let Some(owned) = storage.partition(partition) else {
            continue;
        };
        let range = KeyRange::prefix(session);
        let mut cursor = owned.cursor(tree, range, Direction::Forward, ReadAt::NewestDecided);
        while let Some((key, _)) = cursor.next().await.map_err(from_read_error)? {
            writes.push(Write {
                partition,
                tree,
                key,
                op: Op::Delete,
                expect: Expect::Any,
            });
        }
    }
    Ok(writes)
}

/// The same of the partitions of all cores.
///
/// # Errors
/// A page cannot be read.
pub async fn removals(tree: TreeId, session: &Key) -> Result<Vec<Write>> {
    let session = session.clone();
    let parts = on_all_cores(move |_| {
        let session = session.clone();
        async move { removals_here(tree, &session).await }
    });
    let parts: Result<Vec<Vec<Write>>> = parts.await.into_iter().collect();
    Ok(parts?.into_iter().flatten().collect())
}

/// Sessions with records all of which are of before `before_ms`, in milliseconds since 1970: not
/// more than [`REAPED_SESSIONS`] of each core's.
///
/// # Errors
/// The operation is interrupted, or a page cannot be read.
pub(super) async fn unused_since(ctx: &OpContext, before_ms: i64) -> Result<Vec<Lsid>> {
    let Some(collections) = RecordCollections::find() else {
        return Ok(Vec::new());
    };
    let (ctx, tree) = (ctx.clone(), collections.records.tree());
    let parts = on_all_cores(move |_| {
        let ctx = ctx.clone();
        async move { last_dates_here(&ctx, tree, before_ms).await }
    });
    let mut last: BTreeMap<Lsid, i64> = BTreeMap::new();
    for part in parts.await {
        for (lsid, date_ms) in part? {
            let known = last.entry(lsid).or_insert(date_ms);
            *known = (*known).max(date_ms);
        }
    }
    last.retain(|_, date_ms| *date_ms < before_ms);
    Ok(last.into_keys().collect())
}

/// The last write of each session that this core has an old record of: of a limited number of
/// sessions, and the next time of those behind them, as most may be in use.
async fn last_dates_here(
    ctx: &OpContext,
    tree: TreeId,
    before_ms: i64,
) -> Result<Vec<(Lsid, i64)>> {
    let storage = storage();
    let session_refresh = session_refresh();
    let hands = &session_refresh.hands;
    let mut last: BTreeMap<Lsid, i64> = BTreeMap::new();
    for partition in (0..storage.partition_count()).map(PartitionId) {
        let Some(owned) = storage.partition(partition) else {
            continue;
        };
        let hand = hands.borrow_mut().remove(&partition);
        let range = KeyRange {
            lower: hand.map_or(Bound::Unbounded, Bound::Included),
            upper: Bound::Unbounded,
        };
        let mut cursor = owned.cursor(tree, range, Direction::Forward, ReadAt::NewestDecided);
        while let Some((key, read)) = cursor.next().await.map_err(from_read_error)? {
            pause(ctx).await?;
            let record = stored_document(&read.value);
            let (Some(lsid), Some(RawBsonRef::DateTime(date))) = (
                record.get_document("_id").ok().and_then(read_lsid),
                pinion_bson::get(record, "lastWriteDate"),
            ) else {
                continue;
            };
            let date_ms = date.timestamp_millis();
            if last.len() >= REAPED_SESSIONS && !last.contains_key(&lsid) {
                hands.borrow_mut().insert(partition, key);
                break;
            }
            let known = last.entry(lsid).or_insert(date_ms);
            *known = (*known).max(date_ms);
        }
    }
    // One of another partition may be newer.
    last.retain(|_, date_ms| *date_ms < before_ms);
    Ok(last.into_iter().collect())
}

/// Removes what a session has left behind, unless a write has it or it has gone on. Gives whether
/// it did.
///
/// # Errors
/// This node is no primary any more; the operation is interrupted; a page cannot be read.
pub(super) async fn remove(ctx: &OpContext, lsid: &Lsid, before_ms: i64) -> Result<bool> {
    let Some(collections) = RecordCollections::find() else {
        return Ok(false);
    };
    // Writes of this session wait until its records are gone.
    let Some(_session) = check_out_idle(*lsid).await else {
        return Ok(false);
    };
    let records = &collections.records;
    let gates = core_catalog();
    let entering = gates.gates().enter(&records.ns, GateAccess::Write);
    let _pass = interruptible(ctx, entering).await?;
    // Behind the gate, as the node may have stopped leading while something was waited for.
    if !is_writable() {
        return Err(not_primary());
    }
    let dates = last_date(records.tree(), lsid).await?;
    if dates.is_none_or(|date_ms| date_ms >= before_ms) {
        return Ok(false);
    }
    for collection in collections.images.iter().chain([records]) {
        remove_from(collection, lsid).await?;
    }
    Ok(true)
}

/// When the session has written last.
async fn last_date(tree: TreeId, lsid: &Lsid) -> Result<Option<i64>> {
    let session = session_key(lsid);
    let parts = on_all_cores(move |_| {
        let session = session.clone();
        async move {
            let mut last = None;
            crate::statements::for_each_record(tree, &session, |record| {
                if let Some(RawBsonRef::DateTime(date)) = pinion_bson::get(record, "lastWriteDate")
                {
                    last = last.max(Some(date.timestamp_millis()));
                }
                Ok(())
            })
            .await?;
            Ok(last)
        }
    });
    let parts: Result<Vec<Option<i64>>> = parts.await.into_iter().collect();
    Ok(parts?.into_iter().flatten().max())
}

/// The first of the units removes all on the members that apply it; a unit has a bound here.
async fn remove_from(collection: &Collection, lsid: &Lsid) -> Result<()> {
    let writes = removals(collection.tree(), &session_key(lsid)).await?;
    let mut o = DocBuilder::new();
    append_lsid(&mut o, "_id", lsid);
    let o = o.finish();
    for writes in writes.chunks(REAPED_RECORDS) {
        let entry = pinion_runtime::core_local::<Observers>().entry(&OpEvent {
            kind: OpKind::Delete,
            ns: collection.ns.as_str(),
            uuid: Some(collection.uuid),
            o: &o,
            o2: Some(&o),
            from_migrate: false,
            wall_ms: pinion_runtime::wall_ms(),
            session: None,
            record: None,
            form: pinion_catalog::oplog_format(),
        })?;
        let statement = Statement {
            writes: writes.to_vec(),
            entry: Some(entry),
        };
        let mut results = storage().execute(vec![statement], true).await;
        let result = results.pop().expect("one statement has one result");
        result.map_err(from_write_error)?;
    }
    Ok(())
}
