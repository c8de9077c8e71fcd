//! `$facet` with stages in it that read elsewhere: its documents are kept, and each pipeline runs
//! over them in turn.

use std::collections::VecDeque;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_query::{Document, MAX_FACET_BYTES, Pipeline};
use pinion_service::compute::compute_bytes;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::{Node, Sources};

/// The stage, with what comes before it.
pub struct FacetNode<S: Sources> {
    source: Node<S>,
    /// None once the stage has given its document.
    branches: Option<Vec<(String, Pipeline)>>,
    sources: Rc<S>,
}

impl<S: Sources> FacetNode<S> {
    pub(super) fn new(
        source: Node<S>,
        branches: Vec<(String, Pipeline)>,
        sources: Rc<S>,
    ) -> FacetNode<S> {
        FacetNode {
            source,
            branches: Some(branches),
            sources,
        }
    }

    pub(super) async fn next(&mut self, ctx: &OpContext) -> Result<Option<Document>> {
        let Some(branches) = self.branches.take() else {
            return Ok(None);
        };
        let (mut kept, mut bytes): (VecDeque<Document>, usize) = (VecDeque::new(), 0);
        while let Some(document) = self.source.next(ctx).await? {
            account(&mut bytes, &document)?;
            kept.push_back(document);
        }
        self.source = Node::nothing();
        let (mut results, mut bytes) = (Vec::with_capacity(branches.len()), 0);
        for (name, pipeline) in branches {
            // The bytes are shared.
            let mut node = Node::chain(Node::List(kept.clone()), pipeline, &self.sources);
            let mut found = Vec::new();
            while let Some(document) = node.next(ctx).await? {
                account(&mut bytes, &document)?;
                found.push(document);
            }
            results.push((name, found));
        }
        let build = || {
            let mut out = DocBuilder::new();
            for (name, found) in &results {
                out.start_array(name);
                for document in found {
                    out.push(RawBsonRef::Document(document));
                }
                out.end();
            }
            out.finish()
        };
        Ok(Some(compute_bytes(bytes, build).await.into()))
    }
}

fn account(bytes: &mut usize, document: &Document) -> Result<()> {
    *bytes += document.as_bytes().len();
    if *bytes > MAX_FACET_BYTES {
        return Err(Error::new(
            ErrorCode(4_031_700),
            format!(
                "document constructed by $facet is {bytes} bytes, which exceeds the limit of {MAX_FACET_BYTES} bytes"
            ),
        ));
    }
    Ok(())
}
