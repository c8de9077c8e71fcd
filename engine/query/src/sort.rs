//! Sort patterns, the keys they give documents, and the sort in memory.

use std::sync::Arc;

use pinion_bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_collation::Collation;
use pinion_keystring::{Builder, Ordering, encode_id};
use pinion_wire::Result;
use rustc_hash::FxHashSet;

use crate::collation::{has_strings, spend_sort_keys, with_sort_keys};
use crate::error::{bad_value, error};
use crate::expression::{MetaKind, MetaSet, Metadata, Subject, check_field_path, sort_kind};
use crate::keygen::{KeyError, keys, single_key};
use crate::limits::MAX_KEY_PATTERN_FIELDS;
use crate::path::Path;
use crate::text::{document_text, element_text};
use crate::value::{count, elements, field, is_number};

/// A parsed sort.
#[derive(Clone, Debug)]
pub struct SortPattern {
    source: RawDocumentBuf,
    paths: Vec<Path>,
    descending: Vec<bool>,
    ordering: Ordering,
    natural: Option<Direction>,
    collation: Option<Arc<Collation>>,
    /// What is read beside the document, with its place among the paths.
    metas: Vec<(usize, MetaKind)>,
    /// The values that are given are compared elsewhere, where there is no collation.
    gives_comparison_keys: bool,
}

/// Stands among the paths for what is read beside the document; no document has it.
const META_PATH: &str = "$meta";

/// The way through an index or a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Backward,
}

impl Direction {
    #[must_use]
    pub fn reversed(self) -> Direction {
        match self {
            Direction::Forward => Direction::Backward,
            Direction::Backward => Direction::Forward,
        }
    }
}

impl SortPattern {
    /// Parses the sort of a `find` or a write: `{$natural: 1}` is allowed. An empty document sorts
    /// nothing.
    pub fn parse_find(pattern: &RawDocument) -> Result<SortPattern> {
        let Some(natural) = field(pattern, "$natural") else {
            return SortPattern::parse(pattern);
        };
        if count(pattern) > 1 {
            return Err(bad_value(format!(
                "Cannot include '$natural' in compound sort: {}",
                document_text(pattern)
            )));
        }
        let direction = match crate::number::exact_i64(natural) {
            Some(1) => Direction::Forward,
            Some(-1) => Direction::Backward,
            _ => {
                return Err(bad_value(
                    "$natural sort cannot be set to a value other than -1 or 1.",
                ));
            }
        };
        Ok(SortPattern {
            natural: Some(direction),
            ..SortPattern::empty(pattern)
        })
    }

    fn empty(pattern: &RawDocument) -> SortPattern {
        SortPattern {
            source: pattern.to_owned(),
            paths: Vec::new(),
            descending: Vec::new(),
            ordering: Ordering::ascending(),
            natural: None,
            collation: None,
            metas: Vec::new(),
            gives_comparison_keys: false,
        }
    }

    /// The same sort, with strings in the order of the collation.
    #[must_use]
    pub fn with_collation(self, collation: Option<Arc<Collation>>) -> SortPattern {
        SortPattern { collation, ..self }
    }

    /// The same sort, whose values have the sort keys of its collation in the place of strings:
    /// MongoDB 4.4's mongos merges by the bytes of what it gets.
    #[must_use]
    pub fn with_comparison_keys(self) -> SortPattern {
        SortPattern {
            gives_comparison_keys: true,
            ..self
        }
    }

    /// How the sort compares strings.
    pub fn collation(&self) -> Option<&Arc<Collation>> {
        self.collation.as_ref()
    }

    /// Parses the specification of a `$sort` stage, but for the check that it is not empty.
    pub fn parse(pattern: &RawDocument) -> Result<SortPattern> {
        let mut sort = SortPattern::empty(pattern);
        let mut names = FxHashSet::default();
        for (name, value) in elements(pattern) {
            let descending = match value {
                RawBsonRef::Document(meta) => {
                    let kind = sort_kind(field(meta, "$meta"))?;
                    sort.metas.push((sort.paths.len(), kind));
                    // The highest come first, also of distances.
                    sort.paths.push(Path::parse(META_PATH));
                    sort.descending.push(true);
                    continue;
                }
                number if is_number(number) => sort_direction(number)?,
                _ => {
                    return Err(error(
                        15974,
                        format!(
                            "Illegal key in $sort specification: {}",
                            element_text(name, value)
                        ),
                    ));
                }
            };
            check_field_path(name)?;
            if !names.insert(name) {
                return Err(error(
                    7472500,
                    format!("$sort key must not contain duplicate keys (field: '{name}')"),
                ));
            }
            sort.paths.push(Path::parse(name));
            sort.descending.push(descending);
        }
        if sort.paths.len() > MAX_KEY_PATTERN_FIELDS {
            return Err(error(13103, "too many compound keys"));
        }
        sort.ordering = Ordering::from_bits(
            sort.descending
                .iter()
                .enumerate()
                .fold(0, |bits, (i, descending)| {
                    bits | u32::from(*descending) << i
                }),
        );
        Ok(sort)
    }

    /// The pattern as it was given.
    pub fn source(&self) -> &RawDocument {
        &self.source
    }

    /// What the order reads beside the documents.
    pub(crate) fn reads(&self) -> MetaSet {
        let mut reads = MetaSet::default();
        self.metas.iter().for_each(|(_, kind)| reads.insert(*kind));
        reads
    }

    /// Whether nothing is sorted.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The direction of `{$natural: ...}`.
    pub fn natural(&self) -> Option<Direction> {
        self.natural
    }

    /// The paths with their directions, true for descending.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&Path, bool)> {
        self.paths.iter().zip(self.descending.iter().copied())
    }

    /// The key of a document: bytes that sort as the pattern says, documents of equal keys by
    /// `_id`.
    pub fn sort_key<'d>(&self, subject: impl Into<Subject<'d>>) -> Result<Vec<u8>> {
        let subject = subject.into();
        let mut key = self.value_key(subject)?;
        if let Some(id) = field(subject.document, "_id") {
            key.extend_from_slice(&encode_id(id));
        }
        Ok(key)
    }

    /// The key of values by which a document is sorted, as [`SortPattern::sort_values`] gives them:
    /// of keys that are compared the lesser one comes first.
    pub fn key_of_values(&self, values: &RawArray) -> Vec<u8> {
        let mut builder = Builder::with_collation(self.ordering, self.collation.clone());
        for value in pinion_bson::values(values).take(self.paths.len()) {
            builder.append(value);
        }
        builder.finish().bytes
    }

    /// The key without the `_id` behind it.
    pub(crate) fn value_key<'d>(&self, subject: impl Into<Subject<'d>>) -> Result<Vec<u8>> {
        let Subject { document, metadata } = subject.into();
        crate::work::spend_bytes(document.as_bytes().len())?;
        spend_sort_keys(self.collation.as_deref(), document.as_bytes().len())?;
        let mut builder = Builder::with_collation(self.ordering, self.collation.clone());
        if let [path] = &self.paths[..]
            && path.text() == "_id"
        {
            // Sorted by `_id` alone, an array (which a stage may have made) is one value, as it is
            // in MongoDB.
            builder.append(field(document, "_id").unwrap_or(RawBsonRef::Null));
            return Ok(builder.finish().bytes);
        }
        let mut bytes_of = |key: &[RawBsonRef<'_>]| {
            self.with_metadata(key, metadata).for_each(|value| {
                builder.append(value);
            });
            builder.finish().bytes
        };
        if let Some((key, _)) = single_key(document, &self.paths) {
            return Ok(bytes_of(&key));
        }
        let keys = keys(document, &self.paths, false).map_err(parallel)?;
        // Of an array's keys the one that sorts first counts: the least ascending, the greatest
        // descending.
        let mut least: Option<Vec<u8>> = None;
        for key in keys.keys {
            let bytes = bytes_of(&key);
            if least.as_ref().is_none_or(|l| bytes < *l) {
                least = Some(bytes);
            }
        }
        Ok(least.unwrap_or_default())
    }

    /// The values of a key, with what is read beside the document in its place.
    fn with_metadata<'k>(
        &'k self,
        key: &'k [RawBsonRef<'k>],
        metadata: &'k Metadata,
    ) -> impl Iterator<Item = RawBsonRef<'k>> {
        key.iter().enumerate().map(|(at, value)| {
            match self.metas.iter().find(|(place, _)| *place == at) {
                Some((_, kind)) => metadata.or_null(*kind),
                None => *value,
            }
        })
    }

    /// The values by which a document is sorted, one for each field of the pattern.
    pub fn sort_values<'d>(&self, subject: impl Into<Subject<'d>>) -> Result<RawArrayBuf> {
        let Subject { document, metadata } = subject.into();
        let listed = |key: &[RawBsonRef<'_>]| -> Result<RawArrayBuf> {
            let mut out = RawArrayBuf::new();
            for value in self.with_metadata(key, metadata) {
                out.push(self.given(value)?);
            }
            Ok(out)
        };
        crate::work::spend_bytes(document.as_bytes().len())?;
        if let [path] = &self.paths[..]
            && path.text() == "_id"
        {
            let id = field(document, "_id").unwrap_or(RawBsonRef::Null);
            return listed(&[id]);
        }
        if let Some((key, _)) = single_key(document, &self.paths) {
            return listed(&key);
        }
        spend_sort_keys(self.collation.as_deref(), document.as_bytes().len())?;
        let mut builder = Builder::with_collation(self.ordering, self.collation.clone());
        let keys = keys(document, &self.paths, false).map_err(parallel)?;
        let mut least: Option<(Vec<u8>, RawArrayBuf)> = None;
        for key in keys.keys {
            self.with_metadata(&key, metadata).for_each(|value| {
                builder.append(value);
            });
            let bytes = builder.finish().bytes;
            if least.as_ref().is_none_or(|(other, _)| bytes < *other) {
                least = Some((bytes, listed(&key)?));
            }
        }
        Ok(least.map(|(_, values)| values).unwrap_or_default())
    }

    /// A value of a key in the form in which it is given.
    fn given(&self, value: RawBsonRef<'_>) -> Result<RawBson> {
        match &self.collation {
            Some(collation) if self.gives_comparison_keys && has_strings(value) => {
                let key = with_sort_keys(collation, value);
                crate::work::check()?;
                key.ok_or_else(|| {
                    bad_value("a value is nested too deep to be sorted by a collation")
                })
            }
            _ => Ok(RawBson::from(value)),
        }
    }
}

/// The error of a sort whose keys cannot be made.
fn parallel(error: KeyError) -> pinion_wire::Error {
    match error {
        KeyError::Parallel(..) => bad_value("cannot sort with keys that are parallel arrays"),
        other => key_error(other),
    }
}

/// The error of keys that cannot be made.
pub(crate) fn key_error(error_: KeyError) -> pinion_wire::Error {
    match error_ {
        KeyError::Parallel(a, b) => error(171, format!("cannot index parallel arrays [{a}] [{b}]")),
        KeyError::Ambiguous { field, array } => error(
            16746,
            format!(
                "Ambiguous field name found in array (do not use numeric field names in embedded elements in an array), \
                 field: '{field}' for array: {array}"
            ),
        ),
        KeyError::Refused => crate::work::interrupted(),
        KeyError::TooMany => error(13, "a document has too many keys for one index"),
    }
}

fn sort_direction(value: RawBsonRef<'_>) -> Result<bool> {
    // Doubles are cut off, decimals rounded to even.
    match pinion_wire::idl::i64_clamped(value) {
        Some(1) => Ok(false),
        Some(-1) => Ok(true),
        _ => Err(error(
            15975,
            "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sorter::Sorter;
    use pinion_bson::rawdoc;

    #[track_caller]
    fn check(pattern: RawDocumentBuf, documents: &[RawDocumentBuf], expected: &[i32]) {
        let sort = SortPattern::parse(&pattern).expect("parses");
        let mut sorter = Sorter::new(None);
        for document in documents {
            let id = document.get_i32("_id").expect("an _id");
            sorter.push(sort.sort_key(document).expect("a key"), id, 4);
        }
        let found: Vec<i32> = sorter.finish().map(|(_, id)| id).collect();
        assert_eq!(found, expected, "{pattern:?}");
    }

    #[track_caller]
    fn check_error(pattern: RawDocumentBuf, code: i32) {
        assert_eq!(
            SortPattern::parse_find(&pattern)
                .expect_err("refused")
                .code
                .0,
            code,
            "{pattern:?}"
        );
    }

    #[test]
    fn arrays_sort_by_their_least_or_greatest_item() {
        let documents = [
            rawdoc! { "_id": 1, "a": [3, 1] },
            rawdoc! { "_id": 2, "a": 2 },
            rawdoc! { "_id": 3 },
            rawdoc! { "_id": 4, "a": [] },
            rawdoc! { "_id": 5, "a": null },
            rawdoc! { "_id": 6, "a": [[0]] },
        ];
        check(rawdoc! { "a": 1 }, &documents, &[4, 3, 5, 1, 2, 6]);
        check(rawdoc! { "a": -1 }, &documents, &[6, 1, 2, 3, 5, 4]);
    }

    #[test]
    fn dotted_paths_expand_arrays_of_documents() {
        let documents = [
            rawdoc! { "_id": 1, "a": [{ "b": 1, "c": 5 }, { "b": 7, "c": 2 }] },
            rawdoc! { "_id": 2, "a": { "b": 3, "c": 3 } },
            rawdoc! { "_id": 3, "a": [{ "b": 2, "c": 9 }] },
            rawdoc! { "_id": 4, "a": [] },
            rawdoc! { "_id": 5, "a": [1] },
        ];
        check(rawdoc! { "a.b": 1 }, &documents, &[4, 5, 1, 3, 2]);
        check(rawdoc! { "a.b": -1 }, &documents, &[1, 2, 3, 4, 5]);
        check(
            rawdoc! { "a.b": 1, "a.c": -1 },
            &documents,
            &[4, 5, 1, 3, 2],
        );
        check(rawdoc! { "a.c": 1 }, &documents, &[4, 5, 1, 2, 3]);
        check(rawdoc! { "a.0.b": 1 }, &documents, &[2, 4, 5, 1, 3]);
        check(rawdoc! { "a.1.b": 1 }, &documents, &[2, 3, 4, 5, 1]);
    }

    #[test]
    fn the_values_of_a_key() {
        let check =
            |pattern: RawDocumentBuf, document: RawDocumentBuf, expected: RawDocumentBuf| {
                let sort = SortPattern::parse(&pattern).expect("parses");
                let values = sort.sort_values(&document).expect("a key");
                assert_eq!(rawdoc! { "k": values }, expected, "{pattern:?}");
            };
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "a": [3, 1] },
            rawdoc! { "k": [1] },
        );
        check(
            rawdoc! { "a": -1 },
            rawdoc! { "a": [3, 1] },
            rawdoc! { "k": [3] },
        );
        check(
            rawdoc! { "a": 1, "b.c": -1 },
            rawdoc! { "b": { "c": "x" } },
            rawdoc! { "k": [null, "x"] },
        );
        check(
            rawdoc! { "_id": 1 },
            rawdoc! { "_id": [1] },
            rawdoc! { "k": [[1]] },
        );
    }

    #[test]
    fn values_that_are_compared_elsewhere() {
        let german = rawdoc! { "locale": "de", "strength": 1 };
        let german = crate::collation::parse_collation(&german).expect("a collation");
        let sort = SortPattern::parse(&rawdoc! { "a": 1, "n": 1 }).expect("parses");
        let sort = sort.with_collation(german);
        let plain = sort.clone();
        let sort = sort.with_comparison_keys();
        let values = |sort: &SortPattern, a: &str| {
            let document = rawdoc! { "a": a, "n": 5 };
            sort.sort_values(&document).expect("a key")
        };
        assert_eq!(
            rawdoc! { "k": values(&plain, "Ä") },
            rawdoc! { "k": ["Ä", 5] }
        );
        assert_eq!(values(&sort, "Ä"), values(&sort, "a"));
        let text = |a: &str| {
            let values = values(&sort, a);
            let first = pinion_bson::values(&values).next();
            first.and_then(|key| key.as_str()).map(str::to_owned)
        };
        assert!(text("a").is_some() && text("a") < text("b"));
        assert!(text("Z") > text("y"), "not by bytes");
    }

    #[test]
    fn by_id_alone_an_array_is_one_value() {
        let key = |pattern: RawDocumentBuf, document: RawDocumentBuf| {
            let sort = SortPattern::parse(&pattern).expect("parses");
            sort.value_key(&document).expect("a key")
        };
        let by_id = |document| key(rawdoc! { "_id": 1 }, document);
        assert!(by_id(rawdoc! { "_id": {} }) < by_id(rawdoc! { "_id": [] }));
        assert!(by_id(rawdoc! { "_id": [3, 1] }) > by_id(rawdoc! { "_id": [2, 9] }));
        assert!(by_id(rawdoc! {}) < by_id(rawdoc! { "_id": 1 }));
        let compound = |document| key(rawdoc! { "_id": 1, "a": 1 }, document);
        assert!(compound(rawdoc! { "_id": {} }) > compound(rawdoc! { "_id": [] }));
    }

    #[test]
    fn errors() {
        check_error(rawdoc! { "a": 0 }, 15975);
        let decimal = |text: &str| text.parse::<pinion_bson::Decimal128>().expect("a decimal");
        check_error(rawdoc! { "a": (decimal("0.5")) }, 15975);
        check_error(rawdoc! { "a": (decimal("1.5")) }, 15975);
        for direction in ["1", "1.0", "0.6", "1.4"] {
            let pattern = rawdoc! { "a": (decimal(direction)) };
            assert!(SortPattern::parse(&pattern).is_ok(), "{direction}");
        }
        check_error(rawdoc! { "a": "x" }, 15974);
        check_error(rawdoc! { "a": true }, 15974);
        check_error(rawdoc! { "a": { "b": 1 } }, 17312);
        check_error(rawdoc! { "": 1 }, 40352);
        check_error(rawdoc! { "a.": 1 }, 40353);
        check_error(rawdoc! { "a..b": 1 }, 15998);
        check_error(rawdoc! { "$a": 1 }, 16410);
        check_error(rawdoc! { "$natural": 1, "a": 1 }, 2);
        check_error(rawdoc! { "$natural": 2 }, 2);
        let parallel = SortPattern::parse(&rawdoc! { "a": 1, "d": 1 }).expect("parses");
        assert_eq!(
            parallel
                .sort_key(&rawdoc! { "a": [1], "d": [2] })
                .unwrap_err()
                .code
                .0,
            2
        );
    }
}
