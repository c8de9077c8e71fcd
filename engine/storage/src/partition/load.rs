//! Loading a new tree: its records, which come in order, go into pages at once instead of through
//! the delta.
//!
//! The pages are written beside those of the partition's trees. Nothing refers to them until a
//! manifest has the tree's root among the others, so a crash before that leaves nothing behind:
//! every list of free extents that is written meanwhile counts what a load has taken as free. Until
//! then the tree is neither read nor written.

use std::rc::Rc;

use bytes::Bytes;
use pinion_runtime::{LocalBoxFuture, Queue, sim, spawn, yield_if_due};

use super::core::Partition;
use crate::base::{Extent, Freed, PageWriter, TakenExtents, TreeRoot, Unpaced, merge_tree};
use crate::types::{Fatal, Key, TreeId};

/// What the partition knows of a load.
pub(super) struct Load {
    taken: TakenExtents,
    /// Of a load that is complete.
    complete: Option<Complete>,
    /// The manifest in the making puts the tree among the others.
    is_installing: bool,
}

/// A tree that is complete and that no manifest has yet.
struct Complete {
    root: TreeRoot,
    /// Of what was taken: pages that later ones have replaced.
    freed: Vec<Extent>,
}

/// A tree that begins with a manifest.
pub(super) struct Loaded {
    pub tree: TreeId,
    pub root: TreeRoot,
    /// Extents that belong to nothing from then on.
    pub freed: Vec<Extent>,
}

/// A tree that is being loaded. One that is neither finished nor abandoned keeps its blocks until
/// the partition is opened again.
pub struct TreeLoad {
    partition: Rc<Partition>,
    tree: TreeId,
    root: Option<TreeRoot>,
    freed: Freed,
    taken: TakenExtents,
    last: Option<Key>,
}

impl Partition {
    /// Begins to load a tree, which has no key and is neither read nor written until the manifest
    /// after [`TreeLoad::finish`].
    ///
    /// # Panics
    /// If the tree is being loaded, or there is anything in it.
    pub fn load(&self, tree: TreeId) -> TreeLoad {
        let partition = self.me.upgrade();
        let partition = partition.expect("a partition that is called exists");
        let taken = TakenExtents::default();
        let load = Load {
            taken: taken.clone(),
            complete: None,
            is_installing: false,
        };
        let mut state = self.state.borrow_mut();
        assert!(
            !state.counts.contains_key(&tree) && !state.views.current().trees.contains_key(&tree),
            "{tree} is loaded over what it has"
        );
        let before = state.loads.insert(tree, load);
        assert!(before.is_none(), "{tree} is loaded twice at once");
        drop(state);
        TreeLoad {
            partition,
            tree,
            root: None,
            freed: Freed::default(),
            taken,
            last: None,
        }
    }

    /// Those of these trees that are complete: the manifest in the making puts them among the
    /// others.
    pub(super) fn install_loads(&self, trees: &[TreeId]) -> Vec<Loaded> {
        let mut state = self.state.borrow_mut();
        let loads = state.loads.iter_mut();
        loads
            .filter(|(tree, _)| trees.contains(tree))
            .filter_map(|(tree, load)| {
                let Complete { root, freed } = load.complete.take()?;
                load.is_installing = true;
                sim::event("loaded tree installed");
                Some(Loaded {
                    tree: *tree,
                    root,
                    freed,
                })
            })
            .collect()
    }

    /// What loads have taken that are not part of the manifest in the making, what those that were
    /// given up have not given back yet, and what runs have: no manifest names any of it.
    pub(super) fn loading_extents(&self) -> Vec<Extent> {
        let state = self.state.borrow();
        let loads = state.loads.values().filter(|load| !load.is_installing);
        let taken = loads.flat_map(|load| load.taken.borrow().clone());
        let taken = taken.chain(state.given_up.iter().copied());
        taken.chain(self.runs.borrow().extents()).collect()
    }

    /// Gives back what a complete load has taken, if no manifest has its tree.
    pub(super) fn forget_load(&self, tree: TreeId) {
        let mut state = self.state.borrow_mut();
        let waits = state.loads.get(&tree);
        if waits.is_none_or(|load| load.complete.is_none()) {
            return;
        }
        let load = state.loads.remove(&tree).expect("just seen");
        state.given_up.extend(load.taken.take());
        drop(state);
        if let Some(partition) = self.me.upgrade() {
            drop(spawn(Queue::Background, async move {
                partition.release_given_up().await;
            }));
        }
    }

    /// Makes the blocks of loads that were given up reusable. Any of them may be the first of a
    /// page in the cache.
    async fn release_given_up(&self) {
        loop {
            let Some(extent) = self.state.borrow_mut().given_up.pop() else {
                return;
            };
            for block in extent.start..extent.end() {
                self.store.cache.remove(block);
            }
            self.store.space.borrow_mut().release(extent);
            yield_if_due().await;
        }
    }
}

impl TreeLoad {
    /// Adds records behind those that are there.
    ///
    /// # Errors
    /// A page could not be written; the partition must not be used any more.
    ///
    /// # Panics
    /// If the keys do not ascend.
    pub fn append(&mut self, records: Vec<(Key, Bytes)>) -> LocalBoxFuture<'_, Result<(), Fatal>> {
        Box::pin(async move {
            let Some((last, _)) = records.last() else {
                return Ok(());
            };
            let last = last.clone();
            let before = self.last.iter().chain(records.iter().map(|(key, _)| key));
            assert!(
                before.is_sorted_by(|a, b| a < b),
                "records of {} are loaded out of order",
                self.tree
            );
            let store = &self.partition.store;
            let checkpoint = self.partition.roots().checkpoint + 1;
            let mut writer = PageWriter::recording(store, checkpoint, &Unpaced, self.taken.clone());
            self.root = merge_tree(
                &mut writer,
                store,
                &mut self.freed,
                self.tree,
                self.root,
                Box::new(std::iter::empty()),
                records.into_iter().map(|(key, value)| (key, Some(value))),
            )
            .await?;
            writer.settle().await?;
            self.last = Some(last);
            sim::event("part of a tree loaded");
            Ok(())
        })
    }

    /// Leaves the tree to [`Storage::install_loads`], with whose manifest it begins. No checkpoint
    /// puts it among the others: a tree begins in all partitions at once, or in none.
    ///
    /// [`Storage::install_loads`]: crate::Storage::install_loads
    pub fn finish(self) {
        let mut state = self.partition.state.borrow_mut();
        match self.root {
            Some(root) => {
                let load = state.loads.get_mut(&self.tree);
                let load = load.expect("it is known until a manifest has it");
                load.complete = Some(Complete {
                    root,
                    freed: self.freed.extents,
                });
            }
            // Nothing was written, and an empty tree is none.
            None => {
                state.loads.remove(&self.tree);
            }
        }
    }

    /// Gives everything back.
    pub fn abandon(self) -> LocalBoxFuture<'static, ()> {
        Box::pin(async move {
            {
                let mut state = self.partition.state.borrow_mut();
                let load = state.loads.remove(&self.tree);
                let load = load.expect("it is known until it is finished");
                state.given_up.extend(load.taken.take());
            }
            self.partition.release_given_up().await;
        })
    }
}
