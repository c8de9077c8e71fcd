//! `hint`: the index that a client wants to be used.

use pinion_bson::RawBsonRef;
use pinion_catalog::{TimeSeries, series_index_key};
use pinion_query::Hint;
use pinion_wire::Result;

/// Reads the value of a `hint` field; an empty document is no hint.
pub(crate) fn parse_hint(value: Option<RawBsonRef<'_>>) -> Result<Option<Hint>> {
    value.map_or(Ok(None), Hint::parse)
}

/// The hint at an index of a series as that at the index of its buckets.
pub(crate) fn of_buckets(hint: Option<Hint>, series: Option<&TimeSeries>) -> Option<Hint> {
    match (hint, series) {
        // A key that buckets cannot have is that of no index, and the planner says so.
        (Some(Hint::Pattern(key)), Some(series)) => {
            Some(Hint::Pattern(series_index_key(series, &key).unwrap_or(key)))
        }
        (hint, _) => hint,
    }
}
