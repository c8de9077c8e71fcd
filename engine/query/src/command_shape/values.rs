//! Types in the place of values, and expressions with their paths and operators.

use std::borrow::Cow;

use pinion_bson::{DocBuilder, ElementType, RawArray, RawBsonRef};
use pinion_wire::Result;

use crate::value::{count, elements, first, items};
use crate::work;

/// Fields of expressions that say in which order documents are taken: their values are no values to
/// be compared with.
const ORDERS: [&str; 2] = ["sortBy", "sort"];

/// The type of a value.
fn kind(value: RawBsonRef<'_>) -> &'static str {
    match value.element_type() {
        ElementType::Double | ElementType::Int32 | ElementType::Int64 | ElementType::Decimal128 => {
            "?number"
        }
        ElementType::String => "?string",
        ElementType::EmbeddedDocument => "?object",
        ElementType::Array => "?array<>",
        ElementType::Binary => "?binData",
        ElementType::Undefined => "?undefined",
        ElementType::ObjectId => "?objectId",
        ElementType::Boolean => "?bool",
        ElementType::DateTime => "?date",
        ElementType::Null => "?null",
        ElementType::RegularExpression => "?regex",
        ElementType::DbPointer => "?dbPointer",
        ElementType::JavaScriptCode => "?javascript",
        ElementType::Symbol => "?symbol",
        ElementType::JavaScriptCodeWithScope => "?javascriptWithScope",
        ElementType::Timestamp => "?timestamp",
        ElementType::MinKey => "?minKey",
        ElementType::MaxKey => "?maxKey",
    }
}

/// The type of an array: that of its items, if they have one in common.
fn kind_of_items(array: &RawArray) -> Cow<'static, str> {
    let mut kinds = items(array).map(kind);
    match kinds.next() {
        Some(one) if kinds.all(|other| other == one) => Cow::Owned(format!("?array<{one}>")),
        _ => Cow::Borrowed("?array<>"),
    }
}

/// Appends the type of a value.
pub(super) fn append_kind(out: &mut DocBuilder, name: &str, value: RawBsonRef<'_>) -> Result<()> {
    work::spend_bytes(name.len() + crate::value::bytes(value))?;
    match value {
        RawBsonRef::Array(array) => out.append(name, &*kind_of_items(array)),
        value => out.append(name, kind(value)),
    };
    Ok(())
}

/// Whether a value in an expression reads anything.
fn is_constant(value: RawBsonRef<'_>) -> bool {
    match value {
        RawBsonRef::String(text) => !text.starts_with('$'),
        RawBsonRef::Document(_) | RawBsonRef::Array(_) => false,
        _ => true,
    }
}

/// Appends an expression: paths and operators stay, constants become their types.
pub(super) fn expression(out: &mut DocBuilder, name: &str, value: RawBsonRef<'_>) -> Result<()> {
    work::spend_bytes(name.len() + 8)?;
    match value {
        RawBsonRef::String(path) if path.starts_with('$') => {
            out.append(name, path);
        }
        RawBsonRef::Document(document) => match first(document) {
            Some(("$literal" | "$const", literal)) if count(document) == 1 => {
                append_kind(out, name, literal)?;
            }
            _ if ORDERS.contains(&name) => {
                out.append(name, document);
            }
            _ => {
                out.start_document(name);
                for (field, value) in elements(document) {
                    expression(out, field, value)?;
                }
                out.end();
            }
        },
        RawBsonRef::Array(array) if !items(array).all(is_constant) => {
            out.start_array(name);
            for (position, item) in items(array).enumerate() {
                expression(out, &position.to_string(), item)?;
            }
            out.end();
        }
        constant => append_kind(out, name, constant)?,
    }
    Ok(())
}
