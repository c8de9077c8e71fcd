//! How far entries are applied without a gap.

use std::collections::VecDeque;

use pinion_clock::Timestamp;

/// The entries that were accepted and are not known to be applied, in their order. Each has a
/// number, one more than that of the entry before.
#[derive(Default)]
pub(super) struct Progress {
    /// The number of the first of `outstanding`.
    first: u64,
    outstanding: VecDeque<(Timestamp, usize)>,
    bytes: usize,
    applied: Timestamp,
}

impl Progress {
    /// Takes an entry of this many bytes in; its number.
    ///
    /// # Panics
    /// When it is not newer than all before.
    pub(super) fn accept(&mut self, ts: Timestamp, bytes: usize) -> u64 {
        let newest = self.outstanding.back().map_or(self.applied, |(ts, _)| *ts);
        assert!(
            ts > newest,
            "the entry of {ts} comes behind that of {newest}"
        );
        self.outstanding.push_back((ts, bytes));
        self.bytes += bytes;
        self.first + self.outstanding.len() as u64 - 1
    }

    /// All entries below this number are applied. True if that is news.
    pub(super) fn advance(&mut self, floor: u64) -> bool {
        assert!(
            floor <= self.first + self.outstanding.len() as u64,
            "entries are applied that nobody has accepted"
        );
        let before = self.first;
        while self.first < floor {
            let (ts, bytes) = self.outstanding.pop_front().expect("asserted");
            self.first += 1;
            self.bytes -= bytes;
            self.applied = ts;
        }
        self.first > before
    }

    /// The timestamp of the last entry before which all are applied, and which is applied itself.
    pub(super) fn applied(&self) -> Timestamp {
        self.applied
    }

    /// The number of the next entry.
    pub(super) fn next(&self) -> u64 {
        self.first + self.outstanding.len() as u64
    }

    pub(super) fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    pub(super) fn entries(&self) -> usize {
        self.outstanding.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_has_no_gaps() {
        let mut progress = Progress::default();
        let check = |progress: &Progress, applied: u64, entries: usize, bytes: usize| {
            let found = (progress.applied(), progress.entries(), progress.bytes());
            assert_eq!(found, (Timestamp::from_u64(applied), entries, bytes));
        };
        for (number, ts) in [10, 12, 19].into_iter().enumerate() {
            let accepted = progress.accept(Timestamp::from_u64(ts), 100);
            assert_eq!(accepted, number as u64);
        }
        check(&progress, 0, 3, 300);
        assert!(!progress.advance(0));
        assert!(progress.advance(2));
        check(&progress, 12, 1, 100);
        assert!(!progress.advance(1), "what is applied stays applied");
        assert_eq!(progress.accept(Timestamp::from_u64(20), 1), 3);
        assert!(progress.advance(4) && progress.is_idle());
        check(&progress, 20, 0, 0);
        assert_eq!(progress.next(), 4);
    }

    #[test]
    #[should_panic(expected = "comes behind")]
    fn entries_come_in_their_order() {
        let mut progress = Progress::default();
        progress.accept(Timestamp::from_u64(10), 1);
        progress.accept(Timestamp::from_u64(10), 1);
    }
}
