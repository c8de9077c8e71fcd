//! What machines ask for, performed.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_catalog::{
    BuildLimits, CollectionOptions, Uuid as CatalogUuid, core_catalog, create_collection_as,
    create_indexes, parse_index_spec,
};
use pinion_exec::CommitQuorum;
use pinion_runtime::{join_all, now};
use pinion_service::profile_settings;
use pinion_sharding_protocol::ddl::{Action, AskedShards, DdlDocument, DdlId, Outcome};
use pinion_sharding_protocol::documents::ShardDocument;
use pinion_sharding_protocol::{ConnectionString, DatabaseVersion, Form, ShardId};
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, Error, ErrorCode, OpContext, Result};

use super::facts;
use super::leadership::Leadership;
use super::sections;
use crate::config_servers::{change_config, run_on_set, with_majority};
use crate::limits::{MAX_LISTED_COLLECTIONS, MAX_SHARDS_AT_ONCE, REMOTE_COMMAND};
use crate::local::{LocalClient, wait_majority};
use crate::part::{Membership, install_database, part};
use crate::shard::{EntryKey, exclusively, membership, persist};
use crate::shard::{forget_collection, refresh_collection};

pub(super) const COORDINATORS: (&str, &str) = ("config", "system.sharding_ddl_coordinators");

/// What changes the catalog here, in the place of a command.
static TASK: CommandSpec = CommandSpec::of_task("shardingDDL");

pub(super) async fn store(document: &DdlDocument) -> Result<Outcome> {
    let (db, collection) = COORDINATORS;
    let command = rawdoc! {
        "update": collection, "$db": db,
        "updates": [{
            "q": { "_id": document.id.to_bson() }, "u": document.to_bson(), "upsert": true,
        }],
    };
    LocalClient::new()?.write(&command).await?;
    Ok(Outcome::Done)
}

pub(super) async fn remove(id: &DdlId) -> Result<Outcome> {
    let (db, collection) = COORDINATORS;
    let command = rawdoc! {
        "delete": collection, "$db": db,
        "deletes": [{ "q": { "_id": id.to_bson() }, "limit": 1 }],
    };
    LocalClient::new()?.write(&command).await?;
    Ok(Outcome::Done)
}

/// Performs an action.
///
/// # Errors
/// Its own, after which it may have been performed.
pub(super) async fn perform(leadership: &Leadership, action: &Action) -> Result<Outcome> {
    let shard = membership(&part())?;
    match action {
        Action::Look { ns, expected } => {
            let facts = facts::look(&shard, ns, *expected).await?;
            return Ok(Outcome::Facts(Box::new(facts)));
        }
        Action::ListCollections { db } => {
            let found = facts::collections_of(&shard, db).await?;
            return Ok(Outcome::Collections(found));
        }
        Action::EnterSection(section) => sections::enter(leadership, section).await?,
        Action::LeaveSection { namespace } => sections::leave(leadership, namespace).await?,
        Action::MakeCollection { ns, uuid, index } => {
            let ctx = context(leadership, ns);
            make_collection(&ctx, ns, *uuid, index.as_deref()).await?;
        }
        Action::AskShards { shards, command } => ask_shards(&shard, shards, command).await?,
        Action::Configure(command) => {
            change_config(&shard, command.to_owned()).await?;
        }
        Action::InstallTable(ns) => {
            refresh_collection(ns, |_| false).await?;
            wait_majority().await?;
        }
        Action::DropCollection { ns, uuid } => {
            let ctx = context(leadership, ns);
            drop_local(&ctx, ns, *uuid, true).await?;
            wait_majority().await?;
        }
        Action::DropDatabase { db } => {
            let ctx = OpContext::internal(0, &TASK, db, now().as_nanos());
            let ctx = sections::within(leadership, ctx, db, db);
            drop_local_database(&ctx, db).await?;
            // The next primary has nothing of it either, whether it finds the entry or not.
            wait_majority().await?;
        }
        Action::ForgetDatabase { db, version } => {
            let key = EntryKey::database(db);
            exclusively(&key, forget_database(&shard, db, *version)).await?;
        }
    }
    Ok(Outcome::Done)
}

fn context(leadership: &Leadership, ns: &Namespace) -> OpContext {
    let ctx = OpContext::internal(0, &TASK, ns.db(), now().as_nanos());
    sections::within(leadership, ctx, ns.db(), ns.as_str())
}

async fn make_collection(
    ctx: &OpContext,
    ns: &Namespace,
    uuid: Uuid,
    index: Option<&RawDocument>,
) -> Result<()> {
    if core_catalog().get(ns).is_none() {
        let uuid = CatalogUuid(uuid.bytes());
        create_collection_as(ctx, ns.clone(), CollectionOptions::default(), uuid).await?;
    }
    if let Some(index) = index {
        make_indexes(ctx, ns, &[index.to_owned()]).await?;
    }
    wait_majority().await
}

/// Makes indexes that are missing.
pub(super) async fn make_indexes(
    ctx: &OpContext,
    ns: &Namespace,
    indexes: &[RawDocumentBuf],
) -> Result<()> {
    let specs = indexes.iter().map(|index| parse_index_spec(index, true));
    let specs: Vec<RawDocumentBuf> = specs.collect::<Result<_>>()?;
    if specs.is_empty() {
        return Ok(());
    }
    let mut quorum = DocBuilder::new();
    CommitQuorum::default().append("commitQuorum", &mut quorum);
    let limits = BuildLimits::default();
    create_indexes(ctx, ns.clone(), specs, limits, Some(quorum.finish())).await?;
    Ok(())
}

/// Drops a collection of this node, unless it has another UUID, and forgets its table. Change
/// streams show the drop at the primary shard alone.
pub(super) async fn drop_local(
    ctx: &OpContext,
    ns: &Namespace,
    uuid: Option<Uuid>,
    is_primary_shard: bool,
) -> Result<()> {
    let catalog = core_catalog().current();
    let found = catalog.get(ns).map(|found| found.uuid);
    let is_other = |uuid: Uuid| found.is_some_and(|found| found.0 != uuid.bytes());
    if uuid.is_some_and(is_other) {
        // So the table is the other one's too.
        return Ok(());
    }
    match is_primary_shard {
        true => pinion_catalog::drop_collection(ctx, ns.clone()).await?,
        false => pinion_catalog::drop_collection_unseen(ctx, ns.clone()).await?,
    };
    forget_collection(ns).await
}

/// Drops what this node has of a database, and forgets the tables of its collections.
pub(super) async fn drop_local_database(ctx: &OpContext, db: &str) -> Result<()> {
    // Before the last collection is gone, so that no operation that ends meanwhile makes the
    // database again.
    profile_settings::forget(db).await;
    pinion_catalog::drop_database(ctx, db.to_owned()).await?;
    let client = LocalClient::new()?;
    // `/` follows `.`.
    let filter = rawdoc! { "_id": { "$gte": format!("{db}."), "$lt": format!("{db}/") } };
    let place = ("config", "cache.collections");
    let mut more = true;
    while more {
        let found = client.find(place, &filter, MAX_LISTED_COLLECTIONS).await?;
        more = found.len() == MAX_LISTED_COLLECTIONS as usize;
        for found in found {
            let name = pinion_bson::get(&found, "_id").and_then(|id| id.as_str());
            let name = name.ok_or_else(|| Error::failed_to_parse("a cached table has no name"))?;
            forget_collection(&Namespace::parse_sought(name)?).await?;
        }
    }
    Ok(())
}

/// Sends a command to shards, some of them at once.
async fn ask_shards(shard: &Membership, asked: &AskedShards, command: &RawDocument) -> Result<()> {
    if matches!(asked, AskedShards::These(shards) if shards.is_empty()) {
        return Ok(());
    }
    let known = facts::shards(shard).await?;
    let chosen: Vec<&ShardDocument> = match asked {
        AskedShards::AllOthers => {
            let others = known.iter().filter(|known| known.id != *shard.shard());
            others.collect()
        }
        AskedShards::These(shards) => {
            let find = |id: &ShardId| {
                let found = known.iter().find(|known| known.id == *id);
                found.ok_or_else(|| {
                    let message = format!("Shard {id} not found");
                    Error::new(ErrorCode::SHARD_NOT_FOUND, message)
                })
            };
            shards.iter().map(find).collect::<Result<_>>()?
        }
    };
    let command = with_majority(command.to_owned());
    for some in chosen.chunks(MAX_SHARDS_AT_ONCE) {
        let asking = some.iter().map(|shard| async {
            let set = ConnectionString::parse(&shard.host)?;
            let answered = run_on_set(&set, &command, REMOTE_COMMAND).await;
            answered.map_err(|error| error.context(format!("on shard {}", shard.id)))
        });
        for answered in join_all(asking).await {
            answered?;
        }
    }
    Ok(())
}

/// Has the config servers forget a database, while no refresh is under way that may have read its
/// entry.
async fn forget_database(shard: &Membership, db: &str, version: DatabaseVersion) -> Result<()> {
    let mut command = DocBuilder::new();
    command.append("_configsvrDropDatabase", db);
    version.append_to(&mut command, "version", Form::Own);
    command.append("$db", "admin");
    let removed = change_config(shard, command.finish()).await;
    // Whether they have or not is learned by the next request.
    install_database(db, None).await;
    if let Err(error) = persist(db, None).await {
        tracing::warn!(target: "SHARDING", id = 7_500_003u64, db, error = error.message, "The cached entry of a dropped database could not be removed");
    }
    removed.map(drop)
}
