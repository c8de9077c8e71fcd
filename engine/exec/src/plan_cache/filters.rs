//! Index filters: the indexes that are left to the queries of a shape, until the node restarts.

use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_bson::RawDocumentBuf;
use pinion_catalog::Uuid;
use pinion_query::{IndexFilter, QueryShape};
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::MAX_INDEX_FILTER_BYTES;

/// A filter as it was set: with the query whose shape it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct SetFilter {
    pub query: RawDocumentBuf,
    pub sort: RawDocumentBuf,
    pub projection: RawDocumentBuf,
    /// Empty where the client asked for none.
    pub collation: RawDocumentBuf,
    pub filter: IndexFilter,
}

impl SetFilter {
    fn bytes(&self) -> usize {
        let documents = [&self.query, &self.sort, &self.projection, &self.collation];
        let keys = self.filter.keys.iter().map(|key| key.as_bytes().len());
        documents
            .map(|document| document.as_bytes().len())
            .iter()
            .sum::<usize>()
            + keys.sum::<usize>()
            + self.filter.names.iter().map(String::len).sum::<usize>()
    }
}

/// The filters of all collections, by their UUIDs: they outlive a rename, and go with a drop. Every
/// core holds the same.
#[derive(Clone, Debug, Default)]
pub struct IndexFilters {
    of: BTreeMap<Uuid, BTreeMap<QueryShape, Arc<SetFilter>>>,
    bytes: usize,
}

impl IndexFilters {
    /// Whether a collection has any, which few have.
    pub(crate) fn any_of(&self, uuid: Uuid) -> bool {
        self.of.contains_key(&uuid)
    }

    pub(crate) fn find(&self, uuid: Uuid, shape: &QueryShape) -> Option<&Arc<SetFilter>> {
        self.of.get(&uuid)?.get(shape)
    }

    pub(crate) fn list(&self, uuid: Uuid) -> impl Iterator<Item = &Arc<SetFilter>> {
        self.of.get(&uuid).into_iter().flat_map(BTreeMap::values)
    }

    /// Sets a filter in the place of that of the same shape.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` when there are too many.
    pub(crate) fn set(
        &mut self,
        uuid: Uuid,
        shape: QueryShape,
        filter: Arc<SetFilter>,
    ) -> Result<()> {
        let had = self.find(uuid, &shape).map_or(0, |old| old.bytes());
        let bytes = self.bytes - had + filter.bytes();
        if bytes > MAX_INDEX_FILTER_BYTES {
            return Err(Error::new(
                ErrorCode(146),
                format!("index filters may have {MAX_INDEX_FILTER_BYTES} bytes in all"),
            ));
        }
        self.bytes = bytes;
        self.of.entry(uuid).or_default().insert(shape, filter);
        Ok(())
    }

    /// Takes away the filter of one shape, or all of the collection.
    pub(crate) fn clear(&mut self, uuid: Uuid, shape: Option<&QueryShape>) {
        let Some(filters) = self.of.get_mut(&uuid) else {
            return;
        };
        filters.retain(|set, filter| {
            let goes = shape.is_none_or(|shape| set == shape);
            self.bytes -= if goes { filter.bytes() } else { 0 };
            !goes
        });
        if filters.is_empty() {
            self.of.remove(&uuid);
        }
    }

    /// Forgets the filters of collections that are gone.
    pub(crate) fn keep(&mut self, exists: impl Fn(Uuid) -> bool) {
        let gone: Vec<Uuid> = self
            .of
            .keys()
            .copied()
            .filter(|uuid| !exists(*uuid))
            .collect();
        gone.into_iter().for_each(|uuid| self.clear(uuid, None));
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;
    use pinion_query::{Matcher, PlanRequest};

    use super::*;

    fn shape(filter: &RawDocumentBuf) -> QueryShape {
        let matcher = Matcher::parse(filter).expect("a filter");
        QueryShape::of(&PlanRequest {
            namespace: "db.c",
            matcher: &matcher,
            sort: None,
            projection: None,
            hint: None,
            key_bounds: None,
            reads_scores: false,
            return_key: false,
            shard_key: None,
            indexes: &[],
            filter: None,
        })
    }

    fn filter(query: RawDocumentBuf, names: &[&str]) -> (QueryShape, Arc<SetFilter>) {
        let set = SetFilter {
            sort: RawDocumentBuf::new(),
            projection: RawDocumentBuf::new(),
            collation: RawDocumentBuf::new(),
            filter: IndexFilter {
                names: names.iter().map(|name| (*name).to_owned()).collect(),
                keys: Vec::new(),
            },
            query,
        };
        (shape(&set.query), Arc::new(set))
    }

    #[test]
    fn a_filter_stands_for_its_shape_in_one_collection() {
        let (a, b) = (Uuid([1; 16]), Uuid([2; 16]));
        let mut filters = IndexFilters::default();
        for (value, names) in [(1, ["x"]), (2, ["y"])] {
            let (shape, set) = filter(rawdoc! { "a": value }, &names);
            filters.set(a, shape, set).expect("there is room");
        }
        let found = filters
            .find(a, &shape(&rawdoc! { "a": 7 }))
            .expect("the shape has one");
        assert_eq!(found.filter.names, ["y"]);
        assert!(filters.find(b, &shape(&rawdoc! { "a": 7 })).is_none());
        assert!(
            filters
                .find(a, &shape(&rawdoc! { "a": { "$gt": 7 } }))
                .is_none()
        );
        let (other, set) = filter(rawdoc! { "b": 1 }, &["z"]);
        filters.set(a, other, set).expect("there is room");
        filters.clear(a, Some(&shape(&rawdoc! { "a": 0 })));
        assert_eq!(filters.list(a).count(), 1);
        filters.keep(|uuid| uuid == b);
        assert_eq!((filters.any_of(a), filters.bytes), (false, 0));
    }

    #[test]
    fn filters_have_a_limit() {
        let uuid = Uuid([1; 16]);
        let mut filters = IndexFilters::default();
        let text = "x".repeat(MAX_INDEX_FILTER_BYTES);
        let (shape, set) = filter(rawdoc! { "a": text }, &["x"]);
        let refused = filters.set(uuid, shape, set).expect_err("it is too large");
        assert_eq!(refused.code, ErrorCode(146));
        assert!(!filters.any_of(uuid));
    }
}
