//! `$lookup` at work: a pipeline over the other collection for each document.

use std::rc::Rc;
use std::sync::Arc;

use pinion_query::{Document, ExternalStage};
use pinion_service::compute::compute;
use pinion_service::interrupt::pause;
use pinion_wire::{OpContext, Result};

use super::{Node, Passes, Sources};

/// The stage, with what comes before it.
pub struct LookupNode<S: Sources> {
    source: Node<S>,
    stage: Arc<ExternalStage>,
    sources: Rc<S>,
}

impl<S: Sources> LookupNode<S> {
    pub(super) fn new(source: Node<S>, stage: Arc<ExternalStage>, sources: Rc<S>) -> LookupNode<S> {
        LookupNode {
            source,
            stage,
            sources,
        }
    }

    pub(super) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        let Some(document) = self.source.next(ctx).await? else {
            return Ok(None);
        };
        let ExternalStage::Lookup(stage) = &*self.stage else {
            unreachable!("made of such a stage");
        };
        pause(ctx).await?;
        let vars = self.sources.vars();
        let asked = || stage.stages_for(&document, vars);
        let (stages, vars) = compute(ctx, asked).await?;
        let opening = self
            .sources
            .open(ctx, stage.from(), &stages, &vars, Passes::Held);
        let (mut inner, _held) = opening.await?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(one) = inner.next(ctx).await? {
            stage.account(&mut bytes, &one)?;
            found.push(one);
        }
        let joined = compute(ctx, || stage.joined(&document, &found)).await?;
        Ok(Some(joined))
    }
}
