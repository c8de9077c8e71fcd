//! Options of indexes: their types and values, and which go together.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use pinion_query::IndexKind;
use pinion_wire::idl::{f64_lossy, is_number, truthy};
use pinion_wire::{Error, ErrorCode, Result};

use super::series::ORIGINAL;
use super::{FIELDS_OF_KINDS, cannot_create, filter, flag, key_of, kind_of, part, wrong_type};
use crate::limits::MAX_TTL_SECS;
use crate::options::check_storage_engine;
use crate::text::{render, render_value};

/// Checks one option and appends it as it is stored.
pub(super) fn keep(
    spec: &RawDocument,
    field: &str,
    value: RawBsonRef<'_>,
    out: &mut DocBuilder,
) -> Result<()> {
    match field {
        // Accepted for old drivers: no property of an index.
        "ns" | "_id" => {}
        "dropDups" => {
            read_bool(field, value)?;
        }
        "background" | "sparse" => {
            read_bool(field, value)?;
            out.append_raw(field, value);
        }
        "prepareUnique" => {
            let is_set = read_bool(field, value)?;
            if is_set {
                out.append(field, true);
            }
        }
        "bucketSize" => {
            if f64_lossy(value).is_none() {
                return Err(wrong_type(field, "a number", value));
            }
            out.append_raw(field, value);
        }
        "hidden" => match value {
            RawBsonRef::Boolean(false) => {}
            RawBsonRef::Boolean(true) => {
                out.append(field, true);
            }
            other => return Err(wrong_type(field, "a bool", other)),
        },
        "collation" => {
            out.append(field, &*collation(value)?);
        }
        "partialFilterExpression" => match value {
            RawBsonRef::Document(expression) => {
                filter::check(expression)?;
                out.append(field, expression);
            }
            other => return Err(wrong_type(field, "an object", other)),
        },
        "wildcardProjection" => {
            out.append(field, checked_projection(spec, value)?);
        }
        "expireAfterSeconds" => {
            check_expire_after(value)?;
            out.append_raw(field, value);
        }
        "storageEngine" => {
            out.append("storageEngine", checked_engine(value)?);
        }
        "clustered" => {
            let is_set = read_bool(field, value)?;
            if is_set {
                return Err(Error::new(
                    ErrorCode::INVALID_OPTIONS,
                    "'clustered' is an option of the index that a collection is created with",
                ));
            }
        }
        "default_language" | "language_override" => match value {
            RawBsonRef::String(_) => {
                out.append_raw(field, value);
            }
            other => return Err(wrong_type(field, "a string", other)),
        },
        "weights" => match value {
            RawBsonRef::Document(_) | RawBsonRef::Array(_) | RawBsonRef::String(_) => {
                out.append_raw(field, value);
            }
            other => return Err(wrong_type(field, "an object", other)),
        },
        _ if FIELDS_OF_KINDS.iter().any(|(name, _)| *name == field) => {
            if f64_lossy(value).is_none() {
                return Err(wrong_type(field, "a number", value));
            }
            out.append_raw(field, value);
        }
        // Unknown ones that the client wants passed over.
        _ => {}
    }
    Ok(())
}

/// An option that is a boolean or a number.
pub(super) fn read_bool(field: &str, value: RawBsonRef<'_>) -> Result<bool> {
    match value {
        RawBsonRef::Boolean(_) => Ok(truthy(value)),
        _ if is_number(value) => Ok(truthy(value)),
        other => Err(Error::type_mismatch(format!(
            "The field '{field}' has value {field}: {}, which is not convertible to bool",
            render_value(other)
        ))),
    }
}

/// Whether a collation is the one by bytes, which is none.
pub(super) fn is_simple_collation(value: RawBsonRef<'_>) -> bool {
    matches!(value, RawBsonRef::Document(d) if d.get_str("locale").is_ok_and(|locale| locale == "simple"))
}

/// A collation as it is stored: with all its settings. The simple one keeps its name until it is
/// known whether it stands in for another one that the collection has.
fn collation(value: RawBsonRef<'_>) -> Result<RawDocumentBuf> {
    match value {
        RawBsonRef::Document(collation) if collation.is_empty() => Err(Error::bad_value(
            "The field 'collation' cannot be an empty object.",
        )),
        RawBsonRef::Document(spec) => Ok(match pinion_query::parse_collation(spec)? {
            Some(collation) => collation.document(),
            None => rawdoc! { "locale": "simple" },
        }),
        other => Err(wrong_type("collation", "an object", other)),
    }
}

fn checked_projection<'a>(spec: &RawDocument, value: RawBsonRef<'a>) -> Result<&'a RawDocument> {
    let key = part(spec, "key").and_then(|key| key.as_document());
    let is_wildcard = key.is_some_and(|key| IndexKind::of_pattern(key) == Ok(IndexKind::Wildcard));
    if !is_wildcard {
        return Err(Error::bad_value(
            "The field 'wildcardProjection' is only allowed in an 'wildcard' index",
        ));
    }
    let RawBsonRef::Document(projection) = value else {
        return Err(wrong_type(
            "wildcardProjection",
            "a non-empty object",
            value,
        ));
    };
    if key.is_none_or(|key| part(key, "$**").is_none()) {
        return Err(Error::failed_to_parse(
            "The field 'wildcardProjection' is only allowed when 'key' is {\"$**\": ±1}",
        ));
    }
    if projection.is_empty() {
        return Err(Error::failed_to_parse(
            "The 'wildcardProjection' field can't be an empty object",
        ));
    }
    pinion_query::check_wildcard_projection(projection)
        .map_err(|error| error.context("Failed to parse: wildcardProjection"))?;
    Ok(projection)
}

/// Refuses what is no number of seconds after which documents can expire.
fn check_expire_after(value: RawBsonRef<'_>) -> Result<()> {
    let Some(seconds) = f64_lossy(value) else {
        return Err(cannot_create(format!(
            "TTL index 'expireAfterSeconds' option must be numeric, but received a type of '{}'",
            pinion_bson::type_name(value.element_type())
        )));
    };
    if seconds.is_nan() {
        return Err(cannot_create(
            "TTL index 'expireAfterSeconds' option must not be NaN",
        ));
    }
    if seconds.trunc() < 0.0 {
        return Err(cannot_create(
            "TTL index 'expireAfterSeconds' option cannot be less than 0",
        ));
    }
    if seconds > f64::from(MAX_TTL_SECS) {
        return Err(cannot_create(
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number",
        ));
    }
    Ok(())
}

/// Settings for another engine.
fn checked_engine(value: RawBsonRef<'_>) -> Result<&RawDocument> {
    match value {
        RawBsonRef::Document(engines) if engines.is_empty() => Err(cannot_create(
            "Empty \"storageEngine\" options are invalid. Please remove the field or include valid options.",
        )),
        RawBsonRef::Document(engines) => check_storage_engine(engines).map(|()| engines),
        other => Err(wrong_type("storageEngine", "an object", other)),
    }
}

pub(super) fn check_version(spec: &RawDocument, value: RawBsonRef<'_>) -> Result<i32> {
    let version = match value {
        RawBsonRef::Int32(n) => n as f64,
        RawBsonRef::Int64(n) => n as f64,
        RawBsonRef::Double(n) => n,
        RawBsonRef::Decimal128(_) => f64_lossy(value).unwrap_or(f64::NAN),
        other => return Err(wrong_type("v", "a number", other)),
    };
    if version.fract() != 0.0 || !(f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&version) {
        return Err(Error::bad_value(format!(
            "Index version must be representable as a 32-bit integer, but got {}",
            render_value(value)
        )));
    }
    match version as i32 {
        version @ (1 | 2) => Ok(version),
        other => Err(cannot_create(format!(
            "Invalid index specification {}; cannot create an index with v={other}",
            render(spec)
        ))),
    }
}

/// Checks how the options of an index go together with its kind and with one another.
pub(super) fn check_combination(listed: &RawDocument) -> Result<()> {
    let key = key_of(listed);
    let kind = kind_of(key);
    for (field, of_kind) in &FIELDS_OF_KINDS {
        if part(listed, field).is_some() && *of_kind != kind {
            return Err(cannot_create(format!(
                "The field '{field}' is only allowed for an index of type '{}': {}",
                of_kind.name(),
                render(listed)
            )));
        }
    }
    if part(listed, "collation").is_some() && part(listed, "v").and_then(f64_lossy) == Some(1.0) {
        return Err(cannot_create(format!(
            "Invalid index specification {}; cannot create an index with the 'collation' option and v=1",
            render(listed)
        )));
    }
    let expires = part(listed, "expireAfterSeconds").is_some();
    if kind == IndexKind::Wildcard {
        let refuse = |what: &str| Err(cannot_create(format!("Index type 'wildcard' {what}")));
        if flag(listed, "sparse") {
            return refuse("does not support the sparse option");
        }
        if flag(listed, "unique") || flag(listed, "prepareUnique") {
            return refuse("does not support the unique option");
        }
        if expires {
            return refuse("cannot be a TTL index");
        }
        pinion_query::check_wildcard_overlap(key, part(listed, "wildcardProjection"))?;
    }
    if kind == IndexKind::Hashed && (flag(listed, "unique") || flag(listed, "prepareUnique")) {
        return Err(Error::new(
            ErrorCode(16764),
            "Currently hashed indexes cannot guarantee uniqueness. Use a regular index.",
        ));
    }
    // That on the time of a series has a field for each end of the buckets.
    let is_of_buckets = part(listed, ORIGINAL).is_some();
    if expires && pinion_bson::field_count(key) != 1 && !is_of_buckets {
        return Err(cannot_create(format!(
            "TTL indexes are single-field indexes, compound indexes do not support TTL. Index spec: {}",
            render(listed)
        )));
    }
    if part(listed, "partialFilterExpression").is_some() && flag(listed, "sparse") {
        return Err(cannot_create(
            "cannot mix \"partialFilterExpression\" and \"sparse\" options",
        ));
    }
    if flag(listed, "unique") && flag(listed, "prepareUnique") {
        return Err(cannot_create(
            "cannot mix \"unique\" and \"prepareUnique\" options",
        ));
    }
    Ok(())
}
