//! Writes to time series: measurements into their buckets, and changes of those that buckets hold.

mod buckets;
mod change;
mod insert;
mod open;

pub(crate) use insert::insert_measurements;
pub(crate) use open::OpenBuckets;

pub(super) use change::run;
