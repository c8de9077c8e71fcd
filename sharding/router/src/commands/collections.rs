//! `create` and `drop`: of collections of one shard, which their primary shard alone concerns, and
//! of sharded ones.

use std::sync::Arc;

use pinion_bson::{Binary, DocBuilder, RawBson, RawBsonRef, Uuid};
use pinion_service::interrupt::interruptible;
use pinion_service::session_ids::is_in;
use pinion_sharding_protocol::{RoutingTable, Targets};
use pinion_wire::idl::{Namespace, ReadPreference};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::sharding::append_majority;
use super::{forward, reads};
use crate::dispatch::{
    WhenAbsent, at_coordinator, at_primary, before_routing_again, may_route_again,
    named_collection, send_to,
};
use crate::hosts::Retry;
use crate::placement::{flush_collection, make_database, shard_is_stale, table_of};
use crate::reply::{passed_on, refused};
use crate::request::{Request, Versions};

/// Runs a definition of a collection by what is known of it, and again where that was old.
async fn routed(
    cmd: &Invocation,
    ns: &Namespace,
    absent: WhenAbsent,
    sharded: impl AsyncFn(&RoutingTable) -> Result<Reply>,
) -> Result<Reply> {
    for attempt in 0.. {
        let outcome = match known_table(cmd, ns).await? {
            Some(table) => sharded(&table).await,
            None => unsharded(cmd, ns, absent).await,
        };
        match outcome {
            Err(error) if may_route_again(cmd, &error, attempt) => {
                before_routing_again(cmd, Some(ns), &error, attempt).await?;
            }
            outcome => return outcome,
        }
    }
    unreachable!("it returns at the last attempt")
}

/// Sends a definition of an unsharded collection to the primary shard of its database.
async fn unsharded(cmd: &Invocation, ns: &Namespace, absent: WhenAbsent) -> Result<Reply> {
    let make = |versions| Request::of(cmd, ns.db(), versions);
    let answer = at_primary(cmd, ns.db(), absent, make).await?;
    Ok(passed_on(answer.body()))
}

/// The table of a collection, as far as it is known; `None` where it is not sharded.
///
/// # Errors
/// The config servers do not answer; the operation is interrupted.
pub(super) async fn known_table(
    cmd: &Invocation,
    ns: &Namespace,
) -> Result<Option<Arc<RoutingTable>>> {
    interruptible(&cmd.ctx, table_of(ns, Targets::Unknown)).await?
}

/// `create`. A sharded collection is on the primary shard of its database in any case, which
/// compares the options.
pub(super) async fn create(cmd: Invocation) -> Result<Reply> {
    let named = named_collection(&cmd, cmd.db());
    let Some(ns) = named.filter(|_| !is_in(&cmd.ctx)) else {
        return forward::making_database(cmd).await;
    };
    routed(&cmd, &ns, WhenAbsent::Make, async |_| {
        let database = interruptible(&cmd.ctx, make_database(ns.db(), None)).await??;
        let of_primary = Targets::Shards([database.primary.clone()].into());
        let table = interruptible(&cmd.ctx, table_of(&ns, of_primary)).await??;
        let Some(table) = table else {
            return unsharded(&cmd, &ns, WhenAbsent::Make).await;
        };
        let version = table.shard_version(&database.primary);
        let request = Request::of(&cmd, ns.db(), Versions::of_shard(version));
        let preference = ReadPreference::default();
        match send_to(&cmd, &database.primary, &preference, &request, Retry::Never).await {
            Ok(answer) => Ok(passed_on(answer.body())),
            Err(error) => {
                shard_is_stale(&error).await?;
                Err(refused(error))
            }
        }
    })
    .await
}

/// `drop`. The primary shard of the database has all shards drop what they have of a sharded
/// collection.
pub(super) async fn drop(cmd: Invocation) -> Result<Reply> {
    match named_collection(&cmd, cmd.db()) {
        None => reads::plain(cmd).await,
        Some(ns) => {
            routed(&cmd, &ns, WhenAbsent::Answer, async |table| {
                drop_sharded(&cmd, &ns, table).await
            })
            .await
        }
    }
}

async fn drop_sharded(cmd: &Invocation, ns: &Namespace, table: &RoutingTable) -> Result<Reply> {
    let reader = cmd.reader()?;
    reader.ignore(&["drop"]);
    let wanted = reader.opt_uuid("collectionUUID")?.map(Uuid::from_bytes);
    reader.finish()?;
    if let Some(wanted) = wanted.filter(|wanted| table.uuid != Some(*wanted)) {
        // Another collection may have the name by now.
        flush_collection(ns).await;
        match known_table(cmd, ns).await? {
            Some(table) if table.uuid == Some(wanted) => {}
            _ => return Err(other_uuid(ns, wanted)),
        }
    }
    let dropped = at_coordinator(cmd, ns.db(), WhenAbsent::Answer, |versions| {
        match versions.database {
            Some(_) => Request::own(ns.db(), versions, |out| {
                out.append("_shardsvrDropCollection", ns.collection());
                append_majority(out, cmd);
            }),
            // Another router has dropped the database meanwhile.
            None => Request::of(cmd, ns.db(), versions),
        }
    })
    .await;
    // Also where it failed: it may be dropped all the same.
    flush_collection(ns).await;
    Ok(passed_on(dropped?.body()))
}

fn other_uuid(ns: &Namespace, wanted: Uuid) -> Error {
    let mut extra = DocBuilder::new();
    let uuid = RawBson::Binary(Binary::from(wanted));
    extra
        .append("db", ns.db())
        .append_raw("collectionUUID", uuid.as_raw_bson_ref())
        .append("expectedCollection", ns.collection())
        .append_raw("actualCollection", RawBsonRef::Null);
    Error::new(
        ErrorCode::COLLECTION_UUID_MISMATCH,
        "Collection UUID does not match that specified",
    )
    .with_extra(extra.finish())
}
