//! What the log must hold: every entry that was written and not discarded by a crash, at its
//! timestamp.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::Rng;
use pinion_storage::{ENTRY_TERM_OFFSET, ENTRY_TS_OFFSET, storage};

/// Where the number stands, and the padding behind it.
const NUMBER_AT: usize = ENTRY_TERM_OFFSET + 8;
const PADDING_AT: usize = NUMBER_AT + 8;

/// What became of one number, which one entry carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It may have been written, or not; the writer got no answer.
    Unknown,
    Written(Timestamp),
    /// Behind the cut of a crash.
    Discarded,
}

#[derive(Default)]
pub struct Log {
    fates: Vec<Fate>,
    written: BTreeMap<Timestamp, u64>,
}

pub type SharedLog = Rc<RefCell<Log>>;

/// A document as far as storage cares: length, `ts`, `t`, the number, and bytes that distinguish a
/// piece from another.
pub fn document(number: u64, padding: usize) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(b"\x11ts\0");
    assert_eq!(bytes.len(), ENTRY_TS_OFFSET);
    bytes.extend_from_slice(&[0; 8]);
    bytes.extend_from_slice(b"\x12t\0");
    bytes.extend_from_slice(&[0; 8]);
    assert_eq!(bytes.len(), NUMBER_AT);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend((0..padding).map(|at| (at as u64 + number) as u8));
    let len = bytes.len() as u32;
    bytes[..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

/// The number that an entry carries, which must be whole and have its timestamp.
pub fn number_of(ts: Timestamp, entry: &[u8]) -> u64 {
    let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
    let len = u32::from_le_bytes(entry[..4].try_into().unwrap());
    assert_eq!(len as usize, entry.len());
    assert_eq!(word(ENTRY_TS_OFFSET), ts.as_u64());
    let number = word(NUMBER_AT);
    let padding = entry[PADDING_AT..].iter().enumerate();
    assert!(
        padding
            .clone()
            .all(|(at, &byte)| byte == (at as u64 + number) as u8)
    );
    number
}

impl Log {
    /// A number for an entry that is going to be written.
    pub fn next(&mut self) -> u64 {
        self.fates.push(Fate::Unknown);
        self.fates.len() as u64 - 1
    }

    pub fn written(&mut self, ts: Timestamp, number: u64) {
        self.fates[number as usize] = Fate::Written(ts);
        assert_eq!(self.written.insert(ts, number), None);
    }

    /// Replay, or a reader, has come upon an entry.
    pub fn found(&mut self, ts: Timestamp, number: u64) {
        match self.fates[number as usize] {
            Fate::Unknown => self.written(ts, number),
            fate => assert_eq!(fate, Fate::Written(ts), "entry {number}"),
        }
    }

    /// A crash has discarded what lies above.
    pub fn cut(&mut self, at: Timestamp) {
        let above = Timestamp::from_u64(at.as_u64() + 1);
        for number in self.written.split_off(&above).into_values() {
            self.fates[number as usize] = Fate::Discarded;
        }
    }

    /// The timestamp of any entry.
    pub fn some(&self, rng: &mut Rng) -> Timestamp {
        let nth = rng.below(self.written.len().max(1) as u64);
        let found = self.written.keys().nth(nth as usize);
        found.copied().unwrap_or(Timestamp::MAX)
    }

    /// What a reader that began behind `after` and came to `through` has read; entries may have
    /// been given up before he began.
    pub fn check_range(&self, read: &[(Timestamp, u64)], after: Timestamp, through: Timestamp) {
        let Some(&(first, _)) = read.first() else {
            return;
        };
        assert!(first > after);
        let expected: Vec<_> = self
            .written
            .range(first..=through)
            .map(|(&ts, &number)| (ts, number))
            .collect();
        assert!(read == expected, "{read:?}\n\nis not\n\n{expected:?}");
    }

    /// What a reader has read backwards, put the other way round. No entry at or below `whole_to`
    /// was being appended when it began. `all`: it came to the beginning of a log that keeps
    /// everything.
    pub fn check_backward(&self, read: &[(Timestamp, u64)], whole_to: Timestamp, all: bool) {
        assert!(read.is_sorted_by(|a, b| a.0 < b.0));
        let first = match (all, read.first()) {
            (true, _) => Timestamp::MIN,
            (false, Some(&(first, _))) => first,
            (false, None) => return,
        };
        let read: BTreeMap<Timestamp, u64> = read.iter().copied().collect();
        for (ts, &number) in &read {
            // The writer may not have its answer yet.
            if self.fates[number as usize] != Fate::Unknown {
                assert_eq!(self.written.get(ts), Some(&number));
            }
        }
        for (ts, number) in self.written.range(first..=whole_to.max(first)) {
            assert!(
                *ts > whole_to || read.get(ts) == Some(number),
                "{ts} is missing"
            );
        }
    }

    /// What was not found, and was never acknowledged, is not there.
    fn settle(&mut self) {
        for fate in &mut self.fates {
            if *fate == Fate::Unknown {
                *fate = Fate::Discarded;
            }
        }
    }
}

/// Reads everything in both directions and compares. `whole`: nothing was given up. Gives the
/// number of entries.
pub async fn check_whole_log(log: &SharedLog, whole: bool) -> u64 {
    let mut forward: Vec<(Timestamp, Bytes)> = Vec::new();
    let mut cursor = storage().log_after(Timestamp::MIN);
    // Nothing is given up while it is read twice.
    let _pin = loop {
        let Some(first) = storage().log_first().await.unwrap() else {
            break None;
        };
        if let Ok(pin) = storage().pin_log(first) {
            break Some(pin);
        }
    };
    loop {
        let batch = cursor.next_batch(100, 1 << 20).await.unwrap();
        if batch.is_empty() {
            break;
        }
        forward.extend(batch);
    }
    for (ts, entry) in &forward {
        log.borrow_mut().found(*ts, number_of(*ts, entry));
    }
    log.borrow_mut().settle();
    let first = match whole {
        true => Timestamp::MIN,
        false => forward.first().map_or(Timestamp::MAX, |&(ts, _)| ts),
    };
    let found: Vec<Timestamp> = forward.iter().map(|&(ts, _)| ts).collect();
    let expected: Vec<Timestamp> = log
        .borrow()
        .written
        .range(first..)
        .map(|(&ts, _)| ts)
        .collect();
    assert!(found == expected, "{found:?}\n\nis not\n\n{expected:?}");
    let mut backward: Vec<(Timestamp, Bytes)> = Vec::new();
    let mut cursor = storage().log_backward(Timestamp::MAX);
    loop {
        let batch = cursor.next_batch(7, 1 << 20).await.unwrap();
        if batch.is_empty() {
            break;
        }
        backward.extend(batch);
    }
    backward.reverse();
    assert!(forward == backward);
    forward.len() as u64
}
