//! What a cursor reads from.

use std::collections::VecDeque;

use bytes::Bytes;
use pinion_bson::RawDocumentBuf;
use pinion_runtime::{Instant, LocalBoxFuture};
use pinion_service::cursors::{CursorSource, DocumentStream, Documents, Filled, fill};
use pinion_wire::{OpContext, Result};

use super::changes::ChangeStream;
use super::core_part::ReadStream;
use super::tail::TailStream;

/// A source of documents in their final form.
pub(crate) enum Stream {
    /// The merged parts of a `find`.
    Merged(Box<ReadStream>),
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
            Stream::Merged(stream) => stream.next_wanted(ctx, wanted).await,
            Stream::Tail(stream) => stream.next(ctx, wanted).await,
            Stream::Changes(stream) => stream.next(ctx).await,
            Stream::List(list) => Ok(list.pop_front()),
        }
    }

    /// True when it is known, without reading on, that nothing follows.
    pub(crate) fn is_eof(&self) -> bool {
        match self {
            Stream::Merged(stream) => stream.is_eof(),
            // More may come as long as it stands somewhere.
            Stream::Tail(stream) => !stream.has_position(),
            Stream::Changes(stream) => stream.has_ended(),
            Stream::List(list) => list.is_empty(),
        }
    }

    /// Continues after a pause.
    pub(crate) async fn resume(&self) -> Result<()> {
        match self {
            Stream::Tail(stream) => stream.resume().await,
            _ => Ok(()),
        }
    }

    /// Whether it continues when there is nothing more for now.
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

    /// Waits for more than there is, but not beyond this time. Nothing of a collection is held
    /// meanwhile. False where there is nothing to wait for.
    pub(crate) async fn wait(
        &self,
        ctx: &OpContext,
        reads: Option<&dyn CursorSource>,
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

    /// `postBatchResumeToken` behind this batch, of a change stream. `is_all` when nothing that was
    /// read is held back.
    pub(crate) fn token_behind(&mut self, batch: &[Bytes], is_all: bool) -> Option<RawDocumentBuf> {
        match self {
            Stream::Changes(stream) => Some(stream.token_behind(batch, is_all).to_owned()),
            _ => None,
        }
    }
}

impl Documents for Stream {
    async fn next(&mut self, ctx: &OpContext, wanted: usize) -> Result<Option<Bytes>> {
        Stream::next(self, ctx, wanted).await
    }

    fn is_eof(&self) -> bool {
        Stream::is_eof(self)
    }

    fn is_tail(&self) -> bool {
        Stream::is_tail(self)
    }
}

impl DocumentStream for Stream {
    fn fill<'a>(
        &'a mut self,
        stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>> {
        Box::pin(fill(self, stash, ctx, max_documents))
    }

    fn resume(&self) -> LocalBoxFuture<'_, Result<()>> {
        Box::pin(Stream::resume(self))
    }

    fn is_tail(&self) -> bool {
        Stream::is_tail(self)
    }

    fn awaits_data(&self) -> bool {
        Stream::awaits_data(self)
    }

    fn wait<'a>(
        &'a self,
        ctx: &'a OpContext,
        reads: Option<&'a dyn CursorSource>,
        until: Instant,
    ) -> LocalBoxFuture<'a, Result<bool>> {
        Box::pin(Stream::wait(self, ctx, reads, until))
    }

    fn is_change_stream(&self) -> bool {
        matches!(self, Stream::Changes(_))
    }

    fn has_news(&self) -> bool {
        match self {
            Stream::Changes(stream) => stream.has_news(),
            _ => false,
        }
    }

    fn give_up_at(&mut self, until: Instant) {
        if let Stream::Changes(stream) = self {
            stream.give_up_at(until);
        }
    }

    fn token_behind(&mut self, batch: &[Bytes], is_all: bool) -> Option<RawDocumentBuf> {
        Stream::token_behind(self, batch, is_all)
    }
}
