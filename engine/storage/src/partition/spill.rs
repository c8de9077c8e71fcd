//! Spilling: changes that are few beside the pages they belong to are written as they are, and
//! merged later with others.
//!
//! A merge writes each leaf with a change whole. Where the changed keys are spread over a large
//! tree, that is many times the bytes of the changes. Such changes stay in the delta, where they
//! are read from anyway, and the checkpoint writes them into the tree [`TreeId::SPILLED`], one
//! behind the other; opening loads them into the delta again. So entries at or below the checkpoint
//! are no longer needed, as after a merge. The next checkpoint that merges writes all of the delta
//! and drops the tree.

use std::ops::Bound;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_runtime::{join_all, sim, yield_if_due};
use rustc_hash::FxHashMap;

use super::core::{Partition, State};
use super::delta::{Chain, Delta, Needed, Version};
use super::view::{Sealed, View};
use crate::base::{
    BaseCursor, Counts, Freed, Pace, PageStore, PageWriter, SpilledRecord, Stored, TreeRoot,
    encode_spilled_counts, encode_spilled_version, merge_tree, rest, spilled_counts_key,
    spilled_version_key, unreadable,
};
use crate::limits::BLOCK_BYTES;
use crate::types::{Direction, Fatal, Key, ReadError, TreeId};

/// A merge that would write more than this many times the bytes of its changes is put off.
const SPARSE: u64 = 4;
/// Pairs of neighbouring keys that are looked at to find how many leaves the changes of a tree
/// touch.
const SAMPLES: usize = 128;
/// Steps between two rests.
const STEPS_AT_ONCE: usize = 128;

/// Which versions of the delta are in the tree of spilled changes: those that both hold of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spilled {
    /// Numbered at or below it.
    pub seq: u64,
    /// Recorded by the log up to it.
    pub at: Timestamp,
}

impl Spilled {
    fn has(&self, version: &Version) -> bool {
        version.seq <= self.seq && version.decided <= self.at
    }
}

/// What the pace counts of a change when it is known to be in the tree of spilled changes, and
/// what when it is in the delta again.
fn shares(key: &Key, chain: &Chain) -> (u64, u64) {
    let bytes = chain.bytes(key);
    (bytes / 2, bytes - bytes / 2)
}

/// Every version of a sealed delta that is needed beside the base below it, on its way back.
fn kept<'a>(
    sealed: &'a Sealed,
    pace: &'a dyn Pace,
) -> impl Iterator<Item = (TreeId, &'a Key, &'a Version)> {
    sealed.delta.tree_ids().into_iter().flat_map(move |tree| {
        let delta = sealed.delta.tree(tree).expect("the tree was just listed");
        delta.iter().flat_map(move |(key, chain)| {
            pace.merged(shares(key, chain).1);
            let versions = chain
                .decided_by(sealed.at)
                .into_iter()
                .chain(chain.decided_above(sealed.at));
            versions.map(move |version| (tree, key, version))
        })
    })
}

impl Partition {
    /// Whether the sealed changes are better spilled than merged.
    pub(super) async fn is_sparse(&self, view: &View, sealed: &Sealed, pace: &dyn Pace) -> bool {
        let limit = self.store.options.spill_bytes;
        let spilled = view.trees.get(&TreeId::SPILLED);
        let spilled_bytes = spilled.map_or(0, |root| root.blocks * BLOCK_BYTES as u64);
        // Keys that are changed again and again are spilled again and again. Old snapshots keep
        // what was sealed over their base: with each spilling checkpoint they would keep the same
        // changes once more, and end the sooner for it. Above layers no counts are known for the
        // checkpoint.
        if !sealed.dropped.is_empty()
            || !self.state.borrow().layers.is_empty()
            || sealed.delta.bytes() > limit
            || spilled_bytes > 2 * limit
            || self.state.borrow().views.retired_bytes() > 0
        {
            return false;
        }
        let mut merged_bytes = 0;
        for tree in sealed.delta.tree_ids() {
            if let Some(root) = view.trees.get(&tree) {
                let leaf_bytes = root.blocks * BLOCK_BYTES as u64 / root.pages;
                let touched = self.leaves_touched(root, tree, sealed, pace).await;
                merged_bytes += touched * leaf_bytes;
            }
        }
        merged_bytes / SPARSE > sealed.delta.bytes()
    }

    /// About how many leaves hold the changed keys of a tree: of some neighbours it is looked
    /// whether a leaf has both.
    async fn leaves_touched(
        &self,
        root: &TreeRoot,
        tree: TreeId,
        sealed: &Sealed,
        pace: &dyn Pace,
    ) -> u64 {
        let delta = sealed.delta.tree(tree).expect("the tree was just listed");
        let keys = delta.len();
        let stride = keys.div_ceil(SAMPLES).max(2);
        let (mut pairs, mut apart) = (0, 0);
        // Of the key before, if it is looked at: the end of its leaf, if that has one.
        let mut leaf_end: Option<Option<Key>> = None;
        for (index, (key, _)) in delta.iter().enumerate() {
            if let Some(end) = leaf_end.take() {
                pairs += 1;
                apart += u64::from(end.is_some_and(|end| *key >= end));
            }
            if index % stride == 0 {
                let leaf = self.store.try_locate_leaf((root.ptr, root.level), key);
                // Where the pages above it are not in memory, the leaf is taken to end before any
                // other key: nothing near it was read for long. If that is wrong the changes are
                // written once more than need be, packed; the other way round each of them may cost
                // a leaf.
                leaf_end = Some(leaf.map_or(Some(Key::new()), |leaf| leaf.upper));
            }
            if index % STEPS_AT_ONCE == 0 {
                rest(pace).await;
            }
        }
        (keys as u64 * apart).checked_div(pairs).unwrap_or(0) + 1
    }

    /// Writes those of the sealed changes that are not there yet into the tree of spilled changes,
    /// and all of them back into the active delta. Gives the tree's root; none while there is
    /// nothing in it.
    pub(super) async fn spill(
        &self,
        writer: &mut PageWriter<'_>,
        freed: &mut Freed,
        view: &View,
        sealed: &Sealed,
        pace: &dyn Pace,
    ) -> Result<Option<TreeRoot>, Fatal> {
        let mut counts = Vec::new();
        for tree in sealed.delta.tree_ids() {
            let counted = self.counts_at(view, sealed, tree, pace).await?;
            counts.push((
                spilled_counts_key(tree),
                Some(encode_spilled_counts(&counted)),
            ));
        }
        let checkpoint = view.roots.checkpoint + 1;
        let new = self.not_spilled_yet(sealed, pace).await;
        let changed = new.into_iter().filter_map(|(tree, key, chain)| {
            sim::count("changes spilled", 1);
            pace.merged(shares(key, chain).0);
            let version = chain.decided_by(sealed.at)?;
            let key = spilled_version_key(checkpoint, tree, key);
            let value = encode_spilled_version(version.ts, version.value.as_deref());
            Some((key, Some(value)))
        });
        let changes = counts.into_iter().chain(changed);
        let old = view.trees.get(&TreeId::SPILLED).copied();
        let root = merge_tree(
            writer,
            &self.store,
            freed,
            TreeId::SPILLED,
            old,
            Box::new(std::iter::empty()),
            changes,
        )
        .await?;
        self.restore(kept(sealed, pace), pace).await;
        Ok(root)
    }

    /// The keys of which the version that counts is not in the tree of spilled changes. They are
    /// picked out before they are merged, which could not yield between two of them: any number
    /// that are there may lie between.
    async fn not_spilled_yet<'s>(
        &self,
        sealed: &'s Sealed,
        pace: &dyn Pace,
    ) -> Vec<(TreeId, &'s Key, &'s Chain)> {
        let before = self.state.borrow().spilled;
        let mut new = Vec::new();
        for tree in sealed.delta.tree_ids() {
            let delta = sealed.delta.tree(tree).expect("the tree was just listed");
            for (index, (key, chain)) in delta.iter().enumerate() {
                let counts = chain.decided_by(sealed.at);
                if counts.is_some_and(|version| before.is_none_or(|before| !before.has(version))) {
                    new.push((tree, key, chain));
                } else {
                    pace.merged(shares(key, chain).0);
                }
                if index % STEPS_AT_ONCE == 0 {
                    rest(pace).await;
                }
            }
        }
        new
    }

    /// The exact counts of a tree at the checkpoint: those at newest, without the versions that are
    /// newer.
    async fn counts_at(
        &self,
        view: &View,
        sealed: &Sealed,
        tree: TreeId,
        pace: &dyn Pace,
    ) -> Result<Counts, Fatal> {
        let mut counts = sealed.counts.get(&tree).copied().unwrap_or_default();
        let delta = sealed.delta.tree(tree).expect("the tree was just listed");
        for (index, (key, chain)) in delta.iter().enumerate() {
            if index % STEPS_AT_ONCE == 0 {
                rest(pace).await;
            }
            if chain.newest().decided <= sealed.at {
                continue;
            }
            let len = |version: &Version| version.value.as_ref().map(|value| value.len() as u64);
            let then = match (chain.decided_by(sealed.at), view.trees.get(&tree)) {
                (Some(version), _) => len(version),
                (None, Some(root)) => {
                    let stored = self.store.get(tree, root, key).await;
                    let stored = stored.map_err(unreadable)?;
                    stored.map(|(stored, _)| stored.len())
                }
                (None, None) => None,
            };
            counts.change(key.len(), len(chain.newest()), then);
        }
        Ok(counts)
    }
}

/// What a page file holds of spilled changes, as a delta.
#[derive(Default)]
pub(super) struct Loaded {
    delta: Delta,
    counts: FxHashMap<TreeId, Counts>,
    /// The number of its last version; 0 if there is none.
    seq: u64,
}

impl Loaded {
    /// Reads the tree of spilled changes.
    pub(super) async fn load(
        store: &PageStore,
        trees: &FxHashMap<TreeId, TreeRoot>,
    ) -> Result<Loaded, ReadError> {
        let mut loaded = Loaded::default();
        let Some(root) = trees.get(&TreeId::SPILLED) else {
            return Ok(loaded);
        };
        sim::event("spilled changes loaded");
        let mut cursor = BaseCursor::default();
        loop {
            let from = Bound::Unbounded;
            if !cursor.try_place(store, Some(root), from, Direction::Forward) {
                // Many at once; a read that fails is reported when the cursor comes there.
                let most = store.leaves_at_once();
                let ahead = cursor.leaves_ahead(store, root, Direction::Forward, most);
                let reads = ahead.iter().map(|ptr| store.page(ptr, TreeId::SPILLED));
                drop(join_all(reads).await);
                cursor
                    .place(store, TreeId::SPILLED, root, from, Direction::Forward)
                    .await?;
            }
            let Some((page, index)) = cursor.record() else {
                return Ok(loaded);
            };
            let (key, stored) = Stored::with_key(page, index);
            let value = store.value(TreeId::SPILLED, &stored).await?;
            let Some(record) = SpilledRecord::decode(&key, value) else {
                let offset = root.ptr.offset();
                return Err(store.file.corrupt(offset, "a spilled change is not sound"));
            };
            loaded.take(record);
            cursor.advance(Direction::Forward);
            yield_if_due().await;
        }
    }

    fn take(&mut self, record: SpilledRecord) {
        match record {
            SpilledRecord::Counts(tree, counts) => {
                self.counts.insert(tree, counts);
            }
            SpilledRecord::Version {
                tree,
                key,
                ts,
                value,
            } => {
                self.seq += 1;
                let version = Version {
                    ts,
                    decided: ts,
                    seq: self.seq,
                    // The delta keeps it for long, and must not keep a page by it.
                    value: value.map(|value| Bytes::copy_from_slice(&value)),
                };
                let pins = std::collections::BTreeMap::new();
                // No older state than the one that is opened is read.
                let needed = Needed {
                    horizon: Timestamp::MAX,
                    pins: &pins,
                };
                self.delta.insert(tree, &key, version, &needed);
            }
        }
    }

    /// Makes it the changes of a state that has none yet.
    pub(super) fn put_into(self, state: &mut State, at: Timestamp) {
        if self.seq == 0 {
            return;
        }
        state.counts.extend(self.counts);
        state.active = self.delta;
        let seq = self.seq;
        state.next_seq = seq;
        state.spilled = Some(Spilled { seq, at });
    }
}
