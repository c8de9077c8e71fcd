//! Reading ahead in runs: the next records of all runs below a cursor, merged into one short list.

use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

use pinion_runtime::yield_if_due;

use super::run::{Run, RunVersion, visible};
use crate::base::{BaseCursor, PageStore, Stored, TreeRoot};
use crate::limits::RUN_READ_AHEAD;
use crate::types::{Direction, Key, KeyRange, ReadAt, ReadError, TreeId};

/// Keys without a visible version that are passed between two offers to yield.
const STEPS_BEFORE_YIELD: usize = 128;

/// What the runs below a cursor have next. It holds as long as the runs are the same.
pub(super) struct RunsAhead {
    tree: TreeId,
    at: ReadAt,
    direction: Direction,
    /// Of each run that has the tree.
    places: Vec<(TreeRoot, BaseCursor)>,
    /// The next keys that have a version which the read sees, a deletion among them.
    records: VecDeque<(Key, RunVersion)>,
    /// Nothing comes behind `records`.
    is_complete: bool,
}

/// What comes next must be read first.
pub(super) struct Unread;

impl RunsAhead {
    pub(super) fn new(
        runs: &[Rc<Run>],
        tree: TreeId,
        at: ReadAt,
        direction: Direction,
    ) -> RunsAhead {
        let places = runs
            .iter()
            .filter_map(|run| Some((run.root(tree)?, BaseCursor::default())));
        RunsAhead {
            tree,
            at,
            direction,
            places: places.collect(),
            records: VecDeque::new(),
            is_complete: false,
        }
    }

    /// The next record beyond `from`, which never goes back; an error where it must be read first.
    pub(super) fn next(
        &mut self,
        from: Bound<&[u8]>,
    ) -> Result<Option<&(Key, RunVersion)>, Unread> {
        let is_behind = |key: &Key| match (from, self.direction) {
            (Bound::Unbounded, _) => false,
            (Bound::Included(from), Direction::Forward) => key.as_slice() < from,
            (Bound::Excluded(from), Direction::Forward) => key.as_slice() <= from,
            (Bound::Included(from), Direction::Reverse) => key.as_slice() > from,
            (Bound::Excluded(from), Direction::Reverse) => key.as_slice() >= from,
        };
        while self.records.front().is_some_and(|(key, _)| is_behind(key)) {
            self.records.pop_front();
        }
        match self.records.front() {
            None if !self.is_complete => Err(Unread),
            next => Ok(next),
        }
    }

    /// Reads on beyond `from`, in the runs that it was made for.
    pub(super) async fn fill(
        &mut self,
        store: &PageStore,
        from: Bound<&[u8]>,
        range: &KeyRange,
    ) -> Result<(), ReadError> {
        let (tree, direction) = (self.tree, self.direction);
        let mut steps = 0usize;
        while self.records.len() < RUN_READ_AHEAD {
            for (root, base) in &mut self.places {
                if !base.is_ready() && !base.try_place(store, Some(root), from, direction) {
                    base.place(store, tree, root, from, direction).await?;
                }
            }
            let keys = self.places.iter().filter_map(|(_, base)| {
                let (page, index) = base.record()?;
                Some(page.key(index))
            });
            let next = match direction {
                Direction::Forward => keys.min(),
                Direction::Reverse => keys.max(),
            };
            let is_within = |key: &Key| match direction {
                Direction::Forward => range.below_upper(key),
                Direction::Reverse => range.above_lower(key),
            };
            let Some(key) = next.filter(is_within) else {
                self.is_complete = true;
                return Ok(());
            };
            if let Some(version) = self.take(store, &key).await? {
                self.records.push_back((key, version));
            }
            steps += 1;
            if steps.is_multiple_of(STEPS_BEFORE_YIELD) {
                yield_if_due().await;
            }
        }
        Ok(())
    }

    /// Moves every run that stands on `key` on; gives the newest version that the read sees there.
    async fn take(
        &mut self,
        store: &PageStore,
        key: &Key,
    ) -> Result<Option<RunVersion>, ReadError> {
        let stands_there = |base: &BaseCursor| {
            let record = base.record();
            record.is_some_and(|(page, index)| page.compare(index, key).is_eq())
        };
        let mut newest: Option<RunVersion> = None;
        for (root, base) in self.places.iter().filter(|(_, base)| stands_there(base)) {
            let (page, index) = base.record().expect("it stands on a record");
            let stored = Stored::at(page, index);
            let found = visible(store, self.tree, root, &stored, self.at).await?;
            if let Some(found) = found
                && newest.as_ref().is_none_or(|newest| newest.ts < found.ts)
            {
                newest = Some(found);
            }
        }
        // All at once: the future may be dropped while it waits, and read again from here.
        for (_, base) in &mut self.places {
            if stands_there(base) {
                base.advance(self.direction);
            }
        }
        Ok(newest)
    }
}
