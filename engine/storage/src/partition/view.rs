//! Views: an immutable base with the delta that was sealed over it, kept as long as a snapshot needs it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use pinion_clock::Timestamp;
use rustc_hash::FxHashMap;

use super::delta::{Delta, Needed, Version};
use crate::base::{Counts, Extent, PartitionRoots, TreeRoot};
use crate::types::{Key, ReadAt, ReadError, TreeId};

/// The changes that a checkpoint merges; nothing is added to them any more.
pub(crate) struct Sealed {
    /// Versions that the log up to it tells of are merged; those that come later in it return to the active delta.
    pub at: Timestamp,
    pub delta: Delta,
    /// Exact counts of its trees at newest when it was sealed.
    pub counts: FxHashMap<TreeId, Counts>,
    /// Trees that end with this checkpoint.
    pub dropped: Vec<TreeId>,
}

/// One state of the base, and the delta sealed over it.
///
/// While a checkpoint merges the delta, readers get what is merged part by part: pages that hold it, and then the delta
/// without it. For who reads the newest state, or at or above the checkpoint, nothing changes by that.
pub(crate) struct View {
    pub roots: PartitionRoots,
    pub master: Option<TreeRoot>,
    /// The trees of this base. Readers ask for [`View::root`].
    pub trees: FxHashMap<TreeId, TreeRoot>,
    sealed: RefCell<Option<Rc<Sealed>>>,
    merged: RefCell<Option<MergedSoFar>>,
    /// Other after each part, and in each view: what was looked up under one number may lie elsewhere under another.
    number: Cell<u64>,
}

/// What a checkpoint under way has merged of the sealed delta, until it is installed. All its pages are written.
struct MergedSoFar {
    /// Snapshots at or above it may read it: they see of each key what was merged, or the sealed delta tells what they see.
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
            number: Cell::new(number),
        })
    }

    /// As long as it stays the same, so does what the base and the sealed delta say of each key.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.number.get()
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

    /// Lets readers at or above `at` have these trees, into which the sealed delta was merged in part.
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

    /// Takes changes out of the sealed delta that are merged and published. No older state may be readable any more. None
    /// while somebody has a share of the delta.
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
    /// Extents that this view refers to and the next does not.
    freed: Vec<Extent>,
    /// No snapshot reads it any more; only its extents wait for those of older views.
    closed: bool,
}

impl Retired {
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

    /// Whether snapshots from `history` on may read it.
    fn is_history(&self, history: Option<Timestamp>) -> bool {
        history.is_some_and(|from| from < self.until)
    }

    fn delta_bytes(&self) -> u64 {
        self.view
            .with_sealed(|sealed| sealed.map_or(0, |sealed| sealed.delta.bytes()))
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

/// The current view, and those before it that somebody still reads.
pub(crate) struct Views {
    current: Rc<View>,
    /// Oldest first. An extent freed here may be referred to by every older view too, so they end in order.
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

    /// Whether a state of the base that is not the newest, or will not be for long, may be read at `ts`.
    pub(crate) fn is_readable_below(&self, ts: Timestamp) -> bool {
        let is_below = |sealed: Option<&Sealed>| sealed.is_some_and(|sealed| ts < sealed.at);
        ts < self.current.timestamp() || self.current.with_sealed(is_below)
    }

    /// Gives a version that was committed late to every state that is read there. One that cannot take it ends.
    pub(crate) fn insert_below(&mut self, tree: TreeId, key: &Key, version: &Version) {
        // Older states are read at few timestamps; none of a key's versions is dropped for the new one.
        let pins = BTreeMap::new();
        let needed = Needed {
            horizon: Timestamp::MIN,
            pins: &pins,
        };
        for retired in &mut self.retired {
            if retired.closed || retired.until <= version.ts {
                continue;
            }
            let mut sealed = retired.view.sealed.borrow_mut();
            match sealed.as_mut().and_then(Rc::get_mut) {
                Some(sealed) => {
                    sealed.delta.insert(tree, key, version.clone(), &needed);
                }
                None => retired.closed = true,
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

    /// Bytes of the sealed deltas of retired views.
    pub(crate) fn retired_bytes(&self) -> u64 {
        self.retired.iter().map(Retired::delta_bytes).sum()
    }

    /// Lets go of the retired views that no reader is at and neither pins nor the history that begins at `history` need,
    /// and beyond `limit` bytes of their deltas of the oldest that these do need: snapshots there end. A view between
    /// others gives up its delta and keeps its extents, since what it frees may belong to an older one.
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
                retired.closed = true;
                reaped.deltas.extend(retired.view.take_sealed());
            }
        }
        let mut bytes = self.retired_bytes();
        for retired in &mut self.retired {
            if bytes <= limit {
                break;
            }
            if !retired.closed && !retired.is_held() {
                bytes -= retired.delta_bytes();
                retired.closed = true;
                reaped.expired += u64::from(retired.is_pinned(pins));
                reaped.deltas.extend(retired.view.take_sealed());
            }
        }
        while self.retired.front().is_some_and(|oldest| oldest.closed) {
            let ended = self.retired.pop_front().expect("the queue has a front");
            reaped.extents.extend(ended.freed);
        }
        reaped
    }
}
