//! The codes with which errors of the crates below are answered.

use pinion_auth::AccessError;
use pinion_bson::{Fault, InvalidBson};
use pinion_clock::{AdvanceError, VerifyError};

use super::{Error, ErrorCode};

impl From<InvalidBson> for Error {
    fn from(invalid: InvalidBson) -> Error {
        let code = match invalid.fault {
            Fault::TooLarge => ErrorCode::BSON_OBJECT_TOO_LARGE,
            Fault::TooDeep => ErrorCode::OVERFLOW,
            _ => ErrorCode::INVALID_BSON,
        };
        Error::new(code, invalid.to_string())
    }
}

impl From<AccessError> for Error {
    fn from(error: AccessError) -> Error {
        Error::new(ErrorCode(error.code.number()), error.message)
    }
}

impl From<AdvanceError> for Error {
    fn from(error: AdvanceError) -> Error {
        let code = match error {
            AdvanceError::TooFarAhead { .. } => ErrorCode::CLUSTER_TIME_FAILS_RATE_LIMITER,
            AdvanceError::BeyondMaximum { .. } => ErrorCode(40482),
            AdvanceError::OutOfOrder { .. } => ErrorCode::BAD_VALUE,
        };
        Error::new(code, error.to_string())
    }
}

impl From<VerifyError> for Error {
    fn from(error: VerifyError) -> Error {
        let code = match error {
            VerifyError::UnknownKey(_) => ErrorCode::KEY_NOT_FOUND,
            VerifyError::Mismatch => ErrorCode::TIME_PROOF_MISMATCH,
        };
        Error::new(code, error.to_string())
    }
}
