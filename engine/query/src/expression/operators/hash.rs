//! Hashes of values: `$toHashedIndexKey`, `$hash` and `$hexHash`.

use md5::{Digest, Md5};
use pinion_bson::{Binary, BinarySubtype, RawBson, RawBsonRef};
use pinion_wire::Result;
use sha2::Sha256;
use xxhash_rust::xxh64::xxh64;

use super::{Arity, Operator, Value};
use crate::error::{bad_value, type_mismatch};
use crate::index::hash_value;
use crate::text::value_text;

pub(super) const OPERATORS: &[Operator] = &[Operator {
    name: "$toHashedIndexKey",
    arity: Arity::Exactly(1),
    // What a hashed index stores, for which a missing value is null.
    evaluate: |values| {
        let hash = hash_value(values[0].or_null());
        Ok(Value::Ref(RawBsonRef::Int64(hash)))
    },
}];

pub(super) fn hash<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let hashed = hashed("$hash", values)?;
    Ok(hashed.map_or(Value::null(), |bytes| {
        let subtype = BinarySubtype::Generic;
        Value::owned(RawBson::Binary(Binary { subtype, bytes }))
    }))
}

pub(super) fn hex_hash<'a>(values: &[Value<'a>]) -> Result<Value<'a>> {
    let hashed = hashed("$hexHash", values)?;
    Ok(hashed.map_or(Value::null(), |bytes| {
        let digits = bytes.iter().map(|byte| format!("{byte:02X}"));
        Value::string(digits.collect::<String>())
    }))
}

/// The hash of an input by an algorithm; `None` where the input is null.
fn hashed(name: &str, values: &[Value<'_>]) -> Result<Option<Vec<u8>>> {
    let [input, algorithm] = values else {
        return Ok(None);
    };
    let Some(RawBsonRef::String(algorithm)) = algorithm.as_ref() else {
        return Err(type_mismatch(format!(
            "{name} requires 'algorithm' to be a string, found: {}",
            algorithm.type_name()
        )));
    };
    let hash: fn(&[u8]) -> Vec<u8> = match algorithm {
        "md5" => |bytes| Md5::digest(bytes).to_vec(),
        "sha256" => |bytes| Sha256::digest(bytes).to_vec(),
        "xxh64" => |bytes| xxh64(bytes, 0).to_be_bytes().to_vec(),
        other => {
            return Err(bad_value(format!(
                "{name} knows the algorithms 'md5', 'sha256' and 'xxh64', found: '{other}'"
            )));
        }
    };
    match input.as_ref() {
        Some(RawBsonRef::String(text)) => Ok(Some(hash(text.as_bytes()))),
        Some(RawBsonRef::Binary(data)) => Ok(Some(hash(data.bytes))),
        _ if input.is_nullish() => Ok(None),
        _ => Err(type_mismatch(format!(
            "{name} requires 'input' to be a string or binary data, found: {}",
            value_text(input.or_null())
        ))),
    }
}
