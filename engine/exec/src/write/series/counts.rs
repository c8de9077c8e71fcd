//! What became of the measurements of one series, as `collStats` tells it.

use std::ops::AddAssign;

use pinion_bson::DocBuilder;

/// Counts of one series on one core, or their sums.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeriesCounts {
    pub bucket_inserts: u64,
    pub bucket_updates: u64,
    /// Buckets opened since no bucket of the source spanned the time.
    pub opened_for_source: u64,
    pub closed_by_count: u64,
    pub closed_by_size: u64,
    /// Buckets found by a query and gone on with.
    pub reopened: u64,
    /// Measurements in buckets that were written.
    pub measurements: u64,
}

impl AddAssign for SeriesCounts {
    fn add_assign(&mut self, other: SeriesCounts) {
        self.bucket_inserts += other.bucket_inserts;
        self.bucket_updates += other.bucket_updates;
        self.opened_for_source += other.opened_for_source;
        self.closed_by_count += other.closed_by_count;
        self.closed_by_size += other.closed_by_size;
        self.reopened += other.reopened;
        self.measurements += other.measurements;
    }
}

impl SeriesCounts {
    pub(crate) fn append(&self, out: &mut DocBuilder) {
        let commits = self.bucket_inserts + self.bucket_updates;
        for (name, count) in [
            ("numBucketInserts", self.bucket_inserts),
            ("numBucketUpdates", self.bucket_updates),
            ("numBucketsOpenedDueToMetadata", self.opened_for_source),
            ("numBucketsClosedDueToCount", self.closed_by_count),
            ("numBucketsClosedDueToSize", self.closed_by_size),
            ("numBucketsReopened", self.reopened),
            ("numCommits", commits),
            ("numMeasurementsCommitted", self.measurements),
        ] {
            out.append(name, count as i64);
        }
        if let Some(average) = self.measurements.checked_div(commits) {
            out.append("avgNumMeasurementsPerCommit", average as i64);
        }
    }
}
