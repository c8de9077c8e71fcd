//! A sort in memory. It sorts while entries come and while they leave, so no single call takes long
//! however many there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::limits::SORT_RUN;

/// Key, value and bytes held.
type Entry<T> = (Vec<u8>, T, usize);

/// Sorts entries by their keys; those of equal keys stay in the order in which they came. With a
/// limit it keeps only what can be among the first.
#[derive(Debug)]
pub struct Sorter<T> {
    /// Each sorted alone, in the order in which their entries came.
    runs: Vec<Vec<Entry<T>>>,
    /// What came last, not yet sorted.
    entries: Vec<Entry<T>>,
    limit: Option<usize>,
    bytes: usize,
}

impl<T> Sorter<T> {
    /// `limit` counts the entries that are wanted, skipped ones included.
    pub fn new(limit: Option<usize>) -> Sorter<T> {
        Sorter {
            runs: Vec::new(),
            entries: Vec::new(),
            limit,
            bytes: 0,
        }
    }

    /// Adds an entry under its key; `size` are the bytes the entry holds.
    pub fn push(&mut self, key: Vec<u8>, value: T, size: usize) {
        let size = size + key.len();
        self.bytes += size;
        self.entries.push((key, value, size));
        match self.limit {
            Some(limit) if limit <= SORT_RUN / 2 => {
                if self.entries.len() >= (2 * limit).max(64) {
                    self.cut(limit);
                }
            }
            _ => {
                if self.entries.len() >= SORT_RUN {
                    self.end_run();
                }
            }
        }
    }

    /// Throws away what cannot be among the first that are wanted.
    pub fn shrink(&mut self) {
        if let Some(limit) = self.limit {
            self.cut(limit);
        }
    }

    fn end_run(&mut self) {
        let mut run = std::mem::take(&mut self.entries);
        run.sort_by(|a, b| a.0.cmp(&b.0));
        self.runs.push(run);
    }

    fn cut(&mut self, limit: usize) {
        let mut all: Vec<Entry<T>> = self.runs.drain(..).flatten().collect();
        all.append(&mut self.entries);
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.truncate(limit);
        self.bytes = all.iter().map(|entry| entry.2).sum();
        if all.len() < SORT_RUN {
            self.entries = all;
        } else {
            self.runs.push(all);
        }
    }

    /// The bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entries in order.
    pub fn finish(mut self) -> Sorted<T> {
        self.end_run();
        let mut sorted = Sorted {
            heads: BinaryHeap::with_capacity(self.runs.len()),
            values: Vec::with_capacity(self.runs.len()),
            rest: self.runs.into_iter().map(Vec::into_iter).collect(),
            left: self.limit.unwrap_or(usize::MAX),
        };
        for run in 0..sorted.rest.len() {
            sorted.values.push(None);
            sorted.refill(run);
        }
        sorted
    }
}

/// The runs as one.
pub struct Sorted<T> {
    /// The next key of each run, the least on top; of equal ones that of the earlier run.
    heads: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    /// The values to these keys.
    values: Vec<Option<T>>,
    rest: Vec<std::vec::IntoIter<Entry<T>>>,
    /// How many are still wanted.
    left: usize,
}

impl<T> Sorted<T> {
    fn refill(&mut self, run: usize) {
        if let Some((key, value, _)) = self.rest[run].next() {
            self.heads.push(Reverse((key, run)));
            self.values[run] = Some(value);
        }
    }
}

impl<T> Iterator for Sorted<T> {
    type Item = (Vec<u8>, T);

    fn next(&mut self) -> Option<(Vec<u8>, T)> {
        self.left = self.left.checked_sub(1)?;
        let Reverse((key, run)) = self.heads.pop()?;
        let value = self.values[run].take();
        self.refill(run);
        Some((key, value.expect("every key has its value")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_bounds_what_is_kept() {
        let mut sorter = Sorter::new(Some(3));
        for i in (0..1000_u32).rev() {
            sorter.push(i.to_be_bytes().to_vec(), i, 100);
            assert!(sorter.bytes() < 10_000, "only a few are kept");
        }
        sorter.shrink();
        assert_eq!(sorter.bytes(), 3 * 104);
        let found: Vec<u32> = sorter.finish().map(|(_, v)| v).collect();
        assert_eq!(found, [0, 1, 2]);
    }

    #[test]
    fn runs_come_together_in_order_and_ties_as_they_came() {
        let count = 5 * SORT_RUN as u64 + 7;
        for limit in [None, Some(10), Some(3 * SORT_RUN), Some(10 * SORT_RUN)] {
            for shrink in [false, true] {
                let mut sorter = Sorter::new(limit);
                let mut expected: Vec<(u8, u64)> = Vec::new();
                for i in 0..count {
                    let key = (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
                    expected.push((key, i));
                    sorter.push(vec![key], i, 9);
                    if shrink && i % 5000 == 0 {
                        sorter.shrink();
                    }
                }
                expected.sort();
                expected.truncate(limit.unwrap_or(usize::MAX));
                let found: Vec<_> = sorter.finish().map(|(key, i)| (key[0], i)).collect();
                assert!(found == expected, "{limit:?} {shrink}");
            }
        }
    }
}
