//! One collection's entry in the catalog, and its row in `_mdb_catalog`.
//!
//! A row has MongoDB's documented shape:
//! `{ident, idxIdent: {name: ident, ...}, md: {ns, options: {uuid, ...}, indexes: [...]}, ns}`;
//! `index.rs` has the elements of `indexes`. Its key in the catalog's tree is the collection's
//! number, eight bytes big-endian; number 0 is the row that holds the next free number, and 2^62
//! that of the next for what is not replicated.

use std::sync::{Arc, OnceLock};

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_collation::Collation;
use pinion_query::{IndexSpec, MultikeyPaths, Validator, Variables};
use pinion_storage::TreeId;

use crate::index::{Index, begin_element};
use crate::limits::OPLOG_NUMBER;
use crate::names::is_single_partition;
use crate::options::{Capped, Clustered, CollectionOptions, ValidationLevel};
use crate::scattered::is_scattered;
use crate::uuid::Uuid;
use pinion_wire::idl::Namespace;

pub(crate) fn oplog_namespace() -> Namespace {
    Namespace::new("local", "oplog.rs").expect("the oplog's name is one")
}

/// The oplog has no row, so it gets no UUID by chance.
const OPLOG_UUID: Uuid = Uuid(*b"local.oplog.rs\0\0");

/// Where a collection's documents live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// By the hash of `_id`, over all partitions.
    Hashed,
    /// All in partition 0.
    One,
    /// Beside the documents that retryable writes changed: there may be several forms of one
    /// document, the newest of which counts ([`Collection::merged`]).
    Scattered,
}

/// What orders a collection's documents in its tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Clustering {
    /// Their `_id`: the tree is the index on it.
    Id,
    /// Their number, in the order in which they came; the index on `_id` is one of the others.
    Record,
    /// Their timestamps: they are the entries of the node's log, which is no tree, and there is no
    /// index on them. No row says so.
    Log,
}

impl Placement {
    /// As a row has it.
    fn name(self) -> &'static str {
        match self {
            Placement::Hashed => "hashed",
            Placement::One => "one",
            Placement::Scattered => "scattered",
        }
    }

    fn named(name: &str) -> Option<Placement> {
        let all = [Placement::Hashed, Placement::One, Placement::Scattered];
        all.into_iter().find(|placement| placement.name() == name)
    }
}

impl Clustering {
    /// As a row has it.
    fn name(self) -> &'static str {
        match self {
            Clustering::Id => "id",
            Clustering::Record => "record",
            Clustering::Log => "log",
        }
    }

    fn named(name: &str) -> Option<Clustering> {
        let all = [Clustering::Id, Clustering::Record];
        all.into_iter().find(|clustering| clustering.name() == name)
    }
}

/// One collection as the catalog knows it. Immutable: a change makes a new one.
#[derive(Clone, Debug)]
pub struct Collection {
    /// Its name.
    pub ns: Namespace,
    /// Its UUID, kept over a rename.
    pub uuid: Uuid,
    /// Its number, the key of its row; its tree has the same number.
    pub number: u64,
    /// The options it was created with, or was given since.
    pub options: CollectionOptions,
    /// How its strings compare where an operation does not say: those of `_id` always do. By their
    /// bytes without one.
    pub collation: Option<Arc<Collation>>,
    /// Where its documents live.
    pub placement: Placement,
    /// What orders them there.
    pub clustering: Clustering,
    /// Its secondary indexes, in the order they were made.
    pub indexes: Vec<Arc<Index>>,
    /// When this process made it; `None` if an earlier one did.
    pub made_ms: Option<i64>,
    /// When it came to be, or got its name. Null if that was before any snapshot that can be
    /// opened.
    pub visible_from: Timestamp,
    /// Of the oplog: entries above it are none of the set's.
    pub log_through: Timestamp,
    specs: OnceLock<Arc<[IndexSpec]>>,
    validator: OnceLock<Arc<Validator>>,
}

/// A row that cannot be understood, with the reason.
#[derive(Debug)]
pub struct BadRow(pub String);

impl Collection {
    /// A collection without indexes but that on `_id`.
    pub(crate) fn new(
        ns: Namespace,
        uuid: Uuid,
        number: u64,
        options: CollectionOptions,
    ) -> Collection {
        let collation = options.parsed_collation();
        let is_capped = options.capped.is_some();
        let placement = if is_capped || is_single_partition(&ns) {
            Placement::One
        } else if is_scattered(&ns) {
            Placement::Scattered
        } else {
            Placement::Hashed
        };
        let clustering = match is_capped {
            true => Clustering::Record,
            false => Clustering::Id,
        };
        Collection {
            ns,
            uuid,
            number,
            options,
            collation,
            placement,
            clustering,
            indexes: Vec::new(),
            made_ms: None,
            visible_from: Timestamp::MIN,
            log_through: Timestamp::MAX,
            specs: OnceLock::new(),
            validator: OnceLock::new(),
        }
    }

    /// The oplog: what the node's log holds up to `through`, as a capped collection of this size
    /// that has no row.
    pub(crate) fn oplog(size_bytes: i64, through: Timestamp) -> Collection {
        let options = CollectionOptions {
            capped: Some(Capped {
                size_bytes,
                max_documents: None,
            }),
            ..CollectionOptions::default()
        };
        Collection {
            clustering: Clustering::Log,
            log_through: through,
            ..Collection::new(oplog_namespace(), OPLOG_UUID, OPLOG_NUMBER, options)
        }
    }

    /// Whether it is the node's log.
    pub fn is_oplog(&self) -> bool {
        self.clustering == Clustering::Log
    }

    /// All indexes as the planner sees them: that on `_id`, then `indexes` in their order, which
    /// have that on `_id` among them where the collection's tree is ordered otherwise.
    pub fn index_specs(&self) -> &[IndexSpec] {
        self.specs.get_or_init(|| {
            let id = || {
                let name = match &self.options.clustered {
                    Some(Clustered::Named { name }) => name,
                    Some(Clustered::Legacy) | None => "_id_",
                };
                let mut id = plain_id_spec(name);
                id.collation = self.collation.clone();
                id.clustered = self.options.clustered.is_some();
                id
            };
            let in_tree = (self.clustering == Clustering::Id).then(id);
            let others = self.indexes.iter();
            in_tree
                .into_iter()
                .chain(others.map(|index| IndexSpec::clone(&index.spec)))
                .collect()
        })
    }

    /// The index that a place in [`Collection::index_specs`] stands for; `None` for the
    /// collection's own tree.
    pub fn index_at(&self, place: usize) -> Option<&Arc<Index>> {
        match self.clustering {
            Clustering::Id => place.checked_sub(1).map(|place| &self.indexes[place]),
            Clustering::Record => Some(&self.indexes[place]),
            Clustering::Log => None,
        }
    }

    /// The index on `_id`, where that is one of the others.
    pub fn id_index_beside_tree(&self) -> Option<&Arc<Index>> {
        (self.clustering == Clustering::Record).then(|| &self.indexes[0])
    }

    /// The same collection under another name; a temporary one is none any more, unless it is to
    /// stay so.
    pub(crate) fn renamed(&self, ns: Namespace, stays_temporary: bool) -> Collection {
        let mut options = self.options.clone();
        options.temporary &= stays_temporary;
        Collection {
            ns,
            options,
            specs: OnceLock::new(),
            ..self.clone()
        }
    }

    /// The same collection with other indexes.
    fn with_indexes(&self, indexes: Vec<Arc<Index>>) -> Collection {
        Collection {
            indexes,
            specs: OnceLock::new(),
            ..self.clone()
        }
    }

    /// Whether documents are found by their `_id` as it is, in the collection's own tree.
    pub fn is_plain(&self) -> bool {
        self.clustering == Clustering::Id
            && self.options.collation.is_none()
            && self.placement != Placement::Scattered
    }

    /// The same collection with other options. They do not change where its documents live.
    pub(crate) fn with_options(&self, options: CollectionOptions) -> Collection {
        assert!(
            options.capped.is_some() == self.options.capped.is_some(),
            "a collection is capped from the beginning or never"
        );
        Collection {
            options,
            validator: OnceLock::new(),
            ..self.clone()
        }
    }

    /// Whether documents are checked before they are written.
    pub fn has_validator(&self) -> bool {
        self.options.validator.is_some()
            && self.options.validation_level != Some(ValidationLevel::Off)
    }

    /// The validator, for an operation at this time, and at this cluster time where the node is in
    /// a cluster.
    ///
    /// # Errors
    /// Those of its parser: the validator may be of a time when more was understood.
    ///
    /// # Panics
    /// When there is none.
    pub fn validator(
        &self,
        now_ms: i64,
        cluster_time: Option<pinion_bson::Timestamp>,
    ) -> Result<Arc<Validator>, pinion_wire::Error> {
        if let Some(parsed) = self.validator.get() {
            return Ok(parsed.clone());
        }
        let filter = self.options.validator.as_ref().expect("asked before");
        let variables = Variables {
            now_ms: Some(now_ms),
            cluster_time,
            collation: self.collation.clone(),
            ..Variables::default()
        };
        let parsed = Arc::new(Validator::parse(filter, &variables)?);
        // One that asks for the time is parsed for each operation.
        if !parsed.uses_variables() {
            let _ = self.validator.set(parsed.clone());
        }
        Ok(parsed)
    }

    /// The collection's tree in each partition.
    pub fn tree(&self) -> TreeId {
        TreeId(self.number)
    }

    /// Whether what is written to it goes to the oplog. A collection that was made before nodes had
    /// numbers of their own goes there whatever its name.
    pub fn is_replicated(&self) -> bool {
        self.tree().is_replicated()
    }

    /// The index of that name.
    pub fn index(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| index.name() == name)
    }

    /// All trees of the collection: its own, its indexes' in their order, and those of the side
    /// writes of builds.
    pub fn trees(&self) -> impl Iterator<Item = TreeId> + '_ {
        let side = |index: &Arc<Index>| index.building.map(|building| building.side);
        std::iter::once(self.tree())
            .chain(self.indexes.iter().map(|index| index.tree))
            .chain(self.indexes.iter().filter_map(side))
    }

    /// The indexes that are complete.
    pub fn ready_indexes(&self) -> impl Iterator<Item = &Arc<Index>> {
        self.indexes.iter().filter(|index| index.building.is_none())
    }

    /// The same collection as one knows it that comes after `before`, by a change at `ts`: what is
    /// new is visible from there on.
    pub(crate) fn visible_after(
        mut self,
        before: Option<&Collection>,
        ts: Timestamp,
    ) -> Collection {
        self.visible_from = match before {
            Some(before) if before.ns == self.ns => before.visible_from,
            _ => ts,
        };
        for index in &mut self.indexes {
            let known = before.and_then(|before| {
                let mut ready = before.ready_indexes();
                ready.find(|known| known.tree == index.tree)
            });
            let from = known.map_or(ts, |known| known.visible_from);
            if index.visible_from != from {
                Arc::make_mut(index).visible_from = from;
            }
        }
        self
    }

    /// The same collection for a read of a snapshot at `ts`, which uses no index that was not ready
    /// by then.
    pub fn seen_at(self: &Arc<Self>, ts: Timestamp) -> Arc<Collection> {
        let is_unseen = |index: &Arc<Index>| index.visible_from > ts && index.building.is_none();
        if !self.indexes.iter().any(is_unseen) {
            return self.clone();
        }
        let indexes = self.indexes.iter().map(|index| match is_unseen(index) {
            true => Arc::new(index.unseen()),
            false => index.clone(),
        });
        Arc::new(self.with_indexes(indexes.collect()))
    }

    /// The same collection without the indexes that are being built.
    pub fn without_builds(self: &Arc<Self>) -> Arc<Collection> {
        if self.builds().is_empty() {
            return self.clone();
        }
        let ready = self.ready_indexes().cloned();
        Arc::new(self.with_indexes(ready.collect()))
    }

    /// Which builds of indexes are under way.
    pub fn builds(&self) -> Vec<Uuid> {
        let of_index = |index: &Arc<Index>| Some(index.building?.build);
        let mut builds: Vec<Uuid> = self.indexes.iter().filter_map(of_index).collect();
        builds.dedup();
        builds
    }

    /// The index on `_id` as it is listed, where the collection's own tree is that index.
    pub fn id_index_in_tree(&self) -> Option<RawDocumentBuf> {
        (self.clustering == Clustering::Id).then(|| self.options.id_index())
    }

    /// The indexes but for that on `_id`, in the order they were made.
    pub fn secondary_indexes(&self) -> &[Arc<Index>] {
        match self.clustering {
            Clustering::Id | Clustering::Log => &self.indexes,
            Clustering::Record => &self.indexes[1..],
        }
    }

    /// All indexes as they are listed, that on `_id` first.
    pub fn listed_indexes(&self) -> impl Iterator<Item = RawDocumentBuf> + '_ {
        let others = self.indexes.iter().map(|index| index.listed.clone());
        self.id_index_in_tree().into_iter().chain(others)
    }

    /// Whether the collection's own tree counts as the index on `_id`. That by which a collection
    /// is declared to be clustered is listed, but is none of its indexes.
    pub fn tree_is_id_index(&self) -> bool {
        self.clustering == Clustering::Id && self.options.clustered.is_none()
    }

    /// How many complete indexes the collection has, that on `_id` included.
    pub fn index_count(&self) -> usize {
        usize::from(self.tree_is_id_index()) + self.ready_indexes().count()
    }

    /// The indexes other than that on `_id`, as they are asked for on another collection with the
    /// same options. One without a collation asks for that.
    pub fn index_requests(&self) -> Vec<RawDocumentBuf> {
        let request = |index: &Arc<Index>| {
            let is_simple = pinion_bson::get(&index.listed, "collation").is_none();
            let mut out = DocBuilder::new();
            out.append_all(&index.listed);
            if is_simple && self.collation.is_some() {
                out.start_document("collation").append("locale", "simple");
                out.end();
            }
            out.finish()
        };
        let is_other = |index: &&Arc<Index>| index.name() != "_id_";
        let others = self.ready_indexes().filter(is_other);
        others.map(request).collect()
    }

    /// The same collection, new, with the index on `_id` beside its tree, in a tree of its own.
    pub(crate) fn with_id_index(&self, tree: TreeId) -> Collection {
        assert!(
            self.clustering == Clustering::Record && self.indexes.is_empty(),
            "the index on _id of documents in the order of their records is made with them"
        );
        let listed = self.options.id_index();
        let mut spec = IndexSpec::parse(&listed).expect("the _id index has a valid specification");
        spec.unique = true;
        self.with_index(Index::beside(spec, listed, tree))
    }

    /// The row of this collection.
    pub fn to_row(&self) -> RawDocumentBuf {
        let mut row = DocBuilder::new();
        row.start_document("md")
            .append("ns", self.ns.as_str())
            .start_document("options")
            .append("uuid", self.uuid.to_bson());
        row.append_all(&self.options.to_document())
            .end()
            .start_array("indexes");
        // What a collection is clustered by is none of its indexes.
        if self.tree_is_id_index() {
            begin_element(&mut row, &self.options.id_index(), &plain_id_spec("_id_"));
            row.end();
        }
        for index in &self.indexes {
            index.write_row(&mut row);
        }
        row.end().end().start_document("idxIdent");
        if self.tree_is_id_index() {
            row.append("_id_", collection_ident(self.number).as_str());
        }
        for index in &self.indexes {
            row.append(index.name(), index_ident(index.tree).as_str());
        }
        row.end()
            .append("ns", self.ns.as_str())
            .append("ident", collection_ident(self.number).as_str())
            .append("placement", self.placement.name())
            .append("clustering", self.clustering.name());
        row.finish()
    }

    /// Reads a row back.
    ///
    /// # Errors
    /// [`BadRow`] says what is missing or wrong; the catalog is then damaged.
    pub fn from_row(row: &RawDocument) -> Result<Collection, BadRow> {
        let bad = |what: &str| BadRow(format!("catalog row: {what}"));
        let ident = row.get_str("ident").map_err(|_| bad("no ident"))?;
        let number = parse_ident(ident).ok_or_else(|| bad("ident is not of this catalog"))?;
        let md = row.get_document("md").map_err(|_| bad("no md"))?;
        let full = md.get_str("ns").map_err(|_| bad("no md.ns"))?;
        let ns = Namespace::parse(full).map_err(|e| bad(&e.message))?;
        let stored_options = md
            .get_document("options")
            .map_err(|_| bad("no md.options"))?;
        let mut uuid = None;
        let mut options = DocBuilder::new();
        for (name, value) in pinion_bson::elements(stored_options) {
            if name == "uuid" {
                uuid = Uuid::from_bson(value);
            } else {
                options.append_raw(name, value);
            }
        }
        let options = CollectionOptions::from_document(&options.finish());
        let options = options.map_err(|error| bad(&error.0))?;
        let uuid = uuid.ok_or_else(|| bad("no md.options.uuid"))?;
        let mut made = Collection::new(ns, uuid, number, options);
        // Rows that do not say where the documents are come from a time when the names decided.
        if let Ok(placement) = row.get_str("placement") {
            made.placement = Placement::named(placement).ok_or_else(|| bad("unknown placement"))?;
        }
        if let Ok(clustering) = row.get_str("clustering") {
            made.clustering =
                Clustering::named(clustering).ok_or_else(|| bad("unknown clustering"))?;
        }
        let idents = row
            .get_document("idxIdent")
            .map_err(|_| bad("no idxIdent"))?;
        let mut indexes = Vec::new();
        for element in md.get_array("indexes").map_err(|_| bad("no md.indexes"))? {
            let element = element.map_err(|_| bad("md.indexes is damaged"))?;
            let entry = element
                .as_document()
                .ok_or_else(|| bad("md.indexes holds a value that is no document"))?;
            let is_tree = made.clustering == Clustering::Id;
            if let Some(index) = Index::from_row(entry, idents, is_tree)? {
                indexes.push(Arc::new(index));
            }
        }
        let first = indexes.first().map(|index| index.name());
        if made.clustering == Clustering::Record && first != Some("_id_") {
            return Err(bad("the index on _id is not the first"));
        }
        Ok(Collection { indexes, ..made })
    }

    /// The same collection with one more index.
    pub(crate) fn with_index(&self, index: Index) -> Collection {
        let mut indexes = self.indexes.clone();
        indexes.push(Arc::new(index));
        self.with_indexes(indexes)
    }

    /// The same collection with another index in the place of the named one.
    pub(crate) fn with_replaced(&self, name: &str, index: Index) -> Collection {
        let mut indexes = self.indexes.clone();
        let index = Arc::new(index);
        for present in indexes.iter_mut().filter(|present| present.name() == name) {
            *present = index.clone();
        }
        self.with_indexes(indexes)
    }

    /// The same collection without the named indexes.
    pub(crate) fn without_indexes(&self, names: &[String]) -> Collection {
        let keep = |index: &&Arc<Index>| !names.iter().any(|name| name == index.name());
        self.with_indexes(self.indexes.iter().filter(keep).cloned().collect())
    }

    /// The same collection with what is known of arrays in its indexes.
    pub fn with_multikey(&self, found: &[(TreeId, MultikeyPaths)]) -> Collection {
        let mut indexes = self.indexes.clone();
        for index in &mut indexes {
            let tree = index.tree;
            for (_, paths) in found.iter().filter(|(found, _)| *found == tree) {
                *index = Arc::new(index.with_multikey(paths));
            }
        }
        self.with_indexes(indexes)
    }
}

/// An index on `_id` by its key alone.
fn plain_id_spec(name: &str) -> IndexSpec {
    let spec = IndexSpec::new(name, &pinion_bson::rawdoc! { "_id": 1 });
    spec.expect("the _id index has a valid pattern")
}

pub(crate) fn collection_ident(number: u64) -> String {
    format!("collection-{number}")
}

pub(crate) fn index_ident(tree: TreeId) -> String {
    format!("index-{}", tree.0)
}

pub(crate) fn parse_ident(ident: &str) -> Option<u64> {
    ident.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_by_any_name_is_read_back() {
        for name in ["_id_", "mine"] {
            let name = name.to_owned();
            let options = CollectionOptions {
                clustered: Some(Clustered::Named { name }),
                ..CollectionOptions::default()
            };
            let ns = Namespace::parse("test.c").expect("a name");
            let made = Collection::new(ns, Uuid([7; 16]), 5, options);
            let read = Collection::from_row(&made.to_row()).expect("a row");
            assert_eq!(read.to_row(), made.to_row());
            assert!(read.indexes.is_empty());
        }
    }
}
