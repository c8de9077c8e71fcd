//! What the primary shard of a database does to have another shard take its place.

use std::collections::BTreeSet;

use pinion_bson::{Uuid, rawdoc};
use pinion_catalog::{SYSTEM_VIEWS, core_catalog, drop_collection_unseen, is_replicated};
use pinion_query::series_of;
use pinion_runtime::{now, sleep};
use pinion_sharding_protocol::ddl::{DatabaseFacts, MoveMessage, is_recoverable};
use pinion_sharding_protocol::documents::DatabaseDocument;
use pinion_sharding_protocol::{ConnectionString, DatabaseVersion, ShardId};
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, Error, ErrorCode, OpContext, Result};

use super::facts;
use super::leadership::Leadership;
use super::sections;
use crate::config_servers::{read_config, run_on_set, with_majority};
use crate::limits::{CLONE_PATIENCE, REMOTE_COMMAND, RETRY_PAUSE};
use crate::local::wait_majority;
use crate::part::{Membership, install_database};
use crate::shard::{EntryKey, exclusively, persist};

static TASK: CommandSpec = CommandSpec::of_task("movePrimary");

/// Looks at a database.
///
/// # Errors
/// The config servers cannot be reached.
pub(super) async fn look(shard: &Membership, db: &str) -> Result<DatabaseFacts> {
    let sharded = facts::all_collections_of(shard, db).await?;
    let catalog = core_catalog().current();
    let names: BTreeSet<&Namespace> = sharded.iter().map(|(ns, _)| ns).collect();
    let is_unsharded = |ns: &Namespace| !names.contains(ns) && is_replicated(ns);
    let unsharded = catalog
        .collections_of(db)
        .filter(|found| is_unsharded(&found.ns));
    let unsharded = unsharded
        .map(|found| Uuid::from_bytes(found.uuid.0))
        .collect();
    Ok(DatabaseFacts {
        me: shard.shard().clone(),
        shards: facts::shards(shard).await?,
        sharded: (sharded.into_iter())
            .flat_map(|(ns, _)| [series_of(&ns), Some(ns)].into_iter().flatten())
            .collect(),
        unsharded,
        fresh: facts::random_uuid(),
    })
}

async fn ask(
    shard: &Membership,
    to: &ShardId,
    name: &str,
    message: &MoveMessage,
) -> Result<pinion_bson::RawDocumentBuf> {
    let known = facts::shards(shard).await?;
    let found = known.iter().find(|known| known.id == *to);
    let found = found.ok_or_else(|| shard_not_found(to))?;
    let set = ConnectionString::parse(&found.host)?;
    let command = with_majority(message.to_command(name, shard.shard()));
    let answered = run_on_set(&set, &command, REMOTE_COMMAND).await;
    answered.map_err(|error| error.context(format!("on shard {to}")))
}

fn shard_not_found(to: &ShardId) -> Error {
    Error::new(ErrorCode::SHARD_NOT_FOUND, format!("Shard {to} not found"))
}

/// Has a shard copy the database, whose gates are closed to writes, and waits for it.
///
/// # Errors
/// `BackgroundOperationInProgressForDatabase`; `CommandFailed` where the shard has not done
/// anything for too long: writes wait meanwhile; those with which it refuses.
pub(super) async fn clone(shard: &Membership, to: &ShardId, message: &MoveMessage) -> Result<()> {
    let db = message.reason.db();
    let catalog = core_catalog().current();
    if catalog
        .collections_of(db)
        .any(|found| !found.builds().is_empty())
    {
        return Err(Error::new(
            ErrorCode::BACKGROUND_OPERATION_IN_PROGRESS_FOR_DATABASE,
            format!(
                "cannot perform operation: an index build is currently running for a collection in database {db}"
            ),
        ));
    }
    let mut heard = now();
    loop {
        let answered = ask(shard, to, "_shardsvrCloneCatalogData", message).await;
        match answered {
            Ok(reply) if reply.get_bool("done").unwrap_or(false) => return Ok(()),
            Ok(_) => heard = now(),
            Err(error) if !is_recoverable(&error) => return Err(error),
            Err(error) if heard.elapsed() > CLONE_PATIENCE => {
                return Err(Error::new(
                    ErrorCode::COMMAND_FAILED,
                    format!(
                        "the database {db} could not be copied to shard {to} within {} seconds: {}",
                        CLONE_PATIENCE.as_secs(),
                        error.message
                    ),
                ));
            }
            Err(error) => {
                tracing::info!(target: "SHARDING", id = 7_500_032u64, db, to = %to, error = %error, "The copy of a database has failed; it is tried again");
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

/// Has a shard remove what it has copied. There is nothing to do of one that is gone.
///
/// # Errors
/// It does not answer; those with which it refuses.
pub(super) async fn forget(shard: &Membership, to: &ShardId, message: &MoveMessage) -> Result<()> {
    match ask(shard, to, "_shardsvrMovePrimaryAbort", message).await {
        Err(error) if error.code == ErrorCode::SHARD_NOT_FOUND => Ok(()),
        outcome => outcome.map(drop),
    }
}

/// Has secondaries forget where a database is, all that have applied what follows.
///
/// # Errors
/// Those of a write.
pub(super) async fn uncache(db: &str) -> Result<()> {
    // No refresh that has read the place before the gates were closed keeps it behind this.
    let forgotten = persist(db, None);
    exclusively(&EntryKey::database(db), forgotten).await?;
    wait_majority().await
}

/// Goes by the new place of a database, and has secondaries do so.
///
/// # Errors
/// `ConflictingOperationInProgress` where the config servers do not have it; they cannot be
/// reached; those of a write.
pub(super) async fn learn(shard: &Membership, db: &str, version: DatabaseVersion) -> Result<()> {
    let learning = async {
        let filter = rawdoc! { "_id": db };
        let found = read_config(shard, ("config", "databases"), &filter, 1).await?;
        let found = found.first().map(|found| DatabaseDocument::parse(found));
        let found = found.transpose()?;
        let is_old = |found: &DatabaseDocument| found.version.is_older_than(version) != Some(false);
        if found.as_ref().is_some_and(is_old) {
            return Err(Error::new(
                ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                format!("the config servers still have an old version of the database {db}"),
            ));
        }
        install_database(db, found.clone()).await;
        persist(db, found.as_ref()).await
    };
    exclusively(&EntryKey::database(db), learning).await?;
    wait_majority().await
}

/// Drops what has moved.
///
/// # Errors
/// Those of a write.
pub(super) async fn drop_unsharded(
    leadership: &Leadership,
    db: &str,
    sharded: &[String],
) -> Result<()> {
    let sharded: BTreeSet<&str> = sharded.iter().map(String::as_str).collect();
    let catalog = core_catalog().current();
    let collections = catalog.collections_of(db).map(|found| found.ns.clone());
    let views = catalog.views_of(db).map(|view| view.ns.clone());
    // The views go with the collection that they are documents of, but series before it.
    let is_of_views = |ns: &Namespace| ns.collection() == SYSTEM_VIEWS;
    let mut moved: Vec<Namespace> = collections.chain(views).collect();
    let keeps_series = catalog
        .views_of(db)
        .any(|view| sharded.contains(view.ns.as_str()));
    moved.retain(|ns| !sharded.contains(ns.as_str()) && is_replicated(ns));
    // It is not dropped while one is a series that stays.
    moved.retain(|ns| !(keeps_series && is_of_views(ns)));
    moved.sort_by_key(is_of_views);
    for ns in moved {
        let ctx = OpContext::internal(0, &TASK, db, now().as_nanos());
        let ctx = sections::within(leadership, ctx, db, ns.as_str());
        drop_collection_unseen(&ctx, ns).await?;
    }
    wait_majority().await
}
