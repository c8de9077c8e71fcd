//! Equality of values whatever the order of their fields, which `enum` and `uniqueItems` ask for.

use std::cmp::Ordering;

use pinion_bson::{DocBuilder, RawBson, RawBsonRef, RawDocument, compare_values};

use crate::value::{array_document, bytes, elements, owned};
use crate::work;

/// A value with the fields of all its documents in the order of their names: two values are equal
/// but for the order of fields exactly if these are equal.
#[derive(Clone, Debug)]
pub(super) enum Unordered<'a> {
    /// A value without fields.
    Plain(RawBsonRef<'a>),
    Sorted(RawBson),
}

impl<'a> Unordered<'a> {
    pub(super) fn new(value: RawBsonRef<'a>) -> Unordered<'a> {
        if !matches!(value, RawBsonRef::Document(_) | RawBsonRef::Array(_)) {
            return Unordered::Plain(value);
        }
        // A call that was refused for its work says so in the end, whatever it compares.
        if work::spend_bytes(bytes(value)).is_err() {
            return Unordered::Plain(RawBsonRef::Null);
        }
        let mut out = DocBuilder::new();
        append(&mut out, "", value);
        let wrapped = out.finish();
        Unordered::Sorted(crate::value::field(&wrapped, "").map_or(RawBson::Null, owned))
    }

    pub(super) fn value(&self) -> RawBsonRef<'_> {
        match self {
            Unordered::Plain(value) => *value,
            Unordered::Sorted(value) => value.as_raw_bson_ref(),
        }
    }

    pub(super) fn compare(&self, other: &Unordered<'_>) -> Ordering {
        compare_values(self.value(), other.value())
    }

    pub(super) fn into_owned(self) -> RawBson {
        match self {
            Unordered::Plain(value) => owned(value),
            Unordered::Sorted(value) => value,
        }
    }
}

/// Appends a value with its fields sorted. The nesting is that of a document, which has its bound.
fn append(out: &mut DocBuilder, name: &str, value: RawBsonRef<'_>) {
    match value {
        RawBsonRef::Document(document) => {
            out.start_document(name);
            append_fields(out, document);
            out.end();
        }
        RawBsonRef::Array(array) => {
            out.start_array(name);
            for (name, item) in elements(array_document(array)) {
                append(out, name, item);
            }
            out.end();
        }
        plain => {
            out.append(name, plain);
        }
    }
}

fn append_fields(out: &mut DocBuilder, document: &RawDocument) {
    let mut fields: Vec<(&str, RawBsonRef<'_>)> = elements(document).collect();
    fields.sort_by_key(|(name, _)| *name);
    for (name, value) in fields {
        append(out, name, value);
    }
}

/// Items of an array that are equal but for the order of their fields: the position of the first
/// that another one before it equals.
pub(super) fn first_duplicate<'a>(
    items: impl Iterator<Item = RawBsonRef<'a>>,
) -> Option<RawBsonRef<'a>> {
    let mut ordered: Vec<(Unordered<'a>, usize, RawBsonRef<'a>)> = Vec::new();
    for (position, item) in items.enumerate() {
        // Sorting compares each item a few times.
        if work::spend(4 * work::STEP).is_err() {
            return None;
        }
        ordered.push((Unordered::new(item), position, item));
    }
    ordered.sort_by(|(a, at, _), (b, bt, _)| a.compare(b).then(at.cmp(bt)));
    ordered
        .windows(2)
        .filter(|pair| pair[0].0.compare(&pair[1].0).is_eq())
        .map(|pair| (pair[1].1, pair[1].2))
        .min_by_key(|(position, _)| *position)
        .map(|(_, item)| item)
}
