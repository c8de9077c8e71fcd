//! How often the operations of one core used each index and scanned each collection, for
//! `$indexStats` and `$collStats`.

use std::cell::RefCell;
use std::ops::AddAssign;
use std::rc::Rc;

use pinion_service::metrics::metrics;
use pinion_storage::TreeId;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::limits::MIN_USED_INDEXES;

/// What is counted of trees, most simply how often they were used.
#[derive(Debug, Default)]
pub(crate) struct TreeUses<T = u64> {
    counts: FxHashMap<TreeId, T>,
    forget_at: usize,
}

impl<T: Copy + Default + AddAssign> TreeUses<T> {
    /// Adds to the counts of a tree. Now and then it forgets the trees that `exist` does not give,
    /// so it knows at most twice as many as there are.
    pub(crate) fn add<I>(&mut self, tree: TreeId, more: T, exist: impl FnOnce() -> I)
    where
        I: IntoIterator<Item = TreeId>,
    {
        if let Some(count) = self.counts.get_mut(&tree) {
            *count += more;
            return;
        }
        if self.counts.len() >= self.forget_at.max(MIN_USED_INDEXES) {
            let exist: FxHashSet<TreeId> = exist().into_iter().collect();
            self.counts.retain(|tree, _| exist.contains(tree));
            self.forget_at = 2 * self.counts.len();
        }
        self.counts.insert(tree, more);
    }

    pub(crate) fn of(&self, tree: TreeId) -> T {
        self.counts.get(&tree).copied().unwrap_or_default()
    }
}

impl TreeUses {
    /// Counts one use.
    fn record<I>(&mut self, tree: TreeId, exist: impl FnOnce() -> I)
    where
        I: IntoIterator<Item = TreeId>,
    {
        self.add(tree, 1, exist);
    }
}

/// The uses of trees that one core counts.
#[derive(Debug, Default)]
pub struct TreeMetrics {
    indexes: RefCell<TreeUses>,
    /// Scans of collections.
    scans: RefCell<TreeUses>,
    /// Those of them that continue with what is still to come.
    tailing: RefCell<TreeUses>,
}

/// This core's.
pub(crate) fn tree_metrics() -> Rc<TreeMetrics> {
    pinion_runtime::core_local()
}

impl TreeMetrics {
    /// Counts one operation that used an index, or a collection's tree as the index on `_id`.
    /// `exist` gives the trees that there are.
    pub(crate) fn record_index<I>(&self, tree: TreeId, exist: impl FnOnce() -> I)
    where
        I: IntoIterator<Item = TreeId>,
    {
        self.indexes.borrow_mut().record(tree, exist);
    }

    /// How often each of these was used.
    pub(crate) fn of_indexes(&self, trees: &[TreeId]) -> Vec<u64> {
        let uses = self.indexes.borrow();
        trees.iter().map(|tree| uses.of(*tree)).collect()
    }

    /// Counts one scan of a collection, which is named by its tree. `exist` gives the trees that
    /// there are.
    pub(crate) fn record_scan<I>(&self, tree: TreeId, exist: impl FnOnce() -> I)
    where
        I: IntoIterator<Item = TreeId>,
    {
        metrics().counters.collection_scans.inc();
        self.scans.borrow_mut().record(tree, exist);
    }

    /// Counts one scan that continues with what is still to come.
    pub(crate) fn record_tailing<I>(&self, tree: TreeId, exist: impl Fn() -> I)
    where
        I: IntoIterator<Item = TreeId>,
    {
        self.record_scan(tree, &exist);
        metrics().counters.tailing_scans.inc();
        self.tailing.borrow_mut().record(tree, exist);
    }

    /// How often a collection was scanned, and how many of the scans continue with what is still to
    /// come.
    pub(crate) fn scans(&self, tree: TreeId) -> (u64, u64) {
        let tailing = self.tailing.borrow().of(tree);
        (self.scans.borrow().of(tree), tailing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_that_are_gone_make_room() {
        let uses = TreeMetrics::default();
        for number in 0..3 * MIN_USED_INDEXES as u64 {
            uses.record_index(TreeId(number), || [TreeId(7)]);
            uses.record_index(TreeId(7), || [TreeId(7)]);
        }
        let last = TreeId(3 * MIN_USED_INDEXES as u64 - 1);
        assert_eq!(uses.of_indexes(&[last]), [1]);
        assert!(uses.of_indexes(&[TreeId(7)])[0] > 2 * MIN_USED_INDEXES as u64);
        assert!(uses.indexes.borrow().counts.len() <= MIN_USED_INDEXES);
    }
}
