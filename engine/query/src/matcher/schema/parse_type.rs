//! The keywords `type` and `bsonType`.

use pinion_bson::{ElementType, RawBsonRef};
use pinion_wire::Result;

use crate::error::{bad_value, failed_to_parse, type_mismatch};
use crate::matcher::TypeSet;
use crate::value::items;

/// The types of the standard, but for `number`, which is several of BSON's, and `integer`, which
/// MongoDB refuses.
const JSON_TYPES: [(&str, ElementType); 5] = [
    ("array", ElementType::Array),
    ("boolean", ElementType::Boolean),
    ("null", ElementType::Null),
    ("object", ElementType::EmbeddedDocument),
    ("string", ElementType::String),
];

/// The operand of `type`.
pub(super) fn parse_json_type(keyword: &str, value: RawBsonRef<'_>) -> Result<TypeSet> {
    parse_names(keyword, value, |alias| {
        let found = JSON_TYPES.iter().find(|(name, _)| *name == alias);
        found.map(|(_, kind)| *kind)
    })
}

/// The operand of `bsonType`.
pub(super) fn parse_bson_type(keyword: &str, value: RawBsonRef<'_>) -> Result<TypeSet> {
    parse_names(keyword, value, pinion_bson::type_from_alias)
}

fn parse_names(
    keyword: &str,
    value: RawBsonRef<'_>,
    find: impl Fn(&str) -> Option<ElementType>,
) -> Result<TypeSet> {
    let names = match value {
        RawBsonRef::String(name) => vec![name],
        RawBsonRef::Array(array) => {
            let mut names = Vec::new();
            for item in items(array) {
                let RawBsonRef::String(name) = item else {
                    return Err(type_mismatch(format!(
                        "$jsonSchema keyword '{keyword}' array elements must be strings"
                    )));
                };
                check_supported(name)?;
                if names.contains(&name) {
                    return Err(failed_to_parse(format!(
                        "$jsonSchema keyword '{keyword}' has duplicate value: {name}"
                    )));
                }
                names.push(name);
                // There are fewer types: one of these is unknown, and is reported below.
                if names.len() > MOST_NAMES {
                    break;
                }
            }
            names
        }
        _ => {
            return Err(type_mismatch(format!(
                "$jsonSchema keyword '{keyword}' must be either a string or an array of strings"
            )));
        }
    };
    let mut set = TypeSet::default();
    for name in names {
        check_supported(name)?;
        match (name, find(name)) {
            ("number", _) => set.all_numbers = true,
            ("missing", _) => {
                return Err(bad_value(
                    "'missing' is not a legal type name. To query for non-existence of a field, use {$exists:false}.",
                ));
            }
            (_, Some(kind)) => set.types.push(kind),
            (_, None) => return Err(bad_value(format!("Unknown type name alias: {name}"))),
        }
    }
    if set == TypeSet::default() {
        return Err(failed_to_parse(format!(
            "$jsonSchema keyword '{keyword}' must name at least one type"
        )));
    }
    Ok(set)
}

/// More than there are types.
const MOST_NAMES: usize = 32;

fn check_supported(name: &str) -> Result<()> {
    if name == "integer" {
        return Err(failed_to_parse(
            "$jsonSchema type 'integer' is not currently supported.",
        ));
    }
    Ok(())
}
