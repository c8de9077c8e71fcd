//! `hint`: the index that a client wants to be used.

use pinion_bson::RawBsonRef;
use pinion_query::Hint;
use pinion_wire::Result;

/// Reads the value of a `hint` field; an empty document is no hint.
pub(crate) fn parse_hint(value: Option<RawBsonRef<'_>>) -> Result<Option<Hint>> {
    value.map_or(Ok(None), Hint::parse)
}
