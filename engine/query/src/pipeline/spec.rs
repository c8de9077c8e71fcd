//! The rules that hold for the fields of every stage's specification, with their errors.

use pinion_bson::{RawBsonRef, RawDocument};
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
    match value {
        RawBsonRef::String(text) => Ok(Some(text)),
        RawBsonRef::Null => Ok(None),
        other => Err(wrong_type(path, other, "string")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_bson::DocBuilder;

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
