//! Stages in front of a pipeline that show what each shard says of its part of a collection, and
//! `$shardedDataDistribution`, which shows that of all sharded collections.

use std::rc::Rc;

use pinion_bson::{DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_merge::{Node, PipelineStream};
use pinion_query::{Document, Pipeline};
use pinion_service::operator_counts::compute_counted;
use pinion_sharding_protocol::Targets;
use pinion_sharding_protocol::documents::COLLECTIONS;
use pinion_wire::idl::{Namespace, i64_exact};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Reply, Result};

use super::options::unsupported;
use super::pipeline::Aggregate;
use super::sources::Routed;
use super::stream::{FIRST_BATCH, FirstBatch, first_batch};
use crate::config_reads::find_all;
use crate::cursor::{CursorKind, RemoteStream};
use crate::dispatch::Answer;
use crate::gather::{ShardCall, ask_shards, ask_wherever, owners_of};
use crate::placement::table_of;
use crate::request::{Request, Versions};

/// Stages in front that every shard answers for its part.
const OF_SHARDS: [&str; 3] = ["$collStats", "$indexStats", "$planCacheStats"];

/// Whether a pipeline begins with the statistics of a collection.
pub(super) fn is_in_front(stages: &pinion_bson::RawArray) -> bool {
    let first = pinion_bson::values(stages).next();
    let first = first.and_then(|stage| pinion_bson::elements(stage.as_document()?).next());
    first.is_some_and(|(name, _)| OF_SHARDS.contains(&name))
}

/// A pipeline with such a stage in front; `None` where one shard runs the whole of it.
///
/// # Errors
/// Those of the shards, of the stages behind it, and of the way there.
pub(super) async fn statistics(cmd: &Invocation, command: &Aggregate<'_>) -> Result<Option<Reply>> {
    let is_sharded = table_of(&command.ns, Targets::Unknown).await?.is_some();
    if command.is_explain {
        return match is_sharded {
            true => Err(unsupported(cmd, &command.ns, "explain of statistics")),
            false => Ok(None),
        };
    }
    if wants_all_hosts(command.stages) {
        return Err(unsupported(cmd, &command.ns, "allHosts of $planCacheStats"));
    }
    let vars = command.with_collation(&command.variables()?)?;
    let parse = || Pipeline::parse_from(command.stages, 1, &vars);
    let pipeline = compute_counted(&cmd.ctx, parse).await?;
    if pipeline.output().is_some() {
        return match is_sharded {
            true => Err(unsupported(cmd, &command.ns, "a stage that writes")),
            false => Ok(None),
        };
    }
    let first = pinion_bson::values(command.stages).next();
    let mut stages = RawArrayBuf::new();
    first
        .into_iter()
        .for_each(|first| stages.push(RawBson::from(first)));
    let mut documents = std::collections::VecDeque::new();
    for answer in ask(cmd, &command.ns, &stages).await? {
        for document in all_documents(&cmd.ctx, &answer).await? {
            documents.push_back(Document::from(with_shard(&document, &answer.shard)));
        }
    }
    let routed = command.routed(cmd, vars, None, None);
    reply(
        cmd,
        &command.ns,
        (documents, pipeline),
        &routed,
        command.batch_size,
    )
    .await
    .map(Some)
}

async fn reply(
    cmd: &Invocation,
    ns: &Namespace,
    (documents, pipeline): (std::collections::VecDeque<Document>, Pipeline),
    routed: &Rc<Routed>,
    batch_size: Option<usize>,
) -> Result<Reply> {
    let stream = PipelineStream::new(Node::List(documents), pipeline, routed);
    let first = FirstBatch {
        ns,
        kind: CursorKind::default(),
        batch_size: Some(batch_size.unwrap_or(FIRST_BATCH)),
        is_single: false,
        is_partial: false,
    };
    first_batch(cmd, Box::new(stream), first).await
}

/// What every shard that has the collection answers to these stages.
async fn ask(cmd: &Invocation, ns: &Namespace, stages: &RawArrayBuf) -> Result<Vec<Answer>> {
    let request = |versions: Versions| {
        Request::with(cmd, ns.db(), versions, |out| {
            out.append("aggregate", ns.collection());
            out.append("pipeline", &**stages);
            out.start_document("cursor").end();
        })
    };
    ask_wherever(cmd, ns, owners_of, request).await
}

/// All documents of a shard's cursor: some for each index or plan.
pub(super) async fn all_documents(ctx: &OpContext, answer: &Answer) -> Result<Vec<RawDocumentBuf>> {
    let (stream, mut batch) = RemoteStream::open(answer, CursorKind::default())?;
    let mut all = Vec::new();
    loop {
        for document in &batch.documents {
            let document = RawDocument::from_bytes(document);
            let document = document.map_err(|error| Error::internal(error.to_string()))?;
            all.push(document.to_owned());
        }
        if batch.id == 0 {
            return Ok(all);
        }
        batch = stream.next_batch(ctx, usize::MAX).await?;
    }
}

/// The document with the name of its shard in front of its host, or at the end.
fn with_shard(document: &RawDocument, shard: &str) -> RawDocumentBuf {
    let mut out = DocBuilder::with_capacity(document.as_bytes().len() + 32);
    let mut is_missing = pinion_bson::get(document, "shard").is_none();
    for elem in pinion_bson::raw_elements(document) {
        if elem.name == b"host" && std::mem::take(&mut is_missing) {
            out.append("shard", shard);
        }
        out.append_elem(&elem);
    }
    if is_missing {
        out.append("shard", shard);
    }
    out.finish()
}

/// The stages of a command behind the first one, which has made these documents.
///
/// # Errors
/// Those of the stages.
pub(crate) async fn over_documents(
    cmd: &Invocation,
    documents: Vec<RawDocumentBuf>,
) -> Result<Reply> {
    let command = Aggregate::read_any(cmd.body(), cmd.db())?;
    let vars = command.with_collation(&command.variables()?)?;
    let parse = || Pipeline::parse_from(command.stages, 1, &vars);
    let pipeline = compute_counted(&cmd.ctx, parse).await?;
    let routed = command.routed(cmd, vars, None, None);
    let work = (
        documents.into_iter().map(Document::from).collect(),
        pipeline,
    );
    reply(cmd, &command.ns, work, &routed, command.batch_size).await
}

/// `$shardedDataDistribution`: a document for each sharded collection.
///
/// # Errors
/// `InvalidNamespace` anywhere but on `admin`; those of the shards, of the stages behind it, and of
/// the way there.
pub(crate) async fn data_distribution(cmd: &Invocation) -> Result<Reply> {
    let body = cmd.body();
    let is_collectionless = pinion_bson::elements(body)
        .next()
        .is_some_and(|(_, value)| pinion_wire::idl::is_number(value));
    if cmd.db() != "admin" || !is_collectionless {
        return Err(Error::new(
            ErrorCode(6_789_102),
            "The $shardedDataDistribution stage must be run on the admin database",
        ));
    }
    let command = Aggregate::read_any(cmd.body(), cmd.db())?;
    let first = pinion_bson::values(command.stages).next();
    let spec = first.and_then(|stage| pinion_bson::elements(stage.as_document()?).next());
    match spec {
        Some((_, RawBsonRef::Document(spec))) if spec.is_empty() => {}
        _ => {
            return Err(Error::new(
                ErrorCode(6_789_101),
                "The $shardedDataDistribution stage specification must be an empty object",
            ));
        }
    }
    let vars = command.with_collation(&command.variables()?)?;
    let parse = || Pipeline::parse_from(command.stages, 1, &vars);
    let pipeline = compute_counted(&cmd.ctx, parse).await?;
    let mut documents = std::collections::VecDeque::new();
    for found in find_all(COLLECTIONS, RawDocumentBuf::new(), None).await? {
        let name = pinion_bson::get(&found, "_id").and_then(|name| name.as_str());
        let Some(Ok(ns)) = name.map(Namespace::parse) else {
            continue;
        };
        if let Some(document) = distribution(cmd, &ns).await? {
            documents.push_back(Document::from(document));
        }
    }
    let routed = command.routed(cmd, vars, None, None);
    let work = (documents, pipeline);
    reply(cmd, &command.ns, work, &routed, command.batch_size).await
}

/// How a collection lies on its shards; `None` if it is not sharded any more.
async fn distribution(cmd: &Invocation, ns: &Namespace) -> Result<Option<RawDocumentBuf>> {
    let stages = pinion_bson::rawdoc! { "$collStats": { "storageStats": {} } };
    let mut pipeline = RawArrayBuf::new();
    pipeline.push(RawBson::Document(stages));
    let make = |call: &ShardCall<'_>| {
        Request::own(ns.db(), Versions::of_shard(call.version), |out| {
            out.append("aggregate", ns.collection());
            out.append("pipeline", &*pipeline);
            out.start_document("cursor").end();
        })
    };
    let Some(gathered) = ask_shards(cmd, ns, owners_of, make).await? else {
        return Ok(None);
    };
    let (_, answers) = gathered.all()?;
    let mut out = DocBuilder::new();
    out.append("ns", ns.as_str()).start_array("shards");
    for answer in &answers {
        for document in all_documents(&cmd.ctx, answer).await? {
            let stats = pinion_bson::get(&document, "storageStats");
            let Some(RawBsonRef::Document(stats)) = stats else {
                continue;
            };
            append_distribution(out.push_document(), answer.shard.as_str(), stats);
            out.end();
        }
    }
    out.end();
    Ok(Some(out.finish()))
}

fn append_distribution(out: &mut DocBuilder, shard: &str, stats: &RawDocument) {
    let number = |name| {
        pinion_bson::get(stats, name)
            .and_then(i64_exact)
            .unwrap_or(0)
    };
    let series = pinion_bson::get(stats, "timeseries").and_then(|series| series.as_document());
    let (count, average) = match series {
        Some(series) => {
            let number = |name| pinion_bson::get(series, name).and_then(i64_exact);
            let (count, average) = (number("bucketCount"), number("avgBucketSize"));
            (count.unwrap_or(0), average.unwrap_or(0))
        }
        None => (number("count"), number("avgObjSize")),
    };
    let orphans = number("numOrphanDocs").min(count);
    let owned = count - orphans;
    out.append("shardName", shard)
        .append("numOrphanedDocs", orphans)
        .append("numOwnedDocuments", owned)
        .append("ownedSizeBytes", owned.saturating_mul(average))
        .append("orphanedSizeBytes", orphans.saturating_mul(average));
}

/// Whether `$planCacheStats` asks for every member of every shard, which is not done. What is no
/// boolean the shards refuse.
pub(super) fn wants_all_hosts(stages: &pinion_bson::RawArray) -> bool {
    let first = pinion_bson::values(stages).next();
    let first = first.and_then(|stage| pinion_bson::elements(stage.as_document()?).next());
    let Some(("$planCacheStats", RawBsonRef::Document(spec))) = first else {
        return false;
    };
    pinion_bson::get(spec, "allHosts") == Some(RawBsonRef::Boolean(true))
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn documents_name_their_shards() {
        let check = |document: RawDocumentBuf, expected: RawDocumentBuf| {
            assert_eq!(with_shard(&document, "s1"), expected);
        };
        check(
            rawdoc! { "ns": "d.c", "host": "h:1", "count": 2 },
            rawdoc! { "ns": "d.c", "shard": "s1", "host": "h:1", "count": 2 },
        );
        check(rawdoc! { "a": 1 }, rawdoc! { "a": 1, "shard": "s1" });
        check(
            rawdoc! { "shard": "x", "host": "h" },
            rawdoc! { "shard": "x", "host": "h" },
        );
    }

    #[test]
    fn distributions() {
        let check = |stats: RawDocumentBuf, expected: [i64; 4]| {
            let mut out = DocBuilder::new();
            append_distribution(&mut out, "s0", &stats);
            let found = out.finish();
            let names = [
                "numOrphanedDocs",
                "numOwnedDocuments",
                "ownedSizeBytes",
                "orphanedSizeBytes",
            ];
            let numbers = names.map(|name| found.get_i64(name).expect("a number"));
            assert_eq!(numbers, expected);
        };
        check(
            rawdoc! { "count": 10, "avgObjSize": 7, "numOrphanDocs": 3 },
            [3, 7, 49, 21],
        );
        check(rawdoc! { "count": 0, "numOrphanDocs": 0 }, [0; 4]);
        let series = rawdoc! { "bucketCount": 4, "avgBucketSize": 100 };
        check(
            rawdoc! { "timeseries": series, "numOrphanDocs": 1 },
            [1, 3, 300, 100],
        );
    }
}
