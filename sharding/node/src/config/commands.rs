//! Commands of config servers, by which other nodes of the cluster have them change the catalog.

use pinion_bson::{RawBsonRef, Uuid};
use pinion_exec::commands::acknowledge;
use pinion_service::cluster_parameters;
use pinion_sharding_protocol::config::{
    AddShardRequest, InitialChunk, KeyRefinement, MetadataRename, MigrationPermission,
    NewCollection, SeriesChange,
};
use pinion_sharding_protocol::{ConnectionString, DatabaseVersion, Form, ShardId};
use pinion_storage::storage;
use pinion_wire::idl::{FieldReader, Namespace, WriteConcernW, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::changelog::sender;
use super::{collections, databases, migrations, refine, renames, series, settings, shards, zones};
use crate::part::{any_part, on_core_0, part};
use crate::planted::PlantedFault;

/// Refuses a command on another node than a config server.
pub(super) fn check_role(cmd: &Invocation) -> Result<()> {
    match any_part().is_some_and(|part| part.is_config_server()) {
        true => Ok(()),
        false => Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("{} can only be run on config servers", cmd.name()),
        )),
    }
}

/// What every change of the catalog is refused by.
pub(super) fn check(cmd: &Invocation) -> Result<()> {
    let name = cmd.name();
    check_role(cmd)?;
    let concern = cmd.ctx.args.write_concern.as_ref();
    match concern.and_then(|concern| concern.w.as_ref()) {
        Some(WriteConcernW::Majority) => Ok(()),
        _ => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!(
                "\"{name}\" must be called with majority writeConcern, got {}",
                shown(cmd)
            ),
        )),
    }
}

/// The write concern as it was sent.
fn shown(cmd: &Invocation) -> String {
    match pinion_bson::get(cmd.body(), "writeConcern") {
        Some(value) => pinion_query::value_text(value),
        None => "{}".to_owned(),
    }
}

/// All that was written, also before by the same request, is to be as safe as is asked for.
pub(super) async fn finish(cmd: &Invocation, mut out: Reply) -> Result<Reply> {
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `_configsvrAddShard: <set/host,..>, name?` -> `shardAdded: <name>`.
pub(crate) async fn add_shard(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let string = ConnectionString::parse(reader.str(cmd.name())?)?;
    let name = reader.opt_str("name")?.map(str::to_owned);
    reader.finish()?;
    let request = AddShardRequest {
        set: string.set,
        hosts: string.hosts,
        name,
    };
    let from = sender(&cmd.ctx);
    let added = on_core_0(&cmd.ctx, move || async move {
        shards::add(request, &from).await
    })
    .await?;
    let mut out = Reply::new();
    out.append("shardAdded", added.as_str());
    finish(&cmd, out).await
}

/// `_configsvrCreateDatabase: <name>, primaryShardId?` -> `databaseVersion`, `primaryShard`.
pub(crate) async fn create_database(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let name = reader.str(cmd.name())?.to_owned();
    let primary = reader.opt_str("primaryShardId")?.map(str::to_owned);
    reader.finish()?;
    let from = sender(&cmd.ctx);
    let made = on_core_0(&cmd.ctx, move || async move {
        databases::create(&name, primary.as_deref(), &from).await
    })
    .await?;
    let mut out = Reply::new();
    made.version
        .append_to(&mut out, "databaseVersion", Form::Own);
    out.append("primaryShard", made.primary.as_str());
    match part().planted_fault {
        PlantedFault::PlacementNotMajority => Ok(out),
        _ => finish(&cmd, out).await,
    }
}

/// `_configsvrDropDatabase: <name>, version`: removes the entry of a database of which its primary
/// shard has nothing left.
pub(crate) async fn drop_database(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let name = reader.str(cmd.name())?.to_owned();
    let version = match reader.value("version") {
        Some(RawBsonRef::Document(version)) => {
            DatabaseVersion::parse(reader.path().field("version"), version)?
        }
        _ => {
            return Err(missing_field(reader.path().field("version")));
        }
    };
    reader.finish()?;
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        databases::remove(&name, version, &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrCommitMovePrimary: <name>, expectedDatabaseVersion, to`: writes the primary shard
/// that has all of a database by now. Sent again it is a success.
pub(crate) async fn commit_move_primary(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let name = reader.str(cmd.name())?.to_owned();
    let path = reader.path().field("expectedDatabaseVersion");
    let expected = DatabaseVersion::parse(path, reader.doc("expectedDatabaseVersion")?)?;
    let to = ShardId::new(reader.str("to")?);
    reader.finish()?;
    if expected.is_fixed() || expected.last_mod == i32::MAX {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            format!("Can't move primary for {name} database"),
        ));
    }
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        databases::move_primary(&name, expected, &to, &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrCommitCreateCollection: <ns>, collection: {..}, chunks: [{min, shard}, ..]`: writes
/// the routing table of a collection that is sharded from then on.
pub(crate) async fn commit_create_collection(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let document = reader.doc("collection")?;
    let chunks = chunks_in(&reader)?;
    reader.finish()?;
    let new = NewCollection::new(&ns, document, chunks)?;
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        collections::create(&new, &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

pub(crate) fn chunks_in(reader: &FieldReader<'_, '_>) -> Result<Vec<InitialChunk>> {
    let Some(objects) = reader.opt_objects("chunks")? else {
        return Err(missing_field(reader.path().field("chunks")));
    };
    let path = objects.path();
    let mut chunks = Vec::new();
    for object in objects {
        let (at, object) = object?;
        let chunk = FieldReader::object(path.index(at), object)?;
        chunks.push(InitialChunk {
            min: chunk.doc("min")?.to_owned(),
            shard: ShardId::new(chunk.str("shard")?),
        });
    }
    Ok(chunks)
}

/// `_configsvrCommitDropCollection: <ns>, uuid`: removes the routing table of a collection, and its
/// zones.
pub(crate) async fn commit_drop_collection(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let uuid = reader
        .opt_uuid("uuid")?
        .ok_or_else(|| missing_field(reader.path().field("uuid")))?;
    reader.finish()?;
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        collections::remove(&ns, Uuid::from_bytes(uuid), &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrCommitRefineCollectionShardKey: <ns>, uuid, key, was, of, nowMs, shards`: gives a
/// collection a finer key.
pub(crate) async fn commit_refine_shard_key(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let refinement = KeyRefinement::parse(ns, cmd.body())?;
    reader.ignore(KeyRefinement::fields());
    reader.finish()?;
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        refine::refine(&refinement, &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrSetAllowMigrations: <ns>, collectionUUID, allowMigrations, reason, phase, from`.
pub(crate) async fn set_allow_migrations(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let permission = MigrationPermission::parse(ns, cmd.body())?;
    reader.ignore(MigrationPermission::fields());
    reader.finish()?;
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        migrations::allow(&permission, &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrCollMod: <ns>, collectionUUID, was, timeseriesFields, shards, reason, phase, run,
/// from`: gives a sharded time series other buckets.
pub(crate) async fn coll_mod(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let change = SeriesChange::parse(ns, cmd.body())?;
    reader.ignore(SeriesChange::fields());
    reader.finish()?;
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        series::change(&change, &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrRenameCollectionMetadata: <from>, to, source?, target?, lastmodEpoch, timestamp`:
/// gives the routing table of a collection, and its zones, another name, in the place of those that
/// have it.
pub(crate) async fn rename_collection_metadata(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    reader.ignore(&[cmd.name()]);
    reader.ignore(MetadataRename::fields());
    reader.finish()?;
    let rename = MetadataRename::parse(cmd.body())?;
    let from = sender(&cmd.ctx);
    on_core_0(&cmd.ctx, move || async move {
        renames::rename(&rename, &from).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// The shard and the zone of a command.
fn shard_and_zone(cmd: &Invocation) -> Result<(String, String)> {
    let reader = cmd.reader()?;
    let shard = reader.str(cmd.name())?.to_owned();
    let zone = reader.str("zone")?.to_owned();
    reader.finish()?;
    Ok((shard, zone))
}

/// `_configsvrAddShardToZone: <shard>, zone`.
pub(crate) async fn add_shard_to_zone(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let (shard, zone) = shard_and_zone(&cmd)?;
    on_core_0(&cmd.ctx, move || async move {
        zones::add_shard(&shard, &zone).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrRemoveShardFromZone: <shard>, zone`.
pub(crate) async fn remove_shard_from_zone(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let (shard, zone) = shard_and_zone(&cmd)?;
    on_core_0(&cmd.ctx, move || async move {
        zones::remove_shard(&shard, &zone).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrUpdateZoneKeyRange: <ns>, min, max, zone`: with `null` the range is in no zone any
/// more.
pub(crate) async fn update_zone_key_range(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let (min, max) = (reader.doc("min")?.to_owned(), reader.doc("max")?.to_owned());
    let zone = match reader.value("zone") {
        None => return Err(missing_field(reader.path().field("zone"))),
        Some(RawBsonRef::Null) => None,
        Some(_) => Some(reader.str("zone")?.to_owned()),
    };
    reader.finish()?;
    on_core_0(&cmd.ctx, move || async move {
        zones::update_range(&ns, &min, &max, zone.as_deref()).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrSetUserWriteBlockMode: 1, global: <bool>`.
pub(crate) async fn set_user_write_block_mode(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let blocks = reader.opt_bool("global")?;
    let blocks = blocks.ok_or_else(|| missing_field(reader.path().field("global")))?;
    reader.ignore(&[cmd.name()]);
    reader.finish()?;
    on_core_0(&cmd.ctx, move || async move {
        settings::block_user_writes(blocks).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}

/// `_configsvrSetClusterParameter: {<name>: <value>}`.
pub(crate) async fn set_cluster_parameter(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let setting = reader.doc(cmd.name())?;
    reader.finish()?;
    let (name, value) = cluster_parameters::parse_setting(setting)?;
    on_core_0(&cmd.ctx, move || async move {
        settings::set_parameter(name, value).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}
