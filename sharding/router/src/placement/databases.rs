//! Databases: the shard that each has its unsharded collections on.

use std::sync::Arc;

use pinion_sharding_protocol::{
    CachedDatabase, DatabaseVersion, ShardId, StaleDatabaseInfo, Staleness, Targets,
    has_fixed_placement,
};
use pinion_wire::{Error, Result};

use super::caches::{find, flush, mark};
use crate::cluster::Cluster;
use crate::config_reads::run_at_config;
use crate::planted::PlantedFault;

/// Where a database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    pub name: Box<str>,
    pub primary: ShardId,
    pub version: DatabaseVersion,
}

impl Database {
    /// `config` and `admin`, which are on the config servers.
    fn of_config_servers(name: &str) -> Database {
        Database {
            name: name.into(),
            primary: ShardId::new(ShardId::CONFIG),
            version: DatabaseVersion::FIXED,
        }
    }
}

/// Where a database is; `None` if there is none of this name.
///
/// # Errors
/// The config servers do not answer.
pub(crate) async fn database(name: &str) -> Result<Option<Arc<Database>>> {
    if has_fixed_placement(name) {
        return Ok(Some(Arc::new(Database::of_config_servers(name))));
    }
    Ok(match find(name, Targets::Unknown).await? {
        CachedDatabase::Absent => None,
        CachedDatabase::There { primary, version } => Some(Arc::new(Database {
            name: name.into(),
            primary,
            version,
        })),
    })
}

/// The same, after a shard refused the version that was known.
///
/// # Errors
/// The config servers do not answer.
pub(crate) async fn database_beyond(stale: StaleDatabaseInfo) -> Result<Option<Arc<Database>>> {
    let staleness = Staleness {
        shard: None,
        received: Some(stale.received),
        wanted: stale.wanted,
        is_dropped: false,
    };
    if Cluster::here().planted_fault != PlantedFault::StaleDatabaseReturned {
        mark::<CachedDatabase>(&stale.db, staleness).await;
    }
    database(&stale.db).await
}

/// Where a database is, which is made if there is none: on the shard with the least data, or on
/// the one that is named.
///
/// # Errors
/// `DatabaseDifferCase` if there is one that is spelled otherwise, `ShardNotFound` where there are
/// no shards, `NamespaceExists` if it is on another shard than the one named; the config servers
/// do not answer.
pub(crate) async fn make_database(name: &str, primary: Option<&ShardId>) -> Result<Arc<Database>> {
    if primary.is_none()
        && let Some(found) = database(name).await?
    {
        return Ok(found);
    }
    run_at_config(
        "admin",
        |out| {
            out.append("_configsvrCreateDatabase", name);
            if let Some(primary) = primary {
                out.append("primaryShardId", primary.as_str());
            }
            out.start_document("writeConcern")
                .append("w", "majority")
                .end();
        },
        None,
    )
    .await
    .map_err(|error| error.context(format!("Database {name} could not be created")))?;
    forget_database(name).await;
    match database(name).await? {
        Some(found) => Ok(found),
        None => Err(Error::new(
            pinion_wire::ErrorCode::NAMESPACE_NOT_FOUND,
            format!("database {name} not found"),
        )),
    }
}

/// Has all cores forget a database: it was dropped, or has another place.
pub(crate) async fn forget_database(name: &str) {
    let name: Arc<str> = name.into();
    flush::<CachedDatabase>(move |other| *other == *name).await;
}
