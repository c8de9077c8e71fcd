//! A document with a value set at a dotted path, as stages set the fields that they add.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument};

use crate::value::elements;

/// Appends a document's fields with the one at `path` set. What is no document on the way is
/// replaced by one.
pub(super) fn append_with(
    out: &mut DocBuilder,
    document: Option<&RawDocument>,
    path: &[Box<str>],
    set: &mut dyn FnMut(&mut DocBuilder, &str),
) {
    let (name, rest) = match path {
        [] => return,
        [name, rest @ ..] => (&**name, rest),
    };
    let mut found = false;
    for (field, value) in document.into_iter().flat_map(elements) {
        if field != name {
            out.append_raw(field, value);
            continue;
        }
        if std::mem::replace(&mut found, true) {
            continue;
        }
        let inner = match value {
            RawBsonRef::Document(inner) => Some(inner),
            _ => None,
        };
        put(out, name, inner, rest, set);
    }
    if !found {
        put(out, name, None, rest, set);
    }
}

fn put(
    out: &mut DocBuilder,
    name: &str,
    inner: Option<&RawDocument>,
    rest: &[Box<str>],
    set: &mut dyn FnMut(&mut DocBuilder, &str),
) {
    if rest.is_empty() {
        set(out, name);
        return;
    }
    out.start_document(name);
    append_with(out, inner, rest, set);
    out.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::{RawDocumentBuf, rawdoc};

    fn check(document: RawDocumentBuf, path: &str, expected: RawDocumentBuf) {
        let path: Vec<Box<str>> = path.split('.').map(Box::from).collect();
        let mut out = DocBuilder::new();
        append_with(&mut out, Some(&document), &path, &mut |out, name| {
            out.append(name, 9i32);
        });
        assert_eq!(out.finish(), expected, "{document:?} {path:?}");
    }

    #[test]
    fn fields_stay_where_they_are() {
        check(rawdoc! { "a": 1, "b": 2 }, "a", rawdoc! { "a": 9, "b": 2 });
        check(rawdoc! { "a": 1 }, "c", rawdoc! { "a": 1, "c": 9 });
        check(
            rawdoc! { "a": { "b": 1, "c": 2 } },
            "a.b",
            rawdoc! { "a": { "b": 9, "c": 2 } },
        );
        check(
            rawdoc! { "a": 1 },
            "a.b.c",
            rawdoc! { "a": { "b": { "c": 9 } } },
        );
        check(rawdoc! {}, "a.b", rawdoc! { "a": { "b": 9 } });
    }
}
