//! The routing table as the config servers have it: a database's document, a collection's, and its
//! chunks, all of them or those that changed.

use std::sync::Arc;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_query::{BUCKETS_PREFIX, buckets_of};
use pinion_service::compute::compute_bytes;
use pinion_sharding_protocol::documents::{
    CHUNKS, COLLECTIONS, CollectionDocument, DATABASES, DatabaseDocument,
};
use pinion_sharding_protocol::{
    CachedCollection, CachedDatabase, LoadError, RoutingTable, TableError,
};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::caches::{Caches, Placed};
use crate::cluster::Cluster;
use crate::config_reads::find_all;

impl Placed for CachedDatabase {
    fn caches(cluster: &Cluster) -> &Caches<CachedDatabase> {
        &cluster.databases
    }

    async fn load(
        name: &str,
        _: Option<CachedDatabase>,
    ) -> std::result::Result<CachedDatabase, LoadError> {
        let found = find_all(DATABASES, rawdoc! { "_id": name }, None).await;
        let found = found.map_err(LoadError::Failed)?;
        let Some(document) = found.first() else {
            return Ok(CachedDatabase::Absent);
        };
        let document = DatabaseDocument::parse(document).map_err(LoadError::Failed)?;
        Ok(CachedDatabase::There {
            primary: document.primary,
            version: document.version,
        })
    }
}

impl Placed for CachedCollection {
    fn caches(cluster: &Cluster) -> &Caches<CachedCollection> {
        &cluster.collections
    }

    async fn load(
        name: &str,
        base: Option<CachedCollection>,
    ) -> std::result::Result<CachedCollection, LoadError> {
        let Some(document) = entry_of(name).await.map_err(LoadError::Failed)? else {
            return Ok(CachedCollection::Unsharded);
        };
        let base = match base {
            Some(CachedCollection::Sharded(table)) if table.of.is_same(document.of) => Some(table),
            _ => None,
        };
        let from = base.as_ref().map(|table| table.version().placement());
        let by_version = Some(rawdoc! { "lastmod": 1 });
        let chunks = find_all(CHUNKS, document.chunks_filter(from), by_version).await;
        let chunks = chunks.map_err(LoadError::Failed)?;
        if document.time_series.is_some() {
            // The length of its buckets changes together with the versions of chunks, which may
            // have been read behind such a change.
            let again = entry_of(name).await.map_err(LoadError::Failed)?;
            if again.is_none_or(|again| again.time_series != document.time_series) {
                return Err(LoadError::NeedsFull(changed_meanwhile(name)));
            }
        }
        let bytes = chunks.iter().map(|chunk| chunk.as_bytes().len()).sum();
        let build = move || RoutingTable::read(&document, base.as_deref(), &chunks);
        let table = compute_bytes(bytes, build).await.map_err(load_error)?;
        Ok(CachedCollection::Sharded(Arc::new(table)))
    }
}

fn changed_meanwhile(name: &str) -> Error {
    Error::new(
        ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
        format!("the time series {name} has changed while its routing table was read"),
    )
}

/// What the config servers have of a name, if it is sharded.
async fn entry_of(name: &str) -> Result<Option<CollectionDocument>> {
    let found = find_all(COLLECTIONS, entries_of(name), None).await?;
    let parsed = found.iter().map(|found| CollectionDocument::parse(found));
    let mut parsed = parsed.collect::<Result<Vec<_>>>()?;
    parsed.retain(|found| !found.is_dropped);
    // That of the name itself before that of its buckets.
    let document = parsed
        .into_iter()
        .max_by_key(|found| found.ns.as_str() == name);
    Ok(document.map(|mut document| {
        if document.ns.as_str() == name {
            // A client that names buckets means them, and no measurements.
            document.time_series = None;
        }
        document
    }))
}

/// Selects the entry of a collection, and that of the buckets which it has where it is a series.
fn entries_of(name: &str) -> RawDocumentBuf {
    let buckets = Namespace::parse_sought(name).and_then(|ns| buckets_of(&ns));
    let is_plain = name
        .split_once('.')
        .is_some_and(|(_, name)| !name.starts_with(BUCKETS_PREFIX));
    match buckets {
        Ok(buckets) if is_plain => rawdoc! { "_id": { "$in": [name, buckets.as_str()] } },
        _ => rawdoc! { "_id": name },
    }
}

fn load_error(error: TableError) -> LoadError {
    match error {
        TableError::Malformed(error) => LoadError::Failed(error),
        other => LoadError::NeedsFull(Error::from(other)),
    }
}
