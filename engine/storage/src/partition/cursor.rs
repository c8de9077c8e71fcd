//! Cursors: ordered reads over delta and base, robust against whatever happens between two steps.
//!
//! A cursor remembers the key it stands on and, as a shortcut, a leaf. Writes, seals, checkpoints
//! and evictions between two steps at most cost it the shortcut.

mod block;

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

use pinion_runtime::sync::Notify;
use pinion_runtime::{Queue, sim, spawn, yield_if_due};

use super::core::{Partition, State};
use super::delta::{Chain, Delta, TreeDelta, newer};
use super::read::{RunList, SnapshotPin, read_intent, read_version};
use super::run::RunVersion;
use super::run_cursor::RunsAhead;
use super::view::View;
use crate::base::{BaseCursor, Stored, TreeRoot};
use crate::types::{Direction, Key, KeyRange, Read, ReadAt, ReadError, TreeId, VersionToken};

pub use self::block::{Block, BlockRecord};

/// Steps over keys without a visible version after which a cursor offers to yield.
const STEPS_BEFORE_YIELD: u32 = 128;
/// Most changed records that a cursor reads ahead at once.
const CHANGES_READ_AHEAD: usize = 64;

/// A position in a range of keys of one tree.
///
/// At a timestamp it pins that snapshot as long as it lives. At newest each step reads the newest
/// state of that moment.
pub struct Cursor {
    partition: Rc<Partition>,
    tree: TreeId,
    range: KeyRange,
    direction: Direction,
    at: ReadAt,
    pin: Result<Option<SnapshotPin>, ReadError>,
    /// The next record lies beyond it, unless `from_base` is set.
    from: Bound<Key>,
    /// The next record is the one in the base on which `base` stands, and `from` is behind: the key
    /// that was given last is the one before that in the same leaf. It is copied only when
    /// something depends on it.
    from_base: bool,
    base: BaseCursor,
    /// The view's number when `base` was placed.
    base_number: u64,
    /// The next key that a delta has, none if there is no other, as long as
    /// [`Delta::edits`](super::delta::Delta::edits) stays the same: where changes are few, most
    /// records of the base are given without a look into the deltas.
    changed: Option<(u64, Option<Key>)>,
    ahead: Ahead,
    /// What the runs have next, where there are any; read under `base_number`.
    runs: Option<Box<RunsAhead>>,
    done: bool,
}

/// Records of the deltas that come next, found by one search: where most records are changed ones,
/// as behind a load, a search for each would be most of a scan.
#[derive(Default)]
struct Ahead {
    /// [`Delta::edits`](super::delta::Delta::edits) when they were read; they hold as long as it
    /// stays the same.
    edits: u64,
    records: VecDeque<(Key, Read)>,
    /// How many are read the next time: more where the deltas keep giving what comes next, as a
    /// short range has few.
    next_count: usize,
}

/// What a step of a cursor that passes over damage comes to.
#[derive(Debug)]
pub enum Readable {
    /// The next record.
    Record(Key, Read),
    /// The next record has a value that cannot be read.
    Value(Key, ReadError),
    /// A page cannot be read. Records that it holds or leads to are passed over.
    Page(ReadError),
    /// The end of the range.
    End,
}

/// The next record of a cursor.
enum Advanced {
    Record(Key, Read),
    /// Its value cannot be read. The cursor stands behind it.
    Unreadable(Key, ReadError),
    End,
}

/// How far a step got without waiting.
enum Step {
    Found(Key, Read),
    /// The record is found, its value must be loaded. Holding the view and the runs keeps their
    /// blocks from being reused.
    Large(Key, Stored, VersionToken, (Rc<View>, RunList)),
    Skipped,
    End,
    Undecided(Notify),
    /// A page of the tree must be loaded.
    Load(Rc<View>, TreeRoot),
    /// What these runs have next must be read.
    Runs(RunList),
}

impl Partition {
    /// A cursor over the live keys of `range`. Errors, such as a snapshot that is too old, come
    /// with the first step.
    pub fn cursor(
        &self,
        tree: TreeId,
        range: KeyRange,
        direction: Direction,
        at: ReadAt,
    ) -> Cursor {
        let pin = at.snapshot().map(|ts| self.pin(ts)).transpose();
        let from = start(&range, direction);
        Cursor {
            partition: self
                .me
                .upgrade()
                .expect("a partition that is called exists"),
            tree,
            range,
            direction,
            at,
            pin,
            from,
            from_base: false,
            base: BaseCursor::default(),
            base_number: u64::MAX,
            changed: None,
            ahead: Ahead::default(),
            runs: None,
            done: false,
        }
    }
}

impl Cursor {
    /// The next record, or none at the end of the range. Does not yield when every page needed is
    /// in memory and, at newest, no unit that changes the record is being decided.
    pub async fn next(&mut self) -> Result<Option<(Key, Read)>, ReadError> {
        if let Some(record) = self.next_in_leaf().or_else(|| self.next_ahead()) {
            return Ok(Some(record));
        }
        match self.advance().await? {
            Advanced::Record(key, read) => Ok(Some((key, read))),
            Advanced::Unreadable(_, error) => Err(error),
            Advanced::End => Ok(None),
        }
    }

    /// As [`Cursor::next`], forwards, past what cannot be read: that is reported, and the next step
    /// is behind it.
    ///
    /// # Errors
    /// Those that are not of the pages: the snapshot is too old, the partition was closed.
    pub async fn next_readable(&mut self) -> Result<Readable, ReadError> {
        assert!(
            self.direction == Direction::Forward,
            "damage is passed over forwards"
        );
        if let Some((key, read)) = self.next_in_leaf().or_else(|| self.next_ahead()) {
            return Ok(Readable::Record(key, read));
        }
        let error = match self.advance().await {
            Ok(Advanced::Record(key, read)) => return Ok(Readable::Record(key, read)),
            Ok(Advanced::Unreadable(key, error)) => return Ok(Readable::Value(key, error)),
            Ok(Advanced::End) => return Ok(Readable::End),
            Err(error @ (ReadError::Corrupt { .. } | ReadError::Io(_))) => error,
            Err(error) => return Err(error),
        };
        match self.end_of_damage().await? {
            Some(key) => self.seek(&key),
            None => self.done = true,
        }
        Ok(Readable::Page(error))
    }

    /// The first key behind the page that the cursor could not read; none if no page is behind it.
    async fn end_of_damage(&self) -> Result<Option<Key>, ReadError> {
        let from = self.from.as_ref().map(Key::as_slice);
        let key = self.base.goes_to(from);
        let (view, root) = {
            let state = self.partition.state.borrow();
            let view = state.views.of(self.at)?.clone();
            let root = view.root(self.tree, self.at);
            (view, root)
        };
        let Some(root) = root else { return Ok(None) };
        let store = &self.partition.store;
        let end = store.end_of_unreadable(self.tree, &root, &key).await;
        drop(view);
        Ok(end)
    }

    /// The next record, with the errors of its value apart from those of the pages on the way to
    /// it.
    async fn advance(&mut self) -> Result<Advanced, ReadError> {
        if let Err(error) = &self.pin {
            return Err(error.clone());
        }
        let mut skipped = 0u32;
        while !self.done {
            match self.step()? {
                Step::Found(key, read) => return Ok(Advanced::Record(key, read)),
                Step::Large(key, stored, token, _held) => {
                    let value = self.partition.store.value(self.tree, &stored).await;
                    return Ok(match value {
                        Ok(value) => Advanced::Record(key, Read { value, token }),
                        Err(error) => Advanced::Unreadable(key, error),
                    });
                }
                Step::Skipped => {
                    skipped += 1;
                    if skipped.is_multiple_of(STEPS_BEFORE_YIELD) {
                        yield_if_due().await;
                    }
                }
                Step::End => self.done = true,
                Step::Undecided(decided) => self.partition.wait_decided(decided).await?,
                Step::Runs(runs) => {
                    let (tree, at, direction) = (self.tree, self.at, self.direction);
                    let new = || Box::new(RunsAhead::new(&runs, tree, at, direction));
                    let from = self.from.as_ref().map(Key::as_slice);
                    let ahead = self.runs.get_or_insert_with(new);
                    ahead.fill(&self.partition.store, from, &self.range).await?;
                }
                Step::Load(view, root) => {
                    self.read_ahead(&view, &root);
                    let from = self.from.as_ref().map(Key::as_slice);
                    self.base
                        .place(
                            &self.partition.store,
                            self.tree,
                            &root,
                            from,
                            self.direction,
                        )
                        .await?;
                }
            }
        }
        Ok(Advanced::End)
    }

    /// A cursor that goes from leaf to leaf has those that come next read while it waits for this
    /// one. A task that reads holds the view, so that the page's blocks are not reused meanwhile.
    /// What fails to be read here is reported where it is needed.
    fn read_ahead(&self, view: &Rc<View>, root: &TreeRoot) {
        let store = &self.partition.store;
        let ahead = self
            .base
            .leaves_ahead(store, root, self.direction, store.leaves_at_once());
        for ptr in ahead {
            sim::count("leaves read ahead of a cursor", 1);
            let (partition, view, tree) = (self.partition.clone(), view.clone(), self.tree);
            drop(spawn(Queue::Foreground, async move {
                let _ = partition.store.page(&ptr, tree).await;
                drop(view);
            }));
        }
    }

    /// Continues at `key`, forwards or backwards of where the cursor stands: the next record is the
    /// first at or beyond it, in the cursor's direction, within its range.
    pub fn seek(&mut self, key: &[u8]) {
        let before_range = match self.direction {
            Direction::Forward => !self.range.above_lower(key),
            Direction::Reverse => !self.range.below_upper(key),
        };
        self.stand(if before_range {
            start(&self.range, self.direction)
        } else {
            Bound::Included(Key::from_slice(key))
        });
    }

    /// Continues in another range, from its beginning. Nothing is left of the block that the cursor
    /// has filled.
    pub fn enter(&mut self, range: KeyRange) {
        self.range = range;
        self.stand(start(&self.range, self.direction));
    }

    /// The next record is the first beyond `from`, wherever the cursor stood.
    fn stand(&mut self, from: Bound<Key>) {
        self.from_base = false;
        self.changed = None;
        self.ahead.records.clear();
        self.runs = None;
        self.from = from;
        self.done = false;
        self.base
            .seek_within(self.from.as_ref().map(Key::as_slice), self.direction);
    }

    /// Passes over records without looking at each, and gives how many: at most `most`, as many as
    /// are known to lie in the range. Zero where the next must be looked at, by [`Cursor::next`].
    /// Counting takes a search for each leaf in this way.
    pub fn pass(&mut self, most: usize) -> usize {
        if self.done || self.pin.is_err() || self.direction == Direction::Reverse {
            return 0;
        }
        let in_leaf = self.to_pass_in_leaf().min(most);
        if in_leaf > 0 {
            self.base.pass(in_leaf, self.direction);
            self.from_base = true;
            return in_leaf;
        }
        let ahead = self.to_pass_ahead().min(most);
        if let Some((last, _)) = self.ahead.records.drain(..ahead).next_back() {
            self.from = Bound::Excluded(last);
        }
        ahead
    }

    /// The records from the one on which the cursor stands in its leaf of the base, without the
    /// last of the leaf, so that the one that was given last stays known; as far as they lie in the
    /// range, and no change lies among them.
    fn to_pass_in_leaf(&self) -> usize {
        let state = self.partition.state.borrow();
        let Ok(view) = state.views.of(self.at) else {
            return 0;
        };
        let unchanged = self.unchanged_in_leaf(&state, view);
        let standing = self.base.standing();
        standing.map_or(0, |(page, index)| unchanged.min(page.len() - 1 - index))
    }

    /// How many records come next from the one on which the cursor stands in its leaf of the base:
    /// they lie in the range, and no change lies before or among them.
    fn unchanged_in_leaf(&self, state: &State, view: &View) -> usize {
        if !self.leaf_is_next(state, view) {
            return 0;
        }
        let Some((page, index)) = self.base.standing() else {
            return 0;
        };
        let changed = match (&self.changed, state.is_unchanged(view, self.tree)) {
            (Some((_, changed)), false) => changed.as_ref(),
            _ => None,
        };
        let below = |key: &Key| page.search(key).unwrap_or_else(|at| at);
        let through = |key: &Key| page.search(key).map_or_else(|at| at, |at| at + 1);
        match self.direction {
            Direction::Forward => {
                let end = match &self.range.upper {
                    Bound::Unbounded => page.len(),
                    Bound::Included(key) => through(key),
                    Bound::Excluded(key) => below(key),
                };
                end.min(changed.map_or(end, below)).saturating_sub(index)
            }
            Direction::Reverse => {
                let first = match &self.range.lower {
                    Bound::Unbounded => 0,
                    Bound::Included(key) => below(key),
                    Bound::Excluded(key) => through(key),
                };
                let first = first.max(changed.map_or(first, through));
                (index + 1).saturating_sub(first)
            }
        }
    }

    /// Whether the record of the base on which the cursor stands comes next, unless it lies beyond
    /// the range: the view is the one in which the cursor was placed, and neither a change nor an
    /// intent comes before it.
    #[inline]
    fn leaf_is_next(&self, state: &State, view: &View) -> bool {
        self.base_number == view.number()
            && self.base_is_next(state, view)
            && !state.intents.concern(self.tree, self.at)
    }

    /// The records that were read ahead and come before that of the base.
    fn to_pass_ahead(&self) -> usize {
        if self.ahead.records.is_empty() {
            return 0;
        }
        let state = self.partition.state.borrow();
        let Ok(view) = state.views.of(self.at) else {
            return 0;
        };
        if self.from_base
            || self.base_number != view.number()
            || self.ahead.edits != state.active.edits()
            || state.intents.concern(self.tree, self.at)
            || !self.base.is_ready()
        {
            return 0;
        }
        let records = &self.ahead.records;
        match self.base.record() {
            None => records.len(),
            Some((page, index)) => {
                records.partition_point(|(key, _)| page.compare(index, key).is_gt())
            }
        }
    }

    /// Releases the snapshot. The next step is refused unless [`Cursor::renew`] comes before it.
    pub fn release(&mut self) {
        self.pin = Err(ReadError::SnapshotTooOld);
    }

    /// Reads the state at `at` from now on, from where the cursor stands.
    pub fn renew(&mut self, at: ReadAt) {
        if at != self.at {
            self.settle_from();
            self.at = at;
            self.base = BaseCursor::default();
            self.base_number = u64::MAX;
            self.changed = None;
            self.ahead = Ahead::default();
            self.runs = None;
        }
        let pinned = at.snapshot().map(|ts| self.partition.pin(ts));
        self.pin = pinned.transpose();
    }

    /// Whether the end of the range was reached.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// The next record in the common case: it lies in the leaf that the cursor stands in, and no
    /// change comes before it. None where the others must decide, [`Cursor::step`] and its callers.
    #[inline]
    fn next_in_leaf(&mut self) -> Option<(Key, Read)> {
        if self.done || self.pin.is_err() {
            return None;
        }
        let (key, read) = {
            let state = self.partition.state.borrow();
            let view = state.views.of(self.at).ok()?;
            if !self.leaf_is_next(&state, view) {
                return None;
            }
            let (page, index) = self.base.standing()?;
            if page.is_overflow(index) {
                return None;
            }
            let (key, value) = page.key_and_value(index);
            let token = page.token();
            (key, Read { value, token })
        };
        if !within(&self.range, &key, self.direction) {
            return None;
        }
        self.advance_past(&key);
        Some((key, read))
    }

    /// The next record of those that were read ahead, where nothing has changed since and the base
    /// has none before it.
    #[inline]
    fn next_ahead(&mut self) -> Option<(Key, Read)> {
        let (key, _) = self.ahead.records.front()?;
        {
            let state = self.partition.state.borrow();
            let view = state.views.of(self.at).ok()?;
            if self.from_base
                || self.base_number != view.number()
                || self.ahead.edits != state.active.edits()
                || state.intents.concern(self.tree, self.at)
                || !self.base.is_ready()
            {
                return None;
            }
            if let Some((page, index)) = self.base.record()
                && !page.compare(index, key).is_gt()
            {
                return None;
            }
        }
        let (key, read) = self.ahead.records.pop_front()?;
        self.from = Bound::Excluded(key.clone());
        Some((key, read))
    }

    /// Reads the records ahead that the deltas have behind `from`, which has just been given.
    fn look_ahead(&mut self, state: &State, view: &View) {
        let count = self.ahead.next_count;
        self.ahead.next_count = (4 * count).clamp(1, CHANGES_READ_AHEAD);
        let Bound::Excluded(from) = &self.from else {
            return;
        };
        if count == 0 || self.direction == Direction::Reverse {
            return;
        }
        self.ahead.edits = state.active.edits();
        let (tree, at, range) = (self.tree, self.at, &self.range);
        let records = &mut self.ahead.records;
        view.with_sealed(|sealed| {
            let sealed = sealed.and_then(|sealed| sealed.delta.tree(tree));
            let mut active = changes_behind(state.active.tree(tree), from).peekable();
            let mut sealed = changes_behind(sealed, from).peekable();
            for _ in 0..count {
                let order = match (active.peek(), sealed.peek()) {
                    (Some((upper, _)), Some((lower, _))) => upper.cmp(lower),
                    (Some(_), None) => Ordering::Less,
                    (None, Some(_)) => Ordering::Greater,
                    (None, None) => break,
                };
                let upper = order.is_le().then(|| active.next()).flatten();
                let lower = order.is_ge().then(|| sealed.next()).flatten();
                let Some((key, _)) = upper.or(lower) else {
                    break;
                };
                if !range.below_upper(key) {
                    break;
                }
                let version = newer(
                    upper.and_then(|(_, chain)| chain.visible(at)),
                    lower.and_then(|(_, chain)| chain.visible(at)),
                );
                if let Some(read) = version.and_then(read_version) {
                    records.push_back((key.clone(), read));
                }
            }
        });
    }

    /// Advances past the record of the base that has this key.
    #[inline]
    fn advance_past(&mut self, key: &Key) {
        self.from_base = self.base.advance_within(self.direction);
        if self.from_base {
            self.base.expect_more(&self.partition.store, self.direction);
        } else {
            // Copied at once, where `clone` would go byte by byte.
            self.from = Bound::Excluded(Key::from_slice(key));
            self.base.advance(self.direction);
        }
    }

    /// Brings `from` up to date.
    fn settle_from(&mut self) {
        if std::mem::take(&mut self.from_base) {
            let key = self.base.behind(self.direction);
            self.from = Bound::Excluded(key);
        }
    }

    /// Makes the base cursor ready in the tree that the view has. Gives that where a page of it
    /// must be loaded first.
    fn place_base(&mut self, partition: &Partition, view: &View) -> Option<TreeRoot> {
        if self.base_number != view.number() {
            self.settle_from();
            self.base_number = view.number();
            self.base = BaseCursor::Unplaced;
            self.ahead.records.clear();
            self.runs = None;
        }
        if self.base.is_ready() {
            return None;
        }
        let root = view.root(self.tree, self.at);
        let from = self.from.as_ref().map(Key::as_slice);
        let store = &partition.store;
        let is_placed = (self.base).try_place(store, root.as_ref(), from, self.direction);
        match is_placed {
            true => None,
            false => Some(root.expect("a tree that is not there needs no page")),
        }
    }

    fn step(&mut self) -> Result<Step, ReadError> {
        let partition = self.partition.clone();
        let state = partition.state.borrow();
        let view = state.views.of(self.at)?;
        if let Some(root) = self.place_base(&partition, view) {
            return Ok(Step::Load(view.clone(), root));
        }
        // The common case: no change comes before the base's record, and no unit changes what this
        // read sees.
        let concern = state.intents.concern(self.tree, self.at);
        if !concern && self.base_is_next(&state, view) {
            let Some((page, index)) = self.base.record() else {
                return Ok(Step::End);
            };
            let (key, stored) = Stored::with_key(page, index);
            let token = page.token();
            if !within(&self.range, &key, self.direction) {
                return Ok(Step::End);
            }
            self.advance_past(&key);
            return Ok(found(&partition, view, key, stored, token));
        }
        self.settle_from();
        self.ahead.records.clear();
        let edits = state.active.edits();
        let has_runs = state.has_runs(view);
        let in_runs = match has_runs {
            true => match self.next_in_runs(&state, view) {
                Ok(next) => next,
                Err(runs) => return Ok(Step::Runs(runs)),
            },
            false => None,
        };
        let in_delta = match self.changed.take() {
            Some((then, key)) if then == edits && !has_runs => key,
            _ => {
                let of_runs = in_runs.as_ref().map(|(key, _)| key.clone());
                self.first(self.next_in_delta(&state, view), of_runs)
            }
        };
        let from = self.from.as_ref().map(Key::as_slice);
        let base = self.base.record();
        // Which of the two comes first, and whether they are the same key.
        let (use_base, key) = match (base, in_delta) {
            (None, None) => (false, None),
            (None, Some(key)) => (false, Some(key)),
            (Some((page, index)), None) => {
                self.changed = Some((edits, None));
                (true, Some(page.key(index)))
            }
            (Some((page, index)), Some(key)) => {
                let order = page.compare(index, &key);
                let order = if self.direction == Direction::Forward {
                    order
                } else {
                    order.reverse()
                };
                if order.is_lt() {
                    self.changed = Some((edits, Some(key)));
                    (true, Some(page.key(index)))
                } else {
                    (order.is_eq(), Some(key))
                }
            }
        };
        let key = key.filter(|key| within(&self.range, key, self.direction));
        if concern {
            let own = self.own_until(&state, key.as_ref());
            let to = own.as_ref().map(|(own, _)| own).or(key.as_ref());
            let way = (from, to.map(Key::as_slice));
            let range = (&self.range, self.direction);
            let intents = &state.intents;
            if let Some(decided) = intents.first_blocking(self.tree, way, range, self.at) {
                return Ok(Step::Undecided(decided));
            }
            if let Some((own, read)) = own {
                if use_base && key.as_ref() == Some(&own) {
                    self.base.advance(self.direction);
                }
                self.from = Bound::Excluded(own.clone());
                return Ok(read.map_or(Step::Skipped, |read| Step::Found(own, read)));
            }
        }
        let Some(key) = key else { return Ok(Step::End) };
        let in_runs = in_runs.filter(|(of_runs, _)| *of_runs == key);
        let version = state.with_visible(view, self.tree, &key, self.at, |version| {
            let is_in_run = |lower: &(Key, RunVersion)| version.is_none_or(|v| v.ts < lower.1.ts);
            match in_runs.filter(is_in_run) {
                Some((_, lower)) => Some(Newest::InRun(lower)),
                None => version.map(|version| Newest::InDelta(read_version(version))),
            }
        });
        let step = match version {
            Some(Newest::InDelta(Some(read))) => Step::Found(key.clone(), read),
            Some(Newest::InDelta(None)) => Step::Skipped,
            Some(Newest::InRun(version)) => {
                let token = version.token();
                let runs = || partition.runs_below(&state, view, self.tree, self.at);
                match version.value {
                    Some(stored) => found_in(&partition, view, runs, (key.clone(), stored, token)),
                    None => Step::Skipped,
                }
            }
            None if use_base => {
                let (page, index) = base.expect("the base has the record");
                let stored = Stored::at(page, index);
                found(&partition, view, key.clone(), stored, page.token())
            }
            None => Step::Skipped,
        };
        self.from = Bound::Excluded(key);
        if use_base {
            self.base.advance(self.direction);
            self.ahead.next_count = 0;
        } else if state.layers.is_empty() && !view.has_past() {
            self.look_ahead(&state, view);
        }
        Ok(step)
    }

    /// What the runs have next; where that must be read first, those to read.
    fn next_in_runs(
        &mut self,
        state: &State,
        view: &View,
    ) -> Result<Option<(Key, RunVersion)>, RunList> {
        let from = self.from.as_ref().map(Key::as_slice);
        let next = self.runs.as_mut().map(|ahead| ahead.next(from));
        if let Some(Ok(next)) = next {
            return Ok(next.cloned());
        }
        let runs = self.partition.runs_below(state, view, self.tree, self.at);
        match runs.is_empty() {
            true => Ok(None),
            false => Err(runs),
        }
    }

    /// The one of two keys to which the cursor comes first.
    fn first(&self, one: Option<Key>, other: Option<Key>) -> Option<Key> {
        match (one, other) {
            (Some(one), Some(other)) if self.direction == Direction::Forward => {
                Some(one.min(other))
            }
            (Some(one), Some(other)) => Some(one.max(other)),
            (one, other) => one.or(other),
        }
    }

    /// What the unit that reads has itself written and comes next: before `key`, or that one.
    fn own_until(&self, state: &State, key: Option<&Key>) -> Option<(Key, Option<Read>)> {
        let ReadAt::In { unit, .. } = self.at else {
            return None;
        };
        let from = self.from.as_ref().map(Key::as_slice);
        let way = (from, key.map(Key::as_slice));
        let (own, intent) = state
            .intents
            .next_own(unit, self.tree, way, (&self.range, self.direction))
            .filter(|(own, _)| within(&self.range, own, self.direction))?;
        Some((own.clone(), read_intent(intent)))
    }

    /// Whether nothing that a delta has comes before the record of the base on which the cursor
    /// stands, or is that record.
    #[inline]
    fn base_is_next(&self, state: &State, view: &View) -> bool {
        if state.is_unchanged(view, self.tree) {
            return true;
        }
        let Some((edits, changed)) = &self.changed else {
            return false;
        };
        if *edits != state.active.edits() {
            return false;
        }
        match (self.base.standing(), changed) {
            (_, None) => true,
            (Some((page, index)), Some(key)) => match self.direction {
                Direction::Forward => page.compare(index, key).is_lt(),
                Direction::Reverse => page.compare(index, key).is_gt(),
            },
            (None, Some(_)) => false,
        }
    }

    /// The next key that a delta has.
    fn next_in_delta(&self, state: &State, view: &View) -> Option<Key> {
        let from = self.from.as_ref().map(Key::as_slice);
        let next = |delta: Option<&Delta>| {
            let (key, _) = delta?.tree(self.tree)?.next(from, self.direction)?;
            Some(key.clone())
        };
        let active = next(Some(&state.active));
        let sealed = view.with_sealed(|sealed| next(sealed.map(|sealed| &sealed.delta)));
        let lower = self.first(sealed, view.with_late(next));
        self.first(self.first(active, next(state.layers.delta())), lower)
    }
}

/// Where the newest version of a key lies that a read sees, if not in the base.
enum Newest {
    InDelta(Option<Read>),
    InRun(RunVersion),
}

/// The keys of a delta above this one.
fn changes_behind<'d>(
    delta: Option<&'d TreeDelta>,
    from: &'d Key,
) -> impl Iterator<Item = (&'d Key, &'d Chain)> {
    let entries = delta.map(|delta| delta.range_from(from));
    let entries = entries.into_iter().flatten();
    entries.skip_while(move |(key, _)| *key == from)
}

/// Whether the end of a range in `direction` is not passed.
fn within(range: &KeyRange, key: &[u8], direction: Direction) -> bool {
    match direction {
        Direction::Forward => range.below_upper(key),
        Direction::Reverse => range.above_lower(key),
    }
}

/// A record of the base, with its value if that is in memory.
fn found(
    partition: &Partition,
    view: &Rc<View>,
    key: Key,
    stored: Stored,
    token: VersionToken,
) -> Step {
    found_in(partition, view, RunList::new, (key, stored, token))
}

/// The same of a record of one of these runs.
fn found_in(
    partition: &Partition,
    view: &Rc<View>,
    runs: impl FnOnce() -> RunList,
    (key, stored, token): (Key, Stored, VersionToken),
) -> Step {
    match partition.store.try_value(stored) {
        Ok(value) => Step::Found(key, Read { value, token }),
        Err(stored) => Step::Large(key, stored, token, (view.clone(), runs())),
    }
}

/// Where a cursor over a range begins.
fn start(range: &KeyRange, direction: Direction) -> Bound<Key> {
    match direction {
        Direction::Forward => range.lower.clone(),
        Direction::Reverse => range.upper.clone(),
    }
}
