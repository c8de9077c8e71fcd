//! Short constructors for the errors that the query language answers.

use pinion_wire::{Error, ErrorCode};

/// An error with a number of MongoDB's table or a location.
pub(crate) fn error(code: i32, message: impl Into<String>) -> Error {
    Error::new(ErrorCode(code), message)
}

/// BadValue (2).
pub(crate) fn bad_value(message: impl Into<String>) -> Error {
    error(2, message)
}

/// FailedToParse (9).
pub(crate) fn failed_to_parse(message: impl Into<String>) -> Error {
    error(9, message)
}

/// TypeMismatch (14).
pub(crate) fn type_mismatch(message: impl Into<String>) -> Error {
    error(14, message)
}

/// What MongoDB answers with its JavaScript engine switched off.
pub(crate) fn no_javascript(name: &str) -> Error {
    error(
        31264,
        format!(
            "Cannot run server-side javascript without the javascript engine enabled: {name} is not supported"
        ),
    )
}
