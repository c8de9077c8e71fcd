//! Typed fields of the documents about access, and the errors of those of another type.

use pinion_bson::{RawArray, RawBsonRef, RawDocument, type_name};

use crate::access_error::{AccessError, AccessErrorCode};

/// A string, or the error that the field at `path` is none.
pub(crate) fn string<'d>(value: RawBsonRef<'d>, path: &str) -> Result<&'d str, AccessError> {
    match value {
        RawBsonRef::String(text) => Ok(text),
        other => Err(wrong_type(other, path, "string")),
    }
}

pub(crate) fn boolean(value: RawBsonRef<'_>, path: &str) -> Result<bool, AccessError> {
    match value {
        RawBsonRef::Boolean(value) => Ok(value),
        other => Err(wrong_type(other, path, "bool")),
    }
}

pub(crate) fn array<'d>(value: RawBsonRef<'d>, path: &str) -> Result<&'d RawArray, AccessError> {
    match value {
        RawBsonRef::Array(array) => Ok(array),
        other => Err(wrong_type(other, path, "array")),
    }
}

pub(crate) fn document<'d>(
    value: RawBsonRef<'d>,
    path: &str,
) -> Result<&'d RawDocument, AccessError> {
    match value {
        RawBsonRef::Document(document) => Ok(document),
        other => Err(wrong_type(other, path, "object")),
    }
}

fn wrong_type(value: RawBsonRef<'_>, path: &str, expected: &str) -> AccessError {
    let found = type_name(value.element_type());
    AccessError::new(
        AccessErrorCode::TypeMismatch,
        format!("BSON field '{path}' is the wrong type '{found}', expected type '{expected}'"),
    )
}

pub(crate) fn unknown(path: &str, name: &str) -> AccessError {
    AccessError::new(
        AccessErrorCode::IdlUnknownField,
        format!("BSON field '{path}.{name}' is an unknown field."),
    )
}

pub(crate) fn missing(path: &str, name: &str) -> AccessError {
    AccessError::new(
        AccessErrorCode::IdlFailedToParse,
        format!("BSON field '{path}.{name}' is missing but a required field"),
    )
}
