//! A pipeline at work: runs of stages that need nothing from outside, and between them stages that
//! read or write elsewhere. Documents are asked for from the end.

mod facet;
mod graph;
mod lookup;
mod output;
mod partial;
mod run;
mod split;
mod spool;
mod sub;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use pinion_catalog::{Catalog, TimeSeries};
use pinion_clock::Timestamp;
use pinion_merge::PART_BATCH_DOCUMENTS;
use pinion_query::{Document, Memory, Outside, Pipeline, PipelineRun, Segment, Variables};
use pinion_runtime::LocalBoxFuture;
use pinion_service::cursors::{DocumentStream, Documents, Filled, fill};
use pinion_service::query_settings::QuerySettings;
use pinion_wire::{OpContext, Result};

use self::facet::FacetNode;
use self::graph::GraphNode;
use self::lookup::LookupNode;
use self::output::{MergeNode, OutNode};
pub(crate) use self::partial::collect_partial;
use self::run::RunNode;
pub(crate) use self::split::{open_split, request_of};
use self::sub::UnionNode;
use crate::read::ReadStream;
use crate::write::Validation;
use pinion_wire::idl::Namespace;

/// What the stages of one aggregation share.
pub(crate) struct Surroundings {
    /// What is read; stages in it may read the same again.
    pub ns: Namespace,
    /// The catalog in which the aggregation began: its stages find what had their names there,
    /// whatever is changed meanwhile.
    pub opened: Arc<Catalog>,
    pub vars: Variables,
    /// Whether validators look at what `$out` and `$merge` write.
    pub validation: Validation,
    /// What the stages may hold.
    pub memory: Memory,
    /// What `$out` makes, if that is a time series.
    pub out_series: Option<TimeSeries>,
    /// What plans may use.
    pub settings: Option<Arc<QuerySettings>>,
    /// Whether `$merge` writes into what the pipeline reads.
    pub merges_into_source: bool,
    /// When the last write of `$out` or `$merge` took place.
    pub written: Cell<Option<Timestamp>>,
}

/// Where documents come from: the partitions, a list, or a stage with what is before it.
pub(crate) enum Node {
    Read(Box<ReadStream>),
    List(VecDeque<Document>),
    Run(Box<RunNode>),
    Lookup(Box<LookupNode>),
    Graph(Box<GraphNode>),
    Union(Box<UnionNode>),
    Facet(Box<FacetNode>),
    Out(Box<OutNode>),
    Merge(Box<MergeNode>),
}

impl Node {
    /// A pipeline over these documents.
    pub(crate) fn chain(source: Node, pipeline: Pipeline, around: &Rc<Surroundings>) -> Node {
        let mut node = source;
        for segment in pipeline.segments() {
            node = match segment {
                Segment::Run(stages) => {
                    let run = PipelineRun::new(stages, &around.memory);
                    Node::Run(Box::new(RunNode::new(node, run)))
                }
                Segment::Outside(stage) => Node::outside(node, stage, around.clone()),
            };
        }
        node
    }

    fn outside(source: Node, stage: Arc<Outside>, around: Rc<Surroundings>) -> Node {
        match &*stage {
            Outside::Lookup(_) => Node::Lookup(Box::new(LookupNode::new(source, stage, around))),
            Outside::GraphLookup(_) => Node::Graph(Box::new(GraphNode::new(source, stage, around))),
            Outside::UnionWith(_) => Node::Union(Box::new(UnionNode::new(source, stage, around))),
            Outside::Facet(branches) => {
                Node::Facet(Box::new(FacetNode::new(source, branches.clone(), around)))
            }
            Outside::Out(_) => Node::Out(Box::new(OutNode::new(source, stage, around))),
            Outside::Merge(_) => Node::Merge(Box::new(MergeNode::new(source, stage, around))),
        }
    }

    /// The next document.
    pub(crate) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        match self {
            Node::Read(stream) => {
                let next = stream.next_wanted(ctx, PART_BATCH_DOCUMENTS).await?;
                Ok(next.map(Document::from))
            }
            Node::List(list) => Ok(list.pop_front()),
            Node::Run(node) => node.next(ctx).await,
            // In boxes, as these may stand in one another.
            Node::Lookup(node) => Box::pin(node.next(ctx)).await,
            Node::Graph(node) => Box::pin(node.next(ctx)).await,
            Node::Union(node) => Box::pin(node.next(ctx)).await,
            Node::Facet(node) => Box::pin(node.next(ctx)).await,
            Node::Out(node) => Box::pin(node.next(ctx)).await,
            Node::Merge(node) => Box::pin(node.next(ctx)).await,
        }
    }

    /// A source without documents: the one before it is dropped.
    fn nothing() -> Node {
        Node::List(VecDeque::new())
    }
}

/// The documents that come out of a pipeline.
pub struct PipelineStream {
    node: Node,
}

impl PipelineStream {
    pub(crate) fn new(source: Node, pipeline: Pipeline, around: &Rc<Surroundings>) -> Self {
        PipelineStream {
            node: Node::chain(source, pipeline, around),
        }
    }

    /// Where its documents come from.
    pub(crate) fn into_node(self) -> Node {
        self.node
    }

    /// The next document.
    pub async fn next(&mut self, ctx: &OpContext) -> Result<Option<Bytes>> {
        Ok(self.node.next(ctx).await?.map(Document::into_bytes))
    }
}

impl Documents for PipelineStream {
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

impl DocumentStream for PipelineStream {
    fn fill<'a>(
        &'a mut self,
        stash: &'a mut Option<Bytes>,
        ctx: &'a OpContext,
        max_documents: usize,
    ) -> LocalBoxFuture<'a, Result<Filled>> {
        Box::pin(fill(self, stash, ctx, max_documents))
    }
}
