//! A walk over a range of a tree in the order of its keys, over all partitions, at one snapshot.

use std::collections::VecDeque;
use std::ops::Bound;

use bytes::Bytes;
use pinion_runtime::{Queue, join_all, submit_to};
use pinion_storage::{Direction, Key, KeyRange, PartitionId, ReadAt, ReadError, TreeId, storage};

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

pub(super) struct OrderedWalk {
    tree: TreeId,
    at: ReadAt,
    parts: Vec<Part>,
}

impl OrderedWalk {
    pub(super) fn new(tree: TreeId, lower: &Bound<Key>, at: ReadAt) -> OrderedWalk {
        let partitions = (0..storage().partition_count()).map(PartitionId);
        let part = |partition| Part {
            partition,
            rest: Some(lower.clone()),
            page: VecDeque::new(),
        };
        OrderedWalk {
            tree,
            at,
            parts: partitions.map(part).collect(),
        }
    }

    /// The next record.
    ///
    /// # Errors
    /// The snapshot is gone, or a page is damaged.
    pub(super) async fn next(&mut self) -> Result<Option<Walked>, ReadError> {
        self.fill().await?;
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
    async fn fill(&mut self) -> Result<(), ReadError> {
        let (tree, at) = (self.tree, self.at);
        let is_due = |part: &&mut Part| part.page.is_empty() && part.rest.is_some();
        let due: Vec<&mut Part> = self.parts.iter_mut().filter(is_due).collect();
        if due.is_empty() {
            return Ok(());
        }
        let pages = join_all(due.iter().map(|part| {
            let (partition, lower) = (part.partition, part.rest.clone());
            let owner = storage().owner(partition);
            submit_to(owner, Queue::Background, move || async move {
                page(partition, tree, lower.unwrap_or(Bound::Unbounded), at).await
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
    lower: Bound<Key>,
    at: ReadAt,
) -> Result<Page, ReadError> {
    let owned = storage().partition(partition).expect("asked its owner");
    let range = KeyRange {
        lower,
        upper: Bound::Unbounded,
    };
    let mut cursor = owned.cursor(tree, range, Direction::Forward, at);
    let (mut records, mut bytes) = (VecDeque::new(), 0);
    while records.len() < CHECK_PAGE_RECORDS && bytes < CHECK_PAGE_BYTES {
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
