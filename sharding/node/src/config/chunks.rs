//! Splits and merges of chunks, one transaction each, and chunks that may be moved again.

use pinion_bson::{DocBuilder, RawBson, RawDocument, RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_exec::replication_parameters;
use pinion_runtime::wall_ms;
use pinion_service::generate::new_object_id;
use pinion_sharding_protocol::balancer::Zones;
use pinion_sharding_protocol::config::{
    ChunkChange, ClearJumboRequest, CommittedCollection, MergeRequest, SplitRequest, epoch_changed,
    mergeable_runs, merged,
};
use pinion_sharding_protocol::documents::ChunkDocument;
use pinion_sharding_protocol::{ChunkVersion, ShardId};
use pinion_wire::Result;
use pinion_wire::idl::Namespace;

use super::changelog::note;
use super::collections::{collection, insertion, removal_of, tags_of};
use crate::limits::{CHUNK_BATCH, MAX_MERGED_CHUNKS, MAX_NOTED_PARTS, MAX_SPLIT_CHUNKS};
use crate::local::{LocalClient, wait_majority};
use crate::part::part;

const CHUNKS: (&str, &str) = ("config", "chunks");

/// Splits a chunk; one that is split so already stays. Gives the version of the collection, which
/// is that of the shard. Called on core 0.
///
/// # Errors
/// As of [`SplitRequest::decide`]; those of a write.
pub(super) async fn split(request: &SplitRequest, from: &str) -> Result<ChunkVersion> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let collection = committed(&client, &request.ns).await?;
    let range = (&*request.min, &*request.max);
    let chunks = chunks_of_range(&client, &collection, range, MAX_SPLIT_CHUNKS).await?;
    match request.decide(&collection, &chunks, new_object_id)? {
        None => {
            // Another attempt may have written it, and not have come to its end.
            wait_majority().await?;
            Ok(collection.version)
        }
        Some(change) => {
            commit(&client, &change).await?;
            note_split(&client, from, request, &change).await;
            Ok(change.version)
        }
    }
}

/// Merges the chunks of a range; one chunk stays. Gives the version of the collection. Called on
/// core 0.
///
/// # Errors
/// As of [`MergeRequest::decide`]; those of a write.
pub(super) async fn merge(request: &MergeRequest, from: &str) -> Result<ChunkVersion> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let collection = committed(&client, &request.ns).await?;
    let range = (&*request.min, &*request.max);
    let chunks = chunks_of_range(&client, &collection, range, MAX_MERGED_CHUNKS).await?;
    match request.decide(&collection, &chunks)? {
        None => {
            wait_majority().await?;
            Ok(collection.version)
        }
        Some(change) => {
            commit(&client, &change).await?;
            note_merge(&client, from, &request.ns, chunks.len(), &change).await;
            Ok(change.version)
        }
    }
}

/// Merges all chunks of a collection on a shard that may be merged, each run of them by itself.
/// Gives the version of the collection, and how many chunks were merged. Called on core 0.
///
/// # Errors
/// `StaleEpoch` where it is not sharded; those of a write, by which some runs may be merged.
pub(super) async fn merge_all(
    ns: &Namespace,
    shard: &ShardId,
    limit: usize,
    from: &str,
) -> Result<(ChunkVersion, usize)> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let collection = committed(&client, ns).await?;
    let key = collection.key()?;
    let zones = Zones::new(&tags_of(&client, ns).await?, &key)?;
    let oldest = oldest_read();
    let (mut version, mut count) = (collection.version, 0);
    let mut after: Option<RawDocumentBuf> = None;
    loop {
        let filter = of_shard(&collection, shard, after.as_ref());
        let page = chunks(&client, &filter, MAX_MERGED_CHUNKS).await?;
        for run in mergeable_runs(&key, &page, &zones, oldest)? {
            let room = limit.saturating_sub(count);
            let parts: Vec<&ChunkDocument> = page[run].iter().take(room).collect();
            if parts.len() < 2 {
                break;
            }
            let change = merged(&parts, version);
            commit(&client, &change).await?;
            note_merge(&client, from, ns, parts.len(), &change).await;
            version = change.version;
            count += parts.len();
        }
        let is_last = page.len() < MAX_MERGED_CHUNKS;
        // The last one of a page may be joined with what follows it.
        after = page.last().map(|chunk| chunk.min.clone());
        if is_last || limit.saturating_sub(count) < 2 {
            break;
        }
    }
    wait_majority().await?;
    Ok((version, count))
}

/// Makes a chunk one that may be moved. Called on core 0.
///
/// # Errors
/// As of [`ClearJumboRequest::decide`]; those of a write.
pub(super) async fn clear_jumbo(request: &ClearJumboRequest) -> Result<()> {
    let part = part();
    let _turn = part.core_0.collections_turn.acquire().await;
    let client = LocalClient::new()?;
    let collection = committed(&client, &request.ns).await?;
    let range = (&*request.min, &*request.max);
    let chunks = chunks_of_range(&client, &collection, range, 2).await?;
    match request.decide(&collection, &chunks)? {
        None => wait_majority().await,
        Some(change) => commit(&client, &change).await,
    }
}

/// A sharded collection with its version.
///
/// # Errors
/// `StaleEpoch` where it is none: who has sent the request is to find that out.
pub(super) async fn committed(client: &LocalClient, ns: &Namespace) -> Result<CommittedCollection> {
    let found = collection(client, ns).await?;
    let Some(document) = found.filter(|found| !found.is_dropped) else {
        return Err(epoch_changed(ns));
    };
    let newest = rawdoc! { "lastmod": -1 };
    let filter = document.chunks_filter(None);
    let newest = client.find_sorted(CHUNKS, &filter, &newest, 1).await?;
    let newest = newest.first().map(|chunk| ChunkDocument::parse(chunk));
    let version = newest.transpose()?.map_or_else(
        || ChunkVersion::without_chunks(document.of),
        |newest| ChunkVersion::from_placement(document.of, newest.placement),
    );
    Ok(CommittedCollection { document, version })
}

/// Chunks in the order of their ranges.
async fn chunks(
    client: &LocalClient,
    filter: &RawDocumentBuf,
    limit: usize,
) -> Result<Vec<ChunkDocument>> {
    let by_min = rawdoc! { "min": 1 };
    let found = client.find_sorted(CHUNKS, filter, &by_min, limit as i32);
    let found = found.await?;
    let parsed = found.iter().map(|chunk| ChunkDocument::parse(chunk));
    parsed.collect()
}

/// The chunks that have keys of a range. There may be very many in front of it.
async fn chunks_of_range(
    client: &LocalClient,
    collection: &CommittedCollection,
    range: (&RawDocument, &RawDocument),
    limit: usize,
) -> Result<Vec<ChunkDocument>> {
    let (up_to, last_first) = (collection.up_to(range.0), rawdoc! { "min": -1 });
    let found = client.find_sorted(CHUNKS, &up_to, &last_first, 1).await?;
    let first = found.first().map(|chunk| ChunkDocument::parse(chunk));
    let first = first.transpose()?.map(|chunk| chunk.min);
    let filter = collection.overlapping(range, first.as_deref());
    chunks(client, &filter, limit).await
}

fn of_shard(
    collection: &CommittedCollection,
    shard: &ShardId,
    from: Option<&RawDocumentBuf>,
) -> RawDocumentBuf {
    let mut filter = DocBuilder::new();
    filter.append_all(&collection.document.chunks_filter(None));
    filter.append("shard", shard.as_str());
    if let Some(from) = from {
        filter.start_document("min").append("$gte", &**from).end();
    }
    filter.finish()
}

/// The earliest time that a read may ask for.
fn oldest_read() -> Timestamp {
    let history_secs = replication_parameters().snapshot_history_secs.max(0);
    let now_secs = (wall_ms() / 1000).max(0) as u64;
    let oldest = now_secs.saturating_sub(history_secs as u64);
    Timestamp::new(u32::try_from(oldest).unwrap_or(u32::MAX), 0)
}

/// Writes a change, which a majority has then.
async fn commit(client: &LocalClient, change: &ChunkChange) -> Result<()> {
    let mut commands = Vec::new();
    for some in change.removed.chunks(CHUNK_BATCH) {
        commands.push(removal_of(some.iter().map(RawBson::as_raw_bson_ref)));
    }
    let id = change.replaced.id.clone();
    commands.push(rawdoc! {
        "update": "chunks", "$db": "config",
        "updates": [{ "q": { "_id": id }, "u": change.replaced.to_bson() }],
    });
    let inserted = change.inserted.iter().map(ChunkDocument::to_bson);
    let mut inserted = inserted.peekable();
    while inserted.peek().is_some() {
        commands.push(insertion(&mut inserted));
    }
    client.run_together(&commands).await
}

/// A chunk as the changelog has it.
fn noted(chunk: &ChunkDocument) -> RawDocumentBuf {
    rawdoc! {
        "min": chunk.min.clone(), "max": chunk.max.clone(), "shard": chunk.shard.as_str(),
        "lastmod": crate::config_servers::bson_timestamp(chunk.placement),
    }
}

/// Notes a split in two as one, and another one part by part, the first of them where there are
/// many.
async fn note_split(
    client: &LocalClient,
    from: &str,
    request: &SplitRequest,
    change: &ChunkChange,
) {
    let ns = request.ns.as_str();
    let before = rawdoc! { "min": request.min.clone(), "max": request.max.clone() };
    let mut parts = vec![&change.replaced];
    parts.extend(&change.inserted);
    if let [left, right] = parts[..] {
        let details = rawdoc! { "before": before, "left": noted(left), "right": noted(right) };
        return note(client, from, "split", ns, details).await;
    }
    let count = parts.len() as i64;
    for (at, part) in parts.iter().take(MAX_NOTED_PARTS).enumerate() {
        let details = rawdoc! {
            "before": before.clone(), "number": at as i64 + 1, "of": count, "chunk": noted(part),
        };
        note(client, from, "multi-split", ns, details).await;
    }
}

async fn note_merge(
    client: &LocalClient,
    from: &str,
    ns: &Namespace,
    count: usize,
    change: &ChunkChange,
) {
    let details = rawdoc! {
        "merged": noted(&change.replaced), "numChunks": count as i64,
        "mergedVersion": format!("{:?}", change.version),
        "owningShard": change.replaced.shard.as_str(),
    };
    note(client, from, "merge", ns.as_str(), details).await;
}
