//! `$graphLookup` at work: one read of the other collection for each round of the search.

use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawArrayBuf, RawBson, RawBsonRef, RawDocument};
use pinion_query::{Document, ExternalStage};
use pinion_service::compute::compute;
use pinion_service::interrupt::pause;
use pinion_wire::{OpContext, Result};

use super::{Node, Passes, Sources};

/// The stage, with what comes before it.
pub struct GraphNode<S: Sources> {
    source: Node<S>,
    stage: Arc<ExternalStage>,
    sources: Rc<S>,
}

impl<S: Sources> GraphNode<S> {
    pub(super) fn new(source: Node<S>, stage: Arc<ExternalStage>, sources: Rc<S>) -> GraphNode<S> {
        GraphNode {
            source,
            stage,
            sources,
        }
    }

    pub(super) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        let Some(document) = self.source.next(ctx).await? else {
            return Ok(None);
        };
        let ExternalStage::GraphLookup(stage) = &*self.stage else {
            unreachable!("made of such a stage");
        };
        let vars = self.sources.vars();
        let mut search = stage.begin(&document, vars)?;
        while let Some(filter) = stage.round(&mut search) {
            pause(ctx).await?;
            let stages = matching(&filter);
            let from = Some(stage.from());
            let opening = self.sources.open(ctx, from, &stages, vars, Passes::Held);
            let (mut inner, _held) = opening.await?;
            while let Some(one) = inner.next(ctx).await? {
                stage.found(&mut search, &one)?;
            }
            search.end_round();
        }
        let joined = compute(ctx, || stage.joined(&document, &search)).await?;
        Ok(Some(joined))
    }
}

/// A pipeline of a filter alone.
fn matching(filter: &RawDocument) -> RawArrayBuf {
    let mut stage = DocBuilder::new();
    stage.append("$match", RawBsonRef::Document(filter));
    let mut stages = RawArrayBuf::new();
    stages.push(RawBson::Document(stage.finish()));
    stages
}
