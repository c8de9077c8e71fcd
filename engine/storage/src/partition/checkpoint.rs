//! A partition's share of a checkpoint: sealing the delta, merging it into the base, installing the
//! result.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{Queue, sim, spawn, yield_if_due};
use rustc_hash::FxHashMap;

use super::core::{Partition, PartitionMemory};
use super::delta::{Chain, Version};
use super::key_map::KeyMap;
use super::merging::Merging;
use super::spill::Spilled;
use super::view::{Reaped, Sealed, View};
use crate::base::{
    Change, Counts, Extent, Freed, Pace, PageWriter, PartitionRoots, TreeRoot, Unpaced, free_tree,
    merge_tree, rest,
};
use crate::types::{Fatal, Key, TreeId};

/// Small steps of background work between two rests, or offers to yield.
const STEPS_AT_ONCE: usize = 128;
/// Versions put back into the delta between two rests: each may wait for memory several times.
const RESTORED_AT_ONCE: usize = 32;

/// A merged checkpoint, true once its manifest is durable.
pub(super) struct Merged {
    roots: PartitionRoots,
    master: Option<TreeRoot>,
    trees: FxHashMap<TreeId, TreeRoot>,
    spilled: Option<Spilled>,
    freed: Vec<Extent>,
    /// Trees that were loaded and begin with this manifest.
    loaded: Vec<(TreeId, Counts)>,
}

impl Merged {
    /// Whether changes wait in the page file to be merged.
    pub(super) fn spills(&self) -> bool {
        self.spilled.is_some()
    }
}

impl Partition {
    /// Freezes the delta for a checkpoint at `c`, which must be visible and durable everywhere:
    /// nothing that an entry at or below it records arrives later, nor anything else but what is
    /// not replicated.
    ///
    /// # Panics
    /// If a checkpoint is under way, or `c` lies below the base.
    pub(crate) fn seal(&self, c: Timestamp) {
        self.reap_views();
        let state = &mut *self.state.borrow_mut();
        assert!(
            c >= state.views.current().timestamp(),
            "a checkpoint below the base"
        );
        assert!(
            !state.layers.is_any_within(c),
            "a checkpoint at {c} leaves out what it is to hold"
        );
        let horizon = self.horizon.get();
        // At the base's own timestamp it takes what is not replicated alone.
        let is_base = c == state.views.current().timestamp();
        assert!(
            c >= horizon || horizon == Timestamp::MAX || is_base,
            "versions that a checkpoint at {c} needs may be gone"
        );
        let dropped: Vec<(TreeId, Timestamp)> = state
            .dropped
            .iter()
            .filter(|&(_, after)| *after <= c)
            .map(|(&tree, &after)| (tree, after))
            .collect();
        for (tree, after) in &dropped {
            if *after == Timestamp::MIN {
                state.layers.forget(*tree);
            }
            if self.is_read_below(*after) {
                // Those snapshots find it in the state that this checkpoint replaces, with what is
                // sealed over it.
                continue;
            }
            if let Some(delta) = state.active.remove_tree(*tree) {
                self.reclaim(delta.bytes(), std::iter::once(delta.into_keys()).collect());
            }
        }
        state.settle_late();
        let delta = state.active.take();
        let ids = delta.tree_ids().into_iter();
        let counts = ids
            .filter_map(|tree| Some((tree, *state.counts.get(&tree)?)))
            .collect();
        state.sealed_seq = state.next_seq;
        state.views.current().seal(Sealed {
            at: c,
            delta,
            counts,
            miscounted: std::mem::take(&mut state.miscounted),
            dropped: dropped.into_iter().map(|(tree, _)| tree).collect(),
        });
    }

    /// Whether snapshots below `ts` are open, or may still be opened.
    fn is_read_below(&self, ts: Timestamp) -> bool {
        self.history_from().is_some_and(|from| from < ts)
            || self.pins.borrow().range(..ts).next().is_some()
    }

    /// Puts off the flushing of pages, or makes up for it: the planted fault of a superblock before
    /// its pages.
    pub(crate) async fn hold_page_syncs(&self, hold: bool) -> Result<(), Fatal> {
        self.store.file.holds_syncs.set(hold);
        self.store.file.sync().await
    }

    /// Writes the sealed changes into new pages, durable on return: merges them into the base, or,
    /// unless it is to be `thorough`, spills them where that costs much less. Runs in the
    /// background queue, yields often and rests as `pace` says; reports to it whenever some of the
    /// sealed changes are no longer needed.
    pub(crate) async fn merge(
        &self,
        thorough: bool,
        pace: &dyn Pace,
    ) -> Result<PartitionRoots, Fatal> {
        let view = self.state.borrow().views.current().clone();
        let spills = match view.sealed() {
            Some(sealed) => !thorough && self.is_sparse(&view, &sealed, pace).await,
            None => panic!("merge follows seal"),
        };
        let merged = self.merge_view(&view, spills, pace).await?;
        let roots = merged.roots;
        let before = self.state.borrow_mut().merged.replace(merged);
        assert!(before.is_none(), "two checkpoints of one partition at once");
        Ok(roots)
    }

    /// Puts those of the loaded trees that are complete among the others, durable on return; the
    /// base stays what it is otherwise. None if there are none. No checkpoint is under way.
    pub(crate) async fn merge_loads(
        &self,
        trees: &[TreeId],
    ) -> Result<Option<PartitionRoots>, Fatal> {
        self.store.file.check()?;
        let view = self.state.borrow().views.current().clone();
        assert!(
            view.with_sealed(|sealed| sealed.is_none()),
            "a checkpoint is under way"
        );
        let loads = self.install_loads(trees);
        if loads.is_empty() {
            return Ok(None);
        }
        let number = view.roots.checkpoint + 1;
        let mut writer = PageWriter::new(&self.store, number, &Unpaced);
        let mut freed = Freed::default();
        let mut trees = view.trees.clone();
        let mut master_changes = BTreeMap::new();
        let mut loaded = Vec::new();
        for load in loads {
            freed.extents.extend(load.freed);
            trees.insert(load.tree, load.root);
            master_changes.insert(load.tree, Some(load.root));
            loaded.push((load.tree, load.root.counts));
        }
        let mut roots = view.roots;
        let master = self
            .merge_master(&view, &mut roots, master_changes, &mut freed, &mut writer)
            .await?;
        writer.finish().await?;
        let spilled = self.state.borrow().spilled;
        let before = self.state.borrow_mut().merged.replace(Merged {
            roots,
            master,
            trees,
            spilled,
            freed: freed.extents,
            loaded,
        });
        assert!(before.is_none(), "two checkpoints of one partition at once");
        Ok(Some(roots))
    }

    async fn merge_view(
        &self,
        view: &View,
        spills: bool,
        pace: &dyn Pace,
    ) -> Result<Merged, Fatal> {
        self.store.file.check()?;
        let (at, dropped, miscounted, to_merge) = view.with_sealed(|sealed| {
            let sealed = sealed.expect("only what is sealed is merged");
            let to_merge = match spills {
                true => Vec::new(),
                false => sealed.delta.tree_ids(),
            };
            let is_kept = |tree: &TreeId| !sealed.dropped.contains(tree);
            let to_merge: Vec<TreeId> = to_merge.into_iter().filter(is_kept).collect();
            let miscounted = sealed.miscounted.clone();
            (sealed.at, sealed.dropped.clone(), miscounted, to_merge)
        });
        let mut merging = Merging::new(self, view, at, pace);
        let mut trees = view.trees.clone();
        let mut master_changes: BTreeMap<TreeId, Option<TreeRoot>> = BTreeMap::new();
        for tree in dropped {
            if let Some(root) = trees.remove(&tree) {
                free_tree(&self.store, &mut merging.freed, tree, root).await?;
                master_changes.insert(tree, None);
            }
        }
        let mut spilled = None;
        if spills {
            sim::event("checkpoint spills");
            let sealed = view.sealed().expect("only what is sealed is spilled");
            let Merging { writer, freed, .. } = &mut merging;
            let root = self.spill(writer, freed, view, &sealed, pace).await?;
            if let Some(root) = root {
                trees.insert(TreeId::SPILLED, root);
                master_changes.insert(TreeId::SPILLED, Some(root));
                let seq = self.state.borrow().sealed_seq;
                spilled = Some(Spilled { seq, at });
            }
        } else if let Some(root) = trees.remove(&TreeId::SPILLED) {
            sim::event("spilled changes merged");
            free_tree(&self.store, &mut merging.freed, TreeId::SPILLED, root).await?;
            master_changes.insert(TreeId::SPILLED, None);
        }
        for (tree, root) in self.recounted(&miscounted, &trees, pace).await {
            trees.insert(tree, root);
            master_changes.insert(tree, Some(root));
        }
        for tree in to_merge {
            let old = trees.get(&tree).copied();
            let new = merging.merge(tree, old).await?;
            match new {
                Some(root) => trees.insert(tree, root),
                None => trees.remove(&tree),
            };
            if new != old {
                master_changes.insert(tree, new);
            }
        }
        let mut roots = PartitionRoots {
            timestamp: at.as_u64(),
            ..view.roots
        };
        let Merging {
            mut writer,
            mut freed,
            later,
            ..
        } = merging;
        let mut master = view.master;
        if !master_changes.is_empty() {
            master = self
                .merge_master(view, &mut roots, master_changes, &mut freed, &mut writer)
                .await?;
        }
        writer.finish().await?;
        let later = later.iter();
        let later = later.map(|(tree, key, version)| (*tree, key, version));
        self.restore(later, pace).await;
        Ok(Merged {
            roots,
            master,
            trees,
            spilled,
            freed: freed.extents,
            loaded: Vec::new(),
        })
    }

    /// Merges changed roots into the master tree, and fills in the roots of the partition. Gives
    /// the new master.
    async fn merge_master(
        &self,
        view: &View,
        roots: &mut PartitionRoots,
        changes: BTreeMap<TreeId, Option<TreeRoot>>,
        freed: &mut Freed,
        writer: &mut PageWriter<'_>,
    ) -> Result<Option<TreeRoot>, Fatal> {
        let changes = changes.into_iter().map(|(tree, root)| -> Change {
            (
                Key::from_slice(&tree.0.to_be_bytes()),
                root.map(|root| Bytes::copy_from_slice(&root.encode())),
            )
        });
        let master = merge_tree(
            writer,
            &self.store,
            freed,
            TreeId::MASTER,
            view.master,
            Box::new(std::iter::empty()),
            changes,
        )
        .await?;
        self.complete(view, roots, master, freed, writer).await?;
        Ok(master)
    }

    /// Puts versions that were sealed back into the active delta. Until the new base is installed
    /// they are in both, which changes no answer: the same version wins in either. They are counted
    /// once.
    pub(super) async fn restore<'a>(
        &self,
        versions: impl Iterator<Item = (TreeId, &'a Key, &'a Version)>,
        pace: &dyn Pace,
    ) {
        let mut versions = versions.peekable();
        while versions.peek().is_some() {
            {
                let pins = self.pins.borrow();
                let needed = self.needed(&pins);
                let mut state = self.state.borrow_mut();
                for (tree, key, version) in versions.by_ref().take(RESTORED_AT_ONCE) {
                    state.restored_bytes +=
                        state.active.restore(tree, key, version.clone(), &needed);
                }
            }
            rest(pace).await;
        }
    }

    /// Writes the list of free extents and fills in the roots.
    async fn complete(
        &self,
        view: &View,
        roots: &mut PartitionRoots,
        master: Option<TreeRoot>,
        freed: &mut Freed,
        writer: &mut PageWriter<'_>,
    ) -> Result<(), Fatal> {
        roots.checkpoint += 1;
        (roots.master_word, roots.master_crc, roots.master_level) = master
            .map_or((0, 0, 0), |master| {
                (master.ptr.pack(), master.ptr.crc, master.level)
            });
        if let Some(old) = view.roots.free_list() {
            freed.page(&old);
        }
        let pending: Vec<Extent> = {
            let state = self.state.borrow();
            let older = state
                .views
                .retired_extents()
                .chain(state.releasing.iter().copied())
                .chain(state.frozen_extents.iter().copied());
            older.chain(freed.extents.iter().copied()).collect()
        };
        let (list, end) = writer
            .put_free_list(pending, || self.loading_extents())
            .await?;
        (roots.free_word, roots.free_crc) = (list.pack(), list.crc);
        roots.file_blocks = end;
        Ok(())
    }

    /// Makes the merged state current. The manifest that names `roots` is durable. Gives whether
    /// more than half of what was sealed lay above the checkpoint.
    pub(crate) fn install(&self, roots: PartitionRoots) -> bool {
        let state = &mut *self.state.borrow_mut();
        let merged = state.merged.take().expect("install follows merge");
        assert_eq!(
            merged.roots, roots,
            "another checkpoint is installed than was merged"
        );
        for (tree, counts) in &merged.loaded {
            state.loads.remove(tree);
            state.counts.insert(*tree, *counts);
        }
        // None where only loaded trees begin.
        let sealed = state.views.current().sealed();
        for tree in sealed.iter().flat_map(|sealed| &sealed.dropped) {
            state.dropped.remove(tree);
            state.counts.remove(tree);
        }
        // A tree that was emptied is forgotten, unless it lives on in the delta.
        let view = View::new(roots, merged.master, merged.trees, state.sequence());
        state.views.replace(view, merged.freed);
        state.spilled = merged.spilled;
        assert!(
            sealed.is_some() || state.restored_bytes == 0,
            "something was put back that nothing has sealed"
        );
        let sealed_bytes = sealed.as_ref().map_or(0, |sealed| sealed.delta.bytes());
        let mostly_left = std::mem::take(&mut state.restored_bytes) > sealed_bytes / 2;
        // It is retired with what was sealed.
        state.published_bytes = 0;
        state.active.note_edit();
        drop(sealed);
        self.reap_borrowed(state);
        mostly_left
    }

    /// Drops the views that are no longer needed.
    pub(super) fn reap_views(&self) {
        self.reap_borrowed(&mut self.state.borrow_mut());
    }

    fn reap_borrowed(&self, state: &mut super::core::State) {
        let limit = self.history_limit(state);
        let Reaped {
            extents,
            deltas,
            expired,
        } = state
            .views
            .reap(&self.pins.borrow(), self.history_from(), limit);
        self.expired_views.set(self.expired_views.get() + expired);
        if !extents.is_empty() {
            self.begin_release(state, extents);
        }
        deltas
            .into_iter()
            .for_each(|sealed| self.reclaim_sealed(sealed));
        self.begin_to_settle(state);
        self.share_memory(&self.memory_of(state));
    }

    /// Gives the page cache what changes leave of the memory for both, when changes have come or
    /// gone; `memory` is what they take.
    pub(crate) fn share_memory(&self, memory: &PartitionMemory) {
        let options = &self.store.options;
        let lent = memory
            .dirty_bytes()
            .saturating_sub(options.changes_beside_cache_bytes)
            .min(options.cache_bytes / 4 * 3);
        self.store.cache.set_budget(options.cache_bytes - lent);
    }

    /// Sets about making extents reusable that no view refers to.
    pub(super) fn begin_release(&self, state: &mut super::core::State, extents: Vec<Extent>) {
        let idle = state.releasing.is_empty();
        state.releasing.extend(extents);
        if idle
            && !state.releasing.is_empty()
            && let Some(partition) = self.me.upgrade()
        {
            drop(spawn(Queue::Background, partition.release_extents()));
        }
    }

    /// Makes extents reusable that no view refers to, a few at a time, but for those that a frozen
    /// state needs.
    async fn release_extents(self: Rc<Partition>) {
        loop {
            {
                let mut state = self.state.borrow_mut();
                if state.releasing.is_empty() {
                    return;
                }
                let some = state.releasing.len().min(STEPS_AT_ONCE);
                let state = &mut *state;
                for extent in state.releasing.drain(..some) {
                    match state.frozen.iter().any(|frozen| frozen.needs(extent)) {
                        true => state.frozen_extents.push(extent),
                        false => self.store.release(extent),
                    }
                }
            }
            yield_if_due().await;
        }
    }

    /// Drops large maps a piece at a time, in the background.
    pub(super) fn reclaim(&self, bytes: u64, maps: Vec<KeyMap<Chain>>) {
        if bytes == 0 {
            return;
        }
        let (reclaiming, partition) = (self.reclaiming.clone(), self.me.clone());
        reclaiming.set(reclaiming.get() + bytes);
        drop(spawn(Queue::Background, async move {
            for map in maps {
                for (index, entry) in map.into_entries().enumerate() {
                    drop(entry);
                    if index % STEPS_AT_ONCE == 0 {
                        yield_if_due().await;
                    }
                }
            }
            reclaiming.set(reclaiming.get() - bytes);
            if let Some(partition) = partition.upgrade() {
                partition.share_memory(&partition.memory());
            }
        }));
    }
}
