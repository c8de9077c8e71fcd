//! What the records of this node say of a session.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_catalog::{RetryImage, from_read_error, session_key, statement_key, stored_document};
use pinion_clock::Timestamp;
use pinion_runtime::on_all_cores;
use pinion_storage::{Direction, Key, KeyRange, PartitionId, ReadAt, TreeId, storage};
use pinion_wire::idl::Lsid;
use pinion_wire::{Error, ErrorCode, Result};

use super::history::{History, Record};
use super::records::{RecordCollections, decode, timestamp};

/// Reads what a session has executed of its latest number.
///
/// # Errors
/// A record cannot be read.
pub(crate) async fn load(lsid: &Lsid) -> Result<History> {
    let Some(collections) = RecordCollections::find() else {
        return Ok(History::default());
    };
    let (tree, key) = (collections.records.tree(), session_key(lsid));
    let parts = on_all_cores(move |_| {
        let key = key.clone();
        async move {
            let mut history = History::default();
            for_each(tree, &key, |record| {
                history.add(decode(record)?);
                Ok(())
            })
            .await?;
            Ok(history)
        }
    });
    let mut all = History::default();
    for part in parts.await {
        let part: Result<History> = part;
        all.merge(part?);
    }
    Ok(all)
}

/// What the records say of these statements of a session, which is no more than they are, however
/// many it has executed.
///
/// # Errors
/// A record cannot be read.
pub(crate) async fn load_statements(lsid: &Lsid, stmt_ids: &[i32]) -> Result<Vec<Record>> {
    let Some(collections) = RecordCollections::find() else {
        return Ok(Vec::new());
    };
    let tree = collections.records.tree();
    let keys = stmt_ids.iter().map(|stmt_id| statement_key(lsid, *stmt_id));
    let keys: Arc<[Key]> = keys.collect();
    let parts = on_all_cores(move |_| {
        let keys = keys.clone();
        async move { load_here(tree, &keys).await }
    });
    let mut all = Vec::new();
    for part in parts.await {
        let part: Result<Vec<Record>> = part;
        all.extend(part?);
    }
    Ok(all)
}

async fn load_here(tree: TreeId, keys: &[Key]) -> Result<Vec<Record>> {
    let storage = storage();
    let mut found = Vec::new();
    for partition in (0..storage.partition_count()).map(PartitionId) {
        let Some(owned) = storage.partition(partition) else {
            continue;
        };
        for key in keys {
            let read = owned.get(tree, key, ReadAt::NewestDecided).await;
            if let Some(read) = read.map_err(from_read_error)? {
                found.push(decode(stored_document(&read.value))?);
            }
            pinion_runtime::yield_if_due().await;
        }
    }
    Ok(found)
}

/// The document that a `findAndModify` at `ts` answered with.
///
/// # Errors
/// `IncompleteTransactionHistory` when it is not known here.
pub(crate) async fn image_of(
    lsid: &Lsid,
    txn_number: i64,
    ts: Timestamp,
    kind: RetryImage,
) -> Result<Bytes> {
    let incomplete = || {
        Error::new(
            ErrorCode::INCOMPLETE_TRANSACTION_HISTORY,
            format!(
                "Incomplete transaction history for sessionId: {} txnNumber: {txn_number}",
                pinion_query::document_text(&pinion_catalog::lsid_document(lsid))
            ),
        )
    };
    let images = RecordCollections::find().and_then(|found| found.images);
    let images = images.ok_or_else(incomplete)?;
    let (tree, key) = (images.tree(), session_key(lsid));
    let parts = on_all_cores(move |_| {
        let key = key.clone();
        async move {
            let mut found = None;
            for_each(tree, &key, |image| {
                let is_meant = image
                    .get_i64("txnNum")
                    .is_ok_and(|number| number == txn_number)
                    && timestamp(image, "ts") == Some(ts)
                    && image
                        .get_str("imageKind")
                        .is_ok_and(|name| name == kind.name())
                    && !image
                        .get_bool("invalidated")
                        .is_ok_and(|invalidated| invalidated);
                if is_meant && let Ok(image) = image.get_document("image") {
                    found = Some(Bytes::copy_from_slice(image.as_bytes()));
                }
                Ok(())
            })
            .await?;
            Ok(found)
        }
    });
    for part in parts.await {
        let part: Result<Option<Bytes>> = part;
        if let Some(image) = part? {
            return Ok(image);
        }
    }
    Err(incomplete())
}

/// Calls `f` with the session's documents in the partitions of this core. Prepared transactions are
/// not waited for: one may be the caller's own.
pub(crate) async fn for_each(
    tree: TreeId,
    session: &Key,
    mut f: impl FnMut(&RawDocument) -> Result<()>,
) -> Result<()> {
    let storage = storage();
    for partition in (0..storage.partition_count()).map(PartitionId) {
        let Some(owned) = storage.partition(partition) else {
            continue;
        };
        let range = KeyRange::prefix(session);
        let mut cursor = owned.cursor(tree, range, Direction::Forward, ReadAt::NewestDecided);
        while let Some((_, read)) = cursor.next().await.map_err(from_read_error)? {
            f(stored_document(&read.value))?;
            pinion_runtime::yield_if_due().await;
        }
    }
    Ok(())
}
