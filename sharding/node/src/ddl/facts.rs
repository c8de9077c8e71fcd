//! What a definition goes by: the collection of this node, and what the config servers have of it.

use pinion_bson::{Uuid, rawdoc};
use pinion_catalog::{Collection, CollectionKind, Uuid as CatalogUuid, core_catalog};
use pinion_query::IndexKind;
use pinion_runtime::wall_ms;
use pinion_service::generate::{new_object_id, random_bytes};
use pinion_sharding_protocol::ChunkVersion;
use pinion_sharding_protocol::ddl::{CollectionFacts, Facts, FreshIds, IndexFacts, LocalKind};
use pinion_sharding_protocol::documents::{
    ChunkDocument, CollectionDocument, ShardDocument, TagDocument,
};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use crate::config_servers::{read_config, read_config_sorted};
use crate::limits::{MAX_LISTED_COLLECTIONS, MAX_SHARDS, MAX_ZONE_RANGES};
use crate::local::LocalClient;
use crate::part::Membership;

/// Looks at a namespace.
///
/// # Errors
/// `CollectionUUIDMismatch`; the config servers cannot be reached.
pub(super) async fn look(
    shard: &Membership,
    ns: &Namespace,
    expected: Option<Uuid>,
) -> Result<Facts> {
    let local = local_facts(ns, expected).await?;
    let zones = rawdoc! { "ns": ns.as_str() };
    let zones = read_config(shard, ("config", "tags"), &zones, MAX_ZONE_RANGES).await?;
    let zones = zones.iter().map(|zone| TagDocument::parse(zone));
    Ok(Facts {
        me: shard.shard().clone(),
        local,
        sharded: sharded(shard, ns).await?,
        shards: shards(shard).await?,
        zones: zones.collect::<Result<_>>()?,
        fresh: FreshIds {
            uuid: random_uuid(),
            epoch: new_object_id(),
            timestamp: storage().vector_time().cluster().next(),
            now_ms: wall_ms(),
        },
    })
}

fn random_uuid() -> Uuid {
    let mut bytes = random_bytes::<16>();
    // Version 4.
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Uuid::from_bytes(bytes)
}

pub(super) async fn shards(shard: &Membership) -> Result<Vec<ShardDocument>> {
    let all = rawdoc! {};
    let found = read_config(shard, ("config", "shards"), &all, MAX_SHARDS).await?;
    found
        .iter()
        .map(|found| ShardDocument::parse(found))
        .collect()
}

/// The entry of the collection, and its version.
async fn sharded(
    shard: &Membership,
    ns: &Namespace,
) -> Result<Option<(CollectionDocument, ChunkVersion)>> {
    let filter = rawdoc! { "_id": ns.as_str() };
    let found = read_config(shard, ("config", "collections"), &filter, 1).await?;
    let found = found.first().map(|found| CollectionDocument::parse(found));
    let Some(found) = found.transpose()?.filter(|found| !found.is_dropped) else {
        return Ok(None);
    };
    let Some(uuid) = found.uuid else {
        return Ok(Some((
            found.clone(),
            ChunkVersion::without_chunks(found.of),
        )));
    };
    let filter = rawdoc! { "uuid": pinion_bson::Binary::from(uuid) };
    let newest = rawdoc! { "lastmod": -1 };
    let chunks = read_config_sorted(shard, ("config", "chunks"), &filter, &newest, 1).await?;
    let newest = chunks.first().map(|chunk| ChunkDocument::parse(chunk));
    let version = newest.transpose()?.map_or_else(
        || ChunkVersion::without_chunks(found.of),
        |newest| ChunkVersion::from_placement(found.of, newest.placement),
    );
    Ok(Some((found, version)))
}

/// Sharded collections of a database; some of them where there are many.
pub(super) async fn collections_of(shard: &Membership, db: &str) -> Result<Vec<(Namespace, Uuid)>> {
    // `/` follows `.`.
    let filter = rawdoc! { "_id": { "$gte": format!("{db}."), "$lt": format!("{db}/") } };
    let place = ("config", "collections");
    let found = read_config(shard, place, &filter, MAX_LISTED_COLLECTIONS).await?;
    let mut collections = Vec::new();
    for found in found {
        let found = CollectionDocument::parse(&found)?;
        match found.uuid {
            Some(uuid) if !found.is_dropped => collections.push((found.ns, uuid)),
            _ => {}
        }
    }
    Ok(collections)
}

async fn local_facts(ns: &Namespace, expected: Option<Uuid>) -> Result<CollectionFacts> {
    let catalog = core_catalog().current();
    let found = catalog.get(ns);
    if let Some(expected) = expected {
        let expected = CatalogUuid(expected.bytes());
        let found = found.map(|found| &**found);
        pinion_catalog::check_collection_uuid(&catalog, ns, found, expected)?;
    }
    let Some(found) = found else {
        let kind = match catalog.kind(ns) {
            None => LocalKind::Absent,
            Some(CollectionKind::TimeSeries) => LocalKind::TimeSeries,
            Some(_) => LocalKind::View,
        };
        return Ok(CollectionFacts {
            kind,
            ..CollectionFacts::absent()
        });
    };
    Ok(CollectionFacts {
        is_empty: is_empty(ns).await?,
        ..facts_of(found)
    })
}

/// Whether a collection has no document now.
pub(super) async fn is_empty(ns: &Namespace) -> Result<bool> {
    let place = (ns.db(), ns.collection());
    let any = LocalClient::new()?.find(place, &rawdoc! {}, 1).await?;
    Ok(any.is_empty())
}

fn facts_of(found: &Collection) -> CollectionFacts {
    let options = &found.options;
    let is_clustered = options.clustered.is_some();
    // Those of other kinds have no entry for each document, or not in the order of values.
    let ordered = found
        .index_specs()
        .iter()
        .filter(|index| index.ready && matches!(index.kind, IndexKind::Btree | IndexKind::Hashed));
    let indexes = ordered.map(|index| IndexFacts {
        name: index.name.clone(),
        key: index.key.clone(),
        is_unique: index.unique || index.prepare_unique || index.is_id(),
        is_sparse: index.sparse,
        is_partial: index.filter.is_some(),
        is_hidden: index.hidden,
        is_multikey: index.is_multikey(),
        has_collation: index.collation.is_some(),
    });
    CollectionFacts {
        kind: LocalKind::Collection,
        uuid: Some(Uuid::from_bytes(found.uuid.0)),
        options: options.to_document(),
        collation: options.collation.clone(),
        is_capped: options.capped.is_some(),
        is_empty: true,
        has_builds: !found.builds().is_empty(),
        id_index: (!is_clustered).then(|| options.id_index()),
        other_indexes: found.index_requests(),
        index_count: found.index_count(),
        indexes: indexes.collect(),
    }
}

/// Refuses a copy of a collection where there is another one of its name.
pub(super) fn foreign(ns: &Namespace, here: CatalogUuid, there: CatalogUuid) -> Error {
    Error::new(
        ErrorCode::INVALID_UUID,
        format!(
            "Cannot create collection {ns} because we already have an identically named collection with UUID {here}, which differs from the donor's UUID {there}. Manually drop the collection on this shard if it contains data from a previous incarnation of {ns}"
        ),
    )
}
