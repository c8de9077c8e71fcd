//! Commands of config servers: `_configsvrAddShard`, `_configsvrCreateDatabase`,
//! `_configsvrDropDatabase`.

use pinion_bson::RawBsonRef;
use pinion_exec::commands::acknowledge;
use pinion_sharding_protocol::config::AddShardRequest;
use pinion_sharding_protocol::{ConnectionString, DatabaseVersion, Form};
use pinion_storage::storage;
use pinion_wire::idl::WriteConcernW;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::changelog::sender;
use super::{databases, shards};
use crate::part::{any_part, on_core_0, part};
use crate::planted::PlantedFault;

/// What every change of the catalog is refused by.
fn check(cmd: &Invocation) -> Result<()> {
    let name = cmd.name();
    if !any_part().is_some_and(|part| part.is_config_server()) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            format!("{name} can only be run on config servers"),
        ));
    }
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
async fn finish(cmd: &Invocation, mut out: Reply) -> Result<Reply> {
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
            return Err(pinion_wire::idl::missing_field(
                reader.path().field("version"),
            ));
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
