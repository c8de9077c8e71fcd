//! What this set keeps of its collections, read: `config.cache.collections` and
//! `config.cache.chunks.<ns>`.

use std::collections::BTreeSet;
use std::sync::Arc;

use pinion_bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_exec::local::{document_by_id, each_document};
use pinion_runtime::{now, sleep};
use pinion_service::compute::compute_bytes;
use pinion_sharding_protocol::RoutingTable;
use pinion_sharding_protocol::documents::{CACHED_COLLECTIONS, CachedCollectionDocument};
use pinion_wire::{Error, ErrorCode, Result};

use crate::data::enter_data;
use crate::limits::{CACHE_APPLIED, CACHE_READ_PAUSE, MAX_TABLE_BYTES};

/// The entry of a collection, if there is one.
///
/// # Errors
/// Those of a read; it is none.
pub(super) async fn stored(ns: &str) -> Result<Option<CachedCollectionDocument>> {
    let _open = enter_data()?;
    let found = document_by_id(CACHED_COLLECTIONS, RawBsonRef::String(ns)).await?;
    found
        .map(|document| CachedCollectionDocument::parse(&document))
        .transpose()
}

/// Whether there is an entry of a collection, in whatever form.
///
/// # Errors
/// Those of a read.
pub(super) async fn is_stored(ns: &str) -> Result<bool> {
    let _open = enter_data()?;
    let found = document_by_id(CACHED_COLLECTIONS, RawBsonRef::String(ns)).await?;
    Ok(found.is_some())
}

/// The names of the collections that have an entry.
///
/// # Errors
/// Those of a read.
pub(super) async fn names() -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut take = |document: &RawDocument| {
        match pinion_bson::get(document, "_id") {
            Some(RawBsonRef::String(ns)) => drop(names.insert(ns.to_owned())),
            _ => {
                tracing::warn!(target: "SHARDING", id = 7_500_007u64, "An entry of config.cache.collections has no name, and is passed over");
            }
        }
        Ok(())
    };
    each_document(CACHED_COLLECTIONS, &RawDocumentBuf::new(), &mut take).await?;
    Ok(names)
}

/// Whether all chunks of an entry were written with it.
pub(super) fn is_whole(stored: &CachedCollectionDocument) -> bool {
    stored.is_refreshing == Some(false) && stored.last_refreshed.is_some()
}

async fn chunks(
    stored: &CachedCollectionDocument,
    base: Option<&RoutingTable>,
) -> Result<Vec<RawDocumentBuf>> {
    let from = base.map(|table| table.version().placement());
    let filter = CachedCollectionDocument::chunks_filter(from);
    let (mut found, mut bytes) = (Vec::new(), 0);
    let mut take = |document: &RawDocument| {
        bytes += document.as_bytes().len();
        if bytes > MAX_TABLE_BYTES {
            return Err(Error::new(
                ErrorCode::EXCEEDED_MEMORY_LIMIT,
                format!("chunks of {} exceed {MAX_TABLE_BYTES} bytes", stored.ns),
            ));
        }
        found.push(document.to_owned());
        // The data are not kept open for as long as this takes.
        enter_data().map(drop)
    };
    let _open = enter_data()?;
    each_document(&stored.chunks_ns(), &filter, &mut take).await?;
    Ok(found)
}

/// The table of an entry that is whole, built on a former one where that is of the same
/// incarnation.
///
/// # Errors
/// Those of a read; the chunks are being changed.
pub(super) async fn table_of(
    stored: CachedCollectionDocument,
    base: Option<Arc<RoutingTable>>,
) -> Result<Arc<RoutingTable>> {
    let base = base.filter(|base| {
        let is_later = stored.last_refreshed >= Some(base.version().placement());
        base.of.is_same(stored.of) && is_later
    });
    let chunks = chunks(&stored, base.as_deref()).await?;
    let bytes = chunks.iter().map(|chunk| chunk.as_bytes().len()).sum();
    let build = move || RoutingTable::read_cached(&stored, base.as_deref(), &chunks);
    Ok(Arc::new(compute_bytes(bytes, build).await?))
}

/// The table of a collection as this set keeps it, once its primary has written all of it; `None`
/// where it is not sharded.
///
/// # Errors
/// Those of a read; `ConflictingOperationInProgress` where it is written for too long.
pub(super) async fn table(
    ns: &str,
    base: Option<Arc<RoutingTable>>,
) -> Result<Option<Arc<RoutingTable>>> {
    let until = now() + CACHE_APPLIED;
    let mut base = base;
    loop {
        let Some(before) = stored(ns).await? else {
            return Ok(None);
        };
        if is_whole(&before) {
            let table = table_of(before.clone(), base.take()).await;
            let is_unchanged = stored(ns).await?.as_ref() == Some(&before);
            match table {
                Ok(table)
                    if is_unchanged
                        && Some(table.version().placement()) == before.last_refreshed =>
                {
                    return Ok(Some(table));
                }
                Err(error) if error.code != ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS => {
                    return Err(error);
                }
                _ => {}
            }
        }
        if now() >= until {
            return Err(Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("the primary has not written all of the chunks of {ns} in time"),
            ));
        }
        sleep(CACHE_READ_PAUSE).await;
    }
}
