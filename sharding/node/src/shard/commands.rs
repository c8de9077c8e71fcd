//! Commands of shards: `_addShard`, `shardingState`, and those about the versions of databases.

use pinion_exec::commands::acknowledge;
use pinion_service::node_info::ClusterRole;
use pinion_sharding_protocol::documents::ShardIdentityDocument;
use pinion_storage::storage;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::collections::append_versions;
use super::databases::{membership, refresh};
use super::identity;
use crate::ddl;
use crate::part::{Membership, any_part, form, on_core_0};

const NO_SHARD_SERVER: ErrorCode = ErrorCode(50_876);

/// `_addShard: 1, shardIdentity: {shardName, clusterId, configsvrConnectionString}`: makes the set
/// a shard of the sender's cluster. Sent again it does nothing.
pub(crate) async fn add_shard(cmd: Invocation) -> Result<Reply> {
    if any_part().is_none_or(|part| part.role != ClusterRole::Shard) {
        return Err(Error::new(
            NO_SHARD_SERVER,
            "Cannot run addShard on a node started without --shardsvr",
        ));
    }
    let reader = cmd.reader()?;
    reader.ignore(&["_addShard"]);
    let identity = ShardIdentityDocument::parse(reader.doc("shardIdentity")?)?;
    reader.finish()?;
    let new = Membership::of(identity)?;
    on_core_0(&cmd.ctx, move || identity::give(new)).await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `shardingState: 1`.
pub(crate) async fn sharding_state(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["shardingState"]);
    reader.finish()?;
    let mut out = Reply::new();
    let membership = any_part().and_then(|part| part.membership());
    out.append("enabled", membership.is_some());
    if let Some(shard) = membership {
        out.append("configServer", shard.config_servers.to_string().as_str())
            .append("shardName", shard.shard().as_str())
            .append("clusterId", shard.document.cluster);
        append_versions(&shard, &mut out);
    }
    Ok(out)
}

/// The part of a shard.
pub(super) fn of_shard() -> Result<std::rc::Rc<crate::part::Part>> {
    any_part()
        .filter(|part| part.role == ClusterRole::Shard)
        .ok_or_else(|| {
            Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                "the command can only be run on a shard",
            )
        })
}

/// `_flushDatabaseCacheUpdates: <database>, syncFromConfig?`: brings what secondaries read of the
/// database up to what the config servers say. The reply's `operationTime` covers that.
pub(crate) async fn flush_database(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let db = reader.str(cmd.name())?.to_owned();
    let from_config = reader.opt_bool("syncFromConfig")?.unwrap_or(true);
    reader.finish()?;
    membership(&*of_shard()?)?;
    if from_config {
        on_core_0(&cmd.ctx, move || async move {
            ddl::resumed().await;
            ddl::until_open(&db).await;
            refresh(&db, |_| false).await
        })
        .await?;
    }
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `getDatabaseVersion: <database>`: what this node goes by; empty where it knows none.
pub(crate) async fn get_database_version(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let db = reader.str("getDatabaseVersion")?.to_owned();
    reader.finish()?;
    let part = of_shard()?;
    membership(&part)?;
    let mut out = Reply::new();
    match part.database(&db) {
        Some(known) => known.version.append_to(&mut out, "dbVersion", form()),
        None => {
            out.start_document("dbVersion").end();
        }
    }
    Ok(out)
}
