//! A table as the config servers have it: all of it, or what has changed.

use std::sync::Arc;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_service::compute::compute_bytes;
use pinion_sharding_protocol::documents::{
    CHUNKS, COLLECTIONS, CachedCollectionDocument, CollectionDocument,
};
use pinion_sharding_protocol::{Incarnation, MAX_REFRESH_RETRIES, RoutingTable, TableError};
use pinion_wire::{Error, ErrorCode, Result};

use super::cached::{is_whole, table_of};
use crate::config_servers::read_config_all;
use crate::part::Membership;

/// What was read of a collection that is sharded.
pub(super) struct LoadedTable {
    pub(super) collection: CollectionDocument,
    pub(super) table: Arc<RoutingTable>,
    /// The documents of its chunks, without those that are kept already unless `is_full`.
    pub(super) chunks: Vec<RawDocumentBuf>,
    pub(super) is_full: bool,
}

/// What the next table is built on.
struct Base {
    table: Arc<RoutingTable>,
    /// The lower one of its version and that of what is kept.
    from: Timestamp,
}

/// Reads a collection of the config servers, building on the table that is known and on what this
/// set keeps; `None` where it is not sharded.
///
/// # Errors
/// They cannot be reached; `ConflictingOperationInProgress` where the collection is changed all the
/// time, or what they say is older than what is known.
pub(super) async fn load(
    shard: &Membership,
    ns: &str,
    known: Option<Arc<RoutingTable>>,
    stored: Option<&CachedCollectionDocument>,
) -> Result<Option<LoadedTable>> {
    let mut failed = None;
    for attempt in 0..=MAX_REFRESH_RETRIES {
        let filter = rawdoc! { "_id": ns };
        let found = read_config_all(shard, COLLECTIONS, &filter, None).await?;
        let Some(document) = found.first() else {
            return Ok(None);
        };
        let collection = CollectionDocument::parse(document)?;
        if collection.is_dropped {
            return Ok(None);
        }
        check_not_older(&collection, known.as_deref(), stored)?;
        let base = match attempt {
            0 => base_of(collection.of, known.clone(), stored).await,
            _ => None,
        };
        match read(shard, collection, base).await? {
            Ok(loaded) => {
                check_not_back(&loaded.table, known.as_deref(), stored)?;
                return Ok(Some(loaded));
            }
            Err(TableError::Malformed(error)) => return Err(error),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.expect("it was tried").into())
}

async fn read(
    shard: &Membership,
    collection: CollectionDocument,
    base: Option<Base>,
) -> Result<std::result::Result<LoadedTable, TableError>> {
    let filter = collection.chunks_filter(base.as_ref().map(|base| base.from));
    let by_version = rawdoc! { "lastmod": 1 };
    let chunks = read_config_all(shard, CHUNKS, &filter, Some(&by_version)).await?;
    let bytes = chunks.iter().map(|chunk| chunk.as_bytes().len()).sum();
    let is_full = base.is_none();
    let build = move || {
        let base = base.as_ref().map(|base| &*base.table);
        let table = RoutingTable::read(&collection, base, &chunks)?;
        Ok(LoadedTable {
            collection,
            table: Arc::new(table),
            chunks,
            is_full,
        })
    };
    Ok(compute_bytes(bytes, build).await)
}

/// What is known and kept of the same incarnation. Without an entry that is whole, all is read: it
/// has to be written too.
async fn base_of(
    of: Incarnation,
    known: Option<Arc<RoutingTable>>,
    stored: Option<&CachedCollectionDocument>,
) -> Option<Base> {
    let stored = stored.filter(|stored| is_whole(stored) && stored.of.is_same(of))?;
    let kept = stored.last_refreshed?;
    let known = known.filter(|known| known.of.is_same(of));
    let table = match known {
        Some(known) => known,
        // What cannot be read of it is read from the config servers.
        None => table_of(stored.clone(), None).await.ok()?,
    };
    Some(Base {
        from: kept.min(table.version().placement()),
        table,
    })
}

fn older(ns: &str) -> Error {
    Error::new(
        ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
        format!("the config servers have an older routing table of {ns} than this shard"),
    )
}

/// The source is behind where it has an incarnation that ended before the known one.
fn check_not_older(
    collection: &CollectionDocument,
    known: Option<&RoutingTable>,
    stored: Option<&CachedCollectionDocument>,
) -> Result<()> {
    let before = known.map(|known| known.of).into_iter();
    let mut before = before.chain(stored.map(|stored| stored.of));
    match before.any(|of| collection.of.is_older_than(of) == Some(true)) {
        true => Err(older(collection.ns.as_str())),
        false => Ok(()),
    }
}

/// Nor may the version go back within one.
fn check_not_back(
    table: &RoutingTable,
    known: Option<&RoutingTable>,
    stored: Option<&CachedCollectionDocument>,
) -> Result<()> {
    let known = known
        .filter(|known| known.of.is_same(table.of))
        .map(|known| known.version().placement());
    let stored = stored
        .filter(|stored| stored.of.is_same(table.of))
        .and_then(|stored| stored.last_refreshed);
    match Some(table.version().placement()) < known.max(stored) {
        true => Err(older(table.ns.as_str())),
        false => Ok(()),
    }
}
