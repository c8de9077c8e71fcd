//! Events that are too large for one message, in parts.

use bytes::Bytes;
use pinion_bson::{
    DocBuilder, MAX_INTERNAL_DOCUMENT_BYTES, RawBsonRef, RawDocument, RawElem, raw_elements,
};
use pinion_wire::Result;

use super::token::{ResumeToken, TokenData};
use crate::error::error;

/// The largest event that is not split, and the largest part of one.
pub const MAX_CHANGE_EVENT_BYTES: usize = MAX_INTERNAL_DOCUMENT_BYTES - 8 * 1024;

/// The parts of an event, but for the first `given`. Small fields come first, so that there are few
/// parts.
///
/// # Errors
/// `BSONObjectTooLarge` when a single field is too large, `ChangeStreamFatalError` when the event
/// has not the parts that were given of it.
pub fn split_event(
    event: &RawDocument,
    token: &ResumeToken,
    given: u32,
    most: usize,
) -> Result<Vec<Bytes>> {
    let data = token.data()?;
    let token_of = |part: usize| {
        TokenData {
            fragment: Some(part as u32),
            ..data.clone()
        }
        .token()
        .to_document()
    };
    let splits = |at: usize, of: usize| {
        let mut out = DocBuilder::new();
        out.append("fragment", at as i32).append("of", of as i32);
        out.finish()
    };
    // What each part has beside its fields.
    let frame = {
        let mut out = DocBuilder::new();
        out.append("_id", &*token_of(0))
            .append("splitEvent", &*splits(1, 1));
        out.finish().as_bytes().len()
    };
    let mut fields: Vec<RawElem<'_>> = raw_elements(event)
        .filter(|field| field.name != b"_id")
        .collect();
    // Stable: fields of one size keep their order.
    fields.sort_by_key(|field| bytes_of(field));
    let mut parts: Vec<Vec<RawElem<'_>>> = Vec::new();
    let mut bytes = usize::MAX;
    for field in fields {
        let size = bytes_of(&field);
        if frame + size > most {
            return Err(error(
                10334,
                format!(
                    "Change event splitting failed: the field '{}' is too large for a part of {most} bytes",
                    String::from_utf8_lossy(field.name)
                ),
            ));
        }
        if bytes.saturating_add(size) > most {
            parts.push(Vec::new());
            bytes = frame;
        }
        bytes += size;
        parts.last_mut().expect("just made").push(field);
    }
    let count = parts.len();
    if given as usize > count {
        return Err(error(
            280,
            "cannot resume stream; the event has not the part that was resumed from",
        ));
    }
    let parts = parts.into_iter().enumerate().skip(given as usize);
    Ok(parts
        .map(|(at, fields)| {
            let mut out = DocBuilder::with_capacity(most.min(event.as_bytes().len()));
            out.append_raw("_id", RawBsonRef::Document(&token_of(at)))
                .append("splitEvent", &*splits(at + 1, count));
            for field in &fields {
                out.append_elem(field);
            }
            Bytes::from(out.finish_bytes())
        })
        .collect())
}

/// Its type, its name with the terminator, and its value.
fn bytes_of(field: &RawElem<'_>) -> usize {
    1 + field.name.len() + 1 + field.value.len()
}
