//! Keys as the storage engine keeps them: clustered by `_id`, and index entries that end in one.
//!
//! | entry | bytes |
//! |---|---|
//! | record | KeyString of `_id`, end byte |
//! | index entry | KeyString of the fields in the index's directions, end byte, KeyString of `_id`, end byte |
//!
//! The end byte after the fields makes their part prefix-free: without it the key of "a" would be a
//! prefix of the key of "a\0". So two entries have equal fields exactly if they share the bytes up
//! to and including it.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocumentBuf};
use pinion_collation::Collation;
use smallvec::SmallVec;

use crate::ctype;
use crate::decode::{Corrupt, decode_prefix, decode_prefix_as, prefix_len};
use crate::encode::push_component;
use crate::limits::MAX_COMPONENTS;
use crate::ordering::Ordering;
use crate::strings::Strings;
use crate::type_bits::TypeBits;

/// The bytes a record is found by.
pub type RecordKey = SmallVec<[u8; 32]>;

/// An index entry as storage keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The entry's key.
    pub key: SmallVec<[u8; 64]>,
    /// How much of the key the fields and their end byte take: entries with equal fields share it,
    /// others do not.
    pub prefix_len: usize,
    /// The entry's value: type bits of the fields, then those of `_id`; empty when there are none
    /// to keep.
    pub type_bits: SmallVec<[u8; 16]>,
}

/// The key of the record with this `_id`: equal for values that compare equal, never a prefix of
/// another one.
#[inline]
pub fn encode_id(id: RawBsonRef<'_>) -> RecordKey {
    encode_id_with_types(id).0
}

/// As [`encode_id`], equal for values that the collation says are equal.
#[inline]
pub fn encode_id_in(collation: Option<&Collation>, id: RawBsonRef<'_>) -> RecordKey {
    encode_id_types(id, collation).0
}

/// The key of the record with this `_id`, and what is needed to decode it.
#[inline]
pub fn encode_id_with_types(id: RawBsonRef<'_>) -> (RecordKey, TypeBits) {
    encode_id_types(id, None)
}

#[inline]
fn encode_id_types(id: RawBsonRef<'_>, collation: Option<&Collation>) -> (RecordKey, TypeBits) {
    let mut key = RecordKey::new();
    let mut bits = TypeBits::new();
    push_component(&mut key, &mut bits, id, false, Strings::of(collation));
    key.push(ctype::END);
    (key, bits)
}

/// The `_id` of a record's key, in a field with an empty name.
pub fn decode_id(key: &[u8], type_bits: &TypeBits) -> Result<RawDocumentBuf, Corrupt> {
    let (id, used) = decode_prefix(key, 1, Ordering::ascending(), type_bits)?;
    if key[used..] != [ctype::END] {
        return Err(Corrupt("no end after _id"));
    }
    Ok(id)
}

/// The entry of a record in an index.
///
/// # Panics
/// With more fields than `MAX_COMPONENTS`.
pub fn encode_index_entry(
    fields: &[RawBsonRef<'_>],
    ordering: Ordering,
    id: RawBsonRef<'_>,
) -> IndexEntry {
    encode_index_entry_in(fields, ordering, |_| Strings::Plain, id, None)
}

/// As [`encode_index_entry`], with the strings of each field in the given form, and those of `_id`
/// in the collection's collation.
pub fn encode_index_entry_in<'c>(
    fields: &[RawBsonRef<'_>],
    ordering: Ordering,
    strings: impl Fn(u32) -> Strings<'c>,
    id: RawBsonRef<'_>,
    id_collation: Option<&Collation>,
) -> IndexEntry {
    assert!(
        fields.len() <= MAX_COMPONENTS as usize,
        "an index has at most {MAX_COMPONENTS} fields"
    );
    let mut key = SmallVec::new();
    let mut field_bits = TypeBits::new();
    for (component, value) in (0..).zip(fields) {
        push_component(
            &mut key,
            &mut field_bits,
            *value,
            ordering.is_descending(component),
            strings(component),
        );
    }
    key.push(ctype::END);
    let prefix_len = key.len();
    let mut id_bits = TypeBits::new();
    let id_strings = Strings::of(id_collation);
    push_component(&mut key, &mut id_bits, id, false, id_strings);
    key.push(ctype::END);
    IndexEntry {
        key,
        prefix_len,
        type_bits: join_type_bits(&field_bits, &id_bits),
    }
}

/// The entry of a record in an index, from the fields' key (ended, as `Builder::end` leaves it) and
/// the record's key.
pub fn join_index_entry(
    fields: &[u8],
    field_bits: &TypeBits,
    id: &[u8],
    id_bits: &TypeBits,
) -> IndexEntry {
    assert!(
        fields.last() == Some(&ctype::END) && id.last() == Some(&ctype::END),
        "both keys have ended"
    );
    let mut key = SmallVec::with_capacity(fields.len() + id.len());
    key.extend_from_slice(fields);
    key.extend_from_slice(id);
    IndexEntry {
        key,
        prefix_len: fields.len(),
        type_bits: join_type_bits(field_bits, id_bits),
    }
}

fn join_type_bits(fields: &TypeBits, id: &TypeBits) -> SmallVec<[u8; 16]> {
    if id.is_all_zeros() {
        return fields.as_bytes();
    }
    let mut out = fields.as_bytes();
    if out.is_empty() {
        out.push(0);
    }
    out.extend_from_slice(&id.as_bytes());
    out
}

/// Where the fields and their end byte stop: the rest is the record's key.
pub fn split_index_entry(key: &[u8], fields: u32, ordering: Ordering) -> Result<usize, Corrupt> {
    let end = prefix_len(key, fields, ordering)?;
    if key.get(end) != Some(&ctype::END) {
        return Err(Corrupt("no end after the fields"));
    }
    Ok(end + 1)
}

/// The values of an entry's fields, in fields with empty names.
pub fn decode_index_fields<'c>(
    key: &[u8],
    type_bits: &[u8],
    fields: u32,
    ordering: Ordering,
    strings: impl Fn(u32) -> Strings<'c>,
) -> Result<RawDocumentBuf, Corrupt> {
    let (field_bits, _) = TypeBits::from_prefix(type_bits)?;
    let (values, end) = decode_prefix_as(key, fields, ordering, &field_bits, strings)?;
    if key.get(end) != Some(&ctype::END) {
        return Err(Corrupt("no end after the fields"));
    }
    Ok(values)
}

/// The value of one of an entry's fields, in a field with an empty name. What is behind the field
/// is not read, and not checked either.
///
/// # Errors
/// The entry is damaged, or has fewer fields.
pub fn decode_index_field<'c>(
    key: &[u8],
    type_bits: &[u8],
    field: u32,
    ordering: Ordering,
    strings: impl Fn(u32) -> Strings<'c>,
) -> Result<RawDocumentBuf, Corrupt> {
    let (field_bits, _) = TypeBits::from_prefix(type_bits)?;
    // Type bits follow each other, so those of the fields in front are read too.
    let (values, _) = decode_prefix_as(key, field + 1, ordering, &field_bits, strings)?;
    if field == 0 {
        return Ok(values);
    }
    let last = pinion_bson::elements(&values).last();
    let (_, value) = last.ok_or(Corrupt("too few fields"))?;
    let mut alone = DocBuilder::new();
    alone.append_raw("", value);
    Ok(alone.finish())
}

/// The values of an entry's fields, and its `_id`, each in fields with empty names. Neither has a
/// collation.
pub fn decode_index_entry(
    key: &[u8],
    type_bits: &[u8],
    fields: u32,
    ordering: Ordering,
) -> Result<(RawDocumentBuf, RawDocumentBuf), Corrupt> {
    let values = decode_index_fields(key, type_bits, fields, ordering, |_| Strings::Plain)?;
    let (_, used) = TypeBits::from_prefix(type_bits)?;
    let id_bits = TypeBits::from_bytes(&type_bits[used..])?;
    let end = split_index_entry(key, fields, ordering)?;
    Ok((values, decode_id(&key[end..], &id_bits)?))
}
