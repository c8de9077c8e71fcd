//! Versions of the catalog that were replaced, for snapshots of their time.
//!
//! A snapshot sees the collections, their indexes and the views as they were at its timestamp.
//! Versions share what they have in common, so what is kept of one is little more than what it has
//! alone.

use std::collections::VecDeque;
use std::sync::Arc;

use pinion_clock::Timestamp;

use crate::catalog::Catalog;
use crate::limits::MAX_PAST_VERSIONS;

/// The versions before the present one, as far as snapshots may ask for them.
pub(crate) struct Past {
    /// When the present version began. The one that a node was opened with has no beginning.
    since: Timestamp,
    /// Each with its beginning, oldest first.
    versions: VecDeque<(Timestamp, Arc<Catalog>)>,
}

impl Past {
    pub(crate) fn new() -> Past {
        Past {
            since: Timestamp::MIN,
            versions: VecDeque::new(),
        }
    }

    /// `replaced` ends at `ts`, where the next version begins; no snapshot below `oldest` is opened
    /// any more.
    ///
    /// A version that begins with none, as one does that changes only what is not replicated, takes
    /// the place of the one before.
    pub(crate) fn add(&mut self, replaced: Arc<Catalog>, ts: Timestamp, oldest: Timestamp) {
        if ts > self.since {
            self.versions.push_back((self.since, replaced));
            self.since = ts;
        }
        while !self.versions.is_empty() && (self.end_of_oldest() <= oldest || self.is_too_long()) {
            self.versions.pop_front();
        }
    }

    /// The version of a snapshot at `ts` that is older than the present one.
    ///
    /// `Err` if it was given up.
    pub(crate) fn at(&self, ts: Timestamp) -> Result<Option<&Arc<Catalog>>, GivenUp> {
        if ts >= self.since {
            return Ok(None);
        }
        let after = self.versions.partition_point(|(since, _)| *since <= ts);
        match after.checked_sub(1) {
            Some(index) => Ok(Some(&self.versions[index].1)),
            None => Err(GivenUp),
        }
    }

    /// Snapshots at or above it do not see the oldest version.
    fn end_of_oldest(&self) -> Timestamp {
        self.versions.get(1).map_or(self.since, |(since, _)| *since)
    }

    fn is_too_long(&self) -> bool {
        self.versions.len() > MAX_PAST_VERSIONS
    }
}

/// The version of the catalog at a time is not kept any more.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GivenUp;

#[cfg(test)]
mod tests {
    use super::*;

    /// What a past of versions 0, 1, ... that ended at these times has at a time: the version's
    /// number, -1 for the present one, -2 where it was given up.
    fn check(ends: &[u64], oldest: u64, expected: &[(u64, i64)]) {
        let ts = Timestamp::from_u64;
        let mut past = Past::new();
        let mut catalog = Catalog::empty();
        for end in ends {
            past.add(Arc::new(catalog.clone()), ts(*end), ts(oldest));
            catalog.advance_version();
        }
        for (at, version) in expected {
            let found = match past.at(ts(*at)) {
                Ok(Some(found)) => found.version() as i64,
                Ok(None) => -1,
                Err(GivenUp) => -2,
            };
            assert_eq!(found, *version, "at {at}, with {ends:?}");
        }
    }

    #[test]
    fn a_snapshot_has_the_version_of_its_time() {
        check(&[], 0, &[(0, -1), (9, -1)]);
        check(&[10], 0, &[(0, 0), (9, 0), (10, -1), (11, -1)]);
        check(&[10, 20], 0, &[(9, 0), (10, 1), (19, 1), (20, -1)]);
        // What is not replicated begins no version of its own.
        check(&[10, 0, 20], 0, &[(9, 0), (10, 2), (19, 2), (20, -1)]);
    }

    #[test]
    fn what_no_snapshot_asks_for_is_given_up() {
        check(&[10, 20, 30], 20, &[(9, -2), (19, -2), (20, 2), (30, -1)]);
        check(&[10, 20, 30], 30, &[(29, -2), (30, -1)]);
        let many: Vec<u64> = (1..=MAX_PAST_VERSIONS as u64 + 1).collect();
        check(&many, 0, &[(0, -2), (1, 1)]);
    }
}
