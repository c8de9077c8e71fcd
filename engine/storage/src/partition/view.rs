//! Views: an immutable base with the delta that was sealed over it, kept as long as a snapshot
//! needs it.
//!
//! The delta of a view that has been replaced is in memory at first. When such deltas take too much
//! of that, the oldest are written to disk as runs (`history.rs`), and the view is read through the
//! base and its run.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::{Rc, Weak};

use pinion_clock::Timestamp;
use rustc_hash::FxHashMap;

use super::delta::{Delta, Needed, Version, newer};
use super::run::Run;
use crate::base::{Counts, Extent, PartitionRoots, TreeRoot};
use crate::limits::BLOCK_BYTES;
use crate::types::{Key, ReadAt, ReadError, TreeId};

/// The changes that a checkpoint merges; nothing is added to them any more.
pub(crate) struct Sealed {
    /// Versions that the log up to it records are merged; those that come later in it return to the
    /// active delta.
    pub at: Timestamp,
    pub delta: Delta,
    /// Exact counts of its trees at newest when it was sealed.
    pub counts: FxHashMap<TreeId, Counts>,
    /// Trees whose records in the base are to be counted.
    pub miscounted: BTreeSet<TreeId>,
    /// Trees that end with this checkpoint.
    pub dropped: Vec<TreeId>,
}

/// One state of the base, and the delta sealed over it.
///
/// While a checkpoint merges the delta, readers get what is merged part by part: pages that hold
/// it, and then the delta without it. For reads of the newest state, or at or above the checkpoint,
/// nothing changes by that.
pub(crate) struct View {
    pub roots: PartitionRoots,
    pub master: Option<TreeRoot>,
    /// The trees of this base. Readers ask for [`View::root`].
    pub trees: FxHashMap<TreeId, TreeRoot>,
    sealed: RefCell<Option<Rc<Sealed>>>,
    merged: RefCell<Option<MergedSoFar>>,
    /// Of a view that has been replaced.
    past: RefCell<Past>,
    /// There is something in `past`, which hot paths ask first.
    has_past: Cell<bool>,
    /// Other after each part, and in each view: what was looked up under one number may lie
    /// elsewhere under another.
    number: Cell<u64>,
}

/// What a view that has been replaced has beside its base and the delta that was sealed over it.
#[derive(Default)]
struct Past {
    /// Versions that were committed late, at timestamps of this view.
    late: Delta,
    /// The sealed delta, once that was written.
    run: Option<Rc<Run>>,
}

/// What a checkpoint under way has merged of the sealed delta, until it is installed. All its pages
/// are written.
struct MergedSoFar {
    /// Snapshots at or above it may read it: they see of each key what was merged, or the sealed
    /// delta has what they see.
    at: Timestamp,
    /// The trees that have changed; none where nothing is left.
    trees: FxHashMap<TreeId, Option<TreeRoot>>,
}

impl View {
    pub(crate) fn new(
        roots: PartitionRoots,
        master: Option<TreeRoot>,
        trees: FxHashMap<TreeId, TreeRoot>,
        number: u64,
    ) -> Rc<View> {
        Rc::new(View {
            roots,
            master,
            trees,
            sealed: RefCell::new(None),
            merged: RefCell::new(None),
            past: RefCell::default(),
            has_past: Cell::new(false),
            number: Cell::new(number),
        })
    }

    /// As long as it stays the same, so does what the base and the sealed delta say of each key.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number.get()
    }

    /// Whether there is more to read than the sealed delta and the base.
    #[inline]
    pub(super) fn has_past(&self) -> bool {
        self.has_past.get()
    }

    /// Whether its delta was written to a run.
    #[inline]
    pub(super) fn has_run(&self) -> bool {
        self.has_past.get() && self.past.borrow().run.is_some()
    }

    /// The run that its delta was written to.
    pub(super) fn run(&self) -> Option<Rc<Run>> {
        match self.has_past.get() {
            true => self.past.borrow().run.clone(),
            false => None,
        }
    }

    /// Calls `f` with the version of `key` that a read at `at` sees in the deltas over this base.
    pub(super) fn with_visible<R>(
        &self,
        tree: TreeId,
        key: &[u8],
        at: ReadAt,
        f: impl FnOnce(Option<&Version>) -> R,
    ) -> R {
        self.with_sealed(|sealed| {
            let sealed = sealed.and_then(|sealed| sealed.delta.visible(tree, key, at));
            if !self.has_past.get() {
                return f(sealed);
            }
            let past = self.past.borrow();
            f(newer(past.late.visible(tree, key, at), sealed))
        })
    }

    /// Calls `f` with the versions that were committed late, if there are any.
    pub(super) fn with_late<R>(&self, f: impl FnOnce(Option<&Delta>) -> R) -> R {
        match self.has_past.get() {
            true => f(Some(&self.past.borrow().late)),
            false => f(None),
        }
    }

    /// The sealed delta is in a run. Gives it back to be dropped.
    fn replace_sealed(&self, run: Option<Rc<Run>>, number: u64) -> Option<Rc<Sealed>> {
        self.past.borrow_mut().run = run;
        self.has_past.set(true);
        self.number.set(number);
        self.take_sealed()
    }

    /// Where to read a tree at `at`: in this base, or in what a checkpoint has merged of it.
    #[inline]
    pub(crate) fn root(&self, tree: TreeId, at: ReadAt) -> Option<TreeRoot> {
        if let Some(merged) = &*self.merged.borrow()
            && at.snapshot().is_none_or(|ts| ts >= merged.at)
            && let Some(root) = merged.trees.get(&tree)
        {
            return *root;
        }
        self.trees.get(&tree).copied()
    }

    /// Lets readers at or above `at` have these trees, into which the sealed delta was merged in
    /// part.
    pub(crate) fn publish(
        &self,
        at: Timestamp,
        trees: impl IntoIterator<Item = (TreeId, Option<TreeRoot>)>,
        number: u64,
    ) {
        self.number.set(number);
        let mut merged = self.merged.borrow_mut();
        let merged = merged.get_or_insert_with(|| MergedSoFar {
            at,
            trees: FxHashMap::default(),
        });
        merged.trees.extend(trees);
    }

    /// Whether readers have a part of what a checkpoint merges.
    #[cfg(test)]
    pub(crate) fn is_partly_merged(&self) -> bool {
        self.merged.borrow().is_some()
    }

    /// The delta sealed over the base, while a checkpoint merges it and for snapshots afterwards.
    pub(crate) fn sealed(&self) -> Option<Rc<Sealed>> {
        self.sealed.borrow().clone()
    }

    /// Calls `f` with the sealed delta without taking a share of it.
    pub(crate) fn with_sealed<R>(&self, f: impl FnOnce(Option<&Sealed>) -> R) -> R {
        f(self.sealed.borrow().as_deref())
    }

    pub(crate) fn seal(&self, sealed: Sealed) {
        let before = self.sealed.borrow_mut().replace(Rc::new(sealed));
        assert!(before.is_none(), "a base is sealed over twice");
    }

    /// Takes changes out of the sealed delta that are merged and published. No older state may be
    /// readable any more. None while the delta is shared.
    pub(crate) fn shorten_sealed<R>(
        &self,
        number: u64,
        shorten: impl FnOnce(&mut Delta) -> R,
    ) -> Option<R> {
        let mut sealed = self.sealed.borrow_mut();
        let sealed = sealed.as_mut().and_then(Rc::get_mut)?;
        self.number.set(number);
        Some(shorten(&mut sealed.delta))
    }

    fn take_sealed(&self) -> Option<Rc<Sealed>> {
        self.sealed.borrow_mut().take()
    }

    pub(crate) fn timestamp(&self) -> Timestamp {
        self.roots.timestamp()
    }
}

/// A view that has been replaced.
struct Retired {
    view: Rc<View>,
    /// Snapshots at or above it read the next view.
    until: Timestamp,
    /// Extents that this view refers to and the next does not, and their blocks.
    freed: Vec<Extent>,
    freed_blocks: u64,
    /// No snapshot reads it any more; only its extents wait for those of older views.
    closed: bool,
}

impl Retired {
    fn is(&self, view: &Weak<View>) -> bool {
        Rc::as_ptr(&self.view) == view.as_ptr()
    }

    /// Whether the state of a snapshot is this view's.
    fn holds(&self, ts: Timestamp) -> bool {
        self.view.timestamp() <= ts && ts < self.until
    }

    /// Whether a reader is just now at it, between two looks.
    fn is_held(&self) -> bool {
        Rc::strong_count(&self.view) > 1
    }

    fn is_pinned(&self, pins: &BTreeMap<Timestamp, u32>) -> bool {
        pins.range(self.view.timestamp()..self.until)
            .next()
            .is_some()
    }

    /// Whether snapshots from `history` on may read it: none do where the next view is of the same
    /// timestamp.
    fn is_history(&self, history: Option<Timestamp>) -> bool {
        let is_read = self.view.timestamp() < self.until;
        is_read && history.is_some_and(|from| from < self.until)
    }

    /// Bytes of memory.
    fn delta_bytes(&self) -> u64 {
        let sealed = |sealed: Option<&Sealed>| sealed.map_or(0, |sealed| sealed.delta.bytes());
        let late = |late: Option<&Delta>| late.map_or(0, Delta::bytes);
        let filter = self.view.run().map_or(0, |run| run.filter.bytes());
        self.view.with_sealed(sealed) + self.view.with_late(late) + filter
    }

    /// Bytes of the disk.
    fn disk_bytes(&self) -> u64 {
        let run = self.view.run().map_or(0, |run| run.disk_bytes);
        self.freed_blocks * BLOCK_BYTES as u64 + run
    }

    /// Gives up everything but the extents.
    fn close(&mut self) -> Option<Rc<Sealed>> {
        self.closed = true;
        *self.view.past.borrow_mut() = Past::default();
        self.view.has_past.set(false);
        self.view.take_sealed()
    }
}

/// What ended with retired views.
#[derive(Default)]
pub(crate) struct Reaped {
    /// Extents to reuse.
    pub extents: Vec<Extent>,
    /// Deltas to drop.
    pub deltas: Vec<Rc<Sealed>>,
    /// Views that were taken from under their snapshots.
    pub expired: u64,
}

/// The current view, and those before it that are still read.
pub(crate) struct Views {
    current: Rc<View>,
    /// Oldest first. An extent freed here may be referred to by every older view too, so they end
    /// in order.
    retired: VecDeque<Retired>,
}

impl Views {
    pub(crate) fn new(current: Rc<View>) -> Views {
        Views {
            current,
            retired: VecDeque::new(),
        }
    }

    pub(crate) fn current(&self) -> &Rc<View> {
        &self.current
    }

    /// What was looked up in any view may lie elsewhere from now on.
    pub(super) fn renumber(&self, number: u64) {
        let retired = self.retired.iter().map(|retired| &retired.view);
        for view in retired.chain([&self.current]) {
            view.number.set(number);
        }
    }

    /// The view that holds the state of a snapshot.
    pub(crate) fn of(&self, at: ReadAt) -> Result<&Rc<View>, ReadError> {
        match at.snapshot() {
            None => Ok(&self.current),
            Some(ts) if ts >= self.current.timestamp() => Ok(&self.current),
            Some(ts) => self
                .retired
                .iter()
                .find(|retired| retired.holds(ts) && !retired.closed)
                .map(|retired| &retired.view)
                .ok_or(ReadError::SnapshotTooOld),
        }
    }

    /// Whether a state of the base that is not the newest, or will not be for long, may be read at
    /// `ts`.
    pub(crate) fn is_readable_below(&self, ts: Timestamp) -> bool {
        let is_below = |sealed: Option<&Sealed>| sealed.is_some_and(|sealed| ts < sealed.at);
        ts < self.current.timestamp() || self.current.with_sealed(is_below)
    }

    /// Gives a version that was committed late to every state that is read there.
    pub(crate) fn insert_below(&mut self, tree: TreeId, key: &Key, version: &Version) {
        // Older states are read at few timestamps; none of a key's versions is dropped for the new
        // one.
        let pins = BTreeMap::new();
        let needed = Needed {
            horizon: Timestamp::MIN,
            pins: &pins,
        };
        for retired in &self.retired {
            if !retired.closed && version.ts < retired.until {
                let late = &mut retired.view.past.borrow_mut().late;
                late.insert(tree, key, version.clone(), &needed);
                retired.view.has_past.set(true);
            }
        }
    }

    /// Replaces the current view.
    pub(crate) fn replace(&mut self, view: Rc<View>, freed: Vec<Extent>) {
        let until = view.timestamp();
        assert!(
            until >= self.current.timestamp(),
            "the base went back in time"
        );
        let old = std::mem::replace(&mut self.current, view);
        self.retired.push_back(Retired {
            view: old,
            until,
            freed_blocks: freed.iter().map(|extent| extent.blocks).sum(),
            freed,
            closed: false,
        });
    }

    /// The extents that only retired views refer to.
    pub(crate) fn retired_extents(&self) -> impl Iterator<Item = Extent> {
        self.retired
            .iter()
            .flat_map(|retired| retired.freed.iter().copied())
    }

    /// Memory that the changes of retired views take.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.retired.iter().map(Retired::delta_bytes).sum()
    }

    /// What retired views keep of the disk: pages that the current one does not have, and runs.
    pub(crate) fn retired_disk_bytes(&self) -> u64 {
        self.retired.iter().map(Retired::disk_bytes).sum()
    }

    /// The oldest retired view whose delta is in memory, that delta, and the end of the view's
    /// snapshots.
    pub(super) fn oldest_in_memory(&self) -> Option<(Weak<View>, Rc<Sealed>, Timestamp)> {
        let mut open = self.retired.iter().filter(|retired| !retired.closed);
        open.find_map(|retired| {
            let sealed = retired.view.sealed()?;
            Some((Rc::downgrade(&retired.view), sealed, retired.until))
        })
    }

    /// Whether a retired view is still read, or may be.
    pub(super) fn is_open(&self, view: &Weak<View>) -> bool {
        let mut retired = self.retired.iter();
        retired.any(|retired| !retired.closed && retired.is(view))
    }

    /// The delta of a retired view is in a run, from which it is read from now on; none if it has
    /// nothing that is seen. Gives the delta back to be dropped.
    pub(super) fn put_run(
        &self,
        view: &Weak<View>,
        run: Option<Rc<Run>>,
        number: u64,
    ) -> Option<Rc<Sealed>> {
        let mut retired = self.retired.iter().filter(|retired| !retired.closed);
        let retired = retired.find(|retired| retired.is(view))?;
        retired.view.replace_sealed(run, number)
    }

    /// Drops the retired views that no reader is at and that neither pins nor the history from
    /// `history` on need. Where all keep more than `limit` bytes of the disk, it also drops the
    /// oldest that are needed: snapshots there end. A view between others gives up its delta and
    /// keeps its extents, since what it frees may belong to an older one.
    pub(crate) fn reap(
        &mut self,
        pins: &BTreeMap<Timestamp, u32>,
        history: Option<Timestamp>,
        limit: u64,
    ) -> Reaped {
        let mut reaped = Reaped::default();
        for retired in &mut self.retired {
            let is_needed =
                retired.is_held() || retired.is_pinned(pins) || retired.is_history(history);
            if !retired.closed && !is_needed {
                reaped.deltas.extend(retired.close());
            }
        }
        reaped.take_closed(&mut self.retired);
        while self.retired_disk_bytes() > limit
            && let Some(oldest) = self.retired.front_mut().filter(|oldest| !oldest.is_held())
        {
            reaped.expired += u64::from(oldest.is_pinned(pins));
            reaped.deltas.extend(oldest.close());
            reaped.take_closed(&mut self.retired);
        }
        reaped
    }
}

impl Reaped {
    /// Takes the views out that have ended and that no older one waits for.
    fn take_closed(&mut self, retired: &mut VecDeque<Retired>) {
        while retired.front().is_some_and(|oldest| oldest.closed) {
            let ended = retired.pop_front().expect("the queue has a front");
            self.extents.extend(ended.freed);
        }
    }
}
