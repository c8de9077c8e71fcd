//! The keywords `encrypt` and `encryptMetadata`, which a client with encryption acts on: the server
//! checks that the value is an encrypted one.

use pinion_bson::{BinarySubtype, RawBsonRef, RawDocument};
use pinion_wire::Result;

use super::parse::Keywords;
use super::parse_type::parse_bson_type;
use super::rules::{Rule, Test};
use crate::error::{bad_value, error, failed_to_parse, type_mismatch};
use crate::matcher::TypeSet;
use crate::value::{elements, is_empty, items, type_name};

const ALGORITHMS: [&str; 2] = [
    "AEAD_AES_256_CBC_HMAC_SHA_512-Deterministic",
    "AEAD_AES_256_CBC_HMAC_SHA_512-Random",
];

fn object<'a>(keyword: &str, operand: RawBsonRef<'a>) -> Result<&'a RawDocument> {
    match operand {
        RawBsonRef::Document(object) => Ok(object),
        other => Err(type_mismatch(format!(
            "$jsonSchema keyword '{keyword}' must be an object, but found an element of type {}",
            type_name(other)
        ))),
    }
}

pub(super) fn check_encrypt_metadata(keywords: &Keywords<'_>) -> Result<()> {
    let Some(operand) = keywords.get("encryptMetadata") else {
        return Ok(());
    };
    if keywords.get("encrypt").is_some() {
        return Err(failed_to_parse(
            "Cannot specify both $jsonSchema keywords 'encrypt' and 'encryptMetadata'",
        ));
    }
    let metadata = object("encryptMetadata", operand)?;
    if is_empty(metadata) {
        return Err(failed_to_parse(
            "$jsonSchema keyword 'encryptMetadata' cannot be an empty object",
        ));
    }
    for (name, value) in elements(metadata) {
        check_field("encryptMetadata", name, value)?;
    }
    Ok(())
}

pub(super) fn parse_encrypt(keywords: &Keywords<'_>) -> Result<Option<Rule>> {
    let Some(operand) = keywords.get("encrypt") else {
        return Ok(None);
    };
    let mut types: Option<TypeSet> = None;
    for (name, value) in elements(object("encrypt", operand)?) {
        match name {
            "bsonType" => types = Some(parse_bson_type(name, value)?),
            name => check_field("encrypt", name, value)?,
        }
    }
    Ok(Some(Rule {
        keyword: "encrypt",
        specified: Default::default(),
        test: Test::Encrypted(types),
    }))
}

/// The fields that both keywords have.
fn check_field(keyword: &str, name: &str, value: RawBsonRef<'_>) -> Result<()> {
    let wrong_type = |expected: &str| {
        Err(type_mismatch(format!(
            "BSON field '{keyword}.{name}' is the wrong type '{}', expected type{expected}",
            type_name(value)
        )))
    };
    match (name, value) {
        ("algorithm", RawBsonRef::String(algorithm)) => {
            if ALGORITHMS.contains(&algorithm) {
                return Ok(());
            }
            Err(bad_value(format!(
                "Enumeration value '{algorithm}' for field '{keyword}.algorithm' is not a valid value."
            )))
        }
        ("algorithm", _) => wrong_type(" 'string'"),
        // A text is a pointer to the field that names the key.
        ("keyId", RawBsonRef::String(pointer)) => match pointer.starts_with('/') {
            true => Ok(()),
            false => Err(error(
                51065,
                "A valid JSON pointer must begin with '/' or be an empty string",
            )),
        },
        ("keyId", RawBsonRef::Array(keys)) => {
            let is_key = |key: RawBsonRef<'_>| {
                matches!(key, RawBsonRef::Binary(data)
                    if data.subtype == BinarySubtype::Uuid && data.bytes.len() == 16)
            };
            match items(keys).find(|key| !is_key(*key)) {
                None => Ok(()),
                Some(RawBsonRef::Binary(_)) => Err(error(51084, "keyId elements must be UUIDs")),
                Some(other) => Err(error(
                    51088,
                    format!(
                        "Array elements must have type BinData, found {}",
                        type_name(other)
                    ),
                )),
            }
        }
        ("keyId", _) => wrong_type("s '[string, array]'"),
        _ => Err(error(
            40415,
            format!("BSON field '{keyword}.{name}' is an unknown field."),
        )),
    }
}
