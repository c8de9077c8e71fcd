//! What a shard does as a part of another's definition. Each of these may be sent several times.

use pinion_bson::{RawDocumentBuf, Uuid, rawdoc};
use pinion_catalog::{
    CollectionOptions, GateMode, Hold, Uuid as CatalogUuid, core_catalog, create_collection_as,
    hold, hold_database,
};
use pinion_exec::commands::acknowledge;
use pinion_query::series_of;
use pinion_runtime::now;
use pinion_sharding_protocol::DatabaseVersion;
use pinion_sharding_protocol::ddl::{IndexCheck, RefineRequest};
use pinion_sharding_protocol::documents::DatabaseDocument;
use pinion_storage::storage;
use pinion_wire::idl::{Namespace, missing_field};
use pinion_wire::{Error, Invocation, OpContext, Reply, Result};

use super::facts::{foreign, is_empty, local_facts};
use super::leadership::lead;
use super::perform::{drop_local, drop_local_database, make_indexes};
use crate::config_servers::read_config;
use crate::limits::HOLD_WAIT;
use crate::part::{on_core_0, part};
use crate::shard::membership;

pub(super) async fn finish(cmd: &Invocation) -> Result<Reply> {
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `_shardsvrCreateCollectionParticipant: <collection>, collectionUUID, options, indexes,
/// idIndex?`: the collection as the primary shard of its database has it.
pub(crate) async fn create_collection_participant(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let ns = reader.namespace(cmd.name(), cmd.db())?;
    let uuid = reader.opt_uuid("collectionUUID")?;
    let uuid = uuid.ok_or_else(|| missing_field(reader.path().field("collectionUUID")))?;
    let options = CollectionOptions::from_document(reader.doc("options")?)
        .map_err(|bad| Error::bad_value(bad.0))?;
    let mut indexes = Vec::new();
    if let Some(objects) = reader.opt_objects("indexes")? {
        for object in objects {
            indexes.push(object?.1.to_owned());
        }
    }
    // It follows from the options.
    reader.opt_doc("idIndex")?;
    reader.finish()?;
    let ctx = cmd.ctx.clone();
    on_core_0(&cmd.ctx, move || async move {
        create(&ctx, &ns, CatalogUuid(uuid), options, &indexes).await
    })
    .await?;
    finish(&cmd).await
}

/// Makes a collection, and the indexes that it lacks, as another shard has them.
///
/// # Errors
/// Another collection of the name has documents; those of a definition.
pub(crate) async fn create(
    ctx: &OpContext,
    ns: &Namespace,
    uuid: CatalogUuid,
    options: CollectionOptions,
    indexes: &[RawDocumentBuf],
) -> Result<()> {
    let found = core_catalog().get(ns).map(|found| found.uuid);
    if let Some(found) = found.filter(|found| *found != uuid) {
        // A definition that was given up may have left it.
        if !is_empty(ns).await? {
            return Err(foreign(ns, found, uuid));
        }
        pinion_catalog::drop_collection_unseen(ctx, ns.clone()).await?;
    }
    // Buckets are made with their series.
    let named = series_of(ns).filter(|_| options.time_series.is_some());
    let named = named.unwrap_or_else(|| ns.clone());
    create_collection_as(ctx, named, options, uuid).await?;
    let made = core_catalog().get(ns).map(|made| made.uuid);
    if let Some(other) = made.filter(|made| *made != uuid) {
        return Err(foreign(ns, other, uuid));
    }
    make_indexes(ctx, ns, indexes).await
}

/// The part of a shard in `_shardsvrRefineCollectionShardKey`: whether its indexes suit the key.
pub(super) async fn check_indexes(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let ns = reader.namespace(cmd.name(), cmd.db())?;
    let check = IndexCheck::parse(cmd.body())?;
    reader.ignore(RefineRequest::fields());
    reader.finish()?;
    on_core_0(&cmd.ctx, move || async move {
        lead().await?;
        let local = local_facts(&ns, None).await?;
        pinion_sharding_protocol::ddl::check_indexes(&ns, &check, &local)
    })
    .await?;
    finish(&cmd).await
}

/// `_shardsvrDropCollectionParticipant: <collection>, collectionUUID?`.
pub(crate) async fn drop_collection_participant(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    let ns = reader.sought(cmd.name(), cmd.db())?;
    let uuid = reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes);
    reader.finish()?;
    let ctx = cmd.ctx.clone();
    on_core_0(&cmd.ctx, move || async move {
        let held = hold(ns.clone(), GateMode::Closed, now() + HOLD_WAIT).await?;
        let ctx = held.admit(&ctx);
        released(held, drop_local(&ctx, &ns, uuid, false)).await
    })
    .await?;
    finish(&cmd).await
}

/// `_shardsvrDropDatabaseParticipant: 1, version`: nothing is dropped of another life of the
/// database, to which a command that was delayed may come.
pub(crate) async fn drop_database_participant(cmd: Invocation) -> Result<Reply> {
    membership(&part())?;
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    let path = reader.path().field("version");
    let version = DatabaseVersion::parse(path, reader.doc("version")?)?;
    reader.finish()?;
    let (ctx, db) = (cmd.ctx.clone(), cmd.db().to_owned());
    on_core_0(&cmd.ctx, move || async move {
        let held = hold_database(db.clone(), GateMode::Closed, now() + HOLD_WAIT).await?;
        let ctx = held.admit(&ctx);
        let dropped = async {
            match is_other_life(&db, version).await? {
                true => Ok(()),
                false => drop_local_database(&ctx, &db, false).await,
            }
        };
        released(held, dropped).await
    })
    .await?;
    finish(&cmd).await
}

/// Whether the config servers have a database of this name in another life.
async fn is_other_life(db: &str, version: DatabaseVersion) -> Result<bool> {
    let shard = membership(&part())?;
    let filter = rawdoc! { "_id": db };
    let found = read_config(&shard, ("config", "databases"), &filter, 1).await?;
    let found = found.first().map(|found| DatabaseDocument::parse(found));
    let found = found.transpose()?;
    Ok(found.is_some_and(|found| found.version.uuid != version.uuid))
}

async fn released<T>(held: Hold, work: impl Future<Output = Result<T>>) -> Result<T> {
    let done = work.await;
    held.release().await;
    done
}
