//! Changes of the catalog: rows to write and to remove, written with their entry, applied to memory, replayed.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_storage::{CATALOG_TREE, Expect, Op, PartitionId, TreeId, Write};

use crate::catalog::Catalog;
use crate::entry::{BadRow, Collection};

/// Everything one DDL operation does to the catalog. Its entry carries it whole.
#[derive(Clone, Debug, Default)]
pub struct CatalogChange {
    /// Collections made or changed.
    pub puts: Vec<Collection>,
    /// Numbers of collections removed.
    pub removes: Vec<u64>,
    /// Trees that nothing refers to afterwards.
    pub dropped_trees: Vec<TreeId>,
    /// The next free number afterwards.
    pub next_number: u64,
}

/// The key of the row that holds the next free number.
const COUNTER_ROW: u64 = 0;

fn row_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

impl CatalogChange {
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
        writes.extend(self.removes.iter().map(|number| Write {
            partition: PartitionId(0),
            tree: CATALOG_TREE,
            key: row_key(*number).into(),
            op: Op::Delete,
            expect: Expect::Any,
        }));
        writes.push(put(
            COUNTER_ROW,
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
        o2.end().start_array("removed");
        for number in &self.removes {
            o2.push(*number as i64);
        }
        o2.end().start_array("dropped");
        for tree in &self.dropped_trees {
            o2.push(tree.0 as i64);
        }
        o2.end().append("next", self.next_number as i64);
        o2.finish()
    }

    /// Reads a change back out of an entry's `o2`; `None` if that holds no change.
    pub fn from_o2(o2: &RawDocument) -> Result<Option<CatalogChange>, BadRow> {
        let Ok(rows) = o2.get_array("rows") else {
            return Ok(None);
        };
        let mut puts = Vec::new();
        for row in rows {
            match row {
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
            removes: numbers("removed")?,
            dropped_trees: numbers("dropped")?.into_iter().map(TreeId).collect(),
            next_number: u64::try_from(next)
                .map_err(|_| BadRow("catalog change: next is negative".into()))?,
        }))
    }

    /// The catalog after this change.
    pub fn apply_to(&self, catalog: &Catalog) -> Catalog {
        let mut next = catalog.clone();
        for number in &self.removes {
            next.remove(*number);
        }
        // A rename that takes a dropped target's name has removed it above. Two renamed rows never swap names.
        for collection in &self.puts {
            next.put(collection.clone());
        }
        next.set_next_number(self.next_number);
        next.advance_version();
        next
    }
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
        let row = pinion_bson::validate(value)
            .map_err(|e| BadRow(format!("catalog row {number}: {e}")))?;
        if number == COUNTER_ROW {
            let next = row
                .get_i64("next")
                .map_err(|_| BadRow("catalog row 0: no next".into()))?;
            catalog.set_next_number(next as u64);
            continue;
        }
        let collection = Collection::from_row(row)?;
        if collection.number != number {
            return Err(BadRow(format!(
                "catalog row {number} belongs to collection {}",
                collection.number
            )));
        }
        catalog.put(collection);
    }
    Ok(catalog)
}
