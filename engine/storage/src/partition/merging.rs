//! Merging the sealed delta part by part.
//!
//! A checkpoint counts when its manifest is durable, and blocks are reused only then. But the
//! memory of what it replaces need not be kept so long. Whenever enough pages are built, they are
//! published: newest reads, and those at or above the checkpoint, find them in place of the pages
//! that they replace, which leave the cache. Changes that are published leave the sealed delta too,
//! as soon as no older snapshot can be read. Where history is kept they stay for its snapshots, and
//! count as retired from then on, as all that was sealed does after the checkpoint: writers need
//! not wait for its end.

use std::cell::Cell;

use pinion_clock::Timestamp;
use pinion_runtime::sim;
use rustc_hash::FxHashMap;

use super::core::Partition;
use super::delta::{Chain, Version};
use super::view::View;
use crate::base::{Change, ChangedKeys, Freed, Pace, PageWriter, TreeRoot, merge_tree};
use crate::types::{Fatal, Key, TreeId};

/// Pages let go of between two rests.
const PAGES_AT_ONCE: usize = 128;

/// A merge under way.
pub(super) struct Merging<'a> {
    partition: &'a Partition,
    view: &'a View,
    /// The checkpoint's timestamp.
    at: Timestamp,
    pace: &'a dyn Pace,
    pub(super) writer: PageWriter<'a>,
    pub(super) freed: Freed,
    /// Versions that the log above the checkpoint records, which go back into the active delta.
    pub(super) later: Vec<(TreeId, Key, Version)>,
    /// Trees that have changed, or changed again, since the last part was published.
    trees: FxHashMap<TreeId, Option<TreeRoot>>,
    /// Trees that are merged and whose changes are still in the sealed delta.
    complete: Vec<TreeId>,
    /// What the changes of those take.
    complete_bytes: u64,
    /// Bytes of pages that were built when the last part was published.
    built: u64,
    /// How many of the freed extents the cache has let go of.
    forgotten: usize,
}

/// How far the merge of a tree has come.
struct Reached {
    tree: TreeId,
    /// The first key that is not merged; none when the tree is complete.
    key: Option<Key>,
    /// What the changes below it take that are still in the sealed delta.
    bytes: u64,
}

impl<'a> Merging<'a> {
    pub(super) fn new(
        partition: &'a Partition,
        view: &'a View,
        at: Timestamp,
        pace: &'a dyn Pace,
    ) -> Merging<'a> {
        Merging {
            partition,
            view,
            at,
            pace,
            writer: PageWriter::new(&partition.store, view.roots.checkpoint + 1, pace),
            freed: Freed::default(),
            later: Vec::new(),
            trees: FxHashMap::default(),
            complete: Vec::new(),
            complete_bytes: 0,
            built: 0,
            forgotten: 0,
        }
    }

    /// Merges the sealed changes of one tree into it and gives its new root; none if nothing is
    /// left in it.
    pub(super) async fn merge(
        &mut self,
        tree: TreeId,
        mut root: Option<TreeRoot>,
    ) -> Result<Option<TreeRoot>, Fatal> {
        let mut reached = Reached {
            tree,
            key: Some(Key::new()),
            bytes: 0,
        };
        while let Some(first) = reached.key.take() {
            let end = self.built + self.partition.store.options.part_bytes;
            root = self.merge_part(&first, root, end, &mut reached).await?;
            if reached.key.is_none() {
                self.complete.push(tree);
                self.complete_bytes += std::mem::take(&mut reached.bytes);
            }
            if self.writer.built() >= end {
                self.publish(&mut reached).await?;
            }
        }
        Ok(root)
    }

    /// Merges changes from `first` on until the pages built reach `end`.
    async fn merge_part(
        &mut self,
        first: &Key,
        root: Option<TreeRoot>,
        end: u64,
        reached: &mut Reached,
    ) -> Result<Option<TreeRoot>, Fatal> {
        let sealed = self.view.sealed().expect("only what is sealed is merged");
        let tree = reached.tree;
        let delta = sealed.delta.tree(tree).expect("it is taken out afterwards");
        let bytes = Cell::new(reached.bytes);
        let mut changes = delta
            .range_from(first)
            .inspect(|(key, chain)| {
                let taken = chain.bytes(key);
                bytes.set(bytes.get() + taken);
                self.pace.merged(taken);
            })
            .filter_map(|(key, chain)| change(tree, key, chain, self.at, &mut self.later))
            .peekable();
        let mut new = root;
        if changes.peek().is_some() {
            let keys: ChangedKeys<'_> = Box::new(delta.range_from(first).map(|(key, _)| key));
            let built = self.writer.built_cell();
            let part = std::iter::from_fn(|| match built.get() < end {
                true => changes.next(),
                false => None,
            });
            let store = &self.partition.store;
            let (writer, freed) = (&mut self.writer, &mut self.freed);
            new = merge_tree(writer, store, freed, tree, root, keys, part).await?;
            self.trees.insert(tree, new);
        }
        let next = changes.peek().map(|(key, _)| key.clone());
        reached.bytes = bytes.get();
        if let Some(key) = next {
            let chain = delta.get(&key).expect("it comes from there");
            reached.bytes -= chain.bytes(&key);
            reached.key = Some(key);
        }
        Ok(new)
    }

    /// Lets readers have what is merged so far, and gives up the memory of what that replaces, as
    /// far as no snapshot needs it.
    async fn publish(&mut self, reached: &mut Reached) -> Result<(), Fatal> {
        self.writer.settle().await?;
        self.built = self.writer.built();
        sim::event("part of a merge published");
        let number = self.partition.state.borrow_mut().sequence();
        self.view.publish(self.at, self.trees.drain(), number);
        if self.older_is_pinned() {
            // What those snapshots do not read the cache loses by and by.
            return Ok(());
        }
        let replaced = &self.freed.extents[self.forgotten..];
        self.forgotten = self.freed.extents.len();
        for extents in replaced.chunks(PAGES_AT_ONCE) {
            for extent in extents {
                self.partition.store.cache.forget(extent.start);
            }
            self.writer.rest().await;
        }
        self.shorten(reached).await;
        Ok(())
    }

    /// Whether a snapshot of the base below the sealed delta is open.
    fn older_is_pinned(&self) -> bool {
        let older = self.view.timestamp()..self.at;
        self.partition.pins.borrow().range(older).next().is_some()
    }

    /// Takes what is published out of the sealed delta.
    async fn shorten(&mut self, reached: &mut Reached) {
        // Below the horizon nothing can be read, nor a snapshot opened.
        if self.partition.horizon.get() < self.at {
            let published = self.complete_bytes + reached.bytes;
            self.partition.state.borrow_mut().published_bytes = published;
            return self.pace.memory_freed();
        }
        let later = self.later.iter();
        let later = later.map(|(tree, key, version)| (*tree, key, version));
        self.partition.restore(later, self.pace).await;
        self.later.clear();
        if self.older_is_pinned() {
            return;
        }
        let taken = {
            let state = &mut *self.partition.state.borrow_mut();
            // Those that were put back are below what was reached, but for versions of that key
            // itself.
            state.restored_bytes = 0;
            state.active.note_edit();
            self.view.shorten_sealed(state.sequence(), |delta| {
                let before = delta.bytes();
                let complete = self.complete.drain(..);
                self.complete_bytes = 0;
                let trees = complete.filter_map(|tree| delta.remove_tree(tree));
                let mut maps: Vec<_> = trees.map(|tree| tree.into_keys()).collect();
                if let Some(key) = &reached.key {
                    let bytes = std::mem::take(&mut reached.bytes);
                    maps.push(delta.take_below(reached.tree, key, bytes));
                }
                (before - delta.bytes(), maps)
            })
        };
        let (bytes, maps) = taken.expect("nobody else keeps a share of what is sealed");
        sim::event("merged changes given up");
        self.partition.reclaim(bytes, maps);
        self.pace.memory_freed();
    }
}

/// What a checkpoint at `at` does to one key; versions that the log above it records are set aside.
fn change(
    tree: TreeId,
    key: &Key,
    chain: &Chain,
    at: Timestamp,
    later: &mut Vec<(TreeId, Key, Version)>,
) -> Option<Change> {
    later.extend(
        chain
            .decided_above(at)
            .iter()
            .map(|version| (tree, key.clone(), version.clone())),
    );
    let version = chain.decided_by(at)?;
    Some((key.clone(), version.value.clone()))
}
