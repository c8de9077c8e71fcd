//! Ranges of keys: as documents have them, and as keys of this node.

use std::ops::Bound;

use pinion_bson::{
    BinarySubtype, DocBuilder, RawBinaryRef, RawBsonRef, RawDocument, RawDocumentBuf,
};
use pinion_catalog::{Collection, Index};
use pinion_keystring::encode_index_entry_in;
use pinion_storage::{Key, KeyRange, prefix_successor};
use pinion_wire::Result;

use super::options::invalid;

/// One end of a range of documents or of index entries.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Border {
    /// `{_id: <value>}`, or the values of the index's fields.
    pub shown: RawDocumentBuf,
    /// The key of the index entry, where it has to be known to the byte: entries of several
    /// documents may have the same fields.
    pub entry: Option<Key>,
}

/// A range, both ends of which count to it unless the start is the end of the range before it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Range {
    pub start: Border,
    pub is_start_included: bool,
    pub end: Border,
}

/// The same as keys of a tree: keys that begin with the end are the last ones, and there is no
/// other end where it is absent.
fn key_range(start: Key, is_start_included: bool, end: Option<Key>) -> KeyRange {
    let lower = match is_start_included {
        true => Bound::Included(start),
        false => match prefix_successor(&start) {
            Some(next) => Bound::Included(next),
            None => Bound::Excluded(start),
        },
    };
    let next = end.and_then(|end| prefix_successor(&end));
    KeyRange {
        lower,
        upper: next.map_or(Bound::Unbounded, Bound::Excluded),
    }
}

/// Whether a range ends before it begins.
pub(super) fn is_empty(range: &KeyRange) -> bool {
    match (&range.lower, &range.upper) {
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper)) => lower >= upper,
        _ => false,
    }
}

impl Border {
    fn of(name: &str, value: RawBsonRef<'_>) -> Border {
        let mut shown = DocBuilder::new();
        shown.append_raw(name, value);
        Border {
            shown: shown.finish(),
            entry: None,
        }
    }

    /// That of a document.
    pub(super) fn of_id(id: RawBsonRef<'_>) -> Border {
        Border::of("_id", id)
    }
}

impl Range {
    /// All documents between two values of `_id`, each of which is in a document; to the ends where
    /// they are absent.
    pub(super) fn of_documents(
        start: Option<&RawDocumentBuf>,
        end: Option<&RawDocumentBuf>,
    ) -> Range {
        let border = |given: Option<&RawDocumentBuf>, open| match given {
            Some(given) => Border {
                shown: given.clone(),
                entry: None,
            },
            None => Border::of_id(open),
        };
        Range {
            start: border(start, RawBsonRef::MinKey),
            is_start_included: true,
            end: border(end, RawBsonRef::MaxKey),
        }
    }

    /// All entries of an index between two keys, in its order.
    ///
    /// # Errors
    /// `InvalidOptions` for a key that has other fields than the index.
    pub(super) fn of_entries(
        index: &Index,
        start: Option<&RawDocumentBuf>,
        end: Option<&RawDocumentBuf>,
    ) -> Result<Range> {
        let border = |given: Option<&RawDocumentBuf>, is_start: bool| -> Result<Border> {
            match given {
                Some(given) => Ok(Border {
                    entry: Some(fields_key(index, given)?),
                    shown: given.clone(),
                }),
                None => Ok(open_border(index, is_start)),
            }
        };
        Ok(Range {
            start: border(start, true)?,
            is_start_included: true,
            end: border(end, false)?,
        })
    }

    /// What is left of a range behind a border in it.
    pub(super) fn behind(&self, border: Border) -> Range {
        Range {
            start: border,
            is_start_included: false,
            end: self.end.clone(),
        }
    }

    /// The same up to a border in it.
    pub(super) fn up_to(&self, border: Border) -> Range {
        Range {
            end: border,
            ..self.clone()
        }
    }

    /// The keys of the documents' `_id`.
    pub(super) fn of_ids(&self, collection: &Collection) -> KeyRange {
        let key = |border: &Border| {
            let id = pinion_bson::get(&border.shown, "_id");
            collection.id_key(id.unwrap_or(RawBsonRef::Null))
        };
        let (start, end) = (key(&self.start), key(&self.end));
        key_range(start, self.is_start_included, Some(end))
    }

    /// The keys of entries.
    pub(super) fn of_keys(&self) -> KeyRange {
        let start = self.start.entry.clone().unwrap_or_default();
        key_range(start, self.is_start_included, self.end.entry.clone())
    }

    /// Appends it to an entry of the oplog.
    pub(super) fn append(&self, out: &mut DocBuilder) {
        out.append("batchStart", &*self.start.shown)
            .append("batchEnd", &*self.end.shown)
            .append("isStartIncluded", self.is_start_included);
        let keys = [("startKey", &self.start), ("endKey", &self.end)];
        for (name, border) in keys {
            if let Some(key) = &border.entry {
                let key = RawBinaryRef {
                    subtype: BinarySubtype::Generic,
                    bytes: key,
                };
                out.append_raw(name, RawBsonRef::Binary(key));
            }
        }
    }

    /// Reads what [`Range::append`] makes; `None` where it says something else.
    pub(super) fn of_entry(o: &RawDocument) -> Option<Range> {
        let border = |shown: &str, key: &str| {
            let entry = match pinion_bson::get(o, key) {
                Some(RawBsonRef::Binary(key)) => Some(Key::from_slice(key.bytes)),
                _ => None,
            };
            let shown = pinion_bson::get(o, shown)?.as_document()?.to_owned();
            Some(Border { shown, entry })
        };
        Some(Range {
            start: border("batchStart", "startKey")?,
            is_start_included: pinion_bson::get(o, "isStartIncluded")?.as_bool()?,
            end: border("batchEnd", "endKey")?,
        })
    }
}

/// Before all entries of an index, or behind them.
fn open_border(index: &Index, is_start: bool) -> Border {
    let mut shown = DocBuilder::new();
    for (component, name) in (0..).zip(index.spec.component_names()) {
        let is_least = is_start != index.spec.ordering.is_descending(component);
        shown.append_raw(
            name,
            match is_least {
                true => RawBsonRef::MinKey,
                false => RawBsonRef::MaxKey,
            },
        );
    }
    Border {
        shown: shown.finish(),
        entry: None,
    }
}

/// What the keys of all entries with these values begin with.
fn fields_key(index: &Index, values: &RawDocument) -> Result<Key> {
    let names = || index.spec.component_names();
    if !pinion_bson::elements(values)
        .map(|(name, _)| name)
        .eq(names())
    {
        return Err(invalid(format!(
            "{} does not have the fields of the key of the index {}, which are {}",
            pinion_query::document_text(values),
            index.name(),
            names().collect::<Vec<_>>().join(", ")
        )));
    }
    let fields: Vec<RawBsonRef<'_>> = pinion_bson::elements(values)
        .map(|(_, value)| value)
        .collect();
    let strings = |component| index.spec.strings(component);
    let ordering = index.spec.ordering;
    let made = encode_index_entry_in(&fields, ordering, strings, RawBsonRef::Null, None);
    Ok(Key::from_slice(&made.key[..made.prefix_len]))
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn ranges_are_read_back() {
        let key = |bytes: &[u8]| Some(Key::from_slice(bytes));
        for (start, end) in [(None, None), (key(b""), key(b"ab"))] {
            let border = |value: i32, entry| Border {
                shown: rawdoc! { "_id": value },
                entry,
            };
            let range = Range {
                start: border(1, start),
                is_start_included: false,
                end: border(2, end),
            };
            let mut out = DocBuilder::new();
            range.append(&mut out);
            assert_eq!(Range::of_entry(&out.finish()), Some(range));
        }
        assert_eq!(Range::of_entry(&rawdoc! { "minKey": 1, "maxKey": 2 }), None);
    }

    #[test]
    fn the_next_range_begins_behind_all_keys_of_the_last_one() {
        let key = |bytes: &[u8]| Key::from_slice(bytes);
        let range = key_range(key(b"ab"), false, Some(key(b"cd")));
        assert_eq!(range.lower, Bound::Included(key(b"ac")));
        assert!(range.contains(b"cd") && range.contains(b"cdx") && !range.contains(b"ce"));
        assert!(!range.contains(b"abx") && !is_empty(&range));
        let range = key_range(key(b"ab"), true, None);
        assert_eq!(range.lower, Bound::Included(key(b"ab")));
        assert!(range.contains(b"\xff"));
        assert!(is_empty(&key_range(key(b"b"), true, Some(key(b"a")))));
        assert!(is_empty(&key_range(key(b"b"), false, Some(key(b"b")))));
        assert!(!is_empty(&key_range(key(b"b"), true, Some(key(b"b")))));
    }
}
