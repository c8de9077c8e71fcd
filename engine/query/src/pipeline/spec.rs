//! The rules that hold for the fields of every stage's specification, with their errors.

use pinion_bson::{RawArray, RawBsonRef, RawDocument};
use pinion_wire::{Error, Result};
use rustc_hash::FxHashSet;

use crate::error::{error, type_mismatch};
use crate::value::{elements, type_name};

pub(super) fn unknown_field(path: &str) -> Error {
    error(40415, format!("BSON field '{path}' is an unknown field."))
}

pub(super) fn missing_field(path: &str) -> Error {
    error(
        40414,
        format!("BSON field '{path}' is missing but a required field"),
    )
}

pub(super) fn wrong_type(path: &str, value: RawBsonRef<'_>, expected: &str) -> Error {
    type_mismatch(format!(
        "BSON field '{path}' is the wrong type '{}', expected type '{expected}'",
        type_name(value)
    ))
}

/// Refuses a specification, which stands at this path, that has a field twice.
pub(super) fn check_duplicates(path: &str, spec: &RawDocument) -> Result<()> {
    let mut seen = FxHashSet::default();
    for (name, _) in elements(spec) {
        crate::work::spend(1)?;
        if !seen.insert(name) {
            return Err(error(
                40413,
                format!("BSON field '{path}.{name}' is a duplicate field"),
            ));
        }
    }
    Ok(())
}

/// A text; null is as good as none.
pub(super) fn optional_text<'d>(path: &str, value: RawBsonRef<'d>) -> Result<Option<&'d str>> {
    optional(path, value, "string", |value| match value {
        RawBsonRef::String(text) => Some(text),
        _ => None,
    })
}

/// A document; null is as good as none.
pub(super) fn optional_document<'d>(
    path: &str,
    value: RawBsonRef<'d>,
) -> Result<Option<&'d RawDocument>> {
    optional(path, value, "object", |value| match value {
        RawBsonRef::Document(document) => Some(document),
        _ => None,
    })
}

/// An array; null is as good as none.
pub(super) fn optional_array<'d>(
    path: &str,
    value: RawBsonRef<'d>,
) -> Result<Option<&'d RawArray>> {
    optional(path, value, "array", |value| match value {
        RawBsonRef::Array(array) => Some(array),
        _ => None,
    })
}

fn optional<'d, T>(
    path: &str,
    value: RawBsonRef<'d>,
    expected: &str,
    convert: impl FnOnce(RawBsonRef<'d>) -> Option<T>,
) -> Result<Option<T>> {
    match value {
        RawBsonRef::Null | RawBsonRef::Undefined => Ok(None),
        value => match convert(value) {
            Some(converted) => Ok(Some(converted)),
            None => Err(wrong_type(path, value, expected)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::DocBuilder;

    #[test]
    fn null_is_as_good_as_none() {
        for value in [RawBsonRef::Null, RawBsonRef::Undefined] {
            assert!(optional_text("$stage.a", value).unwrap().is_none());
            assert!(optional_document("$stage.a", value).unwrap().is_none());
            assert!(optional_array("$stage.a", value).unwrap().is_none());
        }
        let refused = optional_array("$stage.a", RawBsonRef::String("x")).unwrap_err();
        assert_eq!(
            (refused.code.0, &*refused.message),
            (
                14,
                "BSON field '$stage.a' is the wrong type 'string', expected type 'array'"
            )
        );
        assert!(optional_text("$stage.a", RawBsonRef::Int32(1)).is_err());
        assert!(optional_document("$stage.a", RawBsonRef::Boolean(false)).is_err());
    }

    #[test]
    fn a_field_stands_once() {
        let check = |names: &[&str], code: Option<i32>| {
            let mut spec = DocBuilder::new();
            for name in names {
                spec.append(name, 1);
            }
            let found = check_duplicates("$stage", &spec.finish());
            assert_eq!(found.err().map(|e| e.code.0), code, "{names:?}");
        };
        check(&[], None);
        check(&["a", "A", "b"], None);
        check(&["a", "b", "a"], Some(40413));
    }
}
