//! What became of the measurements of one series, as `collStats` reports it.

use std::cell::RefCell;
use std::ops::AddAssign;
use std::rc::Rc;

use pinion_bson::DocBuilder;
use pinion_storage::TreeId;

use crate::tree_uses::TreeUses;

/// Counts of one series on one core, or their sums.
#[derive(Clone, Copy, Debug, Default)]
pub struct SeriesCounts {
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

/// The counts of one core by the tree of a series' buckets.
#[derive(Debug, Default)]
pub struct AllSeriesCounts(RefCell<TreeUses<SeriesCounts>>);

fn all_series_counts() -> Rc<AllSeriesCounts> {
    pinion_runtime::core_local()
}

/// Counts what became of measurements of a series. `exist` gives the trees that there are.
pub(super) fn record_series<I>(tree: TreeId, counts: SeriesCounts, exist: impl FnOnce() -> I)
where
    I: IntoIterator<Item = TreeId>,
{
    all_series_counts().0.borrow_mut().add(tree, counts, exist);
}

/// What became of the measurements of a series on all cores.
pub async fn series_counts(tree: TreeId) -> SeriesCounts {
    let of_core = move |_| async move { all_series_counts().0.borrow().of(tree) };
    let mut sum = SeriesCounts::default();
    for counts in pinion_runtime::on_all_cores(of_core).await {
        sum += counts;
    }
    sum
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
