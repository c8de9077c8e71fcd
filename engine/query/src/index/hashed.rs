//! Keys of hashed indexes: the hash of one field's value, and the values of the other fields as
//! they are.
//!
//! The hash is MongoDB's, so that a range of hashes means the same documents there and here: the
//! first eight bytes, little endian, of the MD5 of a seed of four zero bytes, the value's type
//! class, and its bytes. Numbers of all types are hashed as the 64-bit integer they come to;
//! documents and arrays element by element.

use md5::{Digest, Md5};
use pinion_bson::{DocBuilder, ElementType, RawBson, RawBsonRef, RawDocument, RawElem, RawElems};
use pinion_wire::Result;
use smallvec::SmallVec;

use super::{IndexKey, IndexKeys, IndexSpec};
use crate::collation::with_sort_keys;
use crate::error::error;
use crate::keygen::single_key;
use crate::work;

/// What the hash of a value costs beside its bytes.
const HASH: work::Units = 10 * work::STEP;

/// The hash of a value, as a hashed index stores it.
pub fn hash_value(value: RawBsonRef<'_>) -> i64 {
    let mut document = DocBuilder::new();
    document.append_raw("", value);
    let document = document.finish();
    let mut hasher = Md5::new();
    hasher.update(0i32.to_le_bytes());
    for element in RawElems::new(document.as_bytes()) {
        add(&mut hasher, &element, false);
    }
    let digest = hasher.finalize();
    i64::from_le_bytes(digest[..8].try_into().expect("eight bytes"))
}

fn add(hasher: &mut Md5, element: &RawElem<'_>, with_name: bool) {
    hasher.update(class(element.kind).to_le_bytes());
    if with_name {
        hasher.update(element.name);
        hasher.update([0]);
    }
    match element.kind {
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            let number = element.to_value().map_or(0, integer);
            hasher.update(number.to_le_bytes());
        }
        ElementType::EmbeddedDocument | ElementType::Array => add_all(hasher, element.value),
        ElementType::JavaScriptCodeWithScope => {
            let length = element
                .value
                .get(4..8)
                .and_then(|bytes| bytes.try_into().ok());
            let length = length.map_or(0, i32::from_le_bytes);
            let code = usize::try_from(length).unwrap_or(0) + 8;
            if let (Some(code), Some(scope)) =
                (element.value.get(8..code), element.value.get(code..))
            {
                hasher.update(code);
                add_all(hasher, scope);
            }
        }
        _ => hasher.update(element.value),
    }
}

fn add_all(hasher: &mut Md5, document: &[u8]) {
    for element in RawElems::new(document) {
        add(hasher, &element, true);
    }
    // The end of a document is hashed as an element of its own.
    hasher.update(0i32.to_le_bytes());
}

fn class(kind: ElementType) -> i32 {
    match kind {
        ElementType::MinKey => -1,
        ElementType::Undefined => 0,
        kind => i32::from(pinion_bson::canonical_type(kind)),
    }
}

/// A number as it is hashed: towards zero, NaN as zero. What is above the range is its greatest
/// integer, but for the least such double, which MongoDB takes for the smallest.
fn integer(value: RawBsonRef<'_>) -> i64 {
    const ABOVE: f64 = 9_223_372_036_854_775_808.0;
    match value {
        RawBsonRef::Double(value) if value == ABOVE => i64::MIN,
        value => pinion_bson::Number::from_value(value).map_or(0, |n| n.to_i64_saturating()),
    }
}

impl IndexSpec {
    /// The hash of a value in this index, the same for values that its collation says are equal.
    pub(crate) fn hash(&self, value: RawBsonRef<'_>) -> i64 {
        let collation = self.collation.as_deref();
        match collation.and_then(|collation| with_sort_keys(collation, value)) {
            Some(collated) => hash_value(collated.as_raw_bson_ref()),
            None => hash_value(value),
        }
    }
}

pub(super) fn keys<'a>(document: &'a RawDocument, index: &IndexSpec) -> Result<IndexKeys<'a>> {
    let Some((values, missing)) = single_key(document, index.paths()) else {
        return Err(error(
            16766,
            format!(
                "hashed indexes do not currently support array values. Index: {}",
                crate::text::document_text(&index.key)
            ),
        ));
    };
    if index.sparse && missing == values.len() {
        return Ok(IndexKeys::default());
    }
    let mut key: SmallVec<[RawBson; 4]> = SmallVec::with_capacity(values.len());
    for ((_, kind), value) in crate::value::elements(&index.key).zip(values) {
        if matches!(kind, RawBsonRef::String(_)) {
            work::spend(HASH)?;
            work::spend_bytes(crate::value::bytes(value))?;
            key.push(RawBson::Int64(index.hash(value)));
        } else {
            key.push(value.into());
        }
    }
    Ok(IndexKeys {
        keys: vec![IndexKey::Owned(key)],
        multikey: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::rawdoc;

    #[track_caller]
    fn check(value: RawBson, expected: i64) {
        assert_eq!(hash_value(value.as_raw_bson_ref()), expected, "{value:?}");
    }

    #[test]
    fn hashes_are_those_of_mongodb() {
        check(RawBson::Int32(1), 5_902_408_780_260_971_510);
        check(RawBson::Double(1.9), 5_902_408_780_260_971_510);
        check(RawBson::String("hello".into()), 5_347_277_839_332_858_538);
    }

    #[test]
    fn keys_of_documents() {
        let spec = |pattern: &RawDocument| IndexSpec::new("i", pattern).expect("a pattern");
        let compound = spec(&rawdoc! { "a": 1, "b": "hashed" });
        let document = rawdoc! { "a": "x", "b": 1i64 };
        let found = keys(&document, &compound).expect("keys");
        let expected: SmallVec<[RawBson; 4]> = SmallVec::from_vec(vec![
            RawBson::String("x".into()),
            RawBson::Int64(5_902_408_780_260_971_510),
        ]);
        assert_eq!(found.keys, [IndexKey::Owned(expected)]);
        let error = keys(&rawdoc! { "b": [1] }, &compound).expect_err("an array");
        assert_eq!(error.code.0, 16766);
    }
}
