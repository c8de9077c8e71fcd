//! Collections: whether they are sharded, and by which table.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawBinaryRef, RawBsonRef, RawDocument};
use pinion_query::{buckets_of, series_of};
use pinion_sharding_protocol::documents::COLLECTIONS;
use pinion_sharding_protocol::{
    CachedCollection, CachedDatabase, RoutingTable, ShardVersion, StaleDatabaseInfo,
    StaleEpochInfo, StaleInfo, Staleness, Targets, has_fixed_placement,
};
use pinion_wire::idl::{Namespace, i64_exact};
use pinion_wire::{Error, ErrorCode, Result};

use super::caches::{find, flush, mark};
use super::databases::{database_beyond, forget_database};
use crate::cluster::Cluster;
use crate::config_reads::find_all;
use crate::planted::PlantedFault;

/// The table of a collection, in which what concerns these targets is not known to be stale; `None`
/// where it is not sharded, or does not exist.
///
/// # Errors
/// The config servers do not answer.
pub(crate) async fn table_of(
    ns: &Namespace,
    targets: Targets,
) -> Result<Option<Arc<RoutingTable>>> {
    // Names that begin so are of no collection.
    let is_none = ns.collection().is_empty() || ns.collection().starts_with("$cmd");
    if has_fixed_placement(ns.db()) || ns.db() == "local" || is_none {
        return Ok(None);
    }
    match find(ns.as_str(), targets).await? {
        CachedCollection::Unsharded => Ok(None),
        CachedCollection::Sharded(table) => Ok(Some(table)),
    }
}

/// The namespace that the config servers have of a name: of a sharded series its buckets.
///
/// # Errors
/// The config servers do not answer.
pub(crate) async fn defined_by(ns: &Namespace) -> Result<Namespace> {
    let table = table_of(ns, Targets::Unknown).await?;
    Ok(table.map_or_else(|| ns.clone(), |table| table.ns.clone()))
}

/// Marks what is known of a collection as stale, of buckets by the name of their series too.
async fn mark_collection(ns: &Namespace, staleness: Staleness<ShardVersion>) {
    if let Some(series) = series_of(ns) {
        mark::<CachedCollection>(series.as_str(), staleness.clone()).await;
    }
    mark::<CachedCollection>(ns.as_str(), staleness).await;
}

/// Takes note that a shard has refused the version of a collection.
async fn collection_is_stale(info: StaleInfo) {
    if Cluster::here().planted_fault == PlantedFault::StaleTableReturned {
        return;
    }
    // A version of another life says that no part of what is known is right.
    let is_of_part = match (info.received, info.wanted) {
        (ShardVersion::Placed(received), Some(ShardVersion::Placed(wanted))) => {
            received.of.is_same(wanted.of)
        }
        (ShardVersion::Placed(_), None) => true,
        _ => false,
    };
    let staleness = Staleness {
        shard: is_of_part.then_some(info.shard),
        received: Some(info.received),
        wanted: info.wanted,
        is_dropped: false,
    };
    mark_collection(&info.ns, staleness).await;
}

/// Has the next access learn what has changed of the chunks of a collection: this process has had
/// some split or merged. Nothing else has to.
pub(crate) async fn chunks_have_changed(ns: &Namespace) {
    let staleness = Staleness {
        shard: None,
        received: None,
        wanted: None,
        is_dropped: false,
    };
    mark_collection(ns, staleness).await;
}

/// Takes note of an error by which a shard says that this process has an old table. False for any
/// other error.
///
/// # Errors
/// What the error says cannot be read.
pub(crate) async fn shard_is_stale(error: &Error) -> Result<bool> {
    if let Some(info) = StaleInfo::from_error(error)? {
        tracing::debug!(target: "SHARDING", id = 7_300_011u64, ns = info.ns.as_str(), shard = %info.shard, "A shard does not have this version of a collection");
        collection_is_stale(info).await;
        return Ok(true);
    }
    if let Some(info) = StaleEpochInfo::from_error(error)? {
        flush_collection(&info.ns).await;
        return Ok(true);
    }
    Ok(false)
}

/// The same, and of errors that concern the place of a database.
///
/// # Errors
/// What the error says cannot be read; the config servers do not answer.
pub(crate) async fn error_is_stale(error: &Error) -> Result<bool> {
    match StaleDatabaseInfo::from_error(error)? {
        Some(info) => {
            database_beyond(info).await?;
            Ok(true)
        }
        None => shard_is_stale(error).await,
    }
}

/// Takes note of one of a batch's `writeErrors` by which a shard says that this process has an old
/// table, and gives it as an error.
///
/// # Errors
/// What the error says cannot be read.
pub(crate) async fn write_error_is_stale(db: &str, entry: &RawDocument) -> Result<Error> {
    let code = pinion_bson::get(entry, "code").and_then(i64_exact);
    let text = pinion_bson::get(entry, "errmsg").and_then(|text| text.as_str());
    let error = Error::new(
        ErrorCode(code.unwrap_or(0) as i32),
        text.unwrap_or_default(),
    );
    if let Some(info) = StaleInfo::from_write_error(entry)? {
        collection_is_stale(info).await;
        return Ok(error);
    }
    let error = error.with_extra(entry.to_owned());
    match error.code {
        ErrorCode::STALE_EPOCH => {
            shard_is_stale(&error).await?;
        }
        _ => forget_database(db).await,
    }
    Ok(Error {
        extra: None,
        ..error
    })
}

/// Has all cores forget a collection, and with a series its buckets, and the other way round.
pub(crate) async fn flush_collection(ns: &Namespace) {
    let name: Arc<str> = ns.as_str().into();
    let other_name = series_of(ns).or_else(|| buckets_of(ns).ok());
    let other_name: Option<Arc<str>> = other_name.map(|other| other.as_str().into());
    flush::<CachedCollection>(move |known| {
        *known == *name || other_name.as_ref().is_some_and(|other| *known == **other)
    })
    .await;
}

/// Has all cores forget a database and its collections.
pub(crate) async fn flush_database(db: &str) {
    let name: Arc<str> = db.into();
    let of_database = name.clone();
    flush::<CachedDatabase>(move |other| *other == *name).await;
    flush::<CachedCollection>(move |other| {
        let rest = other.strip_prefix(&*of_database);
        rest.is_some_and(|rest| rest.starts_with('.'))
    })
    .await;
}

/// Has all cores forget everything.
pub(crate) async fn flush_all() {
    flush::<CachedDatabase>(|_| true).await;
    flush::<CachedCollection>(|_| true).await;
}

/// Refuses a command on a sharded collection that cannot be routed there.
///
/// # Errors
/// `CommandNotSupported`; the config servers do not answer.
pub(crate) async fn check_is_unsharded(command: &str, ns: &Namespace) -> Result<()> {
    match table_of(ns, Targets::Unknown).await? {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            format!("{command} on the sharded collection {ns} is not supported"),
        )),
    }
}

/// Refuses a command on the collection of a UUID if that is sharded, as the config servers say.
///
/// # Errors
/// `CommandNotSupported`; the config servers do not answer.
pub(crate) async fn check_uuid_is_unsharded(command: &str, uuid: RawBinaryRef<'_>) -> Result<()> {
    let mut filter = DocBuilder::new();
    filter.append_raw("uuid", RawBsonRef::Binary(uuid));
    match find_all(COLLECTIONS, filter.finish(), None).await?.first() {
        None => Ok(()),
        Some(found) => {
            let ns = pinion_bson::get(found, "_id").and_then(|ns| ns.as_str());
            Err(Error::new(
                ErrorCode::COMMAND_NOT_SUPPORTED,
                format!(
                    "{command} on the sharded collection {} by its UUID is not supported",
                    ns.unwrap_or_default()
                ),
            ))
        }
    }
}
