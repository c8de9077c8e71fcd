//! `$out` and `$merge`: all that comes is written, and nothing comes out.

use std::rc::Rc;
use std::sync::Arc;

use pinion_query::{Document, ExternalStage};
use pinion_wire::{OpContext, Result};

use super::{Node, Sources};

/// A stage that writes, with what it writes.
pub struct WriteNode<S: Sources> {
    /// `None` once the stage started to write.
    source: Option<Node<S>>,
    stage: Arc<ExternalStage>,
    sources: Rc<S>,
}

impl<S: Sources> WriteNode<S> {
    pub(super) fn new(source: Node<S>, stage: Arc<ExternalStage>, sources: Rc<S>) -> WriteNode<S> {
        WriteNode {
            source: Some(source),
            stage,
            sources,
        }
    }

    pub(super) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        if let Some(source) = self.source.take() {
            self.sources.write(ctx, &self.stage, source).await?;
        }
        Ok(None)
    }
}
