//! How explain prints the plan of a query with `$text`.

use pinion_bson::{DocBuilder, RawBsonRef};

use super::explain::ExplainStage;
use super::text::compares_with_one;
use super::{IndexAccess, PlanRequest};
use crate::expression::MetaKind;
use crate::index::IndexSpec;
use crate::matcher::Node;

/// A search of a text index: the documents of all terms are fetched, and phrases and negated terms
/// are looked for in them.
pub(super) fn text_match(access: &IndexAccess, request: &PlanRequest<'_>) -> ExplainStage {
    let conjuncts = request.matcher.root().conjuncts();
    let rest: Vec<&Node> = conjuncts
        .iter()
        .filter(|node| !matches!(node, Node::Text(_)))
        .filter(|node| !is_prefix(node, access, request))
        .collect();
    let found = search(access, request);
    if rest.is_empty() {
        return found;
    }
    let mut details = DocBuilder::new();
    let filter = crate::matcher::serialize_all(&rest);
    details.append("filter", RawBsonRef::Document(&filter));
    ExplainStage::new("FETCH", details, vec![found])
}

/// Whether a predicate is one of those that bind the fields in front of the terms.
fn is_prefix(node: &Node, access: &IndexAccess, request: &PlanRequest<'_>) -> bool {
    let fields = request.indexes[access.index].text();
    let mut before = fields.map_or(&[][..], |fields| &fields.before).iter();
    before.any(|path| compares_with_one(node, path))
}

pub(super) fn search(access: &IndexAccess, request: &PlanRequest<'_>) -> ExplainStage {
    let index = &request.indexes[access.index];
    let mut details = DocBuilder::new();
    details.start_document("indexPrefix");
    let before = index.text().map_or(&[][..], |fields| &fields.before);
    for (path, bounds) in before.iter().zip(&access.bounds) {
        if let Some(point) = bounds.0.first() {
            details.append(path.text(), point.lower.as_raw_bson_ref());
        }
    }
    details.end();
    details.append("indexName", RawBsonRef::String(&index.name));
    if let Some(query) = request.matcher.root().text().and_then(|text| text.query()) {
        query.explain(&mut details);
    }
    let terms = access.bounds.get(before.len()).map_or(0, |b| b.0.len());
    let mut scans: Vec<ExplainStage> = (0..terms).map(|_| term_scan(index)).collect();
    let sort = request.sort.map(|sort| sort.reads());
    let projection = request.projection.map(|projection| projection.reads());
    let mut read = sort.into_iter().chain(projection);
    let fetch = if request.reads_scores || read.any(|reads| reads.contains(MetaKind::TextScore)) {
        ExplainStage::new("TEXT_OR", DocBuilder::new(), scans)
    } else {
        if scans.len() > 1 {
            scans = vec![ExplainStage::new("OR", DocBuilder::new(), scans)];
        }
        ExplainStage::new("FETCH", DocBuilder::new(), scans)
    };
    ExplainStage::new("TEXT_MATCH", details, vec![fetch])
}

/// The scan of one term's keys. MongoDB goes through them from the highest score on, and prints no
/// bounds.
fn term_scan(index: &IndexSpec) -> ExplainStage {
    let mut out = DocBuilder::new();
    out.append("keyPattern", RawBsonRef::Document(&index.key))
        .append("indexName", RawBsonRef::String(&index.name))
        .append("isMultiKey", index.is_multikey())
        .append("isUnique", index.unique)
        .append("isSparse", index.sparse)
        .append("isPartial", index.filter.is_some())
        .append("indexVersion", 2i32)
        .append("direction", "backward");
    out.start_document("indexBounds");
    out.end();
    ExplainStage::new("IXSCAN", out, Vec::new())
}
