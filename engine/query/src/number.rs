//! Numbers of filters and updates as integers.

use pinion_bson::Number;
use pinion_bson::RawBsonRef;

/// The number as a 64-bit integer where it is one exactly.
pub(crate) fn exact_i64(value: RawBsonRef<'_>) -> Option<i64> {
    Number::from_value(value)?.to_i64_exact()
}

/// The number as a 64-bit integer with its fraction cut off; `None` for NaN, infinities and what
/// does not fit.
pub(crate) fn truncated_i64(value: RawBsonRef<'_>) -> Option<i64> {
    Number::from_value(value)?.to_i64_truncated()
}
