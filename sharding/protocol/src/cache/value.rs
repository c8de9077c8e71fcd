//! What is cached: the placement of a collection, and that of a database.

use std::fmt;
use std::sync::Arc;

use super::Cacheable;
use crate::shard_id::ShardId;
use crate::table::RoutingTable;
use crate::version::{DatabaseVersion, ShardVersion};

/// What a cache knows of a collection.
#[derive(Clone)]
pub enum CachedCollection {
    /// It is on the primary shard of its database, or does not exist.
    Unsharded,
    Sharded(Arc<RoutingTable>),
}

impl CachedCollection {
    /// The version to send to a shard.
    pub fn version_for(&self, shard: &str) -> ShardVersion {
        match self {
            CachedCollection::Unsharded => ShardVersion::Unsharded,
            CachedCollection::Sharded(table) => table.shard_version(shard),
        }
    }

    fn version(&self, shard: Option<&ShardId>) -> ShardVersion {
        match (self, shard) {
            (_, Some(shard)) => self.version_for(shard),
            (CachedCollection::Unsharded, None) => ShardVersion::Unsharded,
            (CachedCollection::Sharded(table), None) => ShardVersion::Placed(table.version()),
        }
    }
}

impl fmt::Debug for CachedCollection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CachedCollection::Unsharded => f.write_str("unsharded"),
            CachedCollection::Sharded(table) => {
                write!(f, "{} at {:?}", table.ns, table.version())
            }
        }
    }
}

impl Cacheable for CachedCollection {
    type Version = ShardVersion;

    fn is_kept(&self) -> bool {
        true
    }

    fn is_older_than(&self, shard: Option<&ShardId>, version: ShardVersion) -> Option<bool> {
        self.version(shard).is_older_than(version)
    }

    fn is_newer_than(&self, shard: Option<&ShardId>, version: ShardVersion) -> Option<bool> {
        version.is_older_than(self.version(shard))
    }

    fn latest(one: ShardVersion, other: ShardVersion) -> ShardVersion {
        match other.is_older_than(one) {
            Some(true) => one,
            _ => other,
        }
    }

    fn goes_back_from(&self, known: &CachedCollection) -> bool {
        self.version(None).is_older_than(known.version(None)) == Some(true)
    }

    fn is_base_for(&self, version: Option<ShardVersion>) -> bool {
        match (self, version) {
            (CachedCollection::Unsharded, _) => false,
            (CachedCollection::Sharded(_), None) => true,
            (CachedCollection::Sharded(table), Some(ShardVersion::Placed(version))) => {
                table.of.is_same(version.of)
            }
            (CachedCollection::Sharded(_), Some(_)) => false,
        }
    }
}

/// What a cache knows of a database.
#[derive(Clone, Debug, PartialEq)]
pub enum CachedDatabase {
    /// It does not exist: it is looked for at each access.
    Absent,
    There {
        primary: ShardId,
        version: DatabaseVersion,
    },
}

impl CachedDatabase {
    fn version(&self) -> Option<DatabaseVersion> {
        match self {
            CachedDatabase::Absent => None,
            CachedDatabase::There { version, .. } => Some(*version),
        }
    }
}

impl Cacheable for CachedDatabase {
    type Version = DatabaseVersion;

    fn is_kept(&self) -> bool {
        *self != CachedDatabase::Absent
    }

    fn is_older_than(&self, _: Option<&ShardId>, version: DatabaseVersion) -> Option<bool> {
        self.version()?.is_older_than(version)
    }

    fn is_newer_than(&self, _: Option<&ShardId>, version: DatabaseVersion) -> Option<bool> {
        version.is_older_than(self.version()?)
    }

    fn latest(one: DatabaseVersion, other: DatabaseVersion) -> DatabaseVersion {
        match other.is_older_than(one) {
            Some(true) => one,
            _ => other,
        }
    }

    fn goes_back_from(&self, known: &CachedDatabase) -> bool {
        match (self.version(), known.version()) {
            (Some(version), Some(known)) => version.is_older_than(known) == Some(true),
            _ => false,
        }
    }

    /// A database is one document: it is always read whole.
    fn is_base_for(&self, _: Option<DatabaseVersion>) -> bool {
        false
    }
}
