//! A document's key: the fields by which a cluster finds it.
//!
//! They are those of the shard key, and `_id`. The log has the key of each document that it says
//! something of (`o2`, and the `o` of a deletion), since nothing else of a deleted document shows
//! which range it was in; events of change streams have it as `documentKey`.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, document_of};

/// Which fields are documents' keys in a collection: dotted paths in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentKeyPattern {
    paths: Vec<String>,
    /// `_id` comes behind them, as it is none of them.
    appends_id: bool,
}

impl DocumentKeyPattern {
    /// `_id` alone: that of a collection without a shard key.
    pub const ID: DocumentKeyPattern = DocumentKeyPattern {
        paths: Vec::new(),
        appends_id: true,
    };

    /// That of a shard key with these paths.
    pub fn of_shard_key<P: Into<String>>(paths: impl IntoIterator<Item = P>) -> DocumentKeyPattern {
        let paths: Vec<String> = paths.into_iter().map(P::into).collect();
        DocumentKeyPattern {
            appends_id: !paths.iter().any(|path| path == "_id"),
            paths,
        }
    }

    /// The key of a document: `{<path>: <value>, ..., _id: <value>}`, without the fields that it
    /// does not have.
    pub fn key_of(&self, document: &RawDocument) -> RawDocumentBuf {
        let mut out = DocBuilder::with_capacity(64);
        for path in &self.paths {
            if let Some(value) = value_at(document, path) {
                out.append_raw(path, value);
            }
        }
        if self.appends_id
            && let Some(id) = pinion_bson::get(document, "_id")
        {
            out.append_raw("_id", id);
        }
        out.finish()
    }
}

/// The value at a path, of which a part may be the position in an array. A field that has the whole
/// path, or the rest of it, as its name comes first.
fn value_at<'a>(document: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    if let Some(value) = pinion_bson::get(document, path) {
        return Some(value);
    }
    let (first, rest) = path.split_once('.')?;
    match pinion_bson::get(document, first)? {
        RawBsonRef::Document(inner) => value_at(inner, rest),
        RawBsonRef::Array(inner) => value_at(document_of(inner), rest),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[track_caller]
    fn check(paths: &[&str], document: RawDocumentBuf, expected: RawDocumentBuf) {
        let pattern = DocumentKeyPattern::of_shard_key(paths.iter().copied());
        assert_eq!(
            pattern.key_of(&document),
            expected,
            "{paths:?} {document:?}"
        );
    }

    #[test]
    fn a_key_has_the_fields_of_the_pattern_and_the_id() {
        let document =
            || rawdoc! { "_id": 1, "a": 2, "b": { "c": "x", "d": { "e": 3.5 } }, "f": 4 };
        check(&[], document(), rawdoc! { "_id": 1 });
        check(&["a"], document(), rawdoc! { "a": 2, "_id": 1 });
        check(
            &["f", "a"],
            document(),
            rawdoc! { "f": 4, "a": 2, "_id": 1 },
        );
        check(&["b.c"], document(), rawdoc! { "b.c": "x", "_id": 1 });
        check(
            &["b.d.e", "a"],
            document(),
            rawdoc! { "b.d.e": 3.5, "a": 2, "_id": 1 },
        );
        check(
            &["b"],
            rawdoc! { "_id": 1, "b": { "c": 1 } },
            rawdoc! { "b": { "c": 1 }, "_id": 1 },
        );
        assert_eq!(
            DocumentKeyPattern::of_shard_key([""; 0]),
            DocumentKeyPattern::ID
        );
        // Wherever the document has its `_id`.
        check(
            &["a"],
            rawdoc! { "a": 2, "_id": 1 },
            rawdoc! { "a": 2, "_id": 1 },
        );
    }

    #[test]
    fn the_id_is_there_once() {
        let document = || rawdoc! { "_id": { "x": 5 }, "a": 2 };
        let id = || rawdoc! { "x": 5 };
        check(&["_id"], document(), rawdoc! { "_id": id() });
        check(&["_id", "a"], document(), rawdoc! { "_id": id(), "a": 2 });
        check(&["a", "_id"], document(), rawdoc! { "a": 2, "_id": id() });
        // A part of it is another field.
        check(&["_id.x"], document(), rawdoc! { "_id.x": 5, "_id": id() });
    }

    #[test]
    fn fields_that_are_missing_are_left_out() {
        check(
            &["a", "b"],
            rawdoc! { "_id": 1, "b": 2 },
            rawdoc! { "b": 2, "_id": 1 },
        );
        check(&["a.b"], rawdoc! { "_id": 1, "a": 2 }, rawdoc! { "_id": 1 });
        check(
            &["a.b"],
            rawdoc! { "_id": 1, "a": { "c": 2 } },
            rawdoc! { "_id": 1 },
        );
        check(
            &["a"],
            rawdoc! { "_id": 1, "a": null },
            rawdoc! { "a": null, "_id": 1 },
        );
    }

    #[test]
    fn arrays_are_passed_by_position_alone() {
        let document = || rawdoc! { "_id": 1, "a": [{ "b": 2 }, { "b": 3 }] };
        check(&["a.b"], document(), rawdoc! { "_id": 1 });
        check(&["a.1.b"], document(), rawdoc! { "a.1.b": 3, "_id": 1 });
        check(&["a.2.b"], document(), rawdoc! { "_id": 1 });
    }

    #[test]
    fn a_name_with_dots_comes_before_a_path() {
        let document = rawdoc! { "_id": 1, "a": { "b": 2, "c.d": 4 }, "a.b": 3 };
        check(
            &["a.b", "a.c.d"],
            document,
            rawdoc! { "a.b": 3, "a.c.d": 4, "_id": 1 },
        );
    }
}
