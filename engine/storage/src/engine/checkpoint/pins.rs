//! What one core keeps from being given up: snapshots that are held, the log from a position on,
//! transactions in the log.
//!
//! A checkpoint drops versions that no snapshot can see, and cuts off the log. Both ask here first.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use pinion_clock::Timestamp;
use pinion_runtime::Instant;

use crate::limits::SNAPSHOT_GRACE;
use crate::partition::{SnapshotPin, UnitId};

/// The pins of one core.
#[derive(Default)]
pub(in crate::engine) struct Pins {
    /// This core's pins of each snapshot that is held.
    snapshots: RefCell<BTreeMap<UnitId, Vec<SnapshotPin>>>,
    /// Of each timestamp from which the log is kept, how often it is pinned.
    log: RefCell<BTreeMap<Timestamp, usize>>,
    /// The first entry of each transaction, and the entry that decides it, once there is one.
    transactions: RefCell<BTreeMap<Timestamp, Option<Timestamp>>>,
    /// When which timestamp was known to be a possible horizon.
    horizon: Cell<Option<(Instant, Timestamp)>>,
}

impl Pins {
    pub(in crate::engine) fn hold_snapshot(&self, number: UnitId, pins: Vec<SnapshotPin>) {
        let before = self.snapshots.borrow_mut().insert(number, pins);
        assert!(before.is_none(), "a snapshot is held twice");
    }

    /// Gives the pins of a snapshot, if it is held here: it is readable until they are dropped.
    pub(in crate::engine) fn release_snapshot(&self, number: UnitId) -> Option<Vec<SnapshotPin>> {
        self.snapshots.borrow_mut().remove(&number)
    }

    /// Keeps the log from `ts` on. Gives the lowest pin.
    pub(in crate::engine) fn pin_log(&self, ts: Timestamp) -> Option<Timestamp> {
        let mut log = self.log.borrow_mut();
        *log.entry(ts).or_insert(0) += 1;
        log.keys().next().copied()
    }

    /// Undoes one [`Pins::pin_log`]. Gives the lowest pin.
    pub(in crate::engine) fn unpin_log(&self, ts: Timestamp) -> Option<Timestamp> {
        let mut log = self.log.borrow_mut();
        let count = log.get_mut(&ts).expect("a pin is counted");
        *count -= 1;
        if *count == 0 {
            log.remove(&ts);
        }
        log.keys().next().copied()
    }

    /// A transaction begins in the log at `first`.
    pub(in crate::engine) fn begin_transaction(&self, first: Timestamp) {
        self.transactions.borrow_mut().entry(first).or_insert(None);
    }

    /// The transaction that began at `first`, if it is known here, is decided by the entry at
    /// `last`.
    pub(in crate::engine) fn end_transaction(&self, first: Timestamp, last: Timestamp) {
        assert!(first <= last, "a transaction ends behind its begin");
        if let Some(outcome) = self.transactions.borrow_mut().get_mut(&first) {
            *outcome = Some(last);
        }
    }

    /// The first entry of the oldest transaction that started at or below `c` and is not decided
    /// there.
    pub(in crate::engine) fn oldest_transaction(&self, c: Timestamp) -> Option<Timestamp> {
        let transactions = self.transactions.borrow();
        let mut started = transactions.range(..=c);
        let oldest = started.find(|(_, outcome)| outcome.is_none_or(|outcome| outcome > c));
        oldest.map(|(&first, _)| first)
    }

    /// A checkpoint at `c` is durable, which holds the outcomes up to there.
    pub(in crate::engine) fn forget_transactions(&self, c: Timestamp) {
        let mut transactions = self.transactions.borrow_mut();
        transactions.retain(|_, outcome| outcome.is_none_or(|outcome| outcome > c));
    }

    /// Whether the horizon was sampled so long ago that snapshots below that sample are no longer
    /// opened.
    pub(super) fn is_horizon_due(&self, now: Instant) -> bool {
        let before = self.horizon.get();
        before.is_none_or(|(taken, _)| now.saturating_since(taken) >= SNAPSHOT_GRACE)
    }

    /// Takes a sample of the possible horizon; gives the one before it.
    pub(super) fn sample_horizon(&self, now: Instant, bound: Timestamp) -> Option<Timestamp> {
        let (_, before) = self.horizon.replace(Some((now, bound)))?;
        assert!(before <= bound, "the horizon goes back to {bound}");
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ts(raw: u64) -> Timestamp {
        Timestamp::from_u64(raw)
    }

    #[test]
    fn a_checkpoint_needs_what_has_started_and_is_decided_above_it() {
        let pins = Pins::default();
        for (first, outcome) in [(10, Some(12)), (20, Some(40)), (30, None), (50, Some(60))] {
            pins.begin_transaction(ts(first));
            if let Some(last) = outcome {
                pins.end_transaction(ts(first), ts(last));
            }
        }
        let check = |c: u64, expected: Option<u64>| {
            assert_eq!(pins.oldest_transaction(ts(c)), expected.map(ts), "at {c}");
        };
        check(9, None);
        check(10, Some(10));
        check(11, Some(10));
        check(12, None);
        check(25, Some(20));
        check(39, Some(20));
        check(40, Some(30));
        check(55, Some(30));
        pins.forget_transactions(ts(40));
        check(25, None);
        check(55, Some(30));
    }

    #[test]
    fn the_log_is_kept_from_the_lowest_pin_on() {
        let pins = Pins::default();
        assert_eq!(pins.pin_log(ts(20)), Some(ts(20)));
        assert_eq!(pins.pin_log(ts(10)), Some(ts(10)));
        assert_eq!(pins.pin_log(ts(10)), Some(ts(10)));
        assert_eq!(pins.unpin_log(ts(10)), Some(ts(10)));
        assert_eq!(pins.unpin_log(ts(10)), Some(ts(20)));
        assert_eq!(pins.unpin_log(ts(20)), None);
    }
}
