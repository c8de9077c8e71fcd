//! A pipeline at work: runs of stages that need nothing from outside, and between them stages that
//! read or write elsewhere. Documents are asked for from the end.

mod facet;
mod graph;
mod lookup;
mod run;
mod sources;
mod spool;
mod union;
mod write;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_query::{Document, ExternalStage, Pipeline, PipelineRun, Segment};
use pinion_runtime::LocalBoxFuture;
use pinion_service::cursors::{DocumentStream, Documents, Filled, fill};
use pinion_wire::{OpContext, Result};

use self::facet::FacetNode;
use self::graph::GraphNode;
use self::lookup::LookupNode;
pub use self::run::{RunNode, step_run};
pub use self::sources::{Buffered, Passes, Sources};
pub use self::spool::Spool;
use self::union::UnionNode;
use self::write::WriteNode;
use crate::limits::PART_BATCH_DOCUMENTS;

/// Where documents come from: a collection, a list, or a stage with what is before it.
pub enum Node<S: Sources> {
    Read(Box<S::Read>),
    List(VecDeque<Document>),
    Run(Box<RunNode<S>>),
    Lookup(Box<LookupNode<S>>),
    Graph(Box<GraphNode<S>>),
    Union(Box<UnionNode<S>>),
    Facet(Box<FacetNode<S>>),
    Write(Box<WriteNode<S>>),
}

impl<S: Sources> Node<S> {
    /// A pipeline over these documents.
    pub fn chain(source: Node<S>, pipeline: Pipeline, sources: &Rc<S>) -> Node<S> {
        let mut node = source;
        for segment in pipeline.segments() {
            node = match segment {
                Segment::Run(stages) => {
                    let run = PipelineRun::new(stages, sources.memory());
                    Node::Run(Box::new(RunNode::new(node, run)))
                }
                Segment::External(stage) => Node::outside(node, stage, sources.clone()),
            };
        }
        node
    }

    fn outside(source: Node<S>, stage: Arc<ExternalStage>, sources: Rc<S>) -> Node<S> {
        match &*stage {
            ExternalStage::Lookup(_) => {
                Node::Lookup(Box::new(LookupNode::new(source, stage, sources)))
            }
            ExternalStage::GraphLookup(_) => {
                Node::Graph(Box::new(GraphNode::new(source, stage, sources)))
            }
            ExternalStage::UnionWith(_) => {
                Node::Union(Box::new(UnionNode::new(source, stage, sources)))
            }
            ExternalStage::Facet(branches) => {
                Node::Facet(Box::new(FacetNode::new(source, branches.clone(), sources)))
            }
            ExternalStage::Out(_) | ExternalStage::Merge(_) => {
                Node::Write(Box::new(WriteNode::new(source, stage, sources)))
            }
        }
    }

    /// The next document.
    ///
    /// # Errors
    /// Those of the documents and of what the stages read and write; the operation is stopped.
    pub async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        match self {
            Node::Read(read) => {
                let next = read.next(ctx, PART_BATCH_DOCUMENTS).await?;
                Ok(next.map(Document::from))
            }
            Node::List(list) => Ok(list.pop_front()),
            Node::Run(node) => node.next(ctx).await,
            // In boxes, as these may stand in one another.
            Node::Lookup(node) => Box::pin(node.next(ctx)).await,
            Node::Graph(node) => Box::pin(node.next(ctx)).await,
            Node::Union(node) => Box::pin(node.next(ctx)).await,
            Node::Facet(node) => Box::pin(node.next(ctx)).await,
            Node::Write(node) => Box::pin(node.next(ctx)).await,
        }
    }

    /// A source without documents: the one before it is dropped.
    pub fn nothing() -> Node<S> {
        Node::List(VecDeque::new())
    }
}

/// The documents that come out of a pipeline.
pub struct PipelineStream<S: Sources> {
    node: Node<S>,
}

impl<S: Sources> PipelineStream<S> {
    /// A pipeline over what a source gives.
    pub fn new(source: Node<S>, pipeline: Pipeline, sources: &Rc<S>) -> PipelineStream<S> {
        PipelineStream {
            node: Node::chain(source, pipeline, sources),
        }
    }

    /// Where its documents come from.
    pub fn into_node(self) -> Node<S> {
        self.node
    }

    /// The next document.
    ///
    /// # Errors
    /// As those of [`Node::next`].
    pub async fn next(&mut self, ctx: &OpContext) -> Result<Option<Bytes>> {
        Ok(self.node.next(ctx).await?.map(Document::into_bytes))
    }
}

impl<S: Sources> Documents for PipelineStream<S> {
    async fn next(&mut self, ctx: &OpContext, _: usize) -> Result<Option<Bytes>> {
        PipelineStream::next(self, ctx).await
    }

    /// A pipeline knows its end only when it has run into it.
    fn is_eof(&self) -> bool {
        false
    }

    fn is_tail(&self) -> bool {
        false
    }
}

impl<S: Sources> DocumentStream for PipelineStream<S> {
    fn fill<'a>(
        &'a mut self,
        stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>> {
        Box::pin(fill(self, stash, ctx, max_documents))
    }
}
