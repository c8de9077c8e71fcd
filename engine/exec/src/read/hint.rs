//! Hints at indexes of a time series.

use pinion_catalog::series_index_key;
use pinion_query::{Hint, TimeSeries};

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
