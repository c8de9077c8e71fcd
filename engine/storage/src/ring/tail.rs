//! The latest flushed entries of a ring, kept in memory for readers at the end of the log.
//!
//! An entry comes here when it is on the device, so a ring that keeps none does no work for it.

use std::collections::VecDeque;

use pinion_clock::Timestamp;

use super::entries::Entries;
use super::entry::ENTRY_HEADER_BYTES;
use super::live::{Fetch, LogEntry};

/// The latest entries of one ring that are on the device.
pub(super) struct Tail {
    /// Oldest first.
    entries: VecDeque<LogEntry>,
    bytes: usize,
    keep_bytes: usize,
    /// No flushed entry of the ring above it is missing here.
    floor: Timestamp,
}

impl Tail {
    /// Behind what is on the device already, up to `floor`.
    pub(super) fn new(keep_bytes: usize, floor: Timestamp) -> Tail {
        Tail {
            entries: VecDeque::new(),
            bytes: 0,
            keep_bytes,
            floor,
        }
    }

    /// Every flushed entry of the ring above it is here.
    pub(super) fn floor(&self) -> Timestamp {
        self.floor
    }

    /// These entries are on the device now. As many of the latest are kept as there is room for.
    pub(super) fn flushed(&mut self, flushed: &Entries) {
        let Some(last) = flushed.last() else {
            return;
        };
        assert!(last > self.floor, "entries are flushed in their order");
        let kept = flushed.last_within(self.keep_bytes);
        if kept.start > 0 {
            self.entries.clear();
            self.bytes = 0;
            self.floor = flushed.timestamp(kept.start - 1);
        }
        let copies = flushed.copy(kept);
        self.bytes += copies.iter().map(size_of_entry).sum::<usize>();
        self.entries.extend(copies);
        while self.bytes > self.keep_bytes {
            let dropped = self.entries.pop_front().expect("entries have bytes");
            self.bytes -= size_of_entry(&dropped);
            self.floor = dropped.ts;
        }
    }

    /// Fetches entries above `after`, which is not below the floor, and at or below `through`,
    /// oldest first; whether those were all.
    pub(super) fn read_after(
        &self,
        after: Timestamp,
        through: Timestamp,
        fetch: &mut Fetch,
    ) -> bool {
        assert!(after >= self.floor, "entries below the floor are not here");
        let from = self.entries.partition_point(|entry| entry.ts <= after);
        let wanted = self.entries.range(from..);
        let mut wanted = wanted.take_while(|entry| entry.ts <= through);
        wanted.all(|entry| fetch.take(entry))
    }

    /// Fetches entries below `before`, newest first; whether those were all.
    pub(super) fn read_before(&self, before: Timestamp, fetch: &mut Fetch) -> bool {
        let end = self.entries.partition_point(|entry| entry.ts < before);
        let mut wanted = self.entries.range(..end).rev();
        wanted.all(|entry| fetch.take(entry))
    }
}

fn size_of_entry(entry: &LogEntry) -> usize {
    ENTRY_HEADER_BYTES + entry.bytes.len()
}

#[cfg(test)]
mod tests {
    use super::super::entry::{EntryHeader, EntryKind};
    use super::*;

    /// Entries of 100 bytes with their headers.
    fn entries(timestamps: std::ops::Range<u64>) -> Entries {
        let mut entries = Entries::default();
        for ts in timestamps {
            let mut bytes = vec![ts as u8; 100 - ENTRY_HEADER_BYTES];
            let header = EntryHeader {
                len: bytes.len() as u32,
                kind: EntryKind::Logged,
                ts: Timestamp::from_u64(ts),
                predecessor: Timestamp::from_u64(ts - 1),
            };
            entries.push(&header, &mut bytes);
        }
        entries
    }

    fn check(keep_bytes: usize, flushes: &[std::ops::Range<u64>], expected: std::ops::Range<u64>) {
        let mut tail = Tail::new(keep_bytes, Timestamp::MIN);
        for flush in flushes {
            tail.flushed(&entries(flush.clone()));
        }
        let floor = Timestamp::from_u64(expected.start - 1);
        assert_eq!(tail.floor(), floor);
        let mut fetch = Fetch::new(usize::MAX);
        assert!(tail.read_after(floor, Timestamp::MAX, &mut fetch));
        let mut backward = Fetch::new(usize::MAX);
        assert!(tail.read_before(Timestamp::MAX, &mut backward));
        backward.entries.reverse();
        for read in [fetch.entries, backward.entries] {
            let timestamps = read.iter().map(|entry| entry.ts.as_u64());
            assert!(timestamps.eq(expected.clone()));
            for entry in read {
                assert!(
                    entry
                        .bytes
                        .iter()
                        .all(|&byte| byte == entry.ts.as_u64() as u8)
                );
            }
        }
    }

    #[test]
    fn the_latest_entries_are_kept() {
        check(0, &[1..5, 5..9], 9..9);
        check(99, &[1..3, 3..5], 5..5);
        check(1000, &[1..5, 5..9], 1..9);
        check(500, &[1..5, 5..9], 4..9);
        check(399, &[1..5, 5..9], 6..9);
        check(300, &[1..2, 2..20], 17..20);
        check(300, &[1..20, 20..21], 18..21);
    }
}
