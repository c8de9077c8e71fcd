//! What a definition goes by: the collection of this node, and what the config servers have of it.

use pinion_bson::{RawArrayBuf, RawDocumentBuf, Uuid, rawdoc};
use pinion_catalog::{
    Collection, CollectionKind, CollectionOptions, Uuid as CatalogUuid, core_catalog,
};
use pinion_query::{IndexKind, buckets_of, series_of};
use pinion_runtime::wall_ms;
use pinion_service::generate::{new_object_id, random_bytes};
use pinion_sharding_protocol::ddl::{CollectionFacts, Facts, FreshIds, IndexFacts, LocalKind};
use pinion_sharding_protocol::documents::{
    COLLECTIONS, ChunkDocument, CollectionDocument, ShardDocument, TagDocument,
};
use pinion_sharding_protocol::{ChunkVersion, ShardId};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use crate::config_servers::{distinct_of_config, read_config, read_config_all, read_config_sorted};
use crate::limits::{MAX_LISTED_COLLECTIONS, MAX_SHARDS, MAX_ZONE_RANGES};
use crate::local::LocalClient;
use crate::part::Membership;
use crate::v44::check_no_chunks;

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
    let sharded = sharded(shard, ns).await?;
    if sharded.is_none() {
        check_no_chunks(shard, ns).await?;
    }
    Ok(Facts {
        me: shard.shard().clone(),
        local,
        sharded,
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

pub(super) fn random_uuid() -> Uuid {
    let mut bytes = random_bytes::<16>();
    // Version 4.
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    Uuid::from_bytes(bytes)
}

/// All shards of the cluster.
///
/// # Errors
/// The config servers cannot be reached; a document is none of a shard.
pub(crate) async fn shards(shard: &Membership) -> Result<Vec<ShardDocument>> {
    let all = rawdoc! {};
    let found = read_config(shard, ("config", "shards"), &all, MAX_SHARDS).await?;
    found
        .iter()
        .map(|found| ShardDocument::parse(found))
        .collect()
}

/// The shards that own chunks of a collection.
pub(super) async fn owners(shard: &Membership, uuid: Uuid) -> Result<Vec<ShardId>> {
    let filter = rawdoc! { "uuid": pinion_bson::Binary::from(uuid) };
    let found = distinct_of_config(shard, ("config", "chunks"), "shard", &filter).await?;
    let names = found.iter().filter_map(|name| name.as_str());
    Ok(names.map(ShardId::new).collect())
}

/// Whether the config servers have an entry of the collection.
///
/// # Errors
/// They cannot be reached.
pub(super) async fn is_sharded(shard: &Membership, ns: &Namespace) -> Result<bool> {
    Ok(entry(shard, ns).await?.is_some())
}

/// The same of any of these.
///
/// # Errors
/// They cannot be reached.
pub(super) async fn any_is_sharded(shard: &Membership, all: &[Namespace]) -> Result<bool> {
    let mut names = RawArrayBuf::new();
    all.iter().for_each(|ns| names.push(ns.as_str()));
    let filter = rawdoc! { "_id": { "$in": names } };
    let place = ("config", "collections");
    for found in read_config(shard, place, &filter, all.len() as i32).await? {
        if !CollectionDocument::parse(&found)?.is_dropped {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn entry(shard: &Membership, ns: &Namespace) -> Result<Option<CollectionDocument>> {
    let filter = rawdoc! { "_id": ns.as_str() };
    let found = read_config(shard, ("config", "collections"), &filter, 1).await?;
    let found = found.first().map(|found| CollectionDocument::parse(found));
    Ok(found.transpose()?.filter(|found| !found.is_dropped))
}

/// The entry of the collection, and its version.
async fn sharded(
    shard: &Membership,
    ns: &Namespace,
) -> Result<Option<(CollectionDocument, ChunkVersion)>> {
    let Some(found) = entry(shard, ns).await? else {
        return Ok(None);
    };
    let filter = found.chunks_filter(None);
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
    sharded_in(found)
}

/// All of them.
pub(super) async fn all_collections_of(
    shard: &Membership,
    db: &str,
) -> Result<Vec<(Namespace, Uuid)>> {
    let filter = rawdoc! { "_id": { "$gte": format!("{db}."), "$lt": format!("{db}/") } };
    sharded_in(read_config_all(shard, COLLECTIONS, &filter, None).await?)
}

fn sharded_in(found: Vec<RawDocumentBuf>) -> Result<Vec<(Namespace, Uuid)>> {
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

pub(super) async fn local_facts(ns: &Namespace, expected: Option<Uuid>) -> Result<CollectionFacts> {
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
        options: requested(options),
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

/// Options as `create` takes them, of buckets for their series.
fn requested(options: &CollectionOptions) -> RawDocumentBuf {
    if options.time_series.is_none() {
        return options.to_document();
    }
    let of_series = CollectionOptions {
        validator: None,
        clustered: None,
        ..options.clone()
    };
    of_series.to_document()
}

/// The series of a collection of buckets, if it is here. Another view of its name is none.
pub(super) fn series_here(buckets: &Namespace) -> Option<Namespace> {
    let catalog = core_catalog().current();
    let is_here = |series: &Namespace| catalog.kind(series) == Some(CollectionKind::TimeSeries);
    series_of(buckets).filter(is_here)
}

/// The namespace by which the cluster defines what a name stands for: of a series that is here, or
/// is sharded, its buckets.
///
/// # Errors
/// The config servers cannot be reached.
pub(super) async fn defined_by(shard: &Membership, ns: &Namespace) -> Result<Namespace> {
    let kind = core_catalog().current().kind(ns);
    let Ok(buckets) = buckets_of(ns) else {
        return Ok(ns.clone());
    };
    let is_series = match kind {
        Some(kind) => kind == CollectionKind::TimeSeries,
        None => is_sharded(shard, &buckets).await?,
    };
    Ok(if is_series { buckets } else { ns.clone() })
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
