//! The versions of databases that a shard knows: compared with what requests carry, learned from
//! the config servers, kept in `config.cache.databases` for the secondaries.

use std::rc::Rc;

use pinion_bson::{RawBsonRef, rawdoc};
use pinion_exec::local::document_by_id;
use pinion_exec::placement::WrittenEntries;
use pinion_exec::replica_set;
use pinion_runtime::sleep;
use pinion_sharding_protocol::documents::DatabaseDocument;
use pinion_sharding_protocol::{DatabaseVersion, StaleDatabaseInfo, has_fixed_placement};
use pinion_wire::idl::SentDatabaseVersion;
use pinion_wire::{Error, ErrorCode, Result};

use super::flushed::flushed_by_primary;
use super::refreshes::{EntryKey, Refreshes, outdate, shared};
use crate::config_servers::read_config;
use crate::data::enter_data;
use crate::ddl;
use crate::limits::{REFRESH_ATTEMPTS, RETRY_PAUSE};
use crate::local::LocalClient;
use crate::part::{Membership, Part, forget_databases, form, install_database, part};
use crate::planted::PlantedFault;

/// What the primary writes, and the others read.
const CACHE: (&str, &str) = ("config", "cache.databases");
const CACHE_NS: &str = "config.cache.databases";

fn not_initialized() -> Error {
    Error::new(
        ErrorCode::SHARDING_STATE_NOT_INITIALIZED,
        "Cannot accept sharding commands if sharding state has not been initialized with a shardIdentity document",
    )
}

/// The shard that this node is.
///
/// # Errors
/// `ShardingStateNotInitialized`.
pub(crate) fn membership(part: &Part) -> Result<std::sync::Arc<Membership>> {
    part.membership().ok_or_else(not_initialized)
}

/// Compares the version of a database with the known one.
///
/// # Errors
/// `StaleDbVersion`. The wanted version is absent where none is known, and where the database is
/// another shard's, whose version does not help the sender.
pub(crate) fn check_database(part: &Part, db: &str, sent: &SentDatabaseVersion) -> Result<()> {
    let shard = membership(part)?;
    let is_unchecked = part.planted_fault == PlantedFault::DatabaseVersionUnchecked;
    if has_fixed_placement(db) || is_unchecked {
        return Ok(());
    }
    let received = DatabaseVersion::from_sent(*sent);
    let known = part.database(db);
    let known = known.filter(|known| known.primary == *shard.shard());
    match known.as_ref().map(|known| known.version) {
        Some(version) if version.is_placement_equal(received) => Ok(()),
        wanted => Err(StaleDatabaseInfo {
            db: db.to_owned(),
            received,
            wanted,
        }
        .error(form())),
    }
}

/// Whether the known version of a database may be older than one that was sent.
pub(crate) fn is_behind(part: &Part, db: &str, sent: &SentDatabaseVersion) -> bool {
    let received = DatabaseVersion::from_sent(*sent);
    part.database(db)
        .is_none_or(|known| received.is_older_than(known.version) != Some(true))
}

/// Learns the version of a database, unless others have meanwhile learned one that `is_enough`:
/// once for all that ask before it begins. Called on core 0.
///
/// # Errors
/// The config servers, or on a secondary the primary, cannot be reached;
/// `ConflictingOperationInProgress` where it is changed all the time.
pub(crate) async fn refresh(db: &str, is_enough: impl Fn(&Part) -> bool) -> Result<()> {
    let is_enough = || is_enough(&part());
    let learned = |refreshes| learn(db.to_owned(), refreshes);
    shared(EntryKey::database(db), is_enough, learned).await
}

pub(super) fn is_primary() -> bool {
    replica_set().is_some_and(|set| set.view().writable)
}

async fn learn(db: String, refreshes: Rc<Refreshes>) -> Result<()> {
    let part = part();
    for _ in 0..REFRESH_ATTEMPTS {
        refreshes.begin_reading();
        let shard = membership(&part)?;
        let found = match is_primary() {
            true => of_config(&shard, &db).await?,
            false => of_primary(&db).await?,
        };
        let _turn = part.core_0.cache_turn.acquire().await;
        if !refreshes.is_outdated() {
            install(&db, found).await;
            return Ok(());
        }
    }
    Err(Error::new(
        ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
        format!("the database {db} has changed again and again while its version was read"),
    ))
}

/// Reads a database of the config servers, and has secondaries read the same.
async fn of_config(shard: &Membership, db: &str) -> Result<Option<DatabaseDocument>> {
    let filter = rawdoc! { "_id": db };
    let found = read_config(shard, ("config", "databases"), &filter, 1).await?;
    let found = found
        .first()
        .map(|document| DatabaseDocument::parse(document));
    let found = found.transpose()?;
    // Secondaries are to ask again where it is once that is decided.
    if !ddl::is_closed_to_reads(db) {
        persist(db, found.as_ref()).await?;
    }
    Ok(found)
}

async fn install(db: &str, found: Option<DatabaseDocument>) {
    let version = found.as_ref().map(|found| found.version);
    tracing::info!(target: "SH_REFR", id = 4_619_901u64, db, version = ?version, "Refreshed cached database entry");
    install_database(db, found).await;
}

/// Forgets databases: the primary has written what this secondary reads of them, or what is known
/// is not relied on any more. Called on core 0.
pub(crate) async fn forget_cached(written: &WrittenEntries) {
    let part = part();
    let _turn = part.core_0.cache_turn.acquire().await;
    match written {
        WrittenEntries::None => {}
        WrittenEntries::Named(names) => {
            outdate(|key| matches!(key, EntryKey::Database(db) if names.contains(db)));
            for name in names {
                install_database(name, None).await;
            }
        }
        WrittenEntries::All => {
            outdate(|key| matches!(key, EntryKey::Database(_)));
            forget_databases().await;
        }
    }
}

/// A new primary relies on nothing that the one before has left: that may have had the config
/// servers forget a database, and not have come to know it. Called on core 0.
pub(crate) async fn begin_as_primary() {
    let part = part();
    if part.membership().is_none() {
        return;
    }
    part.core_0.waits_end.notify_all();
    forget_cached(&WrittenEntries::All).await;
    // So secondaries ask this one.
    part.core_0.begin(async {
        while is_primary() && !crate::part::part().core_0.is_stopping() {
            match clear_cache().await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(target: "SHARDING", id = 7_500_004u64, error = error.message, "The cached entries of databases could not be removed; it is tried again");
                    sleep(RETRY_PAUSE).await;
                }
            }
        }
    });
}

async fn clear_cache() -> Result<()> {
    let (cache_db, cache) = CACHE;
    let command = rawdoc! {
        "delete": cache, "deletes": [{ "q": {}, "limit": 0 }],
        "writeConcern": { "w": 1 }, "$db": cache_db,
    };
    LocalClient::new()?.run(&command).await.map(drop)
}

/// Brings what secondaries read up to what is known.
pub(crate) async fn persist(db: &str, found: Option<&DatabaseDocument>) -> Result<()> {
    let (cache_db, cache) = CACHE;
    let client = LocalClient::new()?;
    let command = match found {
        Some(found) => rawdoc! {
            "update": cache,
            "updates": [{ "q": { "_id": db }, "u": found.to_bson(), "upsert": true }],
            "writeConcern": { "w": 1 }, "$db": cache_db,
        },
        None => rawdoc! {
            "delete": cache, "deletes": [{ "q": { "_id": db }, "limit": 1 }],
            "writeConcern": { "w": 1 }, "$db": cache_db,
        },
    };
    client.run(&command).await.map(drop)
}

/// Has the primary refresh a database, and reads what it has written.
async fn of_primary(db: &str) -> Result<Option<DatabaseDocument>> {
    let flush = rawdoc! { "_flushDatabaseCacheUpdates": db, "$db": "admin" };
    flushed_by_primary(flush, format_args!("the database {db}")).await?;
    let _open = enter_data()?;
    let found = document_by_id(CACHE_NS, RawBsonRef::String(db)).await?;
    found
        .map(|document| DatabaseDocument::parse(&document))
        .transpose()
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use pinion_bson::Uuid;
    use pinion_clock::Timestamp;
    use pinion_runtime::sim::{Sim, SimOptions};

    use super::*;
    use crate::testing::{become_shard, start_part};

    fn version(secs: u32, last_mod: i32) -> DatabaseVersion {
        DatabaseVersion {
            last_mod,
            ..DatabaseVersion::first(Uuid::from_bytes([secs as u8; 16]), Timestamp::new(secs, 1))
        }
    }

    /// The codes of the answers to a version of `d` on the shard `s1`, and whether it asks for a
    /// newer one.
    fn check(
        known: Option<(&'static str, DatabaseVersion)>,
        sent: DatabaseVersion,
        expected: (i32, bool),
    ) {
        let sim = Sim::new(1, SimOptions::default());
        let ended = Rc::new(std::cell::Cell::new(false));
        let end = ended.clone();
        sim.add_node("node", 1, move |_| {
            let end = end.clone();
            Box::pin(async move {
                start_part();
                let sent = sent.to_sent();
                let refused = check_database(&part(), "d", &sent).expect_err("no identity");
                assert_eq!(refused.code, ErrorCode::SHARDING_STATE_NOT_INITIALIZED);
                become_shard().await;
                let known =
                    known.map(|(shard, version)| DatabaseDocument::new("d", shard.into(), version));
                install_database("d", known).await;
                let outcome = check_database(&part(), "d", &sent);
                let code = outcome.map_or_else(|error| error.code.0, |()| 0);
                assert_eq!((code, is_behind(&part(), "d", &sent)), expected);
                assert!(check_database(&part(), "admin", &sent).is_ok());
                end.set(true);
            })
        });
        assert!(sim.run_until(move || ended.get()).is_ok());
    }

    #[test]
    fn versions_of_databases() {
        let here = |secs, last_mod| Some(("s1", version(secs, last_mod)));
        check(here(5, 1), version(5, 1), (0, true));
        check(None, version(5, 1), (249, true));
        check(here(5, 2), version(5, 1), (249, false));
        check(here(5, 1), version(5, 2), (249, true));
        check(here(6, 1), version(5, 4), (249, false));
        check(here(5, 4), version(6, 1), (249, true));
        check(Some(("s2", version(5, 1))), version(5, 1), (249, true));
    }
}
