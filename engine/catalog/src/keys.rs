//! Index entries of documents: their keys, their partitions, and the error when a unique one is
//! taken.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_keystring::{
    Corrupt, decode_index_field, decode_index_fields, encode_id_in, encode_index_entry_in,
};
use pinion_query::{DocumentKeyPattern, MultikeyPaths, with_sort_keys};
use pinion_storage::{Expect, Key, Op, PartitionHash, PartitionId, TreeId, Write, storage};
use pinion_wire::{Error, ErrorCode, Result};

use crate::build::side_value;
use crate::entry::{Clustering, Collection, Placement};
use crate::index::{Building, Index, IndexPlacement};
use crate::text::render;

/// One entry of an index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// KeyString of the fields, then KeyString of `_id`.
    pub key: Key,
    /// The TypeBits of both.
    pub type_bits: Bytes,
    /// Length of the fields' part: what a unique index keeps unique.
    pub prefix_len: usize,
}

/// The entries of one document in one index.
#[derive(Clone, Debug)]
pub struct DocumentEntries {
    /// Ordered by key, without duplicates.
    pub entries: Vec<IndexEntry>,
    /// Where the document has arrays, which makes the index multikey.
    pub multikey: Option<MultikeyPaths>,
}

/// Computes a document's entries in an index. `record` is its number in a collection that is
/// ordered by these, and `None` in others.
///
/// # Errors
/// Parallel arrays, and whatever else cannot be indexed.
pub fn entries_of(
    collection: &Collection,
    index: &Index,
    document: &RawDocument,
    record: Option<i64>,
) -> Result<DocumentEntries> {
    // What the entries name the document by: the key that it has in the collection's tree.
    let (name, collation) = match record {
        Some(record) => (RawBsonRef::Int64(record), None),
        None => (document_id(document)?, collection.collation.as_deref()),
    };
    let keys = pinion_query::index_keys(document, &index.spec)?;
    let ordering = index.spec.ordering;
    let mut entries: Vec<IndexEntry> = Vec::with_capacity(keys.keys.len());
    for fields in &keys.keys {
        let strings = |component| index.spec.strings(component);
        let made = encode_index_entry_in(&fields.values(), ordering, strings, name, collation);
        entries.push(IndexEntry {
            key: Key::from_slice(&made.key),
            type_bits: Bytes::copy_from_slice(&made.type_bits),
            prefix_len: made.prefix_len,
        });
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries.dedup_by(|a, b| a.key == b.key);
    Ok(DocumentEntries {
        entries,
        multikey: keys.multikey,
    })
}

/// The key of a document in the tree of a collection without a collation.
pub fn id_key(id: RawBsonRef<'_>) -> Key {
    Key::from_slice(&pinion_keystring::encode_id(id))
}

impl Collection {
    /// The key of the document with this `_id` in the tree of a collection that is ordered by it.
    pub fn id_key(&self, id: RawBsonRef<'_>) -> Key {
        Key::from_slice(&encode_id_in(self.collation.as_deref(), id))
    }

    /// The key of a document in the collection's tree.
    pub fn document_key(&self, id: RawBsonRef<'_>, record: Option<i64>) -> Key {
        match record {
            Some(record) => record_key(record),
            None => self.id_key(id),
        }
    }

    /// The key by which the log names a document.
    ///
    /// # Errors
    /// `DataCorruptionDetected` if it has no `_id`.
    pub fn logged_key(
        &self,
        document: &RawDocument,
        pattern: &DocumentKeyPattern,
    ) -> Result<RawDocumentBuf> {
        document_id(document)?;
        Ok(pattern.key_of(document))
    }

    /// The number of the record with this key; `None` where keys are no numbers.
    pub fn record_of(&self, key: &[u8]) -> Option<i64> {
        match self.clustering {
            Clustering::Id => None,
            Clustering::Record | Clustering::Log => record_of(key),
        }
    }
}

/// The key of a record in the tree of a collection that is ordered by their numbers.
pub fn record_key(record: i64) -> Key {
    id_key(RawBsonRef::Int64(record))
}

/// The number of the record with this key.
pub fn record_of(key: &[u8]) -> Option<i64> {
    // Every one is a long: what is beyond the whole numbers of a double can be read with that
    // alone.
    let (_, long) = pinion_keystring::encode_id_with_types(RawBsonRef::Int64(0));
    let decoded = pinion_keystring::decode_id(key, &long).ok()?;
    let (_, number) = pinion_bson::elements(&decoded).next()?;
    pinion_wire::idl::i64_exact(number)
}

/// The partition of the document with this id key.
pub fn partition_of(collection: &Collection, id_key: &[u8]) -> PartitionId {
    match collection.placement {
        Placement::Hashed | Placement::Scattered => storage().partition_of_hash(id_key),
        Placement::One => PartitionId(0),
    }
}

/// Whether a document with this `_id` can have this key in this partition.
pub fn belongs(
    collection: &Collection,
    id: RawBsonRef<'_>,
    key: &[u8],
    partition: PartitionId,
) -> bool {
    let own = collection.document_key(id, collection.record_of(key));
    match collection.placement {
        Placement::Scattered => key.starts_with(&own),
        _ => own[..] == *key && partition_of(collection, &own) == partition,
    }
}

/// The partition of an index entry: the document's own, or that of the fields' hash.
pub fn entry_partition(
    collection: &Collection,
    index: &Index,
    entry: &IndexEntry,
    document: PartitionId,
    hash: PartitionHash,
) -> PartitionId {
    match collection.placement {
        Placement::Hashed if index.placement == IndexPlacement::ByKey => {
            hash.partition_of(&entry.key[..entry.prefix_len])
        }
        _ => document,
    }
}

/// The write that adds an entry.
pub fn put_entry(
    collection: &Collection,
    index: &Index,
    entry: IndexEntry,
    document: PartitionId,
    hash: PartitionHash,
    checked: bool,
) -> Write {
    let partition = entry_partition(collection, index, &entry, document, hash);
    if let Some(building) = &index.building {
        return side_write(building, partition, entry.key, Some(&entry.type_bits));
    }
    let expect = if checked && index.spec.enforces_unique() {
        Expect::UniquePrefix {
            len: entry.prefix_len,
        }
    } else {
        Expect::Any
    };
    Write {
        partition,
        tree: index.tree,
        key: entry.key,
        op: Op::Put(entry.type_bits),
        expect,
    }
}

/// What is written of an index that is being built. Whether a value is taken shows at the end of
/// the build.
fn side_write(
    building: &Building,
    partition: PartitionId,
    key: Key,
    type_bits: Option<&[u8]>,
) -> Write {
    Write {
        partition,
        tree: building.side,
        key,
        op: Op::Put(side_value(type_bits)),
        expect: Expect::Any,
    }
}

/// The write that removes an entry.
pub fn remove_entry(
    collection: &Collection,
    index: &Index,
    entry: IndexEntry,
    document: PartitionId,
    hash: PartitionHash,
) -> Write {
    let partition = entry_partition(collection, index, &entry, document, hash);
    if let Some(building) = &index.building {
        return side_write(building, partition, entry.key, None);
    }
    Write {
        partition,
        tree: index.tree,
        key: entry.key,
        op: Op::Delete,
        expect: Expect::Any,
    }
}

/// The index writes of a document that appears, changes or goes, and the indexes that it makes
/// multikey.
#[derive(Debug, Default)]
pub struct IndexWrites {
    pub writes: Vec<Write>,
    pub newly_multikey: Vec<(TreeId, MultikeyPaths)>,
}

/// Computes what a change of a document from `old` to `new` does to the collection's indexes: on
/// any thread, and with a budget of work where there is one. `record` is as [`entries_of`] has it.
pub fn index_writes(
    collection: &Collection,
    document: PartitionId,
    hash: PartitionHash,
    record: Option<i64>,
    old: Option<&RawDocument>,
    new: Option<&RawDocument>,
    checked: bool,
) -> Result<IndexWrites> {
    let mut out = IndexWrites::default();
    for index in &collection.indexes {
        let before = match old {
            // Parallel arrays cannot have been indexed, so what is stored has entries, unless it
            // was there before the build of the index began.
            Some(old) => match entries_of(collection, index, old, record) {
                Ok(made) => made.entries,
                Err(_) if index.building.is_some() => Vec::new(),
                Err(error) => return Err(error),
            },
            None => Vec::new(),
        };
        let after = match new {
            // With its own `_id`: a replacement may bring an equal number of another type, which
            // the entries' TypeBits show.
            Some(new) => {
                let after = entries_of(collection, index, new, record)?;
                if let Some(paths) = after.multikey
                    && !index.spec.knows_multikey(&paths)
                {
                    out.newly_multikey.push((index.tree, paths));
                }
                after.entries
            }
            None => Vec::new(),
        };
        // Both lists are ordered by key: merge them and write only what differs.
        let (mut before, mut after) = (before.into_iter().peekable(), after.into_iter().peekable());
        loop {
            let order = match (before.peek(), after.peek()) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(b), Some(a)) => b.key.cmp(&a.key),
            };
            match order {
                std::cmp::Ordering::Less => {
                    let entry = before.next().expect("peeked");
                    out.writes
                        .push(remove_entry(collection, index, entry, document, hash));
                }
                std::cmp::Ordering::Greater => {
                    let entry = after.next().expect("peeked");
                    out.writes
                        .push(put_entry(collection, index, entry, document, hash, checked));
                }
                std::cmp::Ordering::Equal => {
                    let (b, a) = (
                        before.next().expect("peeked"),
                        after.next().expect("peeked"),
                    );
                    // The same key with other TypeBits: 1 became 1.0.
                    if b.type_bits != a.type_bits {
                        out.writes
                            .push(put_entry(collection, index, a, document, hash, checked));
                    }
                }
            }
        }
    }
    Ok(out)
}

/// `E11000` for an index entry whose fields are taken.
pub fn duplicate_entry(
    collection: &Collection,
    index: &Index,
    key: &[u8],
    type_bits: &[u8],
) -> Error {
    let names: Vec<&str> = index.spec.component_names().collect();
    let mut value = DocBuilder::new();
    let strings = |component| index.spec.strings(component);
    let decoded = decode_index_fields(
        key,
        type_bits,
        names.len() as u32,
        index.spec.ordering,
        strings,
    );
    if let Ok(fields) = &decoded {
        for (name, (_, field)) in names.iter().zip(pinion_bson::elements(fields)) {
            value.append_raw(name, field);
        }
    }
    duplicate_key(
        collection,
        index.name(),
        index.key(),
        index.spec.collation.as_deref(),
        &value.finish(),
    )
}

/// `E11000` for an `_id` that is taken.
pub fn duplicate_id(collection: &Collection, id: RawBsonRef<'_>) -> Error {
    let mut value = DocBuilder::new();
    let collation = collection.collation.as_deref();
    match collation.and_then(|collation| with_sort_keys(collation, id)) {
        Some(key) => value.append_raw("_id", key.as_raw_bson_ref()),
        None => value.append_raw("_id", id),
    };
    duplicate_key(
        collection,
        "_id_",
        &pinion_bson::rawdoc! { "_id": 1 },
        collation,
        &value.finish(),
    )
}

fn duplicate_key(
    collection: &Collection,
    index: &str,
    pattern: &RawDocument,
    collation: Option<&Collation>,
    value: &RawDocument,
) -> Error {
    let mut extra = DocBuilder::new();
    extra
        .append("keyPattern", pattern)
        .append("keyValue", value);
    let mut collation_text = String::new();
    if let Some(collation) = collation {
        let collation = collation.document();
        extra.append("collation", &*collation);
        collation_text = format!(" collation: {}", render(&collation));
    }
    Error::new(
        ErrorCode::DUPLICATE_KEY,
        format!(
            "E11000 duplicate key error collection: {} index: {index}{collation_text} dup key: {}",
            collection.ns,
            render(value)
        ),
    )
    .with_extra(extra.finish())
}

/// The length of the fields' part of an entry's key.
pub fn prefix_len(index: &Index, key: &[u8]) -> Option<usize> {
    let components = index.spec.components() as u32;
    pinion_keystring::split_index_entry(key, components, index.spec.ordering).ok()
}

/// The value of one of an entry's fields, in a field without a name. A string of an index with a
/// collation is its sort key in hexadecimal.
///
/// # Errors
/// When the entry is damaged.
pub fn entry_value(
    index: &Index,
    key: &[u8],
    type_bits: &[u8],
    field: usize,
) -> Result<RawDocumentBuf> {
    let strings = |component| index.spec.strings(component);
    decode_index_field(key, type_bits, field as u32, index.spec.ordering, strings)
        .map_err(|corrupt| damaged(index, corrupt))
}

fn damaged(index: &Index, corrupt: Corrupt) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!("an entry of index {} is damaged: {corrupt}", index.name()),
    )
}

/// The values of an entry's fields under their names in the index's pattern. Strings of an index
/// with a collation are their sort keys in hexadecimal.
///
/// # Errors When the entry is damaged.
pub fn entry_key(index: &Index, key: &[u8], type_bits: &[u8]) -> Result<RawDocumentBuf> {
    let components = index.spec.components() as u32;
    let strings = |component| index.spec.strings(component);
    let ordering = index.spec.ordering;
    let values = decode_index_fields(key, type_bits, components, ordering, strings)
        .map_err(|corrupt| damaged(index, corrupt))?;
    let mut named = DocBuilder::new();
    let mut path = "";
    for (name, (_, value)) in index
        .spec
        .component_names()
        .zip(pinion_bson::elements(&values))
    {
        // Behind a path stands the value at it.
        match (name, value) {
            ("$_path", RawBsonRef::String(text)) => path = text,
            _ if name.ends_with("$**") && !path.is_empty() => {
                named.append_raw(path, value);
                continue;
            }
            _ => {}
        }
        named.append_raw(name, value);
    }
    Ok(named.finish())
}

/// The `_id` of a stored document.
pub fn document_id(document: &RawDocument) -> Result<RawBsonRef<'_>> {
    match document.get("_id") {
        Ok(Some(id)) => Ok(id),
        _ => Err(Error::new(
            ErrorCode::DATA_CORRUPTION_DETECTED,
            "a stored document has no _id",
        )),
    }
}

/// The document in bytes that storage returned or that were validated when they arrived.
///
/// # Panics
/// When the frame is broken, which checksums and validation exclude.
pub fn stored_document(bytes: &[u8]) -> &RawDocument {
    RawDocument::from_bytes(bytes).expect("stored bytes are a document")
}
