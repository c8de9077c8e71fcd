//! Commands of config servers about chunks.

use pinion_sharding_protocol::config::{ClearJumboRequest, MergeRequest, SplitRequest};
use pinion_sharding_protocol::{ChunkVersion, Form, ShardId, ShardVersion};
use pinion_wire::idl::Namespace;
use pinion_wire::{Invocation, Reply, Result};

use super::changelog::sender;
use super::chunks;
use super::commands::{check, finish};
use crate::part::on_core_0;

/// `collectionVersion` and `shardVersion`: the chunk with the highest version is of the shard that
/// has asked.
fn versions(version: ChunkVersion) -> Reply {
    let mut out = Reply::new();
    for name in ["collectionVersion", "shardVersion"] {
        ShardVersion::Placed(version).append_to(&mut out, name, Form::Own);
    }
    out
}

/// `_configsvrCommitChunkSplit: <ns>, collEpoch, min, max, splitPoints, shard`.
pub(crate) async fn commit_chunk_split(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let request = SplitRequest::parse(cmd.body())?;
    reader.ignore(SplitRequest::fields());
    reader.finish()?;
    let from = sender(&cmd.ctx);
    let version = on_core_0(&cmd.ctx, move || async move {
        chunks::split(&request, &from).await
    })
    .await?;
    finish(&cmd, versions(version)).await
}

/// `_configsvrCommitChunksMerge: <ns>, shard, collUUID, chunkRange`.
pub(crate) async fn commit_chunks_merge(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let request = MergeRequest::parse(cmd.body())?;
    reader.ignore(MergeRequest::fields());
    reader.finish()?;
    let from = sender(&cmd.ctx);
    let version = on_core_0(&cmd.ctx, move || async move {
        chunks::merge(&request, &from).await
    })
    .await?;
    finish(&cmd, versions(version)).await
}

/// `_configsvrCommitMergeAllChunksOnShard: <ns>, shard, maxNumberOfChunksToMerge?` ->
/// `shardVersion`, `numMergedChunks`.
pub(crate) async fn commit_merge_all_chunks_on_shard(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let shard = ShardId::new(reader.str("shard")?);
    let limit = reader.opt_at_least("maxNumberOfChunksToMerge", 2)?;
    reader.opt_i64("maxTimeProcessingChunksMS")?;
    reader.finish()?;
    let limit = limit.map_or(usize::MAX, |limit| limit as usize);
    let from = sender(&cmd.ctx);
    let (version, count) = on_core_0(&cmd.ctx, move || async move {
        chunks::merge_all(&ns, &shard, limit, &from).await
    })
    .await?;
    let mut out = versions(version);
    out.append("numMergedChunks", count as i64);
    finish(&cmd, out).await
}

/// `_configsvrClearJumboFlag: <ns>, epoch, minKey, maxKey`.
pub(crate) async fn clear_jumbo_flag(cmd: Invocation) -> Result<Reply> {
    check(&cmd)?;
    let reader = cmd.reader()?;
    let request = ClearJumboRequest::parse(cmd.body())?;
    reader.ignore(ClearJumboRequest::fields());
    reader.finish()?;
    on_core_0(&cmd.ctx, move || async move {
        chunks::clear_jumbo(&request).await
    })
    .await?;
    finish(&cmd, Reply::new()).await
}
