//! The counts that are kept of each tree's records: in memory those at newest, and with each root
//! those of the base.
//!
//! Every write and every merge changes them by what it does; nothing counts again. Where they are
//! found to be wrong, those at newest are corrected by the difference, and the next checkpoint
//! counts what the leaves hold.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use super::core::Partition;
use crate::base::{Counts, Pace, TreeRoot};
use crate::types::{ReadAt, TreeId};

/// What is counted of a tree at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptCounts {
    pub counts: Counts,
    /// How many corrections the partition had seen by then.
    corrections: u64,
}

impl Partition {
    /// The counts that are kept of a tree's records, unless a unit that changes the tree is being
    /// decided, or prepared. They are then of what a read sees at the last timestamp that this node
    /// has allotted.
    pub fn settled_counts(&self, tree: TreeId) -> Option<KeptCounts> {
        let state = self.state.borrow();
        let is_settled = !state.intents.concern(tree, ReadAt::Newest);
        is_settled.then(|| KeptCounts {
            counts: state.counts.get(&tree).copied().unwrap_or_default(),
            corrections: state.corrections,
        })
    }

    /// Corrects the counts of a tree, of which there was `found` when `kept` was taken; what was
    /// written since is counted with it. False if others corrected counts meanwhile: then `kept`
    /// does not show what is wrong any more.
    pub(crate) fn correct_counts(&self, tree: TreeId, kept: KeptCounts, found: Counts) -> bool {
        assert!(tree != TreeId::MASTER && tree != TreeId::SPILLED);
        let state = &mut *self.state.borrow_mut();
        if state.corrections != kept.corrections {
            return false;
        }
        state.corrections += 1;
        let counts = state.counts.entry(tree).or_default();
        counts.correct(kept.counts, found);
        state.miscounted.insert(tree);
        true
    }

    /// The roots of miscounted trees with the counts of what their leaves hold. One that cannot be
    /// read keeps its counts until the next checkpoint.
    pub(super) async fn recounted(
        &self,
        miscounted: &BTreeSet<TreeId>,
        trees: &FxHashMap<TreeId, TreeRoot>,
        pace: &dyn Pace,
    ) -> Vec<(TreeId, TreeRoot)> {
        let mut recounted = Vec::new();
        for tree in miscounted {
            let Some(root) = trees.get(tree) else {
                continue;
            };
            match self.store.count_records(*tree, root, pace).await {
                Ok(counts) => recounted.push((*tree, TreeRoot { counts, ..*root })),
                Err(error) => {
                    tracing::warn!(target: "STORAGE", id = 7_300_061u64, tree = tree.0, %error, "The records of a tree could not be counted for its root; the next checkpoint tries it again");
                    self.state.borrow_mut().miscounted.insert(*tree);
                }
            }
        }
        recounted
    }
}
