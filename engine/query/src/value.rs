//! Small helpers over raw values: fields, elements, type classes, truth.

use std::cmp::Ordering;

use pinion_bson::{
    ElementType, RawArray, RawBson, RawBsonRef, RawDocument, RawElems, canonical_type,
    compare_values,
};

use crate::limits::WIDE_BYTES;
use crate::work;

/// The elements of a document with their values decoded.
pub(crate) fn elements(document: &RawDocument) -> impl Iterator<Item = (&str, RawBsonRef<'_>)> {
    RawElems::new(document.as_bytes()).map_while(|e| Some((e.name_str()?, e.to_value()?)))
}

/// The value of a top-level field. In a wide document the search is accounted for, since a call may
/// make many of them; a call that was refused for its work finds nothing more.
pub(crate) fn field<'a>(document: &'a RawDocument, name: &str) -> Option<RawBsonRef<'a>> {
    let mut elems = RawElems::new(document.as_bytes());
    if document.as_bytes().len() < WIDE_BYTES {
        return elems.find(|e| e.name == name.as_bytes())?.to_value();
    }
    if work::is_exhausted() {
        return None;
    }
    let mut passed = 0;
    let found = elems.find(|e| {
        passed += 1;
        e.name == name.as_bytes()
    });
    work::spend(passed * work::ITEM).ok()?;
    found?.to_value()
}

/// The order of values, of those that are owned.
pub(crate) fn compare_owned(a: &RawBson, b: &RawBson) -> Ordering {
    compare_values(a.as_raw_bson_ref(), b.as_raw_bson_ref())
}

/// Whether values are the same to the last byte: 1 and 1.0 are equal, but not that.
pub(crate) fn is_identical(a: RawBsonRef<'_>, b: RawBsonRef<'_>) -> bool {
    match (a, b) {
        (RawBsonRef::Double(a), RawBsonRef::Double(b)) => a.to_bits() == b.to_bits(),
        (RawBsonRef::Document(a), RawBsonRef::Document(b)) => a.as_bytes() == b.as_bytes(),
        (RawBsonRef::Array(a), RawBsonRef::Array(b)) => a.as_bytes() == b.as_bytes(),
        (a, b) => a == b,
    }
}

/// Whether a document has no fields.
pub(crate) fn is_empty(document: &RawDocument) -> bool {
    document.as_bytes().len() <= 5
}

/// The number of fields of a document or items of an array.
pub(crate) fn count(document: &RawDocument) -> usize {
    RawElems::new(document.as_bytes()).count()
}

/// An array seen as the document whose field names are its positions.
pub(crate) fn array_document(array: &RawArray) -> &RawDocument {
    pinion_bson::document_of(array)
}

/// The items of an array.
pub(crate) fn items(array: &RawArray) -> impl Iterator<Item = RawBsonRef<'_>> {
    RawElems::new(array.as_bytes()).map_while(|e| e.to_value())
}

/// The first field of a document.
pub(crate) fn first(document: &RawDocument) -> Option<(&str, RawBsonRef<'_>)> {
    elements(document).next()
}

/// The sort class of a value; a missing value has the class of undefined, as in MongoDB's
/// comparisons.
pub(crate) fn class(value: Option<RawBsonRef<'_>>) -> u8 {
    canonical_type(value.map_or(ElementType::Undefined, |v| v.element_type()))
}

pub(crate) fn is_number(value: RawBsonRef<'_>) -> bool {
    pinion_bson::is_numeric(value.element_type())
}

pub(crate) fn is_nan(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Double(v) => v.is_nan(),
        // The combination field's five leading ones after the sign say NaN.
        RawBsonRef::Decimal128(v) => v.bytes()[15] & 0x7c == 0x7c,
        _ => false,
    }
}

/// Whether a value is null or undefined, which compare alike in filters.
pub(crate) fn is_nullish(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Null | RawBsonRef::Undefined)
}

/// MongoDB's truth: false, zero, null, undefined are false, everything else is true.
pub(crate) fn is_true(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::Boolean(v) => v,
        RawBsonRef::Int32(v) => v != 0,
        RawBsonRef::Int64(v) => v != 0,
        RawBsonRef::Double(v) => v != 0.0,
        RawBsonRef::Decimal128(_) => compare_values(value, RawBsonRef::Int32(0)) != Ordering::Equal,
        RawBsonRef::Null | RawBsonRef::Undefined => false,
        _ => true,
    }
}

/// The bytes of a text, binary data, a document or an array; other values count as none.
pub(crate) fn bytes(value: RawBsonRef<'_>) -> usize {
    match value {
        RawBsonRef::String(text) => text.len(),
        RawBsonRef::Binary(data) => data.bytes.len(),
        RawBsonRef::Document(document) => document.as_bytes().len(),
        RawBsonRef::Array(array) => array.as_bytes().len(),
        _ => 0,
    }
}

/// An owned copy.
pub(crate) fn owned(value: RawBsonRef<'_>) -> RawBson {
    value.into()
}

/// MongoDB's name of a value's type in messages.
pub(crate) fn type_name(value: RawBsonRef<'_>) -> &'static str {
    pinion_bson::type_name(value.element_type())
}
