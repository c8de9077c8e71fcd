//! The names of time series and of the collections that have their buckets.

use pinion_wire::Result;
use pinion_wire::idl::Namespace;

/// What the names of all collections of buckets begin with.
pub const BUCKETS_PREFIX: &str = "system.buckets.";

/// The collection in which the series of this name has its buckets.
///
/// # Errors
/// When the name becomes too long.
pub fn buckets_of(series: &Namespace) -> Result<Namespace> {
    let name = format!("{BUCKETS_PREFIX}{}", series.collection());
    Namespace::new(series.db(), &name)
}

/// The series whose buckets a collection of this name has.
pub fn series_of(buckets: &Namespace) -> Option<Namespace> {
    let name = buckets.collection().strip_prefix(BUCKETS_PREFIX)?;
    Namespace::new(buckets.db(), name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(ns: &str, expected: Option<&str>) {
        let buckets = Namespace::parse(ns).unwrap();
        let found = series_of(&buckets);
        assert_eq!(found.as_ref().map(Namespace::as_str), expected);
        if let Some(series) = found {
            assert_eq!(buckets_of(&series).unwrap(), buckets);
        }
    }

    #[test]
    fn names_of_series() {
        check("d.system.buckets.c", Some("d.c"));
        check("d.system.buckets.a.b", Some("d.a.b"));
        check("d.system.bucketsc", None);
        check("d.c", None);
    }
}
