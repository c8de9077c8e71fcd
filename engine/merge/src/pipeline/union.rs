//! `$unionWith` at work: first what comes before it, then the other collection's.

use std::rc::Rc;
use std::sync::Arc;

use pinion_query::{Document, ExternalStage};
use pinion_wire::{OpContext, Result};

use super::{Node, Passes, Sources};

/// The stage, with what comes before it; later with what it appends.
pub struct UnionNode<S: Sources> {
    source: Node<S>,
    stage: Arc<ExternalStage>,
    sources: Rc<S>,
    opened: bool,
}

impl<S: Sources> UnionNode<S> {
    pub(super) fn new(source: Node<S>, stage: Arc<ExternalStage>, sources: Rc<S>) -> UnionNode<S> {
        UnionNode {
            source,
            stage,
            sources,
            opened: false,
        }
    }

    pub(super) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        loop {
            if let Some(document) = self.source.next(ctx).await? {
                return Ok(Some(document));
            }
            if std::mem::replace(&mut self.opened, true) {
                return Ok(None);
            }
            self.source = Node::nothing();
            let ExternalStage::UnionWith(stage) = &*self.stage else {
                unreachable!("made of such a stage");
            };
            // The gate is not held for as long as a cursor may live.
            self.source = match stage.own() {
                Some(pipeline) => self.sources.open_own(ctx, pipeline).await?,
                None => {
                    let (from, stages, vars) = (stage.from(), stage.stages(), self.sources.vars());
                    let opening = self.sources.open(ctx, from, stages, vars, Passes::LetGo);
                    opening.await?.0
                }
            };
        }
    }
}
