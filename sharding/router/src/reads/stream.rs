//! The cursors of shards opened as one, and the reply to the command that opened them.

use bytes::Bytes;
use pinion_bson::RawDocument;
use pinion_merge::{MergeSpec, StepSize};
use pinion_runtime::{LocalBoxFuture, join_all};
use pinion_service::cursors::{DocumentStream, Filled, fill};
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::idl::{Namespace, ReadConcernLevel};
use pinion_wire::{Error, Invocation, OpContext, Reply, Result};

use super::part::{PartForm, ShardPart, ShardsRead, Unobserved};
use crate::clock::bson_time;
use crate::cursor::{CursorKind, KeptCursor, RemoteStream, keep_cursor};
use crate::dispatch::Answer;

/// The documents of a first batch where a client does not say how many it wants.
pub(super) const FIRST_BATCH: usize = 101;

/// Merges the cursors that shards have answered with.
///
/// # Errors
/// A shard's reply has no cursor; the next documents of one that gave none cannot be had.
pub(super) async fn merged(
    ctx: &OpContext,
    answers: &[Answer],
    form: &PartForm,
    spec: MergeSpec,
) -> Result<ShardsRead> {
    // All are taken over before anything is waited for, so that all are closed if one fails.
    let opened: Result<Vec<_>> = answers
        .iter()
        .map(|answer| RemoteStream::open(answer, CursorKind::default()))
        .collect();
    let opening = opened?.into_iter();
    let opening = opening.map(|(stream, first)| ShardPart::open(ctx, stream, first, form.clone()));
    let mut merged = ShardsRead::new(spec, Unobserved);
    for opened in join_all(opening).await {
        let (part, first) = opened?;
        merged.add(ctx, part, first);
    }
    Ok(merged)
}

/// How much of a read is wanted at once.
pub(super) fn step_size(documents: usize) -> i64 {
    StepSize::for_wanted(documents).documents as i64
}

/// The merged documents as those of a cursor.
pub(super) struct ShardsStream(pub ShardsRead);

impl DocumentStream for ShardsStream {
    fn fill<'a>(
        &'a mut self,
        stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>> {
        Box::pin(fill(&mut self.0, stash, ctx, max_documents))
    }
}

/// A read whose first batch is wanted.
pub(super) struct FirstBatch<'c> {
    pub ns: &'c Namespace,
    pub kind: CursorKind,
    pub batch_size: Option<usize>,
    pub is_single: bool,
    /// Not all shards have answered, which the client allows.
    pub is_partial: bool,
}

/// The reply with the first batch of a read, and with a cursor if more may follow.
///
/// # Errors
/// Those of the read; there are too many cursors.
pub(super) async fn first_batch(
    cmd: &Invocation,
    mut stream: Box<dyn DocumentStream>,
    wanted: FirstBatch<'_>,
) -> Result<Reply> {
    let mut stash = None;
    let max_documents = wanted.batch_size.unwrap_or(FIRST_BATCH);
    let filled = stream.fill(&mut stash, &cmd.ctx, max_documents).await?;
    let token = stream.token_behind(&filled.documents, stash.is_none());
    let returned = filled.documents.len() as u64;
    metrics().counters.documents_returned.add(returned);
    let id = match filled.exhausted || wanted.is_single {
        true => 0,
        false => keep_cursor(
            cmd,
            KeptCursor {
                ns: wanted.ns.clone(),
                no_timeout: wanted.kind.no_timeout,
                stream,
                stash,
                returned,
            },
        )?,
    };
    let mut out = Reply::new();
    out.start_document("cursor").start_array("firstBatch");
    for document in &filled.documents {
        let document = RawDocument::from_bytes(document);
        out.push(document.map_err(|error| Error::internal(error.to_string()))?);
    }
    out.end();
    if let Some(token) = &token {
        out.append("postBatchResumeToken", &**token);
    }
    let is_snapshot = cmd.ctx.read_concern.level == Some(ReadConcernLevel::Snapshot);
    if let Some(at) = cmd.ctx.read_concern.at_cluster_time
        && is_snapshot
        && !is_in(&cmd.ctx)
    {
        out.append("atClusterTime", bson_time(at));
    }
    if wanted.is_partial {
        out.append("partialResultsReturned", true);
    }
    out.append("id", id).append("ns", wanted.ns.as_str()).end();
    Ok(out)
}
