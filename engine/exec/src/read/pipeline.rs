//! The merge part of a pipeline, fed by the merged parts of a read.

use bytes::Bytes;
use pinion_wire::{OpContext, Result};

/// The documents that come out of a pipeline's merge part.
pub(crate) struct PipelineStream {
    pub(crate) documents: std::collections::VecDeque<Bytes>,
}

impl PipelineStream {
    /// The next document.
    pub(crate) async fn next(&mut self, _ctx: &OpContext) -> Result<Option<Bytes>> {
        Ok(self.documents.pop_front())
    }

    /// Whether nothing follows.
    pub(crate) fn is_eof(&self) -> bool {
        self.documents.is_empty()
    }
}
