//! The timestamps that divide the history of a node, and what follows from them.
//!
//! ```text
//!  oldest <= horizon <= stable        base <= checkpoint <= visible <= last
//!                       checkpoint <= stable
//! ```
//!
//! On a standalone nothing is ever rolled back, so everything is stable, and no history is kept for
//! snapshots that are still to be opened, so everything is old. A member of a replica set keeps
//! both behind: what is above the *stable* timestamp may have to be rolled back, which the base
//! must not hold, and snapshots down to the *oldest* may still be opened.

use std::sync::atomic::{AtomicU64, Ordering};

use pinion_clock::Timestamp;

use crate::engine::storage::Storage;

/// The bounds that a member was given; on a standalone both are above everything.
pub(in crate::engine) struct Bounds {
    stable: AtomicU64,
    oldest: AtomicU64,
    is_member: bool,
}

impl Bounds {
    /// Of a node that opens a directory, where up to `stable` nothing is rolled back.
    pub(in crate::engine) fn new(is_member: bool, stable: Timestamp) -> Bounds {
        let known = match is_member {
            true => stable,
            false => Timestamp::MAX,
        };
        Bounds {
            stable: AtomicU64::new(known.as_u64()),
            oldest: AtomicU64::new(known.as_u64()),
            is_member,
        }
    }

    pub(in crate::engine) fn stable(&self) -> Timestamp {
        Timestamp::from_u64(self.stable.load(Ordering::SeqCst))
    }

    fn oldest(&self) -> Timestamp {
        Timestamp::from_u64(self.oldest.load(Ordering::SeqCst))
    }
}

/// The timestamps of a node, as they were at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The last one in the log: allotted here, or logged for another node.
    pub last: Timestamp,
    /// Everything at or below it is applied.
    pub visible: Timestamp,
    /// Everything at or below it is durable.
    pub durable: Timestamp,
    /// Nothing at or below it is rolled back.
    pub stable: Timestamp,
    /// Snapshots at or above it can be opened, as far as the disk for history goes.
    pub oldest: Timestamp,
    /// The node logs what others allot.
    pub is_following: bool,
}

impl Timeline {
    /// The timestamp of a read that sees everything acknowledged so far, once that is visible. A
    /// follower has acknowledged nothing that it has logged and not applied.
    pub(super) fn readable(&self) -> Timestamp {
        match self.is_following {
            true => self.visible,
            false => self.last,
        }
    }

    /// The timestamp of a checkpoint that begins now; it waits until that is durable and, on a node
    /// that allots, visible.
    pub(in crate::engine) fn checkpoint(&self) -> Timestamp {
        self.readable().min(self.stable)
    }

    /// Versions that only snapshots below it see may go.
    pub(in crate::engine) fn horizon(&self) -> Timestamp {
        self.visible.min(self.stable).min(self.oldest)
    }
}

impl Storage {
    /// Where the node's history stands.
    pub fn timeline(&self) -> Timeline {
        // Each is at or below the next however far they move meanwhile.
        let stable = self.shared.bounds.stable();
        let oldest = self.shared.bounds.oldest();
        let (visible, durable) = (self.visible(), self.all_durable());
        Timeline {
            last: self.last_allotted(),
            visible,
            durable,
            stable,
            oldest,
            is_following: !self.leads(),
        }
    }

    /// Nothing at or below `ts` is ever rolled back on this node: checkpoints may hold it. It may
    /// lie above what the node has logged, if what it will log up to there is of the same history:
    /// the majority commit point is, as far as this node's log is known to agree with it. A
    /// timestamp below the one before changes nothing; the first asks for a checkpoint as of it.
    ///
    /// # Panics
    /// On a node that was not opened as a member.
    pub fn set_stable(&self, ts: Timestamp) {
        let bounds = &self.shared.bounds;
        assert!(bounds.is_member, "all that a standalone writes is stable");
        let before = bounds.stable.fetch_max(ts.as_u64(), Ordering::SeqCst);
        if before == 0
            && let Some(node) = &self.node
        {
            node.demand.notify_one();
        }
    }

    /// Snapshots at or above `ts` are to be readable, as far as the disk for history goes; below it
    /// they need not be. A timestamp below the one before changes nothing.
    ///
    /// # Panics
    /// On a node that was not opened as a member, or above the stable timestamp.
    pub fn set_oldest(&self, ts: Timestamp) {
        let bounds = &self.shared.bounds;
        assert!(bounds.is_member, "a standalone keeps no history");
        let stable = bounds.stable();
        assert!(ts <= stable, "history begins at {ts}, above {stable}");
        bounds.oldest.fetch_max(ts.as_u64(), Ordering::SeqCst);
    }

    /// What is to be known to be stable when the directory is opened the next time; none on a
    /// standalone.
    pub(in crate::engine) fn stable_to_record(&self) -> Option<Timestamp> {
        let bounds = &self.shared.bounds;
        bounds.is_member.then(|| bounds.stable())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_from_the_timestamps_of_a_node() {
        let ts = Timestamp::from_u64;
        let timeline = |last, visible, stable, oldest, is_following| Timeline {
            last: ts(last),
            visible: ts(visible),
            durable: ts(visible),
            stable: ts(stable),
            oldest: ts(oldest),
            is_following,
        };
        // Where a read, a checkpoint and the horizon are.
        let check = |timeline: Timeline, expected: [u64; 3]| {
            let found = [
                timeline.readable(),
                timeline.checkpoint(),
                timeline.horizon(),
            ];
            assert_eq!(found, expected.map(ts), "{timeline:?}");
        };
        const ALL: u64 = u64::MAX;
        // A standalone, quiet and writing.
        check(timeline(50, 50, ALL, ALL, false), [50, 50, 50]);
        check(timeline(50, 40, ALL, ALL, false), [50, 50, 40]);
        // A primary, with and without history.
        check(timeline(50, 40, 30, 20, false), [50, 30, 20]);
        check(timeline(50, 40, 30, 30, false), [50, 30, 30]);
        check(timeline(50, 40, 45, 20, false), [50, 45, 20]);
        // A secondary: behind the commit point, which it may not have logged yet, and before it.
        check(timeline(50, 40, 30, 20, true), [40, 30, 20]);
        check(timeline(50, 40, 45, 45, true), [40, 40, 40]);
        check(timeline(50, 40, 60, 20, true), [40, 40, 20]);
        check(timeline(50, 50, 60, 60, true), [50, 50, 50]);
        // Nothing is known yet.
        check(timeline(50, 50, 0, 0, true), [50, 0, 0]);
    }
}
