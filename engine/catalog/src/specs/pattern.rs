//! Key patterns: which fields, values and kinds an index may have.

use pinion_bson::{RawBsonRef, RawDocument, type_name};
use pinion_query::IndexKind;
use pinion_wire::{Error, ErrorCode, Result};

use super::cannot_create;
use crate::limits::{MAX_INDEX_FIELDS, MAX_KEY_PATTERN_BYTES};
use crate::text::render;

/// Checks a key pattern.
pub(super) fn check(pattern: &RawDocument) -> Result<()> {
    let mut seen: Vec<&str> = Vec::new();
    for (field, _) in pinion_bson::elements(pattern) {
        if seen.contains(&field) {
            return Err(Error::bad_value(format!(
                "The field '{field}' appears multiple times in the index key pattern {}",
                render(pattern)
            )));
        }
        seen.push(field);
        if seen.len() > MAX_INDEX_FIELDS {
            return Err(Error::new(ErrorCode(13103), "too many compound keys"));
        }
    }
    if pattern.as_bytes().len() > MAX_KEY_PATTERN_BYTES {
        return Err(cannot_create("Index key pattern too large."));
    }
    if seen.is_empty() {
        return Err(cannot_create("Index keys cannot be empty."));
    }
    let kind = IndexKind::of_pattern(pattern).map_err(unknown_kind)?;
    for (field, value) in pinion_bson::elements(pattern) {
        check_value(value, &kind)?;
        check_field(field, value, &kind)?;
    }
    match kind {
        IndexKind::Hashed => check_hashed(pattern),
        IndexKind::Wildcard => check_wildcard(pattern),
        _ => Ok(()),
    }
}

fn unknown_kind(name: &str) -> Error {
    match name {
        "wildcard" => Error::new(
            ErrorCode(7246202),
            "The index type 'wildcard' cannot be given as a string: the field's name is what makes a wildcard index",
        ),
        "geoHaystack" => {
            cannot_create("GeoHaystack indexes cannot be created in version 4.9 and above.")
        }
        name => cannot_create(format!("Unknown index plugin '{name}'")),
    }
}

fn check_value(value: RawBsonRef<'_>, kind: &IndexKind) -> Result<()> {
    let number = match value {
        RawBsonRef::String(name) if name == kind.name() => return Ok(()),
        RawBsonRef::String(_) => {
            return Err(cannot_create(
                "Can't use more than one index plugin for a single index.",
            ));
        }
        RawBsonRef::Int32(_)
        | RawBsonRef::Int64(_)
        | RawBsonRef::Double(_)
        | RawBsonRef::Decimal128(_) => pinion_wire::idl::f64_lossy(value).unwrap_or(f64::NAN),
        other => {
            return Err(cannot_create(format!(
                "Values in v:2 index key pattern cannot be of type {}. Only numbers > 0, numbers < 0, and strings are allowed.",
                type_name(other.element_type())
            )));
        }
    };
    if number.is_nan() {
        return Err(cannot_create(
            "Values in the index key pattern cannot be NaN.",
        ));
    }
    if number == 0.0 {
        return Err(cannot_create(
            "Values in the index key pattern cannot be 0.",
        ));
    }
    Ok(())
}

fn is_wildcard(field: &str) -> bool {
    field == "$**" || field.ends_with(".$**")
}

fn check_field(field: &str, value: RawBsonRef<'_>, kind: &IndexKind) -> Result<()> {
    if field.is_empty() {
        return Err(cannot_create("Index keys cannot be an empty field."));
    }
    // The whole document's texts.
    if field == "$**" && *kind == IndexKind::Text && matches!(value, RawBsonRef::String(_)) {
        return Ok(());
    }
    let wildcard = *kind == IndexKind::Wildcard && is_wildcard(field);
    let named = if wildcard {
        field.trim_end_matches("$**").trim_end_matches('.')
    } else {
        field
    };
    for (i, part) in named.split('.').enumerate() {
        if part.is_empty() {
            if wildcard && named.is_empty() {
                break;
            }
            return Err(cannot_create("Index keys cannot contain an empty field."));
        }
        // DBRef fields are the exception that MongoDB allows.
        if part.starts_with('$') && !(i > 0 && matches!(part, "$db" | "$id" | "$ref")) {
            return Err(cannot_create(
                "Index key contains an illegal field name: field name starts with '$'.",
            ));
        }
    }
    Ok(())
}

fn check_hashed(pattern: &RawDocument) -> Result<()> {
    let hashed = pinion_bson::elements(pattern)
        .filter(|(_, value)| matches!(value, RawBsonRef::String(_)))
        .count();
    if hashed > 1 {
        return Err(Error::new(
            ErrorCode(31303),
            format!(
                "A maximum of one index field is allowed to be hashed but found {hashed} for 'key' {}",
                render(pattern)
            ),
        ));
    }
    Ok(())
}

fn check_wildcard(pattern: &RawDocument) -> Result<()> {
    let wildcards = pinion_bson::elements(pattern)
        .filter(|(field, _)| is_wildcard(field))
        .count();
    if wildcards > 1 {
        return Err(cannot_create(
            "wildcard indexes must contain exactly one wildcard field.",
        ));
    }
    Ok(())
}
