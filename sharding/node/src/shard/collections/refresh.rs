//! Refreshes of collections: by the primary from the config servers, by a secondary from what its
//! primary has written.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::rawdoc;
use pinion_exec::placement::WrittenEntries;
use pinion_sharding_protocol::RoutingTable;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result};

use super::super::databases::{is_primary, membership};
use super::super::flushed::flushed_by_primary;
use super::super::refreshes::{EntryKey, Refreshes, exclusively, shared};
use super::known::install_collection;
use super::settle::distrust;
use super::{cached, load, persist};
use crate::limits::REFRESH_ATTEMPTS;
use crate::part::{Membership, Part, part};

/// Learns the table of a collection, unless others have meanwhile learned one that `is_enough`:
/// once for all that ask before it begins. What is learned is kept, for a majority to have it if
/// the caller waits for that. Called on core 0.
///
/// # Errors
/// The config servers, or on a secondary the primary, cannot be reached;
/// `ConflictingOperationInProgress` where it is changed all the time.
pub(crate) async fn refresh_collection(
    ns: &Namespace,
    is_enough: impl Fn(&Part) -> bool,
) -> Result<()> {
    let is_enough = || is_enough(&part());
    let learned = |refreshes| learn(ns.as_str().to_owned(), refreshes);
    shared(EntryKey::collection(ns.as_str()), is_enough, learned).await
}

/// Has the shard take a collection for unsharded, and keep nothing of it. Called on core 0 of the
/// primary.
///
/// # Errors
/// Those of a write: it is stale then.
pub(crate) async fn forget_collection(ns: &Namespace) -> Result<()> {
    let name = ns.as_str();
    exclusively(&EntryKey::collection(name), async {
        if let Err(error) = persist::remove(name).await {
            let names = BTreeSet::from([name.to_owned()]);
            distrust(&WrittenEntries::Named(names)).await;
            return Err(error);
        }
        let part = part();
        let _turn = part.core_0.cache_turn.acquire().await;
        install(name, None).await;
        Ok(())
    })
    .await
}

async fn learn(ns: String, refreshes: Rc<Refreshes>) -> Result<()> {
    let part = part();
    for _ in 0..REFRESH_ATTEMPTS {
        refreshes.begin_reading();
        let shard = membership(&part)?;
        let found = match is_primary() {
            true => of_config(&part, &shard, &ns, &refreshes).await?,
            false => of_primary(&part, &ns).await?,
        };
        let _turn = part.core_0.cache_turn.acquire().await;
        if !refreshes.is_outdated() {
            install(&ns, found).await;
            return Ok(());
        }
    }
    Err(Error::new(
        ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
        format!("the collection {ns} has changed again and again while its table was read"),
    ))
}

/// Reads a collection of the config servers, and keeps what they say.
async fn of_config(
    part: &Part,
    shard: &Membership,
    ns: &str,
    refreshes: &Refreshes,
) -> Result<Option<Arc<RoutingTable>>> {
    let (stored, has_entry) = match cached::stored(ns).await {
        Ok(None) => (None, false),
        Ok(Some(stored)) => (Some(stored), true),
        // It is written again as a whole.
        Err(error) => match cached::is_stored(ns).await? {
            true => (None, true),
            false => return Err(error),
        },
    };
    let known = part.collections.table(ns);
    let loaded = load::load(shard, ns, known, stored.as_ref()).await?;
    if refreshes.is_outdated() {
        // It is read again, and nothing of it was written.
        return Ok(None);
    }
    match loaded {
        Some(loaded) => {
            persist::keep(&loaded, stored.as_ref()).await?;
            Ok(Some(loaded.table))
        }
        None => {
            if has_entry {
                persist::remove(ns).await?;
            }
            Ok(None)
        }
    }
}

async fn install(ns: &str, table: Option<Arc<RoutingTable>>) {
    let version = table.as_ref().map(|table| table.version());
    tracing::info!(target: "SH_REFR", id = 4_619_905u64, ns, version = ?version, "Refreshed cached collection");
    install_collection(ns, table).await;
}

/// Has the primary refresh a collection, and reads what it has written.
async fn of_primary(part: &Part, ns: &str) -> Result<Option<Arc<RoutingTable>>> {
    let flush = rawdoc! { "_flushRoutingTableCacheUpdates": ns, "$db": "admin" };
    flushed_by_primary(flush, format_args!("the collection {ns}")).await?;
    cached::table(ns, part.collections.table(ns)).await
}
