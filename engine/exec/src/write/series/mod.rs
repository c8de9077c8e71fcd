//! Writes to time series: measurements into their buckets, and changes of those that buckets hold.

mod buckets;
mod change;
mod counts;
mod insert;
mod open;

pub use change::series_targets;
pub use counts::{AllSeriesCounts, SeriesCounts, series_counts};
pub use insert::insert_measurements;
pub use open::{OpenBuckets, open_buckets};

pub use change::run;
