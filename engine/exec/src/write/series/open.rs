//! Which buckets a core has put measurements into lately: where the next ones may go.
//!
//! These are hints. What a bucket holds is read from storage each time, and written on the
//! condition that it was not changed meanwhile, so a hint that is wrong, or that is not there after
//! a restart, costs a look and nothing more.

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::ObjectId;
use pinion_catalog::Uuid;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::limits::{MAX_OPEN_BUCKET_SOURCES, OPEN_BUCKETS_OF_SOURCE};

/// A bucket that may take more measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OpenBucket {
    pub id: ObjectId,
    pub start_ms: i64,
}

/// A source of measurements: the collection of buckets, and the meta value as bytes.
type Source = (Uuid, Vec<u8>);

/// The open buckets of each source, the newest last.
type Sources = FxHashMap<Source, SmallVec<[OpenBucket; OPEN_BUCKETS_OF_SOURCE]>>;

/// The open buckets that a core knows. Of two generations of sources the older is forgotten when
/// the newer is full.
#[derive(Default, Debug)]
pub struct OpenBuckets {
    newer: Sources,
    older: Sources,
}

/// The buckets that this core fills.
pub fn open_buckets() -> Rc<RefCell<OpenBuckets>> {
    pinion_runtime::core_local()
}

impl OpenBuckets {
    /// The bucket of a source that spans a time.
    pub(super) fn find(
        &mut self,
        source: &Source,
        time_ms: i64,
        span_ms: i64,
    ) -> Option<OpenBucket> {
        if let Some(known) = self.older.remove(source) {
            self.put(source.clone(), known);
        }
        let spans = |bucket: &&OpenBucket| {
            let since = time_ms.checked_sub(bucket.start_ms);
            since.is_some_and(|since| (0..span_ms).contains(&since))
        };
        let known = self.newer.get(source)?;
        known.iter().rev().find(spans).copied()
    }

    /// Keeps a bucket in mind.
    pub(super) fn add(&mut self, source: &Source, bucket: OpenBucket) {
        let mut known = match self.older.remove(source) {
            Some(known) => known,
            None => self.newer.remove(source).unwrap_or_default(),
        };
        known.retain(|other| other.id != bucket.id);
        if known.len() == OPEN_BUCKETS_OF_SOURCE {
            known.remove(0);
        }
        known.push(bucket);
        self.put(source.clone(), known);
    }

    /// Forgets a bucket that takes no more.
    pub(super) fn forget(&mut self, source: &Source, id: ObjectId) {
        for sources in [&mut self.newer, &mut self.older] {
            if let Some(known) = sources.get_mut(source) {
                known.retain(|bucket| bucket.id != id);
                if known.is_empty() {
                    sources.remove(source);
                }
            }
        }
    }

    fn put(&mut self, source: Source, known: SmallVec<[OpenBucket; OPEN_BUCKETS_OF_SOURCE]>) {
        if self.newer.len() >= MAX_OPEN_BUCKET_SOURCES / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(source, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(n: u32) -> Source {
        (Uuid([0; 16]), n.to_le_bytes().to_vec())
    }

    fn bucket(n: u8, start_ms: i64) -> OpenBucket {
        OpenBucket {
            id: ObjectId::from_bytes([n; 12]),
            start_ms,
        }
    }

    #[test]
    fn the_newest_that_spans_a_time_is_found() {
        let mut open = OpenBuckets::default();
        let mut check = |time_ms, expected: Option<OpenBucket>| {
            for (n, start_ms) in [(1, 0), (2, 1000), (3, 500)] {
                open.add(&source(1), bucket(n, start_ms));
            }
            assert_eq!(open.find(&source(1), time_ms, 1000), expected, "{time_ms}");
        };
        check(-1, None);
        check(0, Some(bucket(1, 0)));
        check(700, Some(bucket(3, 500)));
        check(1499, Some(bucket(3, 500)));
        check(1500, Some(bucket(2, 1000)));
        check(2000, None);
        open.forget(&source(1), bucket(3, 0).id);
        assert_eq!(open.find(&source(1), 700, 1000), Some(bucket(1, 0)));
    }

    #[test]
    fn a_core_keeps_a_bounded_number_of_sources() {
        let mut open = OpenBuckets::default();
        for n in 0..3 * MAX_OPEN_BUCKET_SOURCES as u32 {
            open.add(&source(n), bucket(1, 0));
            // One that is used is kept.
            assert!(open.find(&source(0), 5, 1000).is_some());
        }
        assert!(open.newer.len() + open.older.len() <= MAX_OPEN_BUCKET_SOURCES);
    }
}
