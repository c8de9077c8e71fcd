//! The metadata that a filter gives the documents that it finds: scores and distances.

use pinion_bson::{RawBson, RawDocument};
use pinion_wire::Result;

use super::{Leaf, Matcher, Node, Predicate};
use crate::error::bad_value;
use crate::expression::{MetaKind, MetaSet, Metadata};
use crate::projection::Projection;
use crate::sort::SortPattern;

/// A filter as the source of metadata of the documents that it finds.
#[derive(Clone, Debug)]
pub struct MetaSource {
    matcher: Matcher,
    wanted: MetaSet,
}

impl Matcher {
    /// The metadata that the filter can provide.
    pub(crate) fn provides(&self) -> MetaSet {
        let mut provided = MetaSet::default();
        if self.0.text {
            provided.insert(MetaKind::TextScore);
        }
        if self.0.near {
            provided.insert(MetaKind::GeoNearDistance);
            provided.insert(MetaKind::GeoNearPoint);
        }
        provided
    }

    /// The source of the metadata that a sort order or a projection reads of the found documents.
    pub fn meta_source_for(
        &self,
        sort: Option<&SortPattern>,
        projection: Option<&Projection>,
    ) -> Option<MetaSource> {
        self.meta_source(read_by(sort, projection))
    }

    /// Refuses an order or a projection that reads metadata that the filter does not give.
    pub fn check_metadata(
        &self,
        sort: Option<&SortPattern>,
        projection: Option<&Projection>,
    ) -> Result<()> {
        self.reads()
            .iter()
            .try_for_each(MetaKind::refuse_before_read)?;
        let sorts = sort.is_some_and(|sort| sort.natural().is_none());
        let mut wanted = read_by(sort, projection).iter();
        wanted.try_for_each(|kind| match kind {
            MetaKind::RecordId => Ok(()),
            MetaKind::SortKey if sorts => Ok(()),
            MetaKind::SortKey => Err(bad_value(
                "cannot use sortKey $meta projection without a sort",
            )),
            kind => kind.check_given(self.provides().contains(kind)),
        })
    }

    /// The source of the wanted metadata of the found documents; none where none is wanted.
    pub(crate) fn meta_source(&self, wanted: MetaSet) -> Option<MetaSource> {
        let wanted = wanted.intersection(self.provides());
        (!wanted.is_empty()).then(|| MetaSource {
            matcher: self.clone(),
            wanted,
        })
    }
}

fn read_by(sort: Option<&SortPattern>, projection: Option<&Projection>) -> MetaSet {
    let sort = sort.map(SortPattern::reads).unwrap_or_default();
    sort.union(projection.map(Projection::reads).unwrap_or_default())
}

impl MetaSource {
    /// What is known of a document.
    pub fn metadata(&self, document: &RawDocument) -> Result<Metadata> {
        let mut known = Metadata::default();
        let root = self.matcher.root();
        if self.wanted.contains(MetaKind::TextScore)
            && let Some(query) = root.text().and_then(|text| text.query())
        {
            // Of the alternatives of a `$or` another one may have found the document.
            let is_found = root
                .conjuncts()
                .iter()
                .any(|node| matches!(node, Node::Text(_)))
                || query.matches(document)?;
            if is_found {
                known = known.with(MetaKind::TextScore, query.score(document)?);
            }
        }
        let (distance, point) = (MetaKind::GeoNearDistance, MetaKind::GeoNearPoint);
        if !self.wanted.contains(distance) && !self.wanted.contains(point) {
            return Ok(known);
        }
        let near = root.conjuncts().iter().find_map(|node| match node {
            Node::Leaf(Leaf {
                path,
                predicate: Predicate::Near(near),
                ..
            }) => Some((path, near)),
            _ => None,
        });
        if let Some((path, near)) = near
            && let Some((least, at)) = near.document_distance(document, path)?
        {
            if self.wanted.contains(distance) {
                known = known.with(distance, near.reported(least));
            }
            if self.wanted.contains(point) {
                known = known.with(point, RawBson::from(at));
            }
        }
        Ok(known)
    }
}
