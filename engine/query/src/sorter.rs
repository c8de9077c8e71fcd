//! A sort in memory. It sorts while entries come and while they leave, so no single call takes long
//! however many there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::limits::SORT_RUN;

/// Key, value and bytes held.
type Entry<T> = (Vec<u8>, T, usize);

/// Sorts entries by their keys; those of equal keys stay in the order in which they came. With a
/// limit it keeps only what can be among the first.
#[derive(Debug)]
pub struct Sorter<T> {
    /// Each sorted alone, in the order in which their entries came.
    runs: Vec<Run<T>>,
    /// What came last, not yet sorted.
    entries: Vec<Entry<T>>,
    limit: Option<usize>,
    /// The key of the last wanted entry when entries were thrown away: a later one is wanted only
    /// if its key is less.
    bound: Option<Vec<u8>>,
    bytes: usize,
}

impl<T> Sorter<T> {
    /// `limit` counts the entries that are wanted, skipped ones included.
    pub fn new(limit: Option<usize>) -> Sorter<T> {
        Sorter {
            runs: Vec::new(),
            entries: Vec::new(),
            limit,
            bound: None,
            bytes: 0,
        }
    }

    /// Whether an entry with this key may be among the first that are wanted.
    fn wants(&self, key: &[u8]) -> bool {
        self.bound.as_ref().is_none_or(|bound| key < &bound[..])
    }

    /// Adds an entry under its key; `size` are the bytes the entry holds.
    pub fn push(&mut self, key: Vec<u8>, value: T, size: usize) {
        if !self.wants(&key) {
            return;
        }
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
        let entries = std::mem::take(&mut self.entries);
        self.runs.push(Run::sorted(entries));
    }

    fn cut(&mut self, limit: usize) {
        let mut all: Vec<Entry<T>> = self.runs.drain(..).flatten().collect();
        all.append(&mut self.entries);
        let mut all: Vec<Entry<T>> = Run::sorted(all).take(limit).collect();
        self.bytes = all.iter().map(|entry| entry.2).sum();
        if let Some((last, ..)) = all.last()
            && all.len() == limit
        {
            self.bound = Some(last.clone());
        }
        if all.len() < SORT_RUN {
            self.entries.append(&mut all);
        } else {
            self.runs.push(Run::sorted(all));
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
            rest: self.runs,
            left: self.limit.unwrap_or(usize::MAX),
        };
        for run in 0..sorted.rest.len() {
            sorted.values.push(None);
            sorted.refill(run);
        }
        sorted
    }
}

/// The first 8 bytes of a key, padded with zeros: where two differ, they order their keys.
fn front(key: &[u8]) -> u64 {
    let mut front = [0; 8];
    let length = key.len().min(front.len());
    front[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(front)
}

/// Entries, and their order; they leave in it.
#[derive(Debug)]
struct Run<T> {
    /// `None` for one that has left.
    entries: Vec<Option<Entry<T>>>,
    order: std::vec::IntoIter<(u64, u32)>,
}

impl<T> Run<T> {
    /// Sorts fronts of keys with the places of their entries, which are larger and stay where they
    /// are.
    fn sorted(entries: Vec<Entry<T>>) -> Run<T> {
        let fronts = entries.iter().map(|(key, ..)| front(key));
        let mut order: Vec<(u64, u32)> = fronts.zip(0..).collect();
        order.sort_unstable_by(|a, b| {
            let keys = || {
                let (a, b) = (&entries[a.1 as usize].0, &entries[b.1 as usize].0);
                a.cmp(b)
            };
            a.0.cmp(&b.0).then_with(keys).then(a.1.cmp(&b.1))
        });
        Run {
            entries: entries.into_iter().map(Some).collect(),
            order: order.into_iter(),
        }
    }
}

impl<T> Iterator for Run<T> {
    type Item = Entry<T>;

    fn next(&mut self) -> Option<Entry<T>> {
        let (_, place) = self.order.next()?;
        self.entries[place as usize].take()
    }
}

/// The key that a run comes to next: its front, the key, and which run it is.
type Head = (u64, Vec<u8>, usize);

/// The runs as one.
pub struct Sorted<T> {
    /// The next key of each run, the least on top; of equal ones that of the earlier run.
    heads: BinaryHeap<Reverse<Head>>,
    /// The values to these keys.
    values: Vec<Option<T>>,
    rest: Vec<Run<T>>,
    /// How many are still wanted.
    left: usize,
}

impl<T> Sorted<T> {
    fn refill(&mut self, run: usize) {
        if let Some((key, value, _)) = self.rest[run].next() {
            self.heads.push(Reverse((front(&key), key, run)));
            self.values[run] = Some(value);
        }
    }
}

impl<T> Iterator for Sorted<T> {
    type Item = (Vec<u8>, T);

    fn next(&mut self) -> Option<(Vec<u8>, T)> {
        self.left = self.left.checked_sub(1)?;
        let mut least = self.heads.peek_mut()?;
        let Reverse((_, _, run)) = *least;
        let value = self.values[run].take();
        let Reverse((_, key, _)) = match self.rest[run].next() {
            Some((next, value, _)) => {
                self.values[run] = Some(value);
                std::mem::replace(&mut *least, Reverse((front(&next), next, run)))
            }
            None => PeekMut::pop(least),
        };
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
