//! What a cursor reads from.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::RawDocumentBuf;
use pinion_runtime::Instant;
use pinion_wire::{OpContext, Result};

use super::changes::ChangeStream;
use super::cursor::Reads;
use super::merge::{MergedStream, StepSize};
use super::pipeline::PipelineStream;
use super::tail::TailStream;
use crate::limits::{PART_BATCH_BYTES, PART_BATCH_DOCUMENTS};

/// A source of documents in their final form.
pub(crate) enum Stream {
    /// The merged parts of a `find`.
    Merged(Box<MergedStream>),
    /// The merge part of a pipeline.
    Pipeline(Box<PipelineStream>),
    /// A capped collection, with what is still to come.
    Tail(Box<TailStream>),
    /// A change stream.
    Changes(Box<ChangeStream>),
    /// A list made at once.
    List(VecDeque<Bytes>),
}

impl Stream {
    /// The next document; `wanted` is how many more the caller would take now.
    pub(crate) async fn next(&mut self, ctx: &OpContext, wanted: usize) -> Result<Option<Bytes>> {
        match self {
            Stream::Merged(stream) => stream.next(ctx, step_for(wanted)).await,
            Stream::Pipeline(stream) => stream.next(ctx).await,
            Stream::Tail(stream) => stream.next(ctx, wanted).await,
            Stream::Changes(stream) => stream.next(ctx).await,
            Stream::List(list) => Ok(list.pop_front()),
        }
    }

    /// True when it is known, without reading on, that nothing follows.
    pub(crate) fn is_eof(&self) -> bool {
        match self {
            Stream::Merged(stream) => stream.is_eof(),
            // A pipeline knows its end only when it has run into it.
            Stream::Pipeline(_) => false,
            // More may come as long as it stands somewhere.
            Stream::Tail(stream) => !stream.has_position(),
            Stream::Changes(stream) => stream.has_ended(),
            Stream::List(list) => list.is_empty(),
        }
    }

    /// Goes on after a pause.
    pub(crate) async fn resume(&self) -> Result<()> {
        match self {
            Stream::Tail(stream) => stream.resume().await,
            _ => Ok(()),
        }
    }

    /// Whether it goes on when there is nothing more for now.
    pub(crate) fn is_tail(&self) -> bool {
        matches!(self, Stream::Tail(_) | Stream::Changes(_))
    }

    /// Whether `getMore` waits for documents.
    pub(crate) fn awaits_data(&self) -> bool {
        match self {
            Stream::Tail(stream) => stream.awaits_data(),
            Stream::Changes(_) => true,
            _ => false,
        }
    }

    /// Waits for more than there is, but not beyond this time. Nothing of a collection is held meanwhile. False where there is
    /// nothing to wait for.
    pub(crate) async fn wait(
        &self,
        ctx: &OpContext,
        reads: Option<&Reads>,
        until: Instant,
    ) -> Result<bool> {
        match (self, reads) {
            (Stream::Tail(stream), Some(reads)) if stream.awaits_data() => {
                stream.wait(ctx, reads, until).await
            }
            (Stream::Changes(stream), _) if !stream.has_ended() => stream.wait(ctx, until).await,
            _ => Ok(false),
        }
    }

    /// `postBatchResumeToken` behind this batch, of a change stream. `is_all` when nothing that was read is held back.
    pub(crate) fn token_behind(&mut self, batch: &[Bytes], is_all: bool) -> Option<RawDocumentBuf> {
        match self {
            Stream::Changes(stream) => Some(stream.token_behind(batch, is_all).to_owned()),
            _ => None,
        }
    }
}

/// Steps as large as what is wanted, so that a small batch does not read ahead far.
pub(crate) fn step_for(wanted: usize) -> StepSize {
    StepSize {
        documents: wanted.clamp(1, PART_BATCH_DOCUMENTS),
        bytes: PART_BATCH_BYTES,
    }
}
