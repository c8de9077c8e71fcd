//! What a document must be before it is stored: `_id` first and of an allowed type, timestamps filled in, size.

use bytes::Bytes;
use pinion_bson::{DocBuilder, MAX_USER_DOCUMENT_BYTES, ObjectId, RawBsonRef, RawDocument, Timestamp, raw_elements};
use pinion_wire::{Error, ErrorCode, Result};

use crate::state::state;

/// Brings a document into its stored form.
///
/// # Errors
/// Too large, two `_id` fields, an `_id` of a type that cannot be one.
pub(crate) fn prepare_for_insert(document: &RawDocument) -> Result<Bytes> {
    let size = document.as_bytes().len();
    if size > MAX_USER_DOCUMENT_BYTES {
        return Err(Error::new(
            ErrorCode::BSON_OBJECT_TOO_LARGE,
            format!("object to insert too large. size in bytes: {size}, max size: {MAX_USER_DOCUMENT_BYTES}"),
        ));
    }
    let mut id_at = None;
    let mut empty_timestamp = false;
    for (at, elem) in raw_elements(document).enumerate() {
        if elem.name == b"_id" {
            if id_at.is_some() {
                return Err(Error::bad_value("can't have multiple _id fields in one document"));
            }
            id_at = Some(at);
            if let Some(id) = elem.to_value() {
                check_id(id)?;
            }
        } else if elem.kind == pinion_bson::ElementType::Timestamp && elem.value == [0; 8] {
            empty_timestamp = true;
        }
    }
    if id_at == Some(0) && !empty_timestamp {
        // A copy: a slice would keep the whole message in memory until the next checkpoint.
        return Ok(Bytes::copy_from_slice(document.as_bytes()));
    }
    let mut out = DocBuilder::with_capacity(size + 24);
    match id_at {
        None => {
            out.append("_id", new_object_id());
        }
        Some(at) => {
            let elem = raw_elements(document).nth(at).expect("just found");
            out.append_elem(&elem);
        }
    }
    for (at, elem) in raw_elements(document).enumerate() {
        if Some(at) == id_at {
            continue;
        }
        if elem.kind == pinion_bson::ElementType::Timestamp && elem.value == [0; 8] {
            let now = state().next_timestamp();
            let name = elem.name_str().unwrap_or_default();
            out.append(name, RawBsonRef::Timestamp(Timestamp { time: now.secs(), increment: now.inc() }));
        } else {
            out.append_elem(&elem);
        }
    }
    Ok(Bytes::from(out.finish_bytes()))
}

/// Refuses an `_id` of a type that cannot be one.
pub(crate) fn check_id(id: RawBsonRef<'_>) -> Result<()> {
    let refused = match id {
        RawBsonRef::Array(_) => "array",
        RawBsonRef::RegularExpression(_) => "regex",
        RawBsonRef::Undefined => "undefined",
        RawBsonRef::Document(document) => {
            if let Some((name, _)) = pinion_bson::elements(document).find(|(name, _)| name.starts_with('$')) {
                return Err(Error::new(
                    ErrorCode::DOLLAR_PREFIXED_FIELD_NAME,
                    format!("_id fields may not contain '$'-prefixed fields: {name} is not valid for storage."),
                ));
            }
            return Ok(());
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorCode::INVALID_ID_FIELD, format!("The '_id' value cannot be of type {refused}")))
}

/// A new ObjectId: seconds, five random bytes of this core, a counter.
pub(crate) fn new_object_id() -> ObjectId {
    state().new_object_id()
}
