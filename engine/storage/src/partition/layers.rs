//! Layers: changes that no checkpoint may hold yet, on disk.
//!
//! The base of a member holds nothing above the stable timestamp. While that stands still, and
//! changes take too much memory, the active delta is sealed at a timestamp at or below which
//! everything is visible and durable, and written as a run: a layer between the delta and the base.
//! A read of any state asks the active delta, the layers, the sealed delta and the base, and of
//! what they have the version with the latest timestamp counts.
//!
//! A layer ends when a checkpoint may hold it: its versions come back into the active delta, oldest
//! layer first, and the checkpoint, at exactly the timestamp of the layer, seals and merges them
//! like others. What is not replicated is never in a layer: every checkpoint has it.

use std::collections::VecDeque;
use std::ops::Bound;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_runtime::sim;

use super::core::{Partition, State};
use super::delta::{Delta, Version};
use super::run::{Run, versions};
use super::run_writer::RunSource;
use super::units::Late;
use crate::base::{BaseCursor, Pace, Stored, TreeRoot, Unpaced, rest, unreadable};
use crate::types::{Direction, Fatal, Key, TreeId};

/// Keys looked at between two rests.
const STEPS_AT_ONCE: usize = 128;

/// Whether a version belongs to a layer that is sealed at `at`.
fn belongs(version: &Version, at: Timestamp) -> bool {
    version.ts != Timestamp::MIN && version.decided <= at
}

/// A layer on disk.
struct Layer {
    at: Timestamp,
    run: Rc<Run>,
}

/// A layer on its way to the disk.
struct Writing {
    at: Timestamp,
    delta: Rc<Delta>,
}

/// The layers of a partition.
#[derive(Default)]
pub(super) struct Layers {
    /// Oldest first.
    written: VecDeque<Layer>,
    writing: Option<Writing>,
}

impl Layers {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.written.is_empty() && self.writing.is_none()
    }

    #[inline]
    pub(super) fn has_runs(&self) -> bool {
        !self.written.is_empty()
    }

    pub(super) fn runs(&self) -> impl Iterator<Item = &Rc<Run>> {
        self.written.iter().map(|layer| &layer.run)
    }

    /// The changes of a layer that is being written.
    pub(super) fn delta(&self) -> Option<&Delta> {
        self.writing.as_ref().map(|writing| &*writing.delta)
    }

    /// The timestamp of the newest layer.
    fn newest(&self) -> Option<Timestamp> {
        let written = self.written.back().map(|layer| layer.at);
        self.writing.as_ref().map(|writing| writing.at).or(written)
    }

    /// Whether a state below that of some layer may come to be older than the base.
    pub(super) fn is_readable_below(&self, ts: Timestamp) -> bool {
        self.newest().is_some_and(|at| ts < at)
    }

    /// Whether a checkpoint at `c` is to hold some layer, or one is being written.
    pub(super) fn is_any_within(&self, c: Timestamp) -> bool {
        self.writing.is_some() || self.written.front().is_some_and(|layer| layer.at <= c)
    }

    /// What layers have of a tree is not read any more, whatever timestamps it has. No layer is
    /// being written.
    pub(super) fn forget(&self, tree: TreeId) {
        assert!(self.writing.is_none(), "a layer is being written");
        self.runs().for_each(|run| run.forget(tree));
    }

    /// Memory that the filters of layers take.
    pub(super) fn filter_bytes(&self) -> u64 {
        self.runs().map(|run| run.filter.bytes()).sum()
    }

    /// Disk that layers take.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.runs().map(|run| run.disk_bytes).sum()
    }
}

/// Versions that a planted fault has outlive the storage that held them.
pub(crate) struct KeptVersions(Vec<(TreeId, Key, Vec<Version>)>);

impl Partition {
    /// Freezes the delta for a layer at `at`, unless it is empty: everything at or below `at` is
    /// applied. Gives whether there is something to write. No checkpoint is under way.
    ///
    /// # Panics
    /// If `at` lies below the base, below another layer, or below the horizon; or while changes are
    /// spilled, which only a checkpoint that merges them may take out of the delta.
    pub(crate) fn seal_layer(&self, at: Timestamp) -> bool {
        let state = &mut *self.state.borrow_mut();
        if state.active.bytes() == 0 {
            return false;
        }
        let current = state.views.current();
        assert!(
            at >= current.timestamp() && state.layers.newest().is_none_or(|newest| newest < at),
            "a layer at {at} below what is older"
        );
        assert!(
            current.with_sealed(|sealed| sealed.is_none()) && state.layers.writing.is_none(),
            "a layer is sealed while a checkpoint or another layer is written"
        );
        assert!(
            state.spilled.is_none(),
            "spilled changes are sealed into a layer"
        );
        assert!(
            self.horizon.get() <= at,
            "versions that a checkpoint at {at} needs may be gone"
        );
        // They are late again when the layer is dissolved.
        state.late.retain(|late| !belongs(late.version(), at));
        let delta = Rc::new(state.active.take());
        state.layers.writing = Some(Writing { at, delta });
        state.renumber();
        true
    }

    /// Writes the layer that was sealed, if there is one, and gives up the memory of it.
    pub(crate) async fn write_layer(&self, pace: &dyn Pace) -> Result<(), Fatal> {
        let sealed = {
            let state = self.state.borrow();
            let writing = state.layers.writing.as_ref();
            writing.map(|writing| (writing.at, writing.delta.clone()))
        };
        let Some((at, delta)) = sealed else {
            return Ok(());
        };
        self.restore_beyond(&delta, at, pace).await;
        let source = RunSource {
            delta: &delta,
            keeps: &|version| belongs(version, at),
            is_wanted: &|| true,
        };
        let run = self.write_run(source, pace).await?;
        {
            let state = &mut *self.state.borrow_mut();
            state.layers.writing = None;
            if let Some(run) = run {
                state.layers.written.push_back(Layer { at, run });
            }
            state.restored_bytes = 0;
            state.active.note_edit();
            state.renumber();
        }
        sim::event("layer written");
        let bytes = delta.bytes();
        if let Ok(delta) = Rc::try_unwrap(delta) {
            let trees = delta.into_trees();
            self.reclaim(bytes, trees.map(|tree| tree.into_keys()).collect());
        }
        Ok(())
    }

    /// Puts the versions that do not belong to a layer back into the active delta. Until the layer
    /// is written they are in both.
    async fn restore_beyond(&self, delta: &Delta, at: Timestamp, pace: &dyn Pace) {
        let mut beyond = Vec::new();
        for tree in delta.tree_ids() {
            let changes = delta.tree(tree).expect("the tree was just listed");
            for (index, (key, chain)) in changes.iter().enumerate() {
                let versions = chain.newest_first();
                let others = versions.filter(|version| !belongs(version, at));
                beyond.extend(others.map(|version| (tree, key, version)));
                if index % STEPS_AT_ONCE == 0 {
                    rest(pace).await;
                }
            }
        }
        self.restore(beyond.into_iter(), pace).await;
    }

    /// Brings the versions of all layers at or below `at` back into the active delta, for the
    /// checkpoint there. They stay readable in the layer until it is complete.
    pub(crate) async fn dissolve_layers(
        &self,
        at: Timestamp,
        pace: &dyn Pace,
    ) -> Result<(), Fatal> {
        loop {
            let run = {
                let state = self.state.borrow();
                assert!(state.layers.writing.is_none(), "a layer is being written");
                let oldest = state.layers.written.front();
                match oldest.filter(|layer| layer.at <= at) {
                    Some(layer) => layer.run.clone(),
                    None => return Ok(()),
                }
            };
            for (tree, root) in run.roots() {
                self.load_back(tree, &root, pace, &mut |key, versions| {
                    self.insert_back(tree, key, versions)
                })
                .await?;
            }
            let state = &mut *self.state.borrow_mut();
            state.layers.written.pop_front();
            state.active.note_edit();
            state.renumber();
            sim::event("layer dissolved");
        }
    }

    /// Hands over every key of a tree of a layer, with its versions.
    async fn load_back(
        &self,
        tree: TreeId,
        root: &TreeRoot,
        pace: &dyn Pace,
        put: &mut dyn FnMut(&Key, Vec<Version>),
    ) -> Result<(), Fatal> {
        let store = &self.store;
        let mut cursor = BaseCursor::default();
        loop {
            let from = Bound::Unbounded;
            if !cursor.try_place(store, Some(root), from, Direction::Forward) {
                let placed = cursor.place(store, tree, root, from, Direction::Forward);
                placed.await.map_err(unreadable)?;
            }
            let Some((page, index)) = cursor.record() else {
                return Ok(());
            };
            let (key, stored) = Stored::with_key(page, index);
            let versions = versions(store, tree, root, &stored).await;
            put(&key, versions.map_err(unreadable)?);
            cursor.advance(Direction::Forward);
            rest(pace).await;
        }
    }

    /// Copies what all layers hold, for a planted fault.
    pub(crate) async fn keep_layers(&self) -> Result<KeptVersions, Fatal> {
        let runs: Vec<Rc<Run>> = self.state.borrow().layers.runs().cloned().collect();
        let mut kept = Vec::new();
        for run in runs {
            for (tree, root) in run.roots() {
                self.load_back(tree, &root, &Unpaced, &mut |key, versions| {
                    kept.push((tree, key.clone(), versions));
                })
                .await?;
            }
        }
        Ok(KeptVersions(kept))
    }

    /// Has readers find versions above `cut` that a rollback should have ended: a planted fault.
    pub(crate) fn put_back_kept(&self, kept: KeptVersions, cut: Timestamp) {
        for (tree, key, mut versions) in kept.0 {
            versions.retain(|version| version.ts > cut);
            self.insert_back(tree, &key, versions);
        }
        self.state.borrow_mut().active.note_edit();
    }

    fn insert_back(&self, tree: TreeId, key: &Key, versions: Vec<Version>) {
        let pins = self.pins.borrow();
        let needed = self.needed(&pins);
        let state = &mut *self.state.borrow_mut();
        for version in versions {
            // A checkpoint since may have left a state that is read at its timestamp, whether one
            // did or not when it was committed.
            if version.ts < version.decided {
                state
                    .late
                    .push(Late::new(tree, key.clone(), version.clone()));
            }
            state.active.restore(tree, key, version, &needed);
        }
    }
}

impl State {
    /// What was looked up in any view may lie elsewhere from now on.
    fn renumber(&mut self) {
        let number = self.sequence();
        self.views.renumber(number);
    }
}
