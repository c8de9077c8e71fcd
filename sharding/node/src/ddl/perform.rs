//! What machines ask for, performed.

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf, Uuid, rawdoc};
use pinion_catalog::{
    BuildLimits, CollectionOptions, Noop, Uuid as CatalogUuid, core_catalog, create_collection_as,
    create_indexes, log_noop, parse_index_spec,
};
use pinion_exec::CommitQuorum;
use pinion_query::series_of;
use pinion_runtime::{Duration, join_all, now};
use pinion_service::profile_settings;
use pinion_sharding_protocol::ddl::{
    Action, AskedShards, DdlDocument, DdlId, NewCollection, Outcome, ShardReply, is_recoverable,
};
use pinion_sharding_protocol::documents::ShardDocument;
use pinion_sharding_protocol::{ConnectionString, DatabaseVersion, Form, ShardId};
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, Error, ErrorCode, OpContext, Result};

use super::facts;
use super::leadership::Leadership;
use super::moved;
use super::rename::rename_local;
use super::sections;
use crate::config_servers::{change_config, run_on_set, with_majority};
use crate::limits::{CHANGE_AT_SHARD, MAX_LISTED_COLLECTIONS, MAX_SHARDS_AT_ONCE, REMOTE_COMMAND};
use crate::local::{LocalClient, wait_majority};
use crate::part::{Membership, form, install_database, part};
use crate::shard::{EntryKey, Known, exclusively, membership, persist};
use crate::shard::{forget_collection, refresh_collection};
use crate::v44::{configure, for_shards};

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
        Action::LookAtDatabase { db } => {
            let facts = moved::look(&shard, db).await?;
            return Ok(Outcome::Database(Box::new(facts)));
        }
        Action::ListCollections { db } => {
            let found = facts::collections_of(&shard, db).await?;
            return Ok(Outcome::Collections(found));
        }
        Action::EnterSection(section) => sections::enter(leadership, section).await?,
        Action::LeaveSection { namespace } => sections::leave(leadership, namespace).await?,
        Action::MakeCollection(new) => {
            make_collection(&context(leadership, &new.ns), new).await?;
        }
        Action::AskShards { shards, command } => ask_shards(&shard, shards, command).await?,
        Action::GatherShards { shards, command } => {
            let replies = gather_shards(&shard, shards, command).await?;
            return Ok(Outcome::Replies(replies));
        }
        Action::ListOwners { uuid } => {
            return Ok(Outcome::Shards(facts::owners(&shard, *uuid).await?));
        }
        Action::BlockShards { shards, block } => {
            ask_shards(&shard, shards, &block.to_command(shard.shard())).await?;
        }
        Action::Configure(command) => configure(&shard, command.to_owned()).await?,
        Action::NoteEvent { ns, uuid, event } => note_event(ns, *uuid, event).await?,
        Action::InstallTable(ns) => {
            refresh_collection(ns, |_| false).await?;
            check_installed(ns)?;
            wait_majority().await?;
        }
        Action::DropCollection { ns, uuid } => {
            let ctx = context(leadership, ns);
            drop_local(&ctx, ns, *uuid, true).await?;
            wait_majority().await?;
        }
        Action::RenameHere(part) => {
            let ctx = context(leadership, &part.from);
            rename_local(&ctx, part, true).await?;
        }
        Action::RenameOnOthers(part) => {
            let command = part.to_command(shard.shard());
            ask_shards(&shard, &AskedShards::AllOthers, &command).await?;
        }
        Action::DropDatabase { db } => {
            let ctx = OpContext::internal(0, &TASK, db, now().as_nanos());
            let ctx = sections::within(leadership, ctx, db, db);
            drop_local_database(&ctx, db, true).await?;
            // The next primary has nothing of it either, whether it finds the entry or not.
            wait_majority().await?;
        }
        Action::ForgetDatabase { db, version } => {
            let key = EntryKey::database(db);
            exclusively(&key, forget_database(&shard, db, *version)).await?;
        }
        moving => perform_move(leadership, &shard, moving).await?,
    }
    Ok(Outcome::Done)
}

/// A new primary of MongoDB 4.4's config servers may not have heard yet of what the one before it
/// has committed, and nothing that it answers says so.
fn check_installed(ns: &Namespace) -> Result<()> {
    match (form(), part().collection(ns)) {
        (Form::Mongo44, Known::Unsharded | Known::Stale) => Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            format!("the config servers do not have the routing table of {ns} yet"),
        )),
        _ => Ok(()),
    }
}

/// Logs an entry that change streams show.
async fn note_event(ns: &Namespace, uuid: Uuid, event: &RawDocument) -> Result<()> {
    let name = pinion_bson::elements(event).next().map(|(name, _)| name);
    let mut message = DocBuilder::new();
    message
        .start_document("msg")
        .append(name.unwrap_or_default(), ns.as_str())
        .end();
    log_noop(Noop {
        ns: ns.as_str(),
        uuid: Some(CatalogUuid(uuid.bytes())),
        o: &message.finish(),
        o2: Some(event),
    })
    .await?;
    wait_majority().await
}

/// What moves a database.
async fn perform_move(leadership: &Leadership, shard: &Membership, action: &Action) -> Result<()> {
    match action {
        Action::CloneDatabase { to, message } => moved::clone(shard, to, message).await,
        Action::ForgetClone { to, message } => moved::forget(shard, to, message).await,
        Action::UncacheDatabase { db } => moved::uncache(db).await,
        Action::LearnDatabase { db, version } => moved::learn(shard, db, *version).await,
        Action::DropUnsharded { db, sharded } => {
            moved::drop_unsharded(leadership, db, sharded).await
        }
        other => Err(Error::internal(format!("{other:?} is no part of a move"))),
    }
}

pub(super) fn context(leadership: &Leadership, ns: &Namespace) -> OpContext {
    let ctx = OpContext::internal(0, &TASK, ns.db(), now().as_nanos());
    sections::within(leadership, ctx, ns.db(), ns.as_str())
}

async fn make_collection(ctx: &OpContext, new: &NewCollection) -> Result<()> {
    let series = series_of(&new.ns);
    let is_there = core_catalog().get(&new.ns).is_some()
        && (series.is_none() || facts::series_here(&new.ns).is_some());
    let named = series.as_ref().unwrap_or(&new.ns);
    if !is_there {
        let options = CollectionOptions::from_document(&new.options);
        let options = options.map_err(|bad| Error::bad_value(bad.0))?;
        let uuid = CatalogUuid(new.uuid.bytes());
        create_collection_as(ctx, named.clone(), options, uuid).await?;
    }
    if let Some(index) = &new.index {
        make_indexes(ctx, named, std::slice::from_ref(index)).await?;
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
    // With a series go its buckets.
    let named = facts::series_here(ns).unwrap_or_else(|| ns.clone());
    match is_primary_shard {
        true => pinion_catalog::drop_collection(ctx, named).await?,
        false => {
            let dropped = pinion_catalog::drop_collection_unseen(ctx, named).await?;
            if series_of(ns).is_some() {
                // With the last series goes the collection of the views.
                pinion_catalog::drop_collection_of_no_views(ctx, ns.db().to_owned()).await?;
            }
            dropped
        }
    };
    forget_collection(ns).await
}

/// Drops what this node has of a database, and forgets the tables of its collections.
/// Change streams have its drop from the primary shard alone.
pub(super) async fn drop_local_database(ctx: &OpContext, db: &str, is_shown: bool) -> Result<()> {
    // Before the last collection is gone, so that no operation that ends meanwhile makes the
    // database again.
    profile_settings::forget(db).await;
    match is_shown {
        true => pinion_catalog::drop_database(ctx, db.to_owned()).await?,
        false => pinion_catalog::drop_database_unseen(ctx, db.to_owned()).await?,
    };
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
    for (shard, answered) in send_to_shards(shard, asked, command, REMOTE_COMMAND).await? {
        answered.map_err(|error| error.context(format!("on shard {shard}")))?;
    }
    Ok(())
}

/// The same for what each shard answers, a refusal too.
///
/// # Errors
/// A shard has failed in a way that is waited out.
async fn gather_shards(
    shard: &Membership,
    shards: &[ShardId],
    command: &RawDocument,
) -> Result<Vec<ShardReply>> {
    let asked = AskedShards::These(shards.to_vec());
    let replies = send_to_shards(shard, &asked, command, CHANGE_AT_SHARD).await?;
    for (shard, reply) in &replies {
        if let Err(error) = reply
            && is_recoverable(error)
        {
            return Err(error.clone().context(format!("on shard {shard}")));
        }
    }
    Ok(replies)
}

async fn send_to_shards(
    shard: &Membership,
    asked: &AskedShards,
    command: &RawDocument,
    limit: Duration,
) -> Result<Vec<ShardReply>> {
    if matches!(asked, AskedShards::These(shards) if shards.is_empty()) {
        return Ok(Vec::new());
    }
    let command = match form() {
        Form::Own => with_majority(command.to_owned()),
        Form::Mongo44 => match for_shards(shard, command)? {
            Some(command) => command,
            None => return Ok(Vec::new()),
        },
    };
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
    let mut replies = Vec::with_capacity(chosen.len());
    for some in chosen.chunks(MAX_SHARDS_AT_ONCE) {
        let asking = some.iter().map(|shard| async {
            let reply = match ConnectionString::parse(&shard.host) {
                Ok(set) => run_on_set(&set, &command, limit).await,
                Err(error) => Err(error),
            };
            (shard.id.clone(), reply)
        });
        replies.extend(join_all(asking).await);
    }
    Ok(replies)
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
