//! What an administrator sets of the balancer, and whether it has work with a collection.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::{RawDocumentBuf, get, rawdoc};
use pinion_runtime::join_all;
use pinion_sharding_protocol::balancer::{
    CollectionState, MoveReason, PolicySettings, ShardState, Zones, first_violation,
};
use pinion_sharding_protocol::config::BalancingRequest;
use pinion_sharding_protocol::documents::{
    BalancerMode, BalancerSettings, ChunkDocument, ChunkSizeSettings, CollectionDocument,
    ShardDocument,
};
use pinion_sharding_protocol::{ConnectionString, RoutingTable, ShardId};
use pinion_wire::idl::{Namespace, i64_clamped};
use pinion_wire::{Error, ErrorCode, Result};

use super::collections::{collection, tags_of};
use super::shards::known_shards;
use crate::config_servers::run_on_set;
use crate::limits::SHARD_SIZE;
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

const SETTINGS: (&str, &str) = ("config", "settings");

/// Switches the balancer on or off.
///
/// # Errors
/// Those of a write.
pub(super) async fn switch(is_on: bool) -> Result<()> {
    let mode = if is_on { "full" } else { "off" };
    let update = rawdoc! {
        "update": "settings", "$db": "config",
        "updates": [{
            "q": { "_id": BalancerSettings::ID },
            "u": { "$set": { "mode": mode, "stopped": !is_on } },
            "upsert": true,
        }],
    };
    LocalClient::new()?.write(&update).await
}

async fn setting(client: &LocalClient, id: &str) -> Result<Option<RawDocumentBuf>> {
    let found = client.find(SETTINGS, &rawdoc! { "_id": id }, 1).await?;
    Ok(found.into_iter().next())
}

/// What the balancer is set to do.
///
/// # Errors
/// The settings cannot be read.
pub(super) async fn mode() -> Result<BalancerMode> {
    let found = setting(&LocalClient::new()?, BalancerSettings::ID).await?;
    let settings = found.map(|found| BalancerSettings::parse(&found));
    Ok(settings.transpose()?.unwrap_or_default().mode)
}

/// Sets how a collection is balanced. Called on core 0.
///
/// # Errors
/// `NamespaceNotSharded`; those of a write.
pub(super) async fn configure(request: &BalancingRequest) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    sharded(&client, &request.ns).await?;
    let Some(update) = request.update() else {
        return wait_majority().await;
    };
    let update = rawdoc! {
        "update": "collections", "$db": "config",
        "updates": [{ "q": { "_id": request.ns.as_str() }, "u": update }],
    };
    client.write(&update).await
}

async fn sharded(client: &LocalClient, ns: &Namespace) -> Result<CollectionDocument> {
    let found = collection(client, ns).await?;
    found.filter(|found| !found.is_dropped).ok_or_else(|| {
        Error::new(
            ErrorCode::NAMESPACE_NOT_SHARDED,
            format!("Expected collection {ns} to be sharded"),
        )
    })
}

/// The size up to which a chunk is moved, and why the balancer has work with a collection, if it
/// has. Called on core 0.
///
/// # Errors
/// `NamespaceNotSharded`; the catalog cannot be read; a shard does not answer.
pub(super) async fn status(ns: &Namespace) -> Result<(u64, Option<MoveReason>)> {
    let client = LocalClient::new()?;
    let (document, chunks, tags) = {
        let part = part();
        let _turn = part.core_0.collections_turn.acquire().await;
        let document = sharded(&client, ns).await?;
        let filter = document.chunks_filter(None);
        let chunks = client.find_all(("config", "chunks"), &filter).await?;
        (document, chunks, tags_of(&client, ns).await?)
    };
    let chunks = chunks.iter().map(|chunk| ChunkDocument::parse(chunk));
    let chunks: Vec<ChunkDocument> = chunks.collect::<Result<_>>()?;
    let table = RoutingTable::new(&document, chunks)?;
    let zones = Zones::new(&tags, &table.key)?;
    let size = setting(&client, ChunkSizeSettings::ID).await?;
    let size = size.map(|found| ChunkSizeSettings::parse(&found));
    let size = size.transpose()?.unwrap_or_default().max_chunk_size_bytes;
    let size = match document.max_chunk_size_bytes {
        Some(bytes) if bytes > 0 => bytes as u64,
        _ => size,
    };
    let shards = known_shards(&client).await?;
    let sizes = sizes(ns, &table, &shards).await?;
    let state = CollectionState {
        table: &table,
        zones: &zones,
        sizes: &sizes,
        is_balanced: !document.no_balance,
        max_chunk_size_bytes: size,
    };
    let shards: Vec<ShardState> = shards.iter().map(state_of).collect();
    let reason = first_violation(state, &shards, PolicySettings::default());
    Ok((size, reason))
}

fn state_of(shard: &ShardDocument) -> ShardState {
    ShardState {
        id: shard.id.clone(),
        is_draining: shard.is_draining,
        zones: shard.tags.iter().cloned().collect(),
    }
}

/// What each shard has of a collection, orphans with it.
async fn sizes(
    ns: &Namespace,
    table: &RoutingTable,
    shards: &[ShardDocument],
) -> Result<BTreeMap<ShardId, u64>> {
    let owners: BTreeSet<&ShardId> = table.shards().map(|at| table.shard(at)).collect();
    let asked = shards.iter().filter(|shard| owners.contains(&shard.id));
    let asked = asked.map(|shard| async {
        let set = ConnectionString::parse(&shard.host)?;
        let command = rawdoc! { "collStats": ns.collection(), "$db": ns.db() };
        let reply = run_on_set(&set, &command, SHARD_SIZE).await?;
        let size = get(&reply, "size").and_then(i64_clamped).unwrap_or(0);
        Ok((shard.id.clone(), size.max(0) as u64))
    });
    join_all(asked).await.into_iter().collect()
}
