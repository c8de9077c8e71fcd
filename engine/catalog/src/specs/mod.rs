//! Index specifications: checked, brought into their stored form, and compared with the indexes
//! that are there.

mod existing;
mod filter;
mod geo;
mod id;
mod listing;
mod options;
mod pattern;
mod series;
mod text_index;

#[cfg(test)]
mod tests;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, type_name};
use pinion_query::IndexKind;
use pinion_wire::idl::truthy;
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::MAX_INDEX_NAME_BYTES;
use crate::text::render;

pub(crate) use existing::{Missing, Wanted, missing, select};
pub use id::check_id_index_spec;
pub use listing::listing_of;
use series::ORIGINAL;
pub(crate) use series::{bucket_key, to_buckets};
pub use series::{series_index_key, to_series};

/// Fields of a specification beside those that only some kinds of indexes have.
const COMMON_FIELDS: [&str; 20] = [
    "_id",
    "background",
    "bucketSize",
    "clustered",
    "collation",
    "default_language",
    "dropDups",
    "expireAfterSeconds",
    "hidden",
    "key",
    "language_override",
    "name",
    "ns",
    "partialFilterExpression",
    "prepareUnique",
    "sparse",
    "storageEngine",
    "unique",
    "v",
    "wildcardProjection",
];

/// Fields that only indexes of these kinds have.
const FIELDS_OF_KINDS: [(&str, IndexKind); 8] = [
    ("2dsphereIndexVersion", IndexKind::TwoDSphere),
    ("finestIndexedLevel", IndexKind::TwoDSphere),
    ("coarsestIndexedLevel", IndexKind::TwoDSphere),
    ("bits", IndexKind::TwoD),
    ("min", IndexKind::TwoD),
    ("max", IndexKind::TwoD),
    ("textIndexVersion", IndexKind::Text),
    ("weights", IndexKind::Text),
];

/// Checks one specification of `createIndexes` and brings it into the stored form
/// `{v, unique, key, name, ...}`, in which most options keep the values that were given.
/// `ignore_unknown` drops fields that no index has; options that this node lacks are refused all
/// the same.
///
/// # Errors
/// As MongoDB answers, with the specification in the message.
pub fn parse_index_spec(spec: &RawDocument, ignore_unknown: bool) -> Result<RawDocumentBuf> {
    parse(spec, ignore_unknown)
        .map_err(|error| {
            if error.code == ErrorCode::NOT_IMPLEMENTED {
                error
            } else {
                error.context(format!("Error in specification {}", render(spec)))
            }
        })
        .and_then(|listed| id::check_id_rules(spec, listed))
}

/// Checks a stored specification as one that is asked for.
///
/// # Errors
/// As [`parse_index_spec`].
pub fn check_stored_spec(stored: &RawDocument) -> Result<()> {
    let mut asked = DocBuilder::new();
    // No client gives it: the index of a series keeps what was asked for under this name.
    for (field, value) in pinion_bson::elements(stored).filter(|(field, _)| *field != ORIGINAL) {
        asked.append_raw(field, value);
    }
    parse_index_spec(&asked.finish(), false).map(|_| ())
}

/// Checks what MongoDB looks at once all specifications have been read: names, and how options go
/// together.
///
/// # Errors
/// `CannotCreateIndex` mostly.
pub fn check_index_specs(listed: &[RawDocumentBuf]) -> Result<()> {
    for spec in listed {
        check_name(name_of(spec))?;
        options::check_combination(spec)?;
    }
    Ok(())
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(cannot_create("index name cannot be empty"));
    }
    if name.len() > MAX_INDEX_NAME_BYTES * 8 || name.contains('\0') {
        return Err(cannot_create(
            "index name is too long or has a null character",
        ));
    }
    Ok(())
}

fn cannot_create(message: impl Into<String>) -> Error {
    Error::new(ErrorCode::CANNOT_CREATE_INDEX, message)
}

fn wrong_type(name: &str, expected: &str, value: RawBsonRef<'_>) -> Error {
    Error::type_mismatch(format!(
        "The field '{name}' must be {expected}, but got {}",
        type_name(value.element_type())
    ))
}

fn part<'a>(listed: &'a RawDocument, field: &str) -> Option<RawBsonRef<'a>> {
    listed.get(field).ok().flatten()
}

fn flag(listed: &RawDocument, field: &str) -> bool {
    part(listed, field).is_some_and(truthy)
}

fn name_of(listed: &RawDocument) -> &str {
    listed
        .get_str("name")
        .expect("a checked specification has a name")
}

fn key_of(listed: &RawDocument) -> &RawDocument {
    listed
        .get_document("key")
        .expect("a checked specification has a key")
}

/// The kind of a pattern that has been checked.
fn kind_of(key: &RawDocument) -> IndexKind {
    IndexKind::of_pattern(key).expect("a checked pattern has a kind")
}

/// The names of all fields are examined before the value of any.
fn check_field_names(spec: &RawDocument) -> Result<()> {
    for (field, _) in pinion_bson::elements(spec) {
        let of_kinds = FIELDS_OF_KINDS.iter().any(|(name, _)| *name == field);
        if !of_kinds && !COMMON_FIELDS.contains(&field) {
            return Err(Error::new(
                ErrorCode::INVALID_INDEX_SPECIFICATION_OPTION,
                format!(
                    "The field '{field}' is not valid for an index specification. Specification: {}",
                    render(spec)
                ),
            ));
        }
    }
    Ok(())
}

fn parse(spec: &RawDocument, ignore_unknown: bool) -> Result<RawDocumentBuf> {
    if !ignore_unknown {
        check_field_names(spec)?;
    }
    let (mut key, mut name, mut version) = (None, None, 2);
    let mut unique = false;
    let mut kept = DocBuilder::new();
    for (field, value) in pinion_bson::elements(spec) {
        match field {
            "key" => match value {
                RawBsonRef::Document(found) => {
                    pattern::check(found)?;
                    key = Some(found);
                }
                other => return Err(wrong_type("key", "an object", other)),
            },
            "name" => match value {
                RawBsonRef::String(text) => name = Some(text),
                other => return Err(wrong_type("name", "a string", other)),
            },
            "v" => version = options::check_version(spec, value)?,
            "unique" => unique = options::read_bool(field, value)?,
            _ => options::keep(spec, field, value, &mut kept)?,
        }
    }
    let missing = |field: &str| {
        Error::failed_to_parse(format!(
            "The '{field}' field is a required property of an index specification"
        ))
    };
    let key = key.ok_or_else(|| missing("key"))?;
    let name = name.ok_or_else(|| missing("name"))?;
    let mut listed = DocBuilder::new();
    listed.append("v", version);
    if unique {
        listed.append("unique", true);
    }
    listed
        .append("key", key)
        .append("name", name)
        .append_all(&kept.finish());
    Ok(listed.finish())
}

/// The specification of an index that is to be built: in the form in which its kind stores it.
fn normal_form(listed: &RawDocument) -> Result<RawDocumentBuf> {
    match kind_of(key_of(listed)) {
        IndexKind::Text => text_index::normal_form(listed),
        IndexKind::TwoDSphere => geo::normal_sphere(listed),
        IndexKind::TwoD => geo::check_plane(listed).map(|()| listed.to_owned()),
        IndexKind::Btree | IndexKind::Hashed | IndexKind::Wildcard => Ok(listed.to_owned()),
    }
}
