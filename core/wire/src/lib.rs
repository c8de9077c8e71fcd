//! Wire messages, the command registry, OpContext, error codes.

mod error;
pub mod idl;
pub mod limits;

pub use error::{Category, Error, ErrorCode, LabelContext, Result, labels, labels_for};
