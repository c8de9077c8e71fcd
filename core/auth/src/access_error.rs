//! Why a user, role, privilege or restriction is refused, in MongoDB's codes and words.

use std::fmt;

macro_rules! codes {
    ($($variant:ident $number:literal $name:literal)*) => {
        /// MongoDB's code of an error about access.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum AccessErrorCode {
            $($variant),*
        }

        impl AccessErrorCode {
            /// The number in the field `code` of a reply.
            pub const fn number(self) -> i32 {
                match self {
                    $(AccessErrorCode::$variant => $number),*
                }
            }

            /// The text in the field `codeName` of a reply.
            pub const fn name(self) -> &'static str {
                match self {
                    $(AccessErrorCode::$variant => $name),*
                }
            }
        }
    };
}

codes! {
    BadValue 2 "BadValue"
    NoSuchKey 4 "NoSuchKey"
    FailedToParse 9 "FailedToParse"
    UserNotFound 11 "UserNotFound"
    UnsupportedFormat 12 "UnsupportedFormat"
    TypeMismatch 14 "TypeMismatch"
    RoleNotFound 31 "RoleNotFound"
    InvalidRoleModification 49 "InvalidRoleModification"
    CollectionIsEmpty 162 "CollectionIsEmpty"
    IdlFailedToParse 40414 "IDLFailedToParse"
    IdlUnknownField 40415 "IDLUnknownField"
}

/// An error of a request or of a stored document about access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessError {
    pub code: AccessErrorCode,
    pub message: String,
}

impl AccessError {
    pub(crate) fn new(code: AccessErrorCode, message: impl Into<String>) -> AccessError {
        let message = message.into();
        AccessError { code, message }
    }

    pub(crate) fn bad_value(message: impl Into<String>) -> AccessError {
        AccessError::new(AccessErrorCode::BadValue, message)
    }
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.message)
    }
}

impl std::error::Error for AccessError {}
