//! What the index on `_id` may have in its specification.

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf, values_equal};
use pinion_query::parse_collation;
use pinion_wire::{Error, ErrorCode, Result};

use super::{check_field_names, check_name, key_of, name_of, parse, part};
use crate::entry::Collection;
use crate::text::render;

/// Fields that the specification of an index on `_id` may have.
const ID_INDEX_FIELDS: [&str; 5] = ["v", "key", "name", "ns", "collation"];

/// Checks the `idIndex` of a collection to be made, which has this default collation. An option
/// that no such index has is refused as that, also one that this node has for no index at all.
///
/// # Errors
/// As MongoDB answers.
pub fn check_id_index_spec(spec: &RawDocument, collation: Option<&RawDocument>) -> Result<()> {
    check_field_names(spec)?;
    let mut read_here = DocBuilder::new();
    for (field, value) in pinion_bson::elements(spec) {
        if matches!(field, "key" | "name" | "v" | "unique" | "sparse") {
            read_here.append_raw(field, value);
        }
    }
    parse(&read_here.finish(), false)?;
    for (field, _) in pinion_bson::elements(spec) {
        if !ID_INDEX_FIELDS.contains(&field) {
            return Err(not_for_id_index(field, spec));
        }
    }
    match part(spec, "name") {
        Some(RawBsonRef::String("*")) => {
            return Err(Error::bad_value("The index name '*' is not valid."));
        }
        Some(RawBsonRef::String(name)) => check_name(name)?,
        _ => {}
    }
    match part(spec, "key") {
        Some(RawBsonRef::Document(key)) => check_ascending_id(key)?,
        other => unreachable!("{other:?} has been read as a key"),
    }
    let given = match part(spec, "collation") {
        Some(RawBsonRef::Document(given)) => parse_collation(given)?,
        Some(other) => return Err(super::wrong_type("collation", "an object", other)),
        None => return Ok(()),
    };
    let given = given.map(|collation| collation.document());
    if given.as_deref().map(RawDocument::as_bytes) != collation.map(RawDocument::as_bytes) {
        return Err(Error::bad_value(
            "'idIndex' must have the same collation as the collection.",
        ));
    }
    Ok(())
}

fn not_for_id_index(field: &str, spec: &RawDocument) -> Error {
    Error::new(
        ErrorCode::INVALID_INDEX_SPECIFICATION_OPTION,
        format!(
            "The field '{field}' is not valid for an _id index specification. Specification: {}",
            render(spec)
        ),
    )
}

fn check_ascending_id(key: &RawDocument) -> Result<()> {
    if pinion_bson::compare_documents(key, &pinion_bson::rawdoc! { "_id": 1 })
        != std::cmp::Ordering::Equal
    {
        return Err(Error::bad_value(format!(
            "The field 'key' for an _id index must be {{_id: 1}}, but got {}",
            render(key)
        )));
    }
    Ok(())
}

/// Whether a pattern is that of an index on `_id` alone, in either direction.
pub(super) fn is_id_pattern(key: &RawDocument) -> bool {
    let mut elements = pinion_bson::elements(key);
    let first = elements.next();
    elements.next().is_none()
        && matches!(first, Some(("_id", value)) if [1, -1].iter().any(|n| values_equal(value, RawBsonRef::Int32(*n))))
}

/// The specification of the index on `_id`, with the collation that was asked for.
fn id_index(listed: &RawDocument) -> RawDocumentBuf {
    let mut out = DocBuilder::new();
    out.append_all(&pinion_bson::rawdoc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" });
    if let Some(collation) = part(listed, "collation") {
        out.append_raw("collation", collation);
    }
    out.finish()
}

/// Checks the collation that was asked for of the index on `_id` of this collection.
pub(super) fn check_id_collation(collection: &Collection, listed: &RawDocument) -> Result<()> {
    let Some(RawBsonRef::Document(wanted)) = part(listed, "collation") else {
        return Ok(());
    };
    let simple = pinion_bson::rawdoc! { "locale": "simple" };
    let present = collection.options.collation.as_deref();
    let present = present.unwrap_or(&simple);
    if wanted.as_bytes() == present.as_bytes() {
        return Ok(());
    }
    Err(Error::bad_value(format!(
        "The _id index must have the same collation as the collection. Index collation: {}, collection collation: {}",
        render(wanted),
        render(present)
    )))
}

/// `spec` is what the client gave, in which an option counts even where it is false.
pub(super) fn check_id_rules(spec: &RawDocument, listed: RawDocumentBuf) -> Result<RawDocumentBuf> {
    let (key, name) = (key_of(&listed), name_of(&listed));
    if name == "*" {
        return Err(Error::bad_value("The index name '*' is not valid."));
    }
    if is_id_pattern(key) {
        for (field, _) in pinion_bson::elements(spec) {
            if !ID_INDEX_FIELDS.contains(&field) {
                return Err(not_for_id_index(field, spec));
            }
        }
        check_ascending_id(key)?;
        return Ok(id_index(&listed));
    }
    if name == "_id_" {
        return Err(Error::bad_value(format!(
            "The index name '_id_' is reserved for the _id index, which must have key pattern {{_id: 1}}, found key: {}",
            render(key)
        )));
    }
    Ok(listed)
}
