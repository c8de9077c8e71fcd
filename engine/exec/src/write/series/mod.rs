//! Writes to time series: measurements into their buckets, and changes of those that buckets hold.

mod buckets;
mod change;
mod counts;
mod insert;
mod open;

pub(crate) use change::series_targets;
pub(crate) use counts::{AllSeriesCounts, SeriesCounts, series_counts};
pub(crate) use insert::insert_measurements;
pub(crate) use open::{OpenBuckets, open_buckets};

pub(super) use change::run;
