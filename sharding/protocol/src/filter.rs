//! Which documents of a collection a shard owns: what keeps orphans out of reads and writes.
//!
//! Source: sharding document, "Orphan filtering".

use std::sync::{Arc, Weak};

use pinion_bson::RawDocument;
use pinion_clock::Timestamp;
use pinion_wire::Result;

use crate::chunk::{ChunkRange, ShardIdx};
use crate::key::{IndexedValue, KeyBytes};
use crate::table::RoutingTable;

/// The ownership of one shard by one table, now or at the time of a snapshot.
#[derive(Clone, Debug)]
pub struct OwnershipFilter {
    table: Arc<RoutingTable>,
    /// `None`: the table has never seen this shard, so it owns nothing.
    me: Option<ShardIdx>,
    at: Option<Timestamp>,
}

impl OwnershipFilter {
    pub fn new(table: Arc<RoutingTable>, me: &str, at: Option<Timestamp>) -> OwnershipFilter {
        OwnershipFilter {
            me: table.shard_of_name(me),
            table,
            at,
        }
    }

    pub fn table(&self) -> &Arc<RoutingTable> {
        &self.table
    }

    /// Whether the shard owns a key.
    ///
    /// # Errors
    /// `StaleChunkHistory` where the snapshot is older than what is known of the chunk.
    pub fn owns(&self, key: &KeyBytes) -> Result<bool> {
        Ok(Some(self.table.owner(key, self.at)?) == self.me)
    }

    /// Whether the shard owns a document. One without a key (an array is in its place) is owned by
    /// no shard.
    ///
    /// # Errors
    /// As [`OwnershipFilter::owns`].
    pub fn owns_document(&self, document: &RawDocument) -> Result<bool> {
        match self.table.key.built_key_of(document) {
            Some(key) => {
                let chunk = self.table.chunk_at(key.bytes());
                Ok(Some(chunk.shard_at(self.at)?) == self.me)
            }
            None => Ok(false),
        }
    }

    /// As [`OwnershipFilter::owns_document`], by the values that an index has for it, in the order
    /// of the key's fields.
    ///
    /// # Errors
    /// As [`OwnershipFilter::owns`].
    pub fn owns_values<'a>(
        &self,
        values: impl IntoIterator<Item = IndexedValue<'a>>,
    ) -> Result<bool> {
        match self.table.key.key_of_values(values) {
            Some(key) => self.owns(&key),
            None => Ok(false),
        }
    }

    /// Whether the shard owns every document, so that none needs a look.
    pub fn owns_all(&self) -> bool {
        let mut shards = self.table.shards();
        self.at.is_none() && self.me.is_some() && shards.all(|shard| Some(shard) == self.me)
    }
}

/// The table of a collection on a shard, and the former ones that operations still hold.
#[derive(Debug, Default)]
pub struct TableHistory {
    current: Option<Arc<RoutingTable>>,
    former: Vec<Weak<RoutingTable>>,
}

impl TableHistory {
    pub fn current(&self) -> Option<&Arc<RoutingTable>> {
        self.current.as_ref()
    }

    /// Takes a newer table, or none where the collection is not known any more.
    pub fn install(&mut self, table: Option<Arc<RoutingTable>>) {
        self.former.retain(|former| former.strong_count() > 0);
        if let Some(former) = std::mem::replace(&mut self.current, table) {
            self.former.push(Arc::downgrade(&former));
        }
    }

    /// Whether an operation runs by a former table of this incarnation under which the shard owned
    /// keys of the range: its documents are then not to be deleted.
    pub fn is_held(&self, range: &ChunkRange, me: &str) -> bool {
        let Some(current) = &self.current else {
            return false;
        };
        self.former.iter().filter_map(Weak::upgrade).any(|former| {
            let Some(me) = former.shard_of_name(me) else {
                return false;
            };
            former.of.is_same(current.of)
                && former.overlapping(range).any(|chunk| chunk.shard == me)
        })
    }

    /// How many former tables operations hold.
    pub fn held(&self) -> usize {
        self.former
            .iter()
            .filter(|former| former.strong_count() > 0)
            .count()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::{RawBsonRef, rawdoc};

    use super::*;
    use crate::testing::{HIGHEST, LOWEST, Model, bound};

    fn table(model: &Model) -> Arc<RoutingTable> {
        let all = model.chunks.iter().map(|chunk| chunk.document());
        Arc::new(RoutingTable::new(&model.collection(), all).expect("a table"))
    }

    /// `s0` owns the keys below 0, `s1` those from 0, which it got at `model.now`.
    fn moved() -> Model {
        let mut model = Model::new(1, 10, "s0");
        model.split(0, &[0]);
        model.move_chunk(1, "s1");
        model
    }

    #[test]
    fn owners_of_documents() {
        let model = moved();
        let table = table(&model);
        let before = model.now.prev();
        let check = |me, at, value: i64, expected| {
            let filter = OwnershipFilter::new(Arc::clone(&table), me, at);
            let found = filter.owns_document(&rawdoc! { "_id": 1, "a": value });
            assert_eq!(found.ok(), Some(expected), "{me} {at:?} {value}");
            let indexed = [IndexedValue::Plain(RawBsonRef::Int64(value))];
            assert_eq!(filter.owns_values(indexed).ok(), Some(expected));
        };
        check("s0", None, -1, true);
        check("s0", None, 1, false);
        check("s1", None, 1, true);
        check("s1", None, -1, false);
        check("s0", before, 1, true);
        check("s1", before, 1, false);
        check("s1", Some(model.now), 1, true);
        check("other", None, 1, false);
        let filter = OwnershipFilter::new(Arc::clone(&table), "s0", None);
        // A field that is missing is null, which is below all numbers; an array is no key.
        assert_eq!(filter.owns_document(&rawdoc! { "_id": 1 }).ok(), Some(true));
        for me in ["s0", "s1"] {
            let filter = OwnershipFilter::new(Arc::clone(&table), me, None);
            let document = rawdoc! { "_id": 1, "a": [1] };
            assert_eq!(filter.owns_document(&document).ok(), Some(false));
            assert_eq!(filter.owns_values([]).ok(), Some(false));
        }
        let too_old = Some(Timestamp::new(1, 0));
        let filter = OwnershipFilter::new(table, "s0", too_old);
        let error = filter
            .owns_document(&rawdoc! { "a": 1 })
            .expect_err("too old");
        assert_eq!(error.code.0, 250);
    }

    #[test]
    fn who_owns_all() {
        let mut model = Model::new(1, 10, "s0");
        model.split(0, &[0]);
        let owns_all =
            |model: &Model, me, at| OwnershipFilter::new(table(model), me, at).owns_all();
        assert!(owns_all(&model, "s0", None) && !owns_all(&model, "s1", None));
        assert!(!owns_all(&model, "s0", Some(model.now)));
        model.move_chunk(1, "s1");
        assert!(!owns_all(&model, "s0", None) && !owns_all(&model, "s1", None));
        model.move_chunk(0, "s1");
        assert!(owns_all(&model, "s1", None) && !owns_all(&model, "s0", None));
    }

    #[test]
    fn tables_that_are_held() {
        let mut model = Model::new(1, 10, "s0");
        model.split(0, &[0]);
        let mut history = TableHistory::default();
        history.install(Some(table(&model)));
        let reader = Arc::clone(history.current().expect("installed"));
        model.move_chunk(1, "s1");
        history.install(Some(table(&model)));
        let range = |min, max| {
            let [min, max] = [min, max].map(|k| reader.key.bound(&bound(k)).expect("a key"));
            ChunkRange { min, max }
        };
        assert!(history.is_held(&range(5, 7), "s0"));
        assert!(!history.is_held(&range(5, 7), "s1"));
        assert_eq!(history.held(), 1);
        // A table between them, under which the range was not owned, does not count.
        model.split(0, &[-5]);
        let later = Arc::clone(history.current().expect("installed"));
        history.install(Some(table(&model)));
        let whole = range(LOWEST, HIGHEST);
        let moved = range(5, 7);
        drop(reader);
        assert!(!history.is_held(&moved, "s0") && history.is_held(&whole, "s0"));
        drop(later);
        assert!(!history.is_held(&whole, "s0"));
        assert_eq!(history.held(), 0);
        // Another incarnation's ranges are none of this one's.
        let reader = Arc::clone(history.current().expect("installed"));
        history.install(Some(table(&Model::new(2, 50, "s1"))));
        assert_eq!(history.held(), 1);
        assert!(!history.is_held(&whole, "s0"));
        drop(reader);
    }
}
