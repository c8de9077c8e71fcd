//! The error a command answers with: code, message, labels and further fields of the reply.

mod category;
mod codes;
mod convert;
mod label;

use std::fmt;

use pinion_bson::RawDocumentBuf;

pub use category::Category;
pub use codes::ErrorCode;
pub use label::{LabelContext, labels, labels_for};

/// What a command that failed answers.
#[derive(Clone, Debug)]
pub struct Error {
    pub code: ErrorCode,
    /// `errmsg` of the reply.
    pub message: String,
    /// `errorLabels` of the reply, beside those that follow from the code.
    pub labels: Vec<&'static str>,
    /// Fields merged into the reply: `keyPattern`, `keyValue`, `errInfo`, ...
    pub extra: Option<Box<RawDocumentBuf>>,
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Error {
        Error {
            code,
            message: message.into(),
            labels: Vec::new(),
            extra: None,
        }
    }

    /// Adds fields to the reply.
    #[must_use]
    pub fn with_extra(mut self, extra: RawDocumentBuf) -> Error {
        self.extra = Some(Box::new(extra));
        self
    }

    /// Adds a label of `labels` to the reply.
    #[must_use]
    pub fn with_label(mut self, label: &'static str) -> Error {
        if !self.labels.contains(&label) {
            self.labels.push(label);
        }
        self
    }

    /// Puts `context` before the message as MongoDB does: "context :: caused by :: message".
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Error {
        self.message = format!("{context} :: caused by :: {}", self.message);
        self
    }

    /// The name clients see in `codeName`.
    pub fn code_name(&self) -> std::borrow::Cow<'static, str> {
        self.code.name()
    }

    /// True if the code belongs to any of these categories.
    pub fn is(&self, category: Category) -> bool {
        self.code.is(category)
    }

    pub fn bad_value(message: impl Into<String>) -> Error {
        Error::new(ErrorCode::BAD_VALUE, message)
    }

    pub fn failed_to_parse(message: impl Into<String>) -> Error {
        Error::new(ErrorCode::FAILED_TO_PARSE, message)
    }

    pub fn type_mismatch(message: impl Into<String>) -> Error {
        Error::new(ErrorCode::TYPE_MISMATCH, message)
    }

    /// A broken expectation inside the node, answered instead of hidden.
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(ErrorCode::INTERNAL_ERROR, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: i32, name: &str) {
        assert_eq!(ErrorCode(code).name(), name);
    }

    #[test]
    fn names() {
        check(0, "OK");
        check(1, "InternalError");
        check(2, "BadValue");
        check(26, "NamespaceNotFound");
        check(59, "CommandNotFound");
        check(112, "WriteConflict");
        check(11000, "DuplicateKey");
        check(13435, "NotPrimaryNoSecondaryOk");
        check(40415, "IDLUnknownField");
        check(51024, "Location51024");
        check(-1, "Location-1");
        assert_eq!(ErrorCode::MAX_TIME_MS_EXPIRED, ErrorCode(50));
        assert_eq!(ErrorCode::INVALID_BSON.known_name(), Some("InvalidBSON"));
        assert_eq!(ErrorCode(51024).known_name(), None);
        for (code, name) in ErrorCode::all() {
            assert_eq!(ErrorCode::from_name(name), Some(code));
        }
    }

    #[test]
    fn categories() {
        assert!(ErrorCode::INTERRUPTED_AT_SHUTDOWN.is(Category::SHUTDOWN));
        assert!(ErrorCode::INTERRUPTED_AT_SHUTDOWN.is(Category::RETRIABLE.and(Category::SNAPSHOT)));
        assert!(ErrorCode::CURSOR_NOT_FOUND.is(Category::CURSOR_INVALIDATED));
        assert!(!ErrorCode::BAD_VALUE.is(Category::RETRIABLE));
        assert!(!ErrorCode(51024).is(Category::RETRIABLE));
    }

    #[test]
    fn messages() {
        let error = Error::bad_value("x")
            .context("while parsing")
            .with_label(labels::RETRYABLE_WRITE);
        assert_eq!(
            error.to_string(),
            "BadValue: while parsing :: caused by :: x"
        );
        assert_eq!(error.labels, ["RetryableWriteError"]);
        assert_eq!(
            Error::new(ErrorCode(51024), "y").to_string(),
            "Location51024: y"
        );
    }
}
