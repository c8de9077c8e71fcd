//! Changes of the catalog: rows to write and to remove, written with their entry, applied to
//! memory, replayed.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_storage::{CATALOG_TREE, Expect, Op, PartitionId, TreeId, Write};
use pinion_wire::{Error, ErrorCode, Result};

use crate::catalog::{Catalog, is_own_number};
use crate::entry::{BadRow, Collection};
use crate::keys::id_key;
use crate::limits::{FIRST_IDENT, FIRST_OWN_IDENT, OPLOG_NUMBER};
use crate::view::View;

/// Everything one DDL operation does to the catalog. Its entry carries it whole.
#[derive(Clone, Debug, Default)]
pub struct CatalogChange {
    /// Collections made or changed.
    pub puts: Vec<Collection>,
    /// Views made or changed.
    pub views: Vec<View>,
    /// Numbers of collections and views removed.
    pub removes: Vec<u64>,
    /// Documents of `system.views`, which show clients what the rows of views hold for the catalog.
    pub documents: Vec<SystemDocument>,
    /// Trees that nothing refers to afterwards.
    pub dropped_trees: Vec<TreeId>,
    /// The next free number afterwards, of those of what is replicated or of the others.
    pub next_number: u64,
    /// What the entry has besides, for readers of the change: the state before it.
    pub details: Option<RawDocumentBuf>,
    /// Whether from now on the replicated collections are but a part of what another member has. No
    /// entry says so.
    pub is_partial: Option<bool>,
}

/// A document of a system collection that a change writes or, without one, removes.
#[derive(Clone, Debug)]
pub struct SystemDocument {
    /// The tree of the collection, which is in partition 0 alone.
    pub tree: TreeId,
    pub id: String,
    pub document: Option<RawDocumentBuf>,
}

impl SystemDocument {
    fn write(&self) -> Write {
        let op = match &self.document {
            Some(document) => Op::Put(Bytes::copy_from_slice(document.as_bytes())),
            None => Op::Delete,
        };
        Write {
            partition: PartitionId(0),
            tree: self.tree,
            key: id_key(RawBsonRef::String(&self.id)),
            op,
            expect: Expect::Any,
        }
    }
}

/// The keys of the rows that hold the next free number, of what is replicated and of what is not.
const COUNTER_ROW: u64 = 0;
const OWN_COUNTER_ROW: u64 = TreeId::FIRST_UNREPLICATED.0;
const _: () = assert!(OWN_COUNTER_ROW < FIRST_OWN_IDENT);
/// The key of the row that is there while another member's collections are copied.
const PARTIAL_ROW: u64 = 1;
const _: () = assert!(PARTIAL_ROW < FIRST_IDENT);

/// Whether the catalog's row of this number is of a collection, and not of the numbers themselves
/// or of a copy.
pub fn is_row_of_collection(number: u64) -> bool {
    ![COUNTER_ROW, OWN_COUNTER_ROW, PARTIAL_ROW].contains(&number)
}

pub(crate) fn row_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl CatalogChange {
    /// Adds what removes something else.
    pub(crate) fn add(&mut self, other: CatalogChange) {
        self.puts.extend(other.puts);
        self.views.extend(other.views);
        self.removes.extend(other.removes);
        self.documents.extend(other.documents);
        self.dropped_trees.extend(other.dropped_trees);
    }

    /// Whether what it changes is replicated; `None` if it changes nothing.
    ///
    /// # Errors
    /// Some of it is and some is not: no statement can be both.
    pub(crate) fn is_replicated(&self) -> Result<Option<bool>> {
        let puts = self.puts.iter().map(|collection| collection.number);
        let views = self.views.iter().map(|view| view.number);
        let trees = self.dropped_trees.iter().map(|tree| tree.0);
        let documents = self.documents.iter().map(|document| document.tree.0);
        let removes = self.removes.iter().copied();
        let mut numbers = puts
            .chain(views)
            .chain(removes)
            .chain(trees)
            .chain(documents);
        let Some(first) = numbers.next() else {
            return Ok(None);
        };
        let own = is_own_number(first);
        match numbers.all(|number| is_own_number(number) == own) {
            true => Ok(Some(!own)),
            false => Err(Error::new(
                ErrorCode::ILLEGAL_OPERATION,
                "Cannot change a replicated and an unreplicated collection together",
            )),
        }
    }

    /// The writes to the catalog's tree.
    pub fn writes(&self) -> Vec<Write> {
        let put = |number: u64, row: RawDocumentBuf| Write {
            partition: PartitionId(0),
            tree: CATALOG_TREE,
            key: row_key(number).into(),
            op: Op::Put(Bytes::from(row.into_bytes())),
            expect: Expect::Any,
        };
        let mut writes: Vec<Write> = self
            .puts
            .iter()
            .map(|collection| put(collection.number, collection.to_row()))
            .collect();
        let views = self.views.iter();
        writes.extend(views.map(|view| put(view.number, view.to_row())));
        let remove = |number: u64| Write {
            partition: PartitionId(0),
            tree: CATALOG_TREE,
            key: row_key(number).into(),
            op: Op::Delete,
            expect: Expect::Any,
        };
        writes.extend(self.removes.iter().map(|number| remove(*number)));
        writes.extend(self.documents.iter().map(SystemDocument::write));
        match self.is_partial {
            Some(true) => writes.push(put(PARTIAL_ROW, pinion_bson::rawdoc! { "partial": true })),
            Some(false) => writes.push(remove(PARTIAL_ROW)),
            None => {}
        }
        let counter = match is_own_number(self.next_number) {
            true => OWN_COUNTER_ROW,
            false => COUNTER_ROW,
        };
        writes.push(put(
            counter,
            pinion_bson::rawdoc! { "next": self.next_number as i64 },
        ));
        writes
    }

    /// The `o2` field of the change's entry.
    pub fn to_o2(&self) -> RawDocumentBuf {
        let mut o2 = DocBuilder::new();
        o2.start_array("rows");
        for collection in &self.puts {
            o2.push(&*collection.to_row());
        }
        for view in &self.views {
            o2.push(&*view.to_row());
        }
        o2.end().start_array("removed");
        for number in &self.removes {
            o2.push(*number as i64);
        }
        o2.end().start_array("dropped");
        for tree in &self.dropped_trees {
            o2.push(tree.0 as i64);
        }
        o2.end().start_array("documents");
        for document in &self.documents {
            o2.push_document()
                .append("tree", document.tree.0 as i64)
                .append("id", document.id.as_str());
            if let Some(document) = &document.document {
                o2.append("document", &**document);
            }
            o2.end();
        }
        o2.end().append("next", self.next_number as i64);
        if let Some(details) = &self.details {
            o2.append_all(details);
        }
        o2.finish()
    }

    /// Reads a change back out of an entry's `o2`; `None` if that holds no change.
    pub fn from_o2(o2: &RawDocument) -> Result<Option<CatalogChange>, BadRow> {
        let Ok(rows) = o2.get_array("rows") else {
            return Ok(None);
        };
        let (mut puts, mut views) = (Vec::new(), Vec::new());
        for row in rows {
            match row {
                Ok(RawBsonRef::Document(row)) if View::is_row(row) => {
                    views.push(View::from_row(row)?);
                }
                Ok(RawBsonRef::Document(row)) => puts.push(Collection::from_row(row)?),
                _ => {
                    return Err(BadRow(
                        "catalog change: rows holds a value that is no document".into(),
                    ));
                }
            }
        }
        let numbers = |name: &str| -> Result<Vec<u64>, BadRow> {
            let array = o2
                .get_array(name)
                .map_err(|_| BadRow(format!("catalog change: no {name}")))?;
            array
                .into_iter()
                .map(|value| match value {
                    Ok(RawBsonRef::Int64(n)) if n >= 0 => Ok(n as u64),
                    _ => Err(BadRow(format!(
                        "catalog change: {name} holds a value that is no number"
                    ))),
                })
                .collect()
        };
        let next = o2
            .get_i64("next")
            .map_err(|_| BadRow("catalog change: no next".into()))?;
        Ok(Some(CatalogChange {
            puts,
            views,
            documents: documents_of(o2)?,
            removes: numbers("removed")?,
            dropped_trees: numbers("dropped")?.into_iter().map(TreeId).collect(),
            next_number: u64::try_from(next)
                .map_err(|_| BadRow("catalog change: next is negative".into()))?,
            details: None,
            is_partial: None,
        }))
    }

    /// The catalog after this change, which was made at `ts`.
    pub fn apply_to(&self, catalog: &Catalog, ts: Timestamp) -> Catalog {
        let mut next = catalog.clone();
        for number in &self.removes {
            next.remove(*number);
        }
        // A rename that takes a dropped target's name has removed it above. Two renamed rows never
        // swap names.
        for collection in &self.puts {
            let before = catalog.by_number(collection.number);
            let seen = collection.clone().visible_after(before.map(|b| &**b), ts);
            next.put(seen);
        }
        for view in &self.views {
            next.put_view(view.clone());
        }
        next.set_next_number(self.next_number);
        if let Some(is_partial) = self.is_partial {
            next.set_partial(is_partial);
        }
        next.advance_version();
        next
    }
}

/// The documents that an entry's `o2` carries. Those of changes before there were views have none.
fn documents_of(o2: &RawDocument) -> Result<Vec<SystemDocument>, BadRow> {
    let bad = || BadRow("catalog change: a document is damaged".into());
    let Some(RawBsonRef::Array(documents)) = pinion_bson::get(o2, "documents") else {
        return Ok(Vec::new());
    };
    let read = |value| {
        let RawBsonRef::Document(entry) = value else {
            return Err(bad());
        };
        let tree = entry.get_i64("tree").map_err(|_| bad())?;
        Ok(SystemDocument {
            tree: TreeId(u64::try_from(tree).map_err(|_| bad())?),
            id: entry.get_str("id").map_err(|_| bad())?.to_owned(),
            document: entry
                .get_document("document")
                .ok()
                .map(RawDocument::to_owned),
        })
    };
    pinion_bson::values(documents).map(read).collect()
}

/// The log of a member is shown as a collection and has no row. Programs before this one let
/// clients define something of it, which wrote one.
fn warn_of_oplog_row() {
    tracing::warn!(
        target: "STORAGE", id = 7_400_030u64, row = OPLOG_NUMBER,
        "Passed over a row of the catalog that defines the oplog as a collection"
    );
}

/// Builds a catalog out of the rows of the catalog's tree.
pub(crate) fn from_rows<'a>(
    rows: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> Result<Catalog, BadRow> {
    let mut catalog = Catalog::empty();
    for (key, value) in rows {
        let number = u64::from_be_bytes(
            key.try_into()
                .map_err(|_| BadRow("catalog row: a key is not eight bytes".into()))?,
        );
        if number == OPLOG_NUMBER {
            warn_of_oplog_row();
            continue;
        }
        let row = pinion_bson::validate(value)
            .map_err(|e| BadRow(format!("catalog row {number}: {e}")))?;
        if number == COUNTER_ROW || number == OWN_COUNTER_ROW {
            let next = row
                .get_i64("next")
                .map_err(|_| BadRow("catalog row 0: no next".into()))?;
            catalog.set_next_number(next as u64);
            continue;
        }
        if number == PARTIAL_ROW {
            catalog.set_partial(true);
            continue;
        }
        let found = if View::is_row(row) {
            let view = View::from_row(row)?;
            let found = view.number;
            catalog.put_view(view);
            found
        } else {
            let collection = Collection::from_row(row)?;
            let found = collection.number;
            catalog.put(collection);
            found
        };
        if found != number {
            return Err(BadRow(format!(
                "catalog row {number} belongs to number {found}"
            )));
        }
    }
    Ok(catalog)
}
