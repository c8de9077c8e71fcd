//! One collection's entry in the catalog, and its row in `_mdb_catalog`.
//!
//! A row has MongoDB's documented shape:
//! `{ident, idxIdent: {name: ident, ...}, md: {ns, options: {uuid, ...}, indexes: [...]}, ns}`; `index.rs` has the elements of `indexes`. Its key in the catalog's tree is the collection's number, eight bytes big-endian;
//! number 0 is the row that holds the next free number.

use std::sync::{Arc, OnceLock};

use pinion_bson::{DocBuilder, RawDocument, RawDocumentBuf};
use pinion_query::{IndexSpec, MultikeyPaths};
use pinion_storage::TreeId;

use crate::index::Index;
use crate::names::is_single_partition;
use crate::uuid::Uuid;
use pinion_wire::idl::Namespace;

/// Where a collection's documents live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// By the hash of `_id`, over all partitions.
    Hashed,
    /// All in partition 0.
    One,
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
    /// The options it was created with, without the UUID.
    pub options: RawDocumentBuf,
    /// Where its documents live.
    pub placement: Placement,
    /// Its secondary indexes, in the order they were made.
    pub indexes: Vec<Arc<Index>>,
    /// When this process made it; `None` if an earlier one did.
    pub made_ms: Option<i64>,
    specs: OnceLock<Arc<[IndexSpec]>>,
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
        options: RawDocumentBuf,
    ) -> Collection {
        let placement = if is_single_partition(&ns) {
            Placement::One
        } else {
            Placement::Hashed
        };
        Collection {
            ns,
            uuid,
            number,
            options,
            placement,
            indexes: Vec::new(),
            made_ms: None,
            specs: OnceLock::new(),
        }
    }

    /// All indexes as the planner sees them: that on `_id`, then `indexes` in their order.
    pub fn index_specs(&self) -> &[IndexSpec] {
        self.specs.get_or_init(|| {
            let id = IndexSpec::new("_id_", &pinion_bson::rawdoc! { "_id": 1 });
            let id = id.expect("the _id index has a valid pattern");
            std::iter::once(id)
                .chain(
                    self.indexes
                        .iter()
                        .map(|index| IndexSpec::clone(&index.spec)),
                )
                .collect()
        })
    }

    /// The same collection under another name.
    pub(crate) fn renamed(&self, ns: Namespace) -> Collection {
        Collection {
            ns,
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

    /// Whether the collection has no option that changes how its documents are read or written.
    pub fn is_plain(&self) -> bool {
        self.options.is_empty()
    }

    /// The collection's tree in each partition.
    pub fn tree(&self) -> TreeId {
        TreeId(self.number)
    }

    /// The index of that name.
    pub fn index(&self, name: &str) -> Option<&Arc<Index>> {
        self.indexes.iter().find(|index| index.name() == name)
    }

    /// All trees of the collection: its own and its indexes'.
    pub fn trees(&self) -> impl Iterator<Item = TreeId> + '_ {
        std::iter::once(self.tree()).chain(self.indexes.iter().map(|index| index.tree))
    }

    /// The specification of the `_id` index, as it is listed.
    pub fn id_index() -> RawDocumentBuf {
        pinion_bson::rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" }
    }

    /// The row of this collection.
    pub fn to_row(&self) -> RawDocumentBuf {
        let mut row = DocBuilder::new();
        row.start_document("md")
            .append("ns", self.ns.as_str())
            .start_document("options")
            .append("uuid", self.uuid.to_bson());
        row.append_all(&self.options).end().start_array("indexes");
        row.push_document()
            .append("spec", &*Self::id_index())
            .append("ready", true)
            .append("multikey", false)
            .end();
        for index in &self.indexes {
            index.write_row(&mut row);
        }
        row.end()
            .end()
            .start_document("idxIdent")
            .append("_id_", collection_ident(self.number).as_str());
        for index in &self.indexes {
            row.append(index.name(), index_ident(index.tree).as_str());
        }
        row.end()
            .append("ns", self.ns.as_str())
            .append("ident", collection_ident(self.number).as_str());
        row.finish()
    }

    /// Reads a row back.
    ///
    /// # Errors
    /// [`BadRow`] tells what is missing or wrong; the catalog is then damaged.
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
        let options = options.finish();
        let uuid = uuid.ok_or_else(|| bad("no md.options.uuid"))?;
        let idents = row
            .get_document("idxIdent")
            .map_err(|_| bad("no idxIdent"))?;
        let mut indexes = Vec::new();
        for element in md.get_array("indexes").map_err(|_| bad("no md.indexes"))? {
            let element = element.map_err(|_| bad("md.indexes is damaged"))?;
            let entry = element
                .as_document()
                .ok_or_else(|| bad("md.indexes holds a value that is no document"))?;
            if let Some(index) = Index::from_row(entry, idents)? {
                indexes.push(Arc::new(index));
            }
        }
        Ok(Collection {
            indexes,
            ..Collection::new(ns, uuid, number, options)
        })
    }

    /// The same collection with one more index.
    pub(crate) fn with_index(&self, index: Index) -> Collection {
        let mut indexes = self.indexes.clone();
        indexes.push(Arc::new(index));
        self.with_indexes(indexes)
    }

    /// The same collection without the named indexes.
    pub(crate) fn without_indexes(&self, names: &[String]) -> Collection {
        let keep = |index: &&Arc<Index>| !names.iter().any(|name| name == index.name());
        self.with_indexes(self.indexes.iter().filter(keep).cloned().collect())
    }

    /// The same collection with what is known of arrays in its indexes.
    pub(crate) fn with_multikey(&self, found: &[(TreeId, MultikeyPaths)]) -> Collection {
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

pub(crate) fn collection_ident(number: u64) -> String {
    format!("collection-{number}")
}

pub(crate) fn index_ident(tree: TreeId) -> String {
    format!("index-{}", tree.0)
}

pub(crate) fn parse_ident(ident: &str) -> Option<u64> {
    ident.rsplit_once('-')?.1.parse().ok()
}
