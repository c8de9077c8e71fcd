//! `split`, `mergeChunks`, `mergeAllChunksOnShard`, `clearJumboFlag`, `splitVector` and
//! `getShardVersion`.

use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_query::{Matcher, Variables, document_text};
use pinion_service::interrupt::interruptible;
use pinion_sharding_protocol::config::ClearJumboRequest;
use pinion_sharding_protocol::{
    ChunkInfo, KeyBytes, RoutingTable, ShardId, ShardKeyPattern, Targets,
};
use pinion_wire::idl::{CommandReader, Namespace, ReadPreference};
use pinion_wire::{Error, ErrorCode, Invocation, Reply, Result};

use super::collections::known_table;
use super::sharding::append_majority;
use crate::config_reads::run_at_config;
use crate::dispatch::{Answer, WhenAbsent, at_primary, send_to};
use crate::hosts::Retry;
use crate::limits::LISTED_CHUNKS_BYTES;
use crate::placement::{chunks_have_changed, table_of};
use crate::reply::{passed_on, refused};
use crate::request::{Request, Versions};

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::INVALID_OPTIONS, message.into())
}

/// Does something with the chunks of a collection by the table that is known, and where that
/// fails once more by one that was read meanwhile.
async fn with_table(
    cmd: &Invocation,
    ns: &Namespace,
    work: impl AsyncFn(&RoutingTable) -> Result<Reply>,
) -> Result<Reply> {
    let table = sharded_table(cmd, ns).await?;
    let first = work(&table).await;
    // Also where it failed: it may be done all the same.
    chunks_have_changed(&table.ns).await;
    match first {
        Err(error) if may_be_old(error.code) => {
            let newer = sharded_table(cmd, ns).await?;
            let is_same = newer.of.is_same(table.of) && newer.version() == table.version();
            if is_same && error.code != ErrorCode::STALE_EPOCH {
                return Err(refused(error));
            }
            let again = work(&newer).await;
            chunks_have_changed(&newer.ns).await;
            again.map_err(refused)
        }
        outcome => outcome.map_err(refused),
    }
}

/// Whether an error may come of an old table.
fn may_be_old(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::STALE_EPOCH
            | ErrorCode::STALE_CONFIG
            | ErrorCode::INCOMPATIBLE_SHARDING_METADATA
            | ErrorCode::ILLEGAL_OPERATION
            | ErrorCode::INVALID_UUID
            | ErrorCode::INVALID_OPTIONS
            | ErrorCode::BAD_VALUE
    )
}

async fn sharded_table(cmd: &Invocation, ns: &Namespace) -> Result<Arc<RoutingTable>> {
    known_table(cmd, ns).await?.ok_or_else(|| {
        Error::new(
            ErrorCode::NAMESPACE_NOT_SHARDED,
            format!("Expected collection {ns} to be sharded"),
        )
    })
}

/// Sends a command of the router's own to the primary of a shard, which may run it twice.
async fn at_shard(
    cmd: &Invocation,
    shard: &ShardId,
    fields: impl FnOnce(&mut DocBuilder),
) -> Result<Answer> {
    let request = Request::own("admin", Versions::default(), fields);
    let preference = ReadPreference::default();
    send_to(cmd, shard, &preference, &request, Retry::Idempotent).await
}

/// Which chunk a command is about.
enum Place {
    /// That of the documents which a filter matches.
    Find(RawDocumentBuf),
    Bounds(RawDocumentBuf, RawDocumentBuf),
    /// That which has this key, where it is split.
    Middle(RawDocumentBuf),
}

impl Place {
    fn read(reader: &CommandReader<'_>, has_middle: bool) -> Result<Place> {
        let document = |name| {
            let found = reader.opt_doc(name)?;
            let found = found.filter(|found| !found.is_empty());
            Ok::<_, Error>(found.map(RawDocument::to_owned))
        };
        let find = document("find")?;
        let bounds = bounds(reader)?;
        let middle = if has_middle {
            document("middle")?
        } else {
            None
        };
        match (find, bounds, middle) {
            (Some(_), Some(_), _) => {
                Err(invalid("cannot specify bounds and find at the same time"))
            }
            (Some(_), None, Some(_)) => Err(invalid("cannot specify find and middle together")),
            (None, Some(_), Some(_)) => Err(invalid("cannot specify bounds and middle together")),
            (Some(find), None, None) => Ok(Place::Find(find)),
            (None, Some((min, max)), None) => Ok(Place::Bounds(min, max)),
            (None, None, Some(middle)) => Ok(Place::Middle(middle)),
            (None, None, None) => Err(invalid(match has_middle {
                true => "need to specify find/bounds or middle",
                false => "need to specify find or bounds",
            })),
        }
    }

    /// The chunk, and the key at which it is to be split, where the command says that.
    fn chunk<'t>(
        &self,
        table: &'t RoutingTable,
    ) -> Result<(&'t Arc<ChunkInfo>, Option<RawDocumentBuf>)> {
        let key = &table.key;
        match self {
            Place::Find(find) => Ok((table.chunk_of(&key_of(table, find)?), None)),
            Place::Bounds(min, max) => {
                let (from, to) = both_bounds(key, min, max)?;
                let chunk = table.chunk_of(&from);
                match chunk.range.min == from && chunk.range.max == to {
                    true => Ok((chunk, None)),
                    false => Err(Error::bad_value(format!(
                        "no chunk found with the shard key bounds [{}, {})",
                        document_text(min),
                        document_text(max)
                    ))),
                }
            }
            Place::Middle(middle) => {
                let point = key.bound(middle).map_err(|_| {
                    Error::bad_value(format!(
                        "new split key {} is not valid for shard key pattern {}",
                        document_text(middle),
                        document_text(&key.to_bson())
                    ))
                })?;
                let chunk = table.chunk_of(&point);
                if chunk.range.min == point || chunk.range.max == point {
                    return Err(Error::bad_value(format!(
                        "new split key {} is a boundary key of existing chunk [{},{})",
                        document_text(middle),
                        document_text(&key.document(&chunk.range.min)),
                        document_text(&key.document(&chunk.range.max))
                    )));
                }
                Ok((chunk, Some(middle.clone())))
            }
        }
    }
}

type Bounds = (RawDocumentBuf, RawDocumentBuf);

/// `bounds: [<min>, <max>]`.
fn bounds(reader: &CommandReader<'_>) -> Result<Option<Bounds>> {
    let Some(array) = reader.opt_array("bounds")? else {
        return Ok(None);
    };
    let mut documents = Vec::new();
    for value in pinion_bson::values(array) {
        let document = value.as_document();
        let document = document.ok_or_else(|| Error::bad_value("bounds are documents"))?;
        documents.push(document.to_owned());
    }
    let mut documents = documents.into_iter();
    match (documents.next(), documents.next(), documents.next()) {
        (None, ..) => Ok(None),
        (Some(_), None, _) => Err(invalid("upper bound not specified")),
        (Some(_), Some(_), Some(_)) => Err(invalid("only a min and max bound may be specified")),
        (Some(min), Some(max), None) => Ok(Some((min, max))),
    }
}

fn both_bounds(
    key: &ShardKeyPattern,
    min: &RawDocument,
    max: &RawDocument,
) -> Result<(KeyBytes, KeyBytes)> {
    match (key.bound(min), key.bound(max)) {
        (Ok(min), Ok(max)) => Ok((min, max)),
        _ => Err(Error::bad_value(format!(
            "shard key bounds [{},{}) are not valid for shard key pattern {}",
            document_text(min),
            document_text(max),
            document_text(&key.to_bson())
        ))),
    }
}

/// The key of all documents that a filter matches.
fn key_of(table: &RoutingTable, find: &RawDocument) -> Result<KeyBytes> {
    let matcher = Matcher::parse_query(find, &Variables::default())?;
    table.target(&matcher, None)?.key.ok_or_else(|| {
        Error::new(
            ErrorCode::SHARD_KEY_NOT_FOUND,
            format!("no shard key found in chunk query {}", document_text(find)),
        )
    })
}

/// `split: <ns>, middle | find | bounds`: without `middle` in two parts with as many documents.
pub(super) async fn split(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let place = Place::read(&reader, true)?;
    reader.finish()?;
    with_table(&cmd, &ns, async |table| {
        let (chunk, point) = place.chunk(table)?;
        let point = match point {
            Some(point) => point,
            None => median(&cmd, table, chunk).await?,
        };
        let shard = table.shard(chunk.shard);
        at_shard(&cmd, shard, |out| {
            out.append("splitChunk", table.ns.as_str())
                .append("from", shard.as_str())
                .append("keyPattern", &*table.key.to_bson());
            append_chunk(out, table, chunk);
            out.start_array("splitKeys").push(&*point).end();
            append_incarnation(out, table);
            append_majority(out, &cmd);
        })
        .await?;
        Ok(Reply::new())
    })
    .await
}

fn append_chunk(out: &mut DocBuilder, table: &RoutingTable, chunk: &ChunkInfo) {
    out.append("min", &*table.key.document(&chunk.range.min))
        .append("max", &*table.key.document(&chunk.range.max));
}

fn append_incarnation(out: &mut DocBuilder, table: &RoutingTable) {
    out.append("epoch", table.of.epoch)
        .append("timestamp", crate::clock::bson_time(table.of.timestamp));
}

/// The key in the middle of a chunk.
async fn median(
    cmd: &Invocation,
    table: &RoutingTable,
    chunk: &ChunkInfo,
) -> Result<RawDocumentBuf> {
    let answer = at_shard(cmd, table.shard(chunk.shard), |out| {
        out.append("splitVector", table.ns.as_str())
            .append("keyPattern", &*table.key.to_bson());
        append_chunk(out, table, chunk);
        out.append("force", true);
    })
    .await?;
    let keys = pinion_bson::get(answer.body(), "splitKeys").and_then(|keys| keys.as_array());
    let first = keys.and_then(|keys| pinion_bson::values(keys).next());
    let first = first.and_then(|first| first.as_document());
    first.map(RawDocument::to_owned).ok_or_else(|| {
        Error::new(
            ErrorCode::CANNOT_SPLIT,
            "Unable to find median in chunk because chunk is indivisible.",
        )
    })
}

/// `mergeChunks: <ns>, bounds: [<min>, <max>]`.
pub(super) async fn merge_chunks(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let found = bounds(&reader)?;
    reader.finish()?;
    let (min, max) = found.ok_or_else(|| Error::bad_value("no bounds were specified"))?;
    for (name, bound) in [("min", &min), ("max", &max)] {
        if bound.is_empty() {
            return Err(Error::bad_value(format!("no {name} key specified")));
        }
    }
    with_table(&cmd, &ns, async |table| {
        let (from, _) = both_bounds(&table.key, &min, &max)?;
        let shard = table.shard(table.chunk_of(&from).shard);
        at_shard(&cmd, shard, |out| {
            out.append("_shardsvrMergeChunks", table.ns.as_str());
            out.start_array("bounds").push(&*min).push(&*max).end();
            append_incarnation(out, table);
            append_majority(out, &cmd);
        })
        .await?;
        Ok(Reply::new())
    })
    .await
}

/// `mergeAllChunksOnShard: <ns>, shard, maxNumberOfChunksToMerge?`.
pub(super) async fn merge_all_chunks_on_shard(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let shard = ShardId::new(reader.str("shard")?);
    let limit = reader.opt_at_least("maxNumberOfChunksToMerge", 2)?;
    reader.opt_i64("maxTimeProcessingChunksMS")?;
    reader.finish()?;
    with_table(&cmd, &ns, async |table| {
        at_shard(&cmd, &shard, |out| {
            out.append("_shardsvrMergeAllChunksOnShard", table.ns.as_str())
                .append("shard", shard.as_str());
            if let Some(limit) = limit {
                out.append("maxNumberOfChunksToMerge", limit);
            }
            append_majority(out, &cmd);
        })
        .await?;
        Ok(Reply::new())
    })
    .await
}

/// `clearJumboFlag: <ns>, find | bounds`.
pub(super) async fn clear_jumbo_flag(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let place = Place::read(&reader, false)?;
    reader.finish()?;
    with_table(&cmd, &ns, async |table| {
        let (chunk, _) = place.chunk(table)?;
        let request = ClearJumboRequest {
            ns: table.ns.clone(),
            epoch: table.of.epoch,
            min: table.key.document(&chunk.range.min),
            max: table.key.document(&chunk.range.max),
        };
        let change = run_at_config(
            "admin",
            |out| {
                request.append_to(out);
                append_majority(out, &cmd);
            },
            None,
        );
        interruptible(&cmd.ctx, change).await??;
        Ok(Reply::new())
    })
    .await
}

/// `splitVector`: of an unsharded collection, by the node that has it.
pub(super) async fn split_vector(cmd: Invocation) -> Result<Reply> {
    let ns = Namespace::parse(cmd.reader()?.str(cmd.message.command_name())?)?;
    if interruptible(&cmd.ctx, table_of(&ns, Targets::Unknown))
        .await??
        .is_some()
    {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "can't do command: splitVector on sharded collection",
        ));
    }
    if cmd.db() != ns.db() && cmd.db() != "admin" {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Performing splitVector across dbs isn't supported via mongos",
        ));
    }
    let make = |versions: Versions| Request::of(&cmd, cmd.db(), versions);
    let answer = at_primary(&cmd, ns.db(), WhenAbsent::Answer, make).await?;
    Ok(passed_on(answer.body()))
}

/// `getShardVersion: <ns>, fullMetadata?`: the table that this router goes by.
pub(super) async fn get_shard_version(cmd: Invocation) -> Result<Reply> {
    let reader = cmd.reader()?;
    let ns = Namespace::parse(reader.str(cmd.message.command_name())?)?;
    let is_full = reader.opt_bool("fullMetadata")?.unwrap_or(false);
    reader.finish()?;
    let table = sharded_table(&cmd, &ns).await?;
    let version = table.version();
    let mut out = Reply::new();
    out.append("version", crate::clock::bson_time(version.placement()))
        .append("versionEpoch", version.of.epoch)
        .append(
            "versionTimestamp",
            crate::clock::bson_time(version.of.timestamp),
        );
    if is_full {
        append_chunks(&mut out, &table);
    }
    Ok(out)
}

/// The bounds of the chunks, as many as a reply has room for.
fn append_chunks(out: &mut DocBuilder, table: &RoutingTable) {
    let mut bytes = 0;
    out.start_array("chunks");
    for chunk in table.chunks() {
        let [min, max] = [&chunk.range.min, &chunk.range.max].map(|key| table.key.document(key));
        bytes += min.as_bytes().len() + max.as_bytes().len();
        if bytes > LISTED_CHUNKS_BYTES {
            break;
        }
        out.push_array().push(&*min).push(&*max).end();
    }
    out.end();
    if bytes > LISTED_CHUNKS_BYTES {
        out.append("chunksLimited", true);
    }
}
