//! What a cursor reads from.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_wire::{OpContext, Result};

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
        matches!(self, Stream::Tail(_))
    }

    /// The tail, if `getMore` waits for its documents.
    pub(crate) fn awaiting(&self) -> Option<&TailStream> {
        match self {
            Stream::Tail(stream) if stream.awaits_data() => Some(stream),
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
