//! Commands of shards about chunks.

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_exec::commands::acknowledge;
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::Form;
use pinion_storage::storage;
use pinion_wire::idl::{FieldReader, Namespace, missing_field};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::super::commands::of_shard;
use super::super::databases::membership;
use super::commit::{self, Expected};
use super::index::find_index;
use super::split_vector::{SplitVectorRequest, key_and_bounds};
use crate::part::{form, on_core_0};

/// `splitVector` -> `splitKeys`.
pub(crate) async fn split_vector(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let request = SplitVectorRequest::read(&reader)?;
    reader.finish()?;
    let points = interruptible(&cmd.ctx, request.search()).await??;
    let mut out = Reply::new();
    out.start_array("splitKeys");
    for point in &points {
        out.push(&**point);
    }
    out.end();
    Ok(out)
}

/// `checkShardingIndex: <ns>, keyPattern, min?, max?` -> `idskip` where the key is `_id`.
pub(crate) async fn check_sharding_index(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let (key, ..) = key_and_bounds(&reader, "checkShardingIndex")?;
    reader.finish()?;
    let mut out = Reply::new();
    if pinion_bson::compare_documents(&key.to_bson(), &rawdoc! { "_id": 1 }).is_eq() {
        out.append("idskip", true);
        return Ok(out);
    }
    match find_index(&ns, &key, false)? {
        Some(_) => Ok(out),
        None => Err(Error::new(
            match form() {
                Form::Own => ErrorCode::INDEX_NOT_FOUND,
                // The config servers of MongoDB 4.4 take no other one for an answer.
                Form::Mongo44 => ErrorCode::UNKNOWN_ERROR,
            },
            "couldn't find valid index for shard key",
        )),
    }
}

async fn finish(cmd: &Invocation) -> Result<Reply> {
    let mut out = Reply::new();
    acknowledge(&cmd.ctx, Some(storage().last_allotted()), &mut out).await?;
    Ok(out)
}

fn expected(reader: &FieldReader<'_, '_>, name: &str) -> Result<Expected> {
    let epoch = reader.opt_object_id("epoch")?;
    Ok(Expected {
        ns: Namespace::parse(reader.str(name)?)?,
        epoch: epoch.ok_or_else(|| missing_field(reader.path().field("epoch")))?,
        timestamp: reader.opt_timestamp("timestamp")?,
    })
}

fn documents(reader: &FieldReader<'_, '_>, name: &str) -> Result<Vec<RawDocumentBuf>> {
    let values = pinion_bson::values(reader.array(name)?);
    let documents = values.map(|value| {
        let document = value.as_document();
        document.map(ToOwned::to_owned).ok_or_else(|| {
            Error::bad_value(format!("'{}' has documents", reader.path().field(name)))
        })
    });
    documents.collect()
}

/// `splitChunk: <ns>, epoch, timestamp?, min, max, splitKeys, from?, keyPattern?`.
pub(crate) async fn split_chunk(cmd: Invocation) -> Result<Reply> {
    membership(&*of_shard()?)?;
    let reader = cmd.reader()?;
    let expected = expected(&reader, cmd.name())?;
    let (min, max) = (reader.doc("min")?.to_owned(), reader.doc("max")?.to_owned());
    let points = documents(&reader, "splitKeys")?;
    if points.is_empty() {
        return Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "need to provide the split points",
        ));
    }
    // What the table says counts.
    reader.ignore(&["from", "keyPattern", "fromChunkSplitter"]);
    reader.finish()?;
    on_core_0(&cmd.ctx, move || async move {
        commit::split(&expected, [&min, &max], &points).await
    })
    .await?;
    finish(&cmd).await
}

/// `_shardsvrMergeChunks: <ns>, bounds: [<min>, <max>], epoch, timestamp?`.
pub(crate) async fn merge_chunks(cmd: Invocation) -> Result<Reply> {
    membership(&*of_shard()?)?;
    let reader = cmd.reader()?;
    let expected = expected(&reader, cmd.name())?;
    let bounds = documents(&reader, "bounds")?;
    reader.finish()?;
    let [min, max] = <[RawDocumentBuf; 2]>::try_from(bounds)
        .map_err(|_| Error::bad_value("only a min and max bound may be specified"))?;
    on_core_0(&cmd.ctx, move || async move {
        commit::merge(&expected, [&min, &max]).await
    })
    .await?;
    finish(&cmd).await
}

/// `_shardsvrMergeAllChunksOnShard: <ns>, shard, maxNumberOfChunksToMerge?`.
pub(crate) async fn merge_all_chunks_on_shard(cmd: Invocation) -> Result<Reply> {
    let me = membership(&*of_shard()?)?;
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.name())?)?;
    let shard = reader.str("shard")?;
    let limit = reader.opt_at_least("maxNumberOfChunksToMerge", 2)?;
    reader.opt_i64("maxTimeProcessingChunksMS")?;
    reader.finish()?;
    if *me.shard() != *shard {
        return Err(Error::new(
            ErrorCode::SHARD_NOT_FOUND,
            format!("this shard is {}, not {shard}", me.shard()),
        ));
    }
    on_core_0(&cmd.ctx, move || async move {
        commit::merge_all(&ns, limit).await
    })
    .await?;
    finish(&cmd).await
}
