//! Wire messages, the command registry, OpContext, error codes.

mod error;

pub use error::{Category, Error, ErrorCode, LabelContext, Result, labels, labels_for};
