//! A walk over a range of a tree in the order of its keys, over all partitions, at one snapshot.

use std::collections::VecDeque;
use std::ops::Bound;

use bytes::Bytes;
use pinion_runtime::{Queue, join_all, submit_to};
use pinion_storage::{Direction, Key, KeyRange, PartitionId, ReadAt, ReadError, TreeId, storage};

use super::range::is_empty;
use crate::limits::{CHECK_PAGE_BYTES, CHECK_PAGE_RECORDS};

/// A record, and where it is.
pub(super) struct Walked {
    pub partition: PartitionId,
    pub key: Key,
    pub value: Bytes,
}

/// What comes next of one partition.
struct Part {
    partition: PartitionId,
    /// Where what was not read yet begins; none when there is no more.
    rest: Option<Bound<Key>>,
    page: VecDeque<(Key, Bytes)>,
}

/// What the caller still takes.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub records: u64,
    pub bytes: u64,
}

impl Room {
    /// What is read at once of each of that number of partitions; one record at least.
    fn page(self, partitions: usize) -> PageLimits {
        let share = |room: u64, most: usize| {
            let share = room.div_ceil(partitions as u64).clamp(1, most as u64);
            share as usize
        };
        PageLimits {
            records: share(self.records, CHECK_PAGE_RECORDS),
            bytes: share(self.bytes, CHECK_PAGE_BYTES),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct PageLimits {
    records: usize,
    bytes: usize,
}

pub(super) struct OrderedWalk {
    tree: TreeId,
    upper: Bound<Key>,
    at: ReadAt,
    parts: Vec<Part>,
}

impl OrderedWalk {
    pub(super) fn new(tree: TreeId, range: KeyRange, at: ReadAt) -> OrderedWalk {
        let partitions = (0..storage().partition_count()).map(PartitionId);
        let rest = (!is_empty(&range)).then_some(range.lower);
        let part = |partition| Part {
            partition,
            rest: rest.clone(),
            page: VecDeque::new(),
        };
        OrderedWalk {
            tree,
            upper: range.upper,
            at,
            parts: partitions.map(part).collect(),
        }
    }

    /// The next record. No more are read ahead than there is room for.
    ///
    /// # Errors
    /// The snapshot is gone, or a page is damaged.
    pub(super) async fn next(&mut self, room: Room) -> Result<Option<Walked>, ReadError> {
        self.fill(room).await?;
        let parts = self.parts.iter_mut();
        let with_next = parts.filter(|part| !part.page.is_empty());
        let least = with_next.min_by(|a, b| a.page[0].0.cmp(&b.page[0].0));
        let next = least.and_then(|part| Some((part.partition, part.page.pop_front()?)));
        Ok(next.map(|(partition, (key, value))| Walked {
            partition,
            key,
            value,
        }))
    }

    /// Reads the next page of each partition that has none and may have more.
    async fn fill(&mut self, room: Room) -> Result<(), ReadError> {
        let (tree, at, limits) = (self.tree, self.at, room.page(self.parts.len()));
        let is_due = |part: &&mut Part| part.page.is_empty() && part.rest.is_some();
        let upper = &self.upper;
        let due: Vec<&mut Part> = self.parts.iter_mut().filter(is_due).collect();
        if due.is_empty() {
            return Ok(());
        }
        let pages = join_all(due.iter().map(|part| {
            let (partition, lower) = (part.partition, part.rest.clone());
            let range = KeyRange {
                lower: lower.unwrap_or(Bound::Unbounded),
                upper: upper.clone(),
            };
            let owner = storage().owner(partition);
            submit_to(owner, Queue::Background, move || async move {
                page(partition, tree, range, at, limits).await
            })
        }))
        .await;
        for (part, page) in due.into_iter().zip(pages) {
            (part.page, part.rest) = page?;
        }
        Ok(())
    }
}

type Page = (VecDeque<(Key, Bytes)>, Option<Bound<Key>>);

/// Some records of a partition, on its owner, and where the rest begins.
async fn page(
    partition: PartitionId,
    tree: TreeId,
    range: KeyRange,
    at: ReadAt,
    limits: PageLimits,
) -> Result<Page, ReadError> {
    let owned = storage().partition(partition).expect("asked its owner");
    let mut cursor = owned.cursor(tree, range, Direction::Forward, at);
    let (mut records, mut bytes) = (VecDeque::new(), 0);
    while records.len() < limits.records && bytes < limits.bytes {
        let Some((key, read)) = cursor.next().await? else {
            return Ok((records, None));
        };
        bytes += key.len() + read.value.len();
        records.push_back((key, read.value));
        pinion_runtime::yield_if_due().await;
    }
    let rest = records.back().map(|(key, _)| Bound::Excluded(key.clone()));
    Ok((records, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_ahead_than_is_taken() {
        let page = |records, bytes, partitions| {
            let page = Room { records, bytes }.page(partitions);
            (page.records, page.bytes)
        };
        assert_eq!(
            page(u64::MAX, u64::MAX, 4),
            (CHECK_PAGE_RECORDS, CHECK_PAGE_BYTES)
        );
        assert_eq!(page(21, 4000, 4), (6, 1000));
        assert_eq!(page(1, 0, 64), (1, 1));
    }
}
