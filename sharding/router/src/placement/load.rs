//! The routing table as the config servers have it: a database's document, a collection's, and its
//! chunks, all of them or those that changed.

use std::sync::Arc;

use pinion_bson::{Binary, DocBuilder, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_service::compute::compute_bytes;
use pinion_sharding_protocol::documents::{
    CHUNKS, COLLECTIONS, ChunkDocument, CollectionDocument, DATABASES, DatabaseDocument,
};
use pinion_sharding_protocol::{
    CachedCollection, CachedDatabase, LoadError, RoutingTable, TableError,
};
use pinion_wire::{Error, Result};

use super::caches::{Caches, Placed};
use crate::clock::bson_time;
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
        let chunks = chunks_of(&document, from).await;
        let chunks = chunks.map_err(LoadError::Failed)?;
        let bytes = chunks.iter().map(|chunk| chunk.as_bytes().len()).sum();
        let build = move || build(&document, base.as_deref(), &chunks);
        let table = compute_bytes(bytes, build).await.map_err(load_error)?;
        Ok(CachedCollection::Sharded(Arc::new(table)))
    }
}

/// The chunks of a collection from a version on, or all.
async fn chunks_of(
    collection: &CollectionDocument,
    from: Option<Timestamp>,
) -> Result<Vec<RawDocumentBuf>> {
    let mut filter = DocBuilder::new();
    match collection.uuid {
        Some(uuid) => {
            let uuid = pinion_bson::RawBson::Binary(Binary::from(uuid));
            filter.append_raw("uuid", uuid.as_raw_bson_ref());
        }
        None => {
            filter.append("ns", collection.ns.as_str());
        }
    }
    if let Some(from) = from {
        filter.start_document("lastmod");
        filter.append_raw("$gte", bson_time(from)).end();
    }
    find_all(CHUNKS, filter.finish(), Some(rawdoc! { "lastmod": 1 })).await
}

fn build(
    collection: &CollectionDocument,
    base: Option<&RoutingTable>,
    chunks: &[RawDocumentBuf],
) -> std::result::Result<RoutingTable, TableError> {
    let parsed: Result<Vec<ChunkDocument>> = chunks
        .iter()
        .map(|chunk| ChunkDocument::parse(chunk))
        .collect();
    match base {
        Some(base) => base.apply(collection, parsed?),
        None => RoutingTable::new(collection, parsed?),
    }
}

fn load_error(error: TableError) -> LoadError {
    match error {
        TableError::Malformed(error) => LoadError::Failed(error),
        other => LoadError::NeedsFull(Error::from(other)),
    }
}
