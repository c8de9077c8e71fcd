//! One core's side of the watermarks: what it has outstanding, and when it publishes what.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_clock::Timestamp;

use crate::sequencer::{Allotted, Sequencer};
use crate::watermarks::{Mark, Watermarks};

/// The words that the cores of a node share.
pub(crate) struct Words {
    pub(crate) sequencer: Sequencer,
    pub(crate) marks: Watermarks,
}

/// Keeps this core's floors and publishes them in the order that watermarks.rs explains.
pub(crate) struct CoreMarks {
    core: usize,
    words: Arc<Words>,
    /// Units that are allotted and not yet resolved on every owner: first timestamp to predecessor.
    applying: RefCell<BTreeMap<Timestamp, Timestamp>>,
    /// The floor of the entries that a flush in flight carries, and of those appended since.
    flushing: Cell<Option<Timestamp>>,
    pending: Cell<Option<Timestamp>>,
    /// Up to where entries that this core has logged for another node are applied, while others
    /// behind it are not.
    unapplied: Cell<Option<Timestamp>>,
}

impl CoreMarks {
    pub(crate) fn new(core: usize, words: Arc<Words>) -> CoreMarks {
        CoreMarks {
            core,
            words,
            applying: RefCell::default(),
            flushing: Cell::new(None),
            pending: Cell::new(None),
            unapplied: Cell::new(None),
        }
    }

    fn applying_floor(&self) -> Option<Timestamp> {
        let applying = self.applying.borrow();
        let units = applying
            .first_key_value()
            .map(|(_, &predecessor)| predecessor);
        // A core that logs for another node has allotted nothing since the last of its units was
        // resolved.
        units.or(self.unapplied.get())
    }

    fn undurable_floor(&self) -> Option<Timestamp> {
        self.flushing.get().or(self.pending.get())
    }

    /// Stores the last allotted timestamp as the lower bound of what this core will have
    /// outstanding.
    fn store_bounds(&self, bound: Timestamp) {
        let marks = &self.words.marks;
        marks.store(self.core, Mark::Appending, Some(bound));
        if self.applying_floor().is_none() {
            marks.store(self.core, Mark::Applying, Some(bound));
        }
        if self.undurable_floor().is_none() {
            marks.store(self.core, Mark::Undurable, Some(bound));
        }
    }

    /// Allots `count` timestamps. From here to `finish` nothing may await: the caller appends an
    /// entry for each timestamp, and applies or calls `hold_applying`.
    pub(crate) fn allot(&self, count: u64, wall_secs: u32) -> Allotted {
        let sequencer = &self.words.sequencer;
        self.store_bounds(sequencer.last());
        let range = sequencer.allot(count, wall_secs);
        if self.pending.get().is_none() {
            self.pending.set(Some(range.predecessor));
        }
        range
    }

    /// Takes over timestamps up to `last` that another node has allotted; none of them is applied.
    /// From here to `finish` nothing may await: the caller appends an entry for each. No core may
    /// allot meanwhile.
    pub(crate) fn follow_to(&self, last: Timestamp) {
        let sequencer = &self.words.sequencer;
        let bound = sequencer.last();
        assert!(bound < last, "what is logged is newer than what was");
        assert!(
            self.applying.borrow().is_empty(),
            "a unit of this core's own is unresolved"
        );
        // Before the last timestamp rises: a reader that finds it and no floor takes all up to it
        // for applied and durable.
        self.store_bounds(bound);
        sequencer.advance_to(last);
        if self.unapplied.get().is_none() {
            self.unapplied.set(Some(bound));
        }
        if self.pending.get().is_none() {
            self.pending.set(Some(bound));
        }
    }

    /// What was taken over up to `ts` is applied.
    pub(crate) fn set_applied(&self, ts: Timestamp) {
        let last = self.words.sequencer.last();
        assert!(ts <= last, "{ts} is applied and not logged");
        if let Some(floor) = self.unapplied.get()
            && ts > floor
        {
            self.unapplied.set((ts < last).then_some(ts));
            self.words
                .marks
                .store(self.core, Mark::Applying, self.applying_floor());
        }
    }

    /// The range is not applied when this step ends: visibility waits for `release_applying`.
    pub(crate) fn hold_applying(&self, range: &Allotted) {
        let before = self
            .applying
            .borrow_mut()
            .insert(range.first, range.predecessor);
        assert!(before.is_none(), "a range was allotted twice");
    }

    /// Every owner has resolved the range that begins at `first`.
    pub(crate) fn release_applying(&self, first: Timestamp) {
        let held = self.applying.borrow_mut().remove(&first);
        assert!(held.is_some(), "released a range that was not held");
        self.words
            .marks
            .store(self.core, Mark::Applying, self.applying_floor());
    }

    /// Ends the step that `allot` began: publishes the true floors.
    pub(crate) fn finish(&self) {
        let marks = &self.words.marks;
        marks.store(self.core, Mark::Appending, None);
        marks.store(self.core, Mark::Applying, self.applying_floor());
        marks.store(self.core, Mark::Undurable, self.undurable_floor());
    }

    /// A flush takes everything appended so far.
    pub(crate) fn flush_started(&self) {
        assert!(self.flushing.get().is_none(), "one flush at a time");
        self.flushing.set(self.pending.take());
    }

    /// That flush is on the device.
    pub(crate) fn flush_finished(&self) {
        self.flushing.set(None);
        self.words
            .marks
            .store(self.core, Mark::Undurable, self.undurable_floor());
    }

    /// True when everything this core appended at or below `ts` is durable.
    pub(crate) fn is_durable_here(&self, ts: Timestamp) -> bool {
        self.undurable_floor().is_none_or(|floor| floor >= ts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watermarks::CoreSet;

    #[test]
    fn floors_follow_units_and_flushes() {
        let words = Arc::new(Words {
            sequencer: Sequencer::new(Timestamp::from_u64(10), Arc::default()),
            marks: Watermarks::new(1),
        });
        let marks = CoreMarks::new(0, words.clone());
        let check = |appended: u64, visible: u64, durable: u64| {
            let reached = |mark| words.marks.reached(&words.sequencer, mark).as_u64();
            let expected = (appended, visible, durable);
            assert_eq!(
                (
                    reached(Mark::Appending),
                    reached(Mark::Applying),
                    reached(Mark::Undurable)
                ),
                expected
            );
        };
        check(10, 10, 10);
        let first = marks.allot(2, 0);
        check(10, 10, 10);
        marks.hold_applying(&first);
        marks.finish();
        check(12, 10, 10);
        marks.flush_started();
        let second = marks.allot(1, 0);
        marks.hold_applying(&second);
        marks.finish();
        check(13, 10, 10);
        marks.flush_finished();
        check(13, 10, 12);
        assert!(marks.is_durable_here(first.last) && !marks.is_durable_here(second.last));
        marks.release_applying(second.first);
        check(13, 10, 12);
        marks.release_applying(first.first);
        check(13, 13, 12);
        marks.flush_started();
        marks.flush_finished();
        check(13, 13, 13);
    }

    #[test]
    fn entries_of_another_node_are_durable_and_applied_each_in_its_time() {
        let words = Arc::new(Words {
            sequencer: Sequencer::new(Timestamp::from_u64(10), Arc::default()),
            marks: Watermarks::new(2),
        });
        let marks = CoreMarks::new(1, words.clone());
        let ts = Timestamp::from_u64;
        let check = |appended: u64, visible: u64, durable: u64| {
            let reached = |mark| words.marks.reached(&words.sequencer, mark).as_u64();
            let found = [Mark::Appending, Mark::Applying, Mark::Undurable].map(reached);
            assert_eq!(found, [appended, visible, durable]);
        };
        marks.follow_to(ts(14));
        check(10, 10, 10);
        marks.finish();
        check(14, 10, 10);
        marks.flush_started();
        marks.set_applied(ts(12));
        check(14, 12, 10);
        marks.follow_to(ts(20));
        check(14, 12, 10);
        marks.finish();
        check(20, 12, 10);
        marks.flush_finished();
        check(20, 12, 14);
        // What is known already changes nothing.
        marks.set_applied(ts(11));
        check(20, 12, 14);
        marks.set_applied(ts(20));
        check(20, 20, 14);
        marks.flush_started();
        marks.flush_finished();
        check(20, 20, 20);
        let range = marks.allot(1, 0);
        assert_eq!((range.predecessor, range.first), (ts(20), ts(21)));
        marks.finish();
        check(21, 21, 20);
    }

    fn check_allot(last: u64, cluster: u64, wall: u32, count: u64, expected: (u64, u64)) {
        let sequencer = Sequencer::new(Timestamp::from_u64(last), Arc::default());
        let clock = sequencer.clock();
        clock.tick_cluster_to(Timestamp::from_u64(cluster));
        let range = sequencer.allot(count, wall);
        assert_eq!(range.predecessor.as_u64(), last);
        assert_eq!((range.first.as_u64(), range.last.as_u64()), expected);
        assert_eq!(sequencer.last(), range.last);
    }

    #[test]
    fn next_is_the_largest_of_its_three_sources() {
        let second = 1u64 << 32;
        check_allot(0, 0, 0, 1, (1, 1));
        check_allot(7 * second + 9, 0, 7, 1, (7 * second + 10, 7 * second + 10));
        check_allot(7 * second + 9, 0, 8, 3, (8 * second + 1, 8 * second + 3));
        check_allot(
            7 * second + 9,
            9 * second + 4,
            8,
            2,
            (9 * second + 5, 9 * second + 6),
        );
        check_allot(9 * second + 9, 0, 8, 1, (9 * second + 10, 9 * second + 10));
    }

    #[test]
    fn each_timestamp_of_a_range_links_to_the_one_before() {
        let sequencer = Sequencer::new(Timestamp::from_u64(5), Arc::default());
        let range = sequencer.allot(3, 1);
        assert_eq!(range.nth(0).1.as_u64(), 5);
        assert_eq!(
            range.nth(2),
            (range.last, Timestamp::from_u64(range.last.as_u64() - 1))
        );
    }

    fn ts(raw: u64) -> Timestamp {
        Timestamp::from_u64(raw)
    }

    #[test]
    fn reached_is_the_smaller_of_last_and_lowest_floor() {
        let sequencer = Sequencer::new(ts(40), Arc::default());
        let marks = Watermarks::new(3);
        assert_eq!(marks.reached(&sequencer, Mark::Undurable), ts(40));
        marks.store(1, Mark::Undurable, Some(ts(30)));
        marks.store(2, Mark::Undurable, Some(ts(35)));
        assert_eq!(marks.reached(&sequencer, Mark::Undurable), ts(30));
        assert_eq!(marks.reached(&sequencer, Mark::Applying), ts(40));
        marks.store(1, Mark::Undurable, None);
        assert_eq!(marks.reached(&sequencer, Mark::Undurable), ts(35));
    }

    #[test]
    fn only_cores_whose_wish_is_reached_are_woken() {
        let sequencer = Sequencer::new(ts(40), Arc::default());
        let marks = Watermarks::new(4);
        let woken = |mark| marks.cores_wanting(&sequencer, mark);
        assert_eq!(woken(Mark::Undurable), None);
        marks.want(0, Mark::Undurable, Some(ts(10)));
        marks.want(3, Mark::Undurable, Some(ts(41)));
        assert_eq!(
            woken(Mark::Undurable),
            Some((ts(40), CoreSet::from_slice(&[0])))
        );
        assert_eq!(woken(Mark::Appending), None);
        marks.want(0, Mark::Undurable, None);
        assert_eq!(woken(Mark::Undurable), Some((ts(40), CoreSet::new())));
    }
}
