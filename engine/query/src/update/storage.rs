//! The rules that documents obey before they are stored.

use std::borrow::Cow;

use pinion_bson::{
    DocBuilder, ElementType, MAX_USER_DOCUMENT_BYTES, ObjectId, RawBsonRef, RawDocument,
    RawDocumentBuf, RawElem, Timestamp,
};
use pinion_wire::Result;

use super::apply::Timestamps;
use super::operator::empty_timestamp;
use crate::error::{bad_value, error};
use crate::limits::MAX_STORED_DEPTH;
use crate::value::{array_document, elements, field};

/// Checks a document that an update or an insert made.
pub fn check_storable(document: &RawDocument) -> Result<()> {
    let size = document.as_bytes().len();
    if size > MAX_USER_DOCUMENT_BYTES {
        return Err(error(
            17419,
            format!("Resulting document after update is larger than {MAX_USER_DOCUMENT_BYTES}"),
        ));
    }
    check_depth(document, 1)?;
    if let Some(id) = field(document, "_id") {
        check_id(id)?;
    }
    Ok(())
}

/// The bytes of a document that has nothing but another one in it, without those of the other one.
const LEAST_LEVEL_BYTES: usize = 7;

fn check_depth(document: &RawDocument, depth: usize) -> Result<()> {
    if depth > MAX_STORED_DEPTH {
        return Err(error(
            15,
            format!("Document exceeds maximum nested object depth: {MAX_STORED_DEPTH}"),
        ));
    }
    pinion_bson::RawElems::new(document.as_bytes())
        .try_for_each(|element| check_element_depth(&element, depth))
}

/// Checks what lies within an element of a document at this depth.
fn check_element_depth(element: &RawElem<'_>, depth: usize) -> Result<()> {
    let is_nested = matches!(
        element.kind,
        ElementType::EmbeddedDocument | ElementType::Array
    );
    // What is too short to nest so deep is not looked into, which is nearly all that is ever
    // stored.
    if !is_nested || element.value.len() < LEAST_LEVEL_BYTES * (MAX_STORED_DEPTH - depth) {
        return Ok(());
    }
    match element.to_value() {
        Some(RawBsonRef::Document(inner)) => check_depth(inner, depth + 1),
        Some(RawBsonRef::Array(inner)) => check_depth(array_document(inner), depth + 1),
        _ => Ok(()),
    }
}

/// The rules for `_id`.
fn check_id(id: RawBsonRef<'_>) -> Result<()> {
    match id {
        RawBsonRef::Array(_) | RawBsonRef::RegularExpression(_) | RawBsonRef::Undefined => {
            Err(error(
                53,
                format!(
                    "The '_id' value cannot be of type {}",
                    crate::value::type_name(id)
                ),
            ))
        }
        RawBsonRef::Document(inner) => {
            match elements(inner).find(|(name, _)| name.starts_with('$')) {
                Some((name, _)) => Err(error(
                    52,
                    format!(
                        "_id fields may not contain '$'-prefixed fields: {name} is not valid for storage."
                    ),
                )),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// The rules for an `_id` that an insert gives; `another` stands before it.
fn check_insert_id(id: RawBsonRef<'_>, another: bool) -> Result<()> {
    if another {
        return Err(bad_value("can't have multiple _id fields in one document"));
    }
    match id {
        RawBsonRef::Array(_) => Err(error(53, "can't use an array for _id")),
        RawBsonRef::RegularExpression(_) => Err(error(53, "can't use a regex for _id")),
        RawBsonRef::Undefined => Err(error(53, "can't use a undefined for _id")),
        other => check_id(other),
    }
}

/// What an insert stores: checked, `_id` first and made where it is missing, empty timestamps
/// filled in. `timestamps` sets aside as many as it is asked for, one after the other, and gives
/// the first; without it they stay empty.
pub fn prepare_insert<'a>(
    document: &'a RawDocument,
    new_id: impl FnOnce() -> ObjectId,
    timestamps: Option<impl FnOnce(usize) -> Timestamp>,
) -> Result<Cow<'a, RawDocument>> {
    let size = document.as_bytes().len();
    if size > MAX_USER_DOCUMENT_BYTES {
        return Err(error(
            10334,
            format!(
                "object to insert too large. size in bytes: {size}, max size: {MAX_USER_DOCUMENT_BYTES}"
            ),
        ));
    }
    let mut id = None;
    let mut rewrite = false;
    let mut empty_timestamps = 0;
    for (at, element) in pinion_bson::RawElems::new(document.as_bytes()).enumerate() {
        check_element_depth(&element, 1)?;
        if element.name == b"_id" {
            let Some(value) = element.to_value() else {
                break;
            };
            if let Err(refused) = check_insert_id(value, id.is_some()) {
                // Too deep a document is that first, wherever its `_id` stands.
                check_depth(document, 1)?;
                return Err(refused);
            }
            id = Some(value);
            rewrite |= at > 0;
        } else if element.kind == ElementType::Timestamp && timestamps.is_some() {
            empty_timestamps += usize::from(element.to_value().is_some_and(empty_timestamp));
        }
    }
    if id.is_some() && !rewrite && empty_timestamps == 0 {
        return Ok(Cow::Borrowed(document));
    }
    let mut out = DocBuilder::with_capacity(size + 32);
    match id {
        Some(id) => out.append("_id", id),
        None => out.append("_id", RawBsonRef::ObjectId(new_id())),
    };
    let filler = timestamps
        .filter(|_| empty_timestamps > 0)
        .map(|set_aside| Timestamps::new(set_aside(empty_timestamps), empty_timestamps));
    append_without_id(&mut out, document, filler.as_ref());
    Ok(Cow::Owned(out.finish()))
}

/// How many fields beside `_id` hold an empty timestamp.
pub(super) fn count_empty_timestamps(document: &RawDocument) -> usize {
    let is_empty =
        |(name, value): &(&str, RawBsonRef<'_>)| *name != "_id" && empty_timestamp(*value);
    elements(document).filter(is_empty).count()
}

/// The fields but `_id`; empty timestamps are filled in where some are given.
pub(super) fn append_without_id(
    out: &mut DocBuilder,
    document: &RawDocument,
    timestamps: Option<&Timestamps>,
) {
    for element in pinion_bson::RawElems::new(document.as_bytes()) {
        if element.name == b"_id" {
            continue;
        }
        match (element.to_value(), timestamps) {
            (Some(value), Some(timestamps)) if empty_timestamp(value) => {
                out.append(
                    element.name_str().unwrap_or_default(),
                    RawBsonRef::Timestamp(timestamps.next()),
                );
            }
            _ => {
                out.append_elem(&element);
            }
        }
    }
}

/// A document with `_id` in front.
pub(super) fn id_first(document: RawDocumentBuf) -> RawDocumentBuf {
    let first_is_id = elements(&document)
        .next()
        .is_none_or(|(name, _)| name == "_id");
    let Some(id) = field(&document, "_id").filter(|_| !first_is_id) else {
        return document;
    };
    let mut out = DocBuilder::with_capacity(document.as_bytes().len());
    out.append("_id", id);
    for element in pinion_bson::RawElems::new(document.as_bytes()).filter(|e| e.name != b"_id") {
        out.append_elem(&element);
    }
    out.finish()
}
