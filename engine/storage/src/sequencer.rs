//! The sequencer: one atomic word that allots every timestamp of the node.

use std::sync::Arc;

use pinion_clock::{Timestamp, VectorClock};

use crate::words::{AtomicU64, Ordering};

/// A range of consecutive timestamps and the one allotted right before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allotted {
    /// The last timestamp allotted before this range, to whichever core: the link of the chain.
    pub(crate) predecessor: Timestamp,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
}

impl Allotted {
    /// The `index`th timestamp of the range and its predecessor.
    pub(crate) fn nth(&self, index: u64) -> (Timestamp, Timestamp) {
        let ts = self.first.as_u64() + index;
        assert!(
            ts <= self.last.as_u64(),
            "index {index} is outside the allotted range"
        );
        let predecessor = if index == 0 {
            self.predecessor
        } else {
            Timestamp::from_u64(ts - 1)
        };
        (Timestamp::from_u64(ts), predecessor)
    }
}

/// Allots timestamps. Shared by all cores of a node.
pub(crate) struct Sequencer {
    last: AtomicU64,
    /// The node's: new timestamps lie above what it has heard of.
    clock: Arc<VectorClock>,
}

impl Sequencer {
    /// A sequencer that continues after `last`.
    pub(crate) fn new(last: Timestamp, clock: Arc<VectorClock>) -> Sequencer {
        Sequencer {
            last: AtomicU64::new(last.as_u64()),
            clock,
        }
    }

    /// The last timestamp allotted.
    pub(crate) fn last(&self) -> Timestamp {
        Timestamp::from_u64(self.last.load(Ordering::SeqCst))
    }

    /// The node's clock.
    pub(crate) fn clock(&self) -> &Arc<VectorClock> {
        &self.clock
    }

    /// The highest time that was allotted or heard of.
    pub(crate) fn cluster_time(&self) -> Timestamp {
        self.clock.heard().max(self.last())
    }

    /// Continues after `last`. Only while nothing else allots: after recovery has found the last
    /// valid entry, and for entries that another node has allotted. Their floors must be stored
    /// before, as `CoreMarks` does.
    pub(crate) fn advance_to(&self, last: Timestamp) {
        self.last.fetch_max(last.as_u64(), Ordering::SeqCst);
    }

    /// Allots `count` consecutive timestamps: the first is the largest of last + 1, cluster time +
    /// 1 and `wall_secs` << 32 | 1.
    ///
    /// The caller must have stored its lower bounds into the watermarks before (see `CoreMarks`).
    pub(crate) fn allot(&self, count: u64, wall_secs: u32) -> Allotted {
        assert!(count > 0, "an empty range has no timestamps");
        let wall = (u64::from(wall_secs) << 32) | 1;
        let mut last = self.last.load(Ordering::SeqCst);
        loop {
            let cluster = self.clock.heard().as_u64();
            let first = (last + 1).max(cluster + 1).max(wall);
            let end = first
                .checked_add(count - 1)
                .expect("the clock has no room left");
            match self
                .last
                .compare_exchange(last, end, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => {
                    return Allotted {
                        predecessor: Timestamp::from_u64(last),
                        first: Timestamp::from_u64(first),
                        last: Timestamp::from_u64(end),
                    };
                }
                Err(now) => last = now,
            }
        }
    }
}
