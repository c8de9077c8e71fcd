//! `refineCollectionShardKey` and `setAllowMigrations`, which the primary shard of the database
//! coordinates.

use pinion_bson::DocBuilder;
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::ShardKeyPattern;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::sharding::append_majority;
use crate::dispatch::{WhenAbsent, at_coordinator};
use crate::placement::{database, flush_collection};
use crate::reply::passed_on;
use crate::request::Request;

/// `refineCollectionShardKey: <ns>, key, enforceUniquenessCheck?, collectionUUID?`. Sent again with
/// the key that the collection has it is a success.
pub(super) async fn refine_collection_shard_key(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let key = reader.doc("key")?;
    let checks_uniqueness = reader.opt_safe_bool("enforceUniquenessCheck")?;
    reader.opt_uuid("collectionUUID")?;
    reader.finish()?;
    ShardKeyPattern::parse(key)?;
    coordinate(&cmd, &ns, |out| {
        out.append("_shardsvrRefineCollectionShardKey", ns.collection())
            .append("key", key);
        if let Some(flag) = checks_uniqueness {
            out.append("enforceUniquenessCheck", flag);
        }
        if let Some(uuid) = pinion_bson::get(cmd.body(), "collectionUUID") {
            out.append_raw("collectionUUID", uuid);
        }
    })
    .await
}

/// `setAllowMigrations: <ns>, allowMigrations`.
pub(super) async fn set_allow_migrations(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let allows = reader.bool("allowMigrations")?;
    reader.finish()?;
    coordinate(&cmd, &ns, |out| {
        out.append("_shardsvrSetAllowMigrations", ns.collection())
            .append("allowMigrations", allows);
    })
    .await
}

async fn coordinate(
    cmd: &Invocation,
    ns: &Namespace,
    fields: impl Fn(&mut DocBuilder),
) -> Result<Reply> {
    let not_sharded = || {
        Error::new(
            ErrorCode::NAMESPACE_NOT_SHARDED,
            format!("{} namespace {ns} is not sharded", cmd.name()),
        )
    };
    let database = interruptible(&cmd.ctx, database(ns.db())).await??;
    // `config` and `admin` have no version, and no sharded collection of clients.
    if database.is_none_or(|database| database.version.is_fixed()) {
        return Err(not_sharded());
    }
    let done = at_coordinator(cmd, ns.db(), WhenAbsent::Answer, |versions| {
        Request::own(ns.db(), versions, |out| {
            fields(out);
            append_majority(out, cmd);
        })
    })
    .await;
    // Also where it failed: it may be done all the same.
    flush_collection(ns).await;
    Ok(passed_on(done?.body()))
}
