//! Tables from documents: of the config servers, and of what a shard keeps of them.

use pinion_bson::{Binary, DocBuilder, RawBson, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_wire::Result;

use super::{RoutingTable, TableError};
use crate::documents::{CachedCollectionDocument, ChunkDocument, ChunkOf, CollectionDocument};
use crate::values::append_time;

impl CollectionDocument {
    /// Selects its documents of `config.chunks` whose version is at or above this one; all without
    /// one.
    pub fn chunks_filter(&self, from: Option<Timestamp>) -> RawDocumentBuf {
        let mut filter = DocBuilder::new();
        // MongoDB 4.4 names them by the namespace, whether the collection has a UUID or not.
        let uuid = self.uuid.filter(|_| !self.of.timestamp.is_null());
        match uuid {
            Some(uuid) => {
                let uuid = RawBson::Binary(Binary::from(uuid));
                filter.append_raw("uuid", uuid.as_raw_bson_ref());
            }
            None => {
                filter.append("ns", self.ns.as_str());
            }
        }
        append_from(&mut filter, from);
        filter.finish()
    }
}

impl CachedCollectionDocument {
    /// The same of its documents of `config.cache.chunks.<ns>`.
    pub fn chunks_filter(from: Option<Timestamp>) -> RawDocumentBuf {
        let mut filter = DocBuilder::new();
        append_from(&mut filter, from);
        filter.finish()
    }

    /// The collection that its chunks are of.
    fn chunk_of(&self) -> ChunkOf {
        match self.uuid {
            Some(uuid) => ChunkOf::Uuid(uuid),
            None => ChunkOf::Named {
                ns: self.ns.to_string(),
                epoch: self.of.epoch,
            },
        }
    }
}

fn append_from(filter: &mut DocBuilder, from: Option<Timestamp>) {
    if let Some(from) = from {
        let mut lastmod = DocBuilder::new();
        append_time(&mut lastmod, "$gte", from);
        filter.append("lastmod", &*lastmod.finish());
    }
}

impl RoutingTable {
    /// The table of a collection with these documents of `config.chunks`: all of them, or without
    /// those of `base` that are older than its version.
    ///
    /// # Errors
    /// Those of [`RoutingTable::new`] and [`RoutingTable::apply`].
    pub fn read(
        collection: &CollectionDocument,
        base: Option<&RoutingTable>,
        chunks: &[RawDocumentBuf],
    ) -> std::result::Result<RoutingTable, TableError> {
        let parsed = chunks.iter().map(|chunk| ChunkDocument::parse(chunk));
        build(collection, base, parsed)
    }

    /// The same with documents of `config.cache.chunks.<ns>`.
    ///
    /// # Errors
    /// As [`RoutingTable::read`].
    pub fn read_cached(
        collection: &CachedCollectionDocument,
        base: Option<&RoutingTable>,
        chunks: &[RawDocumentBuf],
    ) -> std::result::Result<RoutingTable, TableError> {
        let of = collection.chunk_of();
        let parsed = chunks
            .iter()
            .map(|chunk| ChunkDocument::parse_cached(chunk, &of));
        build(&collection.to_collection(), base, parsed)
    }
}

fn build(
    collection: &CollectionDocument,
    base: Option<&RoutingTable>,
    chunks: impl Iterator<Item = Result<ChunkDocument>>,
) -> std::result::Result<RoutingTable, TableError> {
    let chunks: Result<Vec<ChunkDocument>> = chunks.collect();
    match base {
        Some(base) => base.apply(collection, chunks?),
        None => RoutingTable::new(collection, chunks?),
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;
    use crate::testing::{Model, UUID};
    use crate::values::bson_time;

    #[test]
    fn from_either_kind_of_documents() {
        let mut model = Model::new(1, 10, "s0");
        model.split(0, &[0, 10]);
        let all = |model: &Model| -> Vec<ChunkDocument> {
            model.chunks.iter().map(|chunk| chunk.document()).collect()
        };
        let whole: Vec<RawDocumentBuf> = all(&model).iter().map(ChunkDocument::to_bson).collect();
        let base = RoutingTable::read(&model.collection(), None, &whole).expect("a table");
        model.move_chunk(1, "s1");
        let changes = model.changes(base.version());
        let own: Vec<RawDocumentBuf> = changes.iter().map(ChunkDocument::to_bson).collect();
        let newer = RoutingTable::read(&model.collection(), Some(&base), &own).expect("a table");
        let cached = CachedCollectionDocument::of_collection(&model.collection());
        let kept: Vec<RawDocumentBuf> = changes.iter().map(|c| c.to_cached_bson()).collect();
        let same = RoutingTable::read_cached(&cached, Some(&base), &kept).expect("a table");
        assert_eq!(newer.version(), model.version());
        assert_eq!(newer.version(), same.version());
        assert!(newer.version() != base.version());
    }

    #[test]
    fn filters() {
        let mut collection = Model::new(1, 10, "s0").collection();
        let from = Timestamp::new(3, 2);
        let expected = rawdoc! {
            "uuid": Binary::from(UUID), "lastmod": { "$gte": bson_time(from) },
        };
        assert_eq!(collection.chunks_filter(Some(from)), expected);
        collection.uuid = None;
        assert_eq!(collection.chunks_filter(None), rawdoc! { "ns": "d.c" });
        let mut of_v44 = Model::new(1, 10, "s0").collection();
        of_v44.of.timestamp = Timestamp::MIN;
        assert_eq!(of_v44.chunks_filter(None), rawdoc! { "ns": "d.c" });
        assert!(CachedCollectionDocument::chunks_filter(None).is_empty());
    }
}
