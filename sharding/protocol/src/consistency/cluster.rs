//! The catalog as a whole: each collection has a database, each database a shard, and each chunk a
//! collection.

use std::collections::BTreeSet;

use pinion_bson::Uuid;

use super::inconsistency::Inconsistencies;
use crate::documents::{CollectionDocument, DatabaseDocument};
use crate::shard_id::ShardId;
use crate::values::append_uuid;

/// What the config servers have, without the chunks themselves.
#[derive(Clone, Debug, Default)]
pub struct ClusterCatalog {
    pub shards: BTreeSet<ShardId>,
    pub databases: Vec<DatabaseDocument>,
    pub collections: Vec<CollectionDocument>,
    /// The UUIDs that chunks are of, and how many.
    pub chunks: Vec<(Uuid, i64)>,
}

/// Checks the catalog of a cluster. Chunks without a collection are those of a definition while it
/// runs, too: their number changes then.
pub fn check_cluster(catalog: &ClusterCatalog) -> Inconsistencies {
    let mut found = Inconsistencies::default();
    for database in &catalog.databases {
        if !catalog.shards.contains(&database.primary) {
            found.add(
                "DatabaseUnknownShard",
                "Found a database whose primary shard does not exist",
                &database.name,
                |out| {
                    out.append("primary", database.primary.as_str());
                },
            );
        }
    }
    let databases = catalog.databases.iter().map(|database| &*database.name);
    let databases: BTreeSet<&str> = databases.collect();
    for collection in &catalog.collections {
        let db = collection.ns.db();
        if !databases.contains(db) && db != "config" {
            found.add_of(
                "HiddenShardedCollection",
                "Found a sharded collection of a database that does not exist",
                (&collection.ns, collection.uuid),
                |_| {},
            );
        }
    }
    let known = |uuid: Uuid| {
        catalog
            .collections
            .iter()
            .any(|other| other.uuid == Some(uuid))
    };
    for (uuid, count) in &catalog.chunks {
        if !known(*uuid) {
            found.add(
                "ChunksWithoutCollection",
                "Found chunks of a collection that is not sharded",
                "config.chunks",
                |out| {
                    append_uuid(out, "collectionUUID", *uuid);
                    out.append("numChunks", *count);
                },
            );
        }
    }
    found
}
