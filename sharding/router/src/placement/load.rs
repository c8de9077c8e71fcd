//! The routing table as the config servers have it: a database's document, a collection's, and its
//! chunks, all of them or those that changed.

use std::sync::Arc;

use pinion_bson::rawdoc;
use pinion_service::compute::compute_bytes;
use pinion_sharding_protocol::documents::{
    CHUNKS, COLLECTIONS, CollectionDocument, DATABASES, DatabaseDocument,
};
use pinion_sharding_protocol::{
    CachedCollection, CachedDatabase, LoadError, RoutingTable, TableError,
};
use pinion_wire::Error;

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
        let found = find_all(COLLECTIONS, rawdoc! { "_id": name }, None).await;
        let found = found.map_err(LoadError::Failed)?;
        let Some(document) = found.first() else {
            return Ok(CachedCollection::Unsharded);
        };
        let document = CollectionDocument::parse(document).map_err(LoadError::Failed)?;
        if document.is_dropped {
            return Ok(CachedCollection::Unsharded);
        }
        let base = match base {
            Some(CachedCollection::Sharded(table)) if table.of.is_same(document.of) => Some(table),
            _ => None,
        };
        let from = base.as_ref().map(|table| table.version().placement());
        let by_version = Some(rawdoc! { "lastmod": 1 });
        let chunks = find_all(CHUNKS, document.chunks_filter(from), by_version).await;
        let chunks = chunks.map_err(LoadError::Failed)?;
        let bytes = chunks.iter().map(|chunk| chunk.as_bytes().len()).sum();
        let build = move || RoutingTable::read(&document, base.as_deref(), &chunks);
        let table = compute_bytes(bytes, build).await.map_err(load_error)?;
        Ok(CachedCollection::Sharded(Arc::new(table)))
    }
}

fn load_error(error: TableError) -> LoadError {
    match error {
        TableError::Malformed(error) => LoadError::Failed(error),
        other => LoadError::NeedsFull(Error::from(other)),
    }
}
