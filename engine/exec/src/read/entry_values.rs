//! The values that the entries of an index have of the documents that they name.

use bytes::Bytes;
use pinion_bson::{DocBuilder, RawBsonRef};
use pinion_catalog::{Index, entry_key, entry_value};
use pinion_storage::Key;
use pinion_wire::Result;

use super::fetch::damaged_index;

/// What an entry has of a document, as far as the paths go; `None` if a value is null, which may
/// stand for one that is missing.
pub(super) fn covered_document(
    index: &Index,
    key: &[u8],
    type_bits: &[u8],
    kept: &[String],
) -> Result<Option<Bytes>> {
    let values = entry_key(index, key, type_bits)?;
    let mut fields: Vec<(&str, RawBsonRef<'_>)> = pinion_bson::elements(&values)
        .filter(|(path, _)| kept.iter().any(|kept| kept == path))
        .collect();
    if fields
        .iter()
        .any(|(_, value)| matches!(value, RawBsonRef::Null))
    {
        return Ok(None);
    }
    fields.sort_by_key(|(path, _)| *path != "_id");
    let mut out = DocBuilder::new();
    append_paths(&mut out, &fields);
    Ok(Some(Bytes::from(out.finish_bytes())))
}

/// Appends values at their paths. None of the paths leads through another one.
fn append_paths(out: &mut DocBuilder, fields: &[(&str, RawBsonRef<'_>)]) {
    let mut done: Vec<&str> = Vec::new();
    for (path, value) in fields {
        let Some((head, _)) = path.split_once('.') else {
            out.append(path, *value);
            continue;
        };
        if done.contains(&head) {
            continue;
        }
        done.push(head);
        let inner: Vec<(&str, RawBsonRef<'_>)> = fields
            .iter()
            .filter_map(|(path, value)| Some((path.split_once('.')?, *value)))
            .filter(|((at, _), _)| *at == head)
            .map(|((_, rest), value)| (rest, value))
            .collect();
        out.start_document(head);
        append_paths(out, &inner);
        out.end();
    }
}

/// The value of a field of an entry, in a field without a name; `None` if it is null.
pub(super) fn value_of(
    index: &Index,
    key: &[u8],
    type_bits: &[u8],
    field: usize,
) -> Result<Option<Bytes>> {
    let value = entry_value(index, key, type_bits, field)?;
    let is_null = pinion_bson::elements(&value).all(|(_, value)| value == RawBsonRef::Null);
    Ok((!is_null).then(|| Bytes::from(value.into_bytes())))
}

pub(super) fn unnamed(value: RawBsonRef<'_>) -> Bytes {
    let mut out = DocBuilder::new();
    out.append("", value);
    Bytes::from(out.finish_bytes())
}

/// A key above all that have the same value in the field, and below those of the next one. What
/// follows a value is the end of the fields or the type of the next, and neither is the highest
/// byte; that follows where a string continues behind a zero byte, which is another value.
pub(super) fn behind_value(index: &Index, key: &[u8], field: usize) -> Result<Key> {
    let end = pinion_keystring::prefix_len(key, field as u32 + 1, index.spec.ordering);
    let end = end.map_err(|_| damaged_index(index.name()))?;
    let mut behind = Key::from_slice(&key[..end]);
    behind.push(u8::MAX);
    Ok(behind)
}
