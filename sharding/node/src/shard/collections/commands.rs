//! Commands of shards about the tables of collections.

use pinion_bson::DocBuilder;
use pinion_exec::commands::acknowledge;
use pinion_sharding_protocol::{RoutingTable, ShardVersion};
use pinion_storage::storage;
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use super::super::commands::of_shard;
use super::super::databases::membership;
use super::super::refreshes::{EntryKey, exclusively};
use super::known::Known;
use super::refresh::refresh_collection;
use crate::config_servers::bson_timestamp;
use crate::limits::LISTED_CHUNKS_BYTES;
use crate::part::{Membership, form, on_core_0, part};

/// `_flushRoutingTableCacheUpdates: <collection>, syncFromConfig?`: brings what secondaries read of
/// the collection up to what the config servers say; without that waits for what is being written.
/// The reply's `operationTime` covers it.
pub(crate) async fn flush_collection(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let from_config = reader.opt_bool("syncFromConfig")?.unwrap_or(true);
    reader.finish()?;
    membership(&*of_shard()?)?;
    on_core_0(&cmd.ctx, move || async move {
        match from_config {
            true => refresh_collection(&ns, |_| false).await,
            false => {
                let key = EntryKey::collection(ns.as_str());
                exclusively(&key, async { Ok(()) }).await
            }
        }
    })
    .await?;
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

/// `getShardVersion: <collection>, fullMetadata?`: what this node goes by.
pub(crate) async fn get_shard_version(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str("getShardVersion")?)?;
    let is_full = reader.opt_bool("fullMetadata")?.unwrap_or(false);
    reader.finish()?;
    let part = of_shard()?;
    let shard = membership(&part)?;
    let known = part.collection(&ns);
    let is_sharded = matches!(known, Known::Table(_));
    let mine = match &known {
        Known::Table(table) => placement(table, &shard),
        Known::Stale | Known::Unsharded => bson_timestamp(pinion_clock::Timestamp::MIN),
    };
    let mut out = Reply::new();
    out.append("configServer", shard.config_servers.to_string().as_str())
        .append("inShardedMode", is_sharded)
        .append("mine", mine);
    match &known {
        Known::Stale => out.append("global", "UNKNOWN"),
        Known::Unsharded => out.append("global", "UNSHARDED"),
        Known::Table(_) => out.append("global", mine),
    };
    if is_full {
        out.start_document("metadata");
        if let Known::Table(table) = &known {
            append_metadata(table, &shard, &mut out);
        }
        out.end();
    }
    Ok(out)
}

/// Major and minor version of a shard.
fn placement(table: &RoutingTable, shard: &Membership) -> pinion_bson::Timestamp {
    table.shard_version(shard.shard()).to_sent().placement
}

/// The versions, the key and the bounds of the chunks that this shard owns.
fn append_metadata(table: &RoutingTable, shard: &Membership, out: &mut DocBuilder) {
    let collection = ShardVersion::Placed(table.version());
    collection.append_to(out, "collVersion", form());
    let version = table.shard_version(shard.shard());
    version.append_to(out, "shardVersion", form());
    out.append("keyPattern", &*table.key.to_bson());
    let me = table.shard_of_name(shard.shard());
    let mut bytes = 0;
    let mut is_complete = true;
    out.start_array("chunks");
    for chunk in table.chunks().filter(|chunk| Some(chunk.shard) == me) {
        let [min, max] = [&chunk.range.min, &chunk.range.max].map(|key| table.key.document(key));
        bytes += min.as_bytes().len() + max.as_bytes().len();
        if bytes > LISTED_CHUNKS_BYTES {
            is_complete = false;
            break;
        }
        out.push_array().push(&*min).push(&*max).end();
    }
    out.end();
    if !is_complete {
        out.append("chunksLimited", true);
    }
}

/// `versions`: that of this shard for each collection whose table it goes by.
pub(crate) fn append_versions(shard: &Membership, out: &mut DocBuilder) {
    out.start_document("versions");
    for table in part().collections.tables() {
        out.append(table.ns.as_str(), placement(&table, shard));
    }
    out.end();
}
