//! The keys that a document puts into an index.

use pinion_bson::{RawDocument, RawDocumentBuf};
use pinion_keystring::Ordering;
use pinion_wire::Result;

use crate::error::error;
use crate::keygen::{Key, keys};
use crate::path::Path;
use crate::sort::key_error;
use crate::value::elements;

pub use crate::keygen::MultikeyPaths;

/// The values of one key, in the order of the pattern; `pinion_keystring::encode_index_entry` joins them with `_id`.
pub type IndexKey<'a> = Key<'a>;

/// An index as far as keys and plans are concerned.
#[derive(Clone, Debug)]
pub struct IndexSpec {
    pub name: String,
    pub key: RawDocumentBuf,
    pub ordering: Ordering,
    pub unique: bool,
    pub sparse: bool,
    /// For each field the components of its path that are arrays in some document; `None` while no document has one.
    pub multikey: Option<MultikeyPaths>,
    paths: Vec<Path>,
}

/// The keys of one document in one index.
#[derive(Debug)]
pub struct IndexKeys<'a> {
    pub keys: Vec<IndexKey<'a>>,
    /// Set when the document makes the index multikey.
    pub multikey: Option<MultikeyPaths>,
}

impl IndexSpec {
    /// An index on this key pattern. The pattern has been checked; too many fields are refused.
    pub fn new(
        name: impl Into<String>,
        key: &RawDocument,
        unique: bool,
        sparse: bool,
    ) -> Result<IndexSpec> {
        let ordering =
            Ordering::from_pattern(key).ok_or_else(|| error(13103, "too many compound keys"))?;
        let paths = elements(key).map(|(name, _)| Path::parse(name)).collect();
        Ok(IndexSpec {
            name: name.into(),
            key: key.to_owned(),
            ordering,
            unique,
            sparse,
            multikey: None,
            paths,
        })
    }

    pub(crate) fn paths(&self) -> &[Path] {
        &self.paths
    }

    /// The number of fields.
    pub fn fields(&self) -> usize {
        self.paths.len()
    }

    /// Whether the index is the one on `_id` alone, which is the collection's own order.
    pub fn is_id(&self) -> bool {
        self.paths.len() == 1 && self.paths[0].text() == "_id" && !self.ordering.is_descending(0)
    }

    /// Whether an array stands at this component of a field's path in some document.
    pub(crate) fn is_multikey_component(&self, field: usize, component: usize) -> bool {
        self.multikey
            .as_ref()
            .is_some_and(|paths| paths[field].contains(&(component as u16)))
    }

    /// Whether any array stands on a field's path.
    pub(crate) fn is_multikey_field(&self, field: usize) -> bool {
        self.multikey
            .as_ref()
            .is_some_and(|paths| !paths[field].is_empty())
    }

    /// Adds what a document tells; true when it was not known before.
    pub fn merge_multikey(&mut self, found: &MultikeyPaths) -> bool {
        let fields = self.paths.len();
        let known = self
            .multikey
            .get_or_insert_with(|| vec![Vec::new(); fields]);
        let mut grew = false;
        for (known, found) in known.iter_mut().zip(found) {
            for component in found {
                if let Err(at) = known.binary_search(component) {
                    known.insert(at, *component);
                    grew = true;
                }
            }
        }
        grew
    }
}

/// The keys of a document in an index.
pub fn index_keys<'a>(document: &'a RawDocument, index: &IndexSpec) -> Result<IndexKeys<'a>> {
    crate::work::spend_bytes(document.as_bytes().len())?;
    let keys = keys(document, &index.paths, index.sparse).map_err(key_error)?;
    Ok(IndexKeys {
        keys: keys.keys,
        multikey: keys.multikey,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{DocBuilder, RawBson, RawBsonRef, rawbson, rawdoc};

    fn as_array(key: &IndexKey<'_>) -> RawBson {
        let mut out = DocBuilder::new();
        out.start_array("k");
        key.iter().for_each(|value| {
            out.push(*value);
        });
        out.end();
        crate::value::field(&out.finish(), "k")
            .expect("written")
            .into()
    }

    #[test]
    fn keys_of_a_long_array_take_a_budget() {
        let index = IndexSpec::new("i", &rawdoc! { "a": 1 }, false, false).expect("a pattern");
        let mut out = DocBuilder::new();
        out.append("_id", 1i32).start_array("a");
        (0..20_000i32).for_each(|item| {
            out.push(item);
        });
        out.end();
        let document = out.finish();
        // Its bytes alone would be within the budget.
        assert!(document.as_bytes().len() < 250_000);
        assert!(crate::work::within(4_000_000, || index_keys(&document, &index)).is_none());
        let found = index_keys(&document, &index).expect("keys");
        assert_eq!(found.keys.len(), 20_000);
    }

    #[track_caller]
    fn check(
        pattern: RawDocumentBuf,
        document: RawDocumentBuf,
        expected: Vec<RawBson>,
        multikey: Option<&[&[u16]]>,
    ) {
        let index = IndexSpec::new("i", &pattern, false, false).expect("a pattern");
        let found = index_keys(&document, &index).expect("keys");
        assert_eq!(
            found.keys.iter().map(as_array).collect::<Vec<_>>(),
            expected,
            "{document:?} in {pattern:?}"
        );
        let multikey = multikey.map(|paths| paths.iter().map(|p| p.to_vec()).collect::<Vec<_>>());
        assert_eq!(found.multikey, multikey, "{document:?} in {pattern:?}");
    }

    #[test]
    fn single_keys() {
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "a": 5 },
            vec![rawbson!([5])],
            None,
        );
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "b": 5 },
            vec![rawbson!([null])],
            None,
        );
        check(
            rawdoc! { "a.b": 1, "c": -1 },
            rawdoc! { "a": { "b": 1 }, "c": "x" },
            vec![rawbson!([1, "x"])],
            None,
        );
        check(
            rawdoc! { "a.b": 1 },
            rawdoc! { "a": 1 },
            vec![rawbson!([null])],
            None,
        );
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "a": { "b": [1, 2] } },
            vec![rawbson!([{ "b": [1, 2] }])],
            None,
        );
    }

    #[test]
    fn multikey() {
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "a": [2, 1, 2] },
            vec![rawbson!([1]), rawbson!([2])],
            Some(&[&[0]]),
        );
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "a": [] },
            vec![RawBson::Array(undefined())],
            Some(&[&[0]]),
        );
        check(
            rawdoc! { "a": 1 },
            rawdoc! { "a": [[1, 2]] },
            vec![rawbson!([[1, 2]])],
            Some(&[&[0]]),
        );
        check(
            rawdoc! { "a.b": 1 },
            rawdoc! { "a": [{ "b": 1 }, { "b": [3, 4] }, 7] },
            vec![
                rawbson!([null]),
                rawbson!([1]),
                rawbson!([3]),
                rawbson!([4]),
            ],
            Some(&[&[0, 1]]),
        );
        check(
            rawdoc! { "a.b": 1, "a.c": 1 },
            rawdoc! { "a": [{ "b": 1, "c": 2 }, { "b": 3 }] },
            vec![rawbson!([1, 2]), rawbson!([3, null])],
            Some(&[&[0], &[0]]),
        );
        check(
            rawdoc! { "a": 1, "b": 1 },
            rawdoc! { "a": [1, 2], "b": 3 },
            vec![rawbson!([1, 3]), rawbson!([2, 3])],
            Some(&[&[0], &[]]),
        );
        check(
            rawdoc! { "a.0": 1 },
            rawdoc! { "a": [5, 6] },
            vec![rawbson!([5])],
            None,
        );
        check(
            rawdoc! { "a.0": 1 },
            rawdoc! { "a": [[5, 6]] },
            vec![rawbson!([[5, 6]])],
            None,
        );
        check(
            rawdoc! { "a.0.b": 1 },
            rawdoc! { "a": [{ "b": 1 }, { "b": 2 }] },
            vec![rawbson!([1])],
            None,
        );
        check(
            rawdoc! { "a.b": 1 },
            rawdoc! { "a": [] },
            vec![rawbson!([null])],
            Some(&[&[0]]),
        );
    }

    fn undefined() -> pinion_bson::RawArrayBuf {
        let mut array = pinion_bson::RawArrayBuf::new();
        array.push(RawBsonRef::Undefined);
        array
    }

    #[test]
    fn sparse_and_errors() {
        let sparse =
            IndexSpec::new("i", &rawdoc! { "a": 1, "b": 1 }, false, true).expect("a pattern");
        assert_eq!(
            index_keys(&rawdoc! { "c": 1 }, &sparse)
                .expect("keys")
                .keys
                .len(),
            0
        );
        assert_eq!(
            index_keys(&rawdoc! { "b": 1 }, &sparse)
                .expect("keys")
                .keys
                .len(),
            1
        );
        let both =
            IndexSpec::new("i", &rawdoc! { "a": 1, "b": 1 }, false, false).expect("a pattern");
        let error = index_keys(&rawdoc! { "a": [1], "b": [2] }, &both).expect_err("parallel");
        assert_eq!(
            (error.code.0, error.message.as_str()),
            (171, "cannot index parallel arrays [b] [a]")
        );
        let positional =
            IndexSpec::new("i", &rawdoc! { "a.0": 1 }, false, false).expect("a pattern");
        let error = index_keys(&rawdoc! { "a": [{ "0": 1 }] }, &positional).expect_err("ambiguous");
        assert_eq!(error.code.0, 16746);
    }
}
