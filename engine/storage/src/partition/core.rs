//! The partition itself: its state, opening and closing, statistics and memory accounting.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use pinion_clock::Timestamp;
use pinion_runtime::sync::Semaphore;
use rustc_hash::FxHashMap;

use super::checkpoint::Merged;
use super::delta::Delta;
use super::frozen::Frozen;
use super::intents::Intents;
use super::layers::Layers;
use super::load::Load;
use super::run::RunSpace;
use super::spill::{Loaded, Spilled};
use super::units::Late;
use super::view::{View, Views};
use crate::base::{
    Access, BaseCursor, Counts, Extent, PageStore, PartitionOptions, PartitionRoots, TreeRoot,
};
use crate::limits::BLOCK_BYTES;
use crate::room::DiskRoom;
use crate::types::{Direction, PartitionId, ReadError, TreeId, TreeStats};

/// A complete small storage engine, owned by one core.
pub struct Partition {
    pub(super) me: Weak<Partition>,
    id: PartitionId,
    pub(super) store: PageStore,
    pub(super) state: RefCell<State>,
    /// Snapshots kept readable, with their number of pins.
    pub(super) pins: RefCell<BTreeMap<Timestamp, u32>>,
    /// Snapshots below it can be read only where a pin keeps them.
    pub(super) horizon: Cell<Timestamp>,
    /// Snapshots from the horizon on are kept readable without a pin, as far as memory goes.
    keeps_history: Cell<bool>,
    /// Old states that were given up while snapshots of them were open.
    pub(super) expired_views: Cell<u64>,
    /// Accounted bytes of deltas that are being dropped a piece at a time.
    pub(super) reclaiming: Rc<Cell<u64>>,
    /// The blocks of runs.
    pub(super) runs: Rc<RefCell<RunSpace>>,
    /// One task at a time writes history; it was started because of the memory that history takes.
    pub(super) settling: Semaphore,
    pub(super) is_settling: Cell<bool>,
    /// How often a run could not be written.
    pub(super) failed_runs: Cell<u64>,
    /// Waits for units are interrupted.
    pub(super) closed: Cell<bool>,
}

/// What changes while the partition runs. Never borrowed across an await.
pub(super) struct State {
    pub active: Delta,
    /// Changes between the active delta and the sealed one that no checkpoint may hold yet.
    pub layers: Layers,
    pub intents: Intents,
    pub views: Views,
    /// Exact counts of every tree at newest.
    pub counts: FxHashMap<TreeId, Counts>,
    /// How often counts were corrected.
    pub corrections: u64,
    /// Trees whose counts were, which the next checkpoint counts in the base.
    pub miscounted: BTreeSet<TreeId>,
    /// Trees to be dropped by the first checkpoint at or above the timestamp.
    pub dropped: BTreeMap<TreeId, Timestamp>,
    /// Which of the active delta's versions are in the tree of spilled changes.
    pub spilled: Option<Spilled>,
    /// What was committed since the last seal at a timestamp of older states.
    pub late: Vec<Late>,
    /// The number of the last version that was sealed.
    pub sealed_seq: u64,
    /// Bytes of the sealed delta that are in the active one again.
    pub restored_bytes: u64,
    /// Bytes of the sealed delta that readers find in published pages: only older snapshots need
    /// them there.
    pub published_bytes: u64,
    /// A merged checkpoint that waits for its manifest.
    pub merged: Option<Merged>,
    /// Extents that no view refers to any more, on their way to the free space.
    pub releasing: VecDeque<Extent>,
    /// What loads that were given up had taken and have not given back yet.
    pub given_up: Vec<Extent>,
    /// States of the base whose extents are kept for a copier.
    pub frozen: Vec<Frozen>,
    /// Extents that no view refers to any more, and a frozen state does.
    pub frozen_extents: Vec<Extent>,
    /// The number of the last version.
    pub next_seq: u64,
    /// Trees that are being loaded, or wait for a checkpoint to begin.
    pub loads: BTreeMap<TreeId, Load>,
}

impl State {
    /// Numbers a version, or a state of the base.
    pub(super) fn sequence(&mut self) -> u64 {
        self.next_seq += 1;
        self.next_seq
    }
}

/// Memory that a partition uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionMemory {
    /// Changes since the last seal.
    pub active_bytes: u64,
    /// Changes that a checkpoint is merging, or that are being written as a layer.
    pub sealed_bytes: u64,
    /// Merged changes that snapshots still need, or that are being freed.
    pub retired_bytes: u64,
    /// Disk that older states keep for snapshots.
    pub history_disk_bytes: u64,
    /// Disk for changes that no checkpoint may hold yet.
    pub layer_disk_bytes: u64,
    /// Intents of undecided units, and their number.
    pub intent_bytes: u64,
    pub intents: u64,
    /// Bytes of the intents of open units.
    pub open_bytes: u64,
    /// Pages in the cache.
    pub cache_bytes: u64,
    /// The cache's budget, which is what changes leave.
    pub cache_budget_bytes: u64,
}

impl PartitionMemory {
    /// Memory that only a checkpoint frees.
    pub fn delta_bytes(&self) -> u64 {
        self.active_bytes + self.sealed_bytes + self.intent_bytes
    }

    /// Memory that only a checkpoint, or a snapshot's end, frees.
    pub fn dirty_bytes(&self) -> u64 {
        self.delta_bytes() + self.retired_bytes
    }
}

/// Counters of a partition's page file and cache since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Lookups of a page that was in memory.
    pub hits: u64,
    /// Lookups of a page that had to be read.
    pub misses: u64,
    /// Pages pushed out of memory.
    pub evictions: u64,
    /// Bytes read from the page file.
    pub bytes_read: u64,
    /// Bytes written to the page file.
    pub bytes_written: u64,
    /// Pages written.
    pub pages_written: u64,
    /// Length of the page file.
    pub file_bytes: u64,
    /// Bytes of it that can be reused.
    pub free_bytes: u64,
}

impl Partition {
    /// Makes the directory and an empty page file in it, durable on return.
    pub(crate) async fn create(
        id: PartitionId,
        dir: &Path,
        options: PartitionOptions,
    ) -> Result<Rc<Partition>, ReadError> {
        let store = PageStore::create(dir, id, options).await?;
        let roots = PartitionRoots {
            checkpoint: 0,
            timestamp: 0,
            master_word: 0,
            master_crc: 0,
            master_level: 0,
            free_word: 0,
            free_crc: 0,
            file_blocks: store.space.borrow().end(),
            file: 0,
        };
        Ok(Partition::build(
            id,
            store,
            View::new(roots, None, FxHashMap::default(), 0),
            Loaded::default(),
        ))
    }

    /// Opens the state that a manifest names.
    pub(crate) async fn open(
        id: PartitionId,
        dir: &Path,
        roots: PartitionRoots,
        options: PartitionOptions,
    ) -> Result<Rc<Partition>, ReadError> {
        let store = PageStore::open(dir, id, &roots, options, Access::Write).await?;
        let (master, trees) = load_trees(&store, &roots).await?;
        let loaded = Loaded::load(&store, &trees).await?;
        let view = View::new(roots, master, trees, 0);
        Ok(Partition::build(id, store, view, loaded))
    }

    fn build(id: PartitionId, store: PageStore, view: Rc<View>, loaded: Loaded) -> Rc<Partition> {
        let base = view.timestamp();
        let counts = view
            .trees
            .iter()
            .filter(|(tree, _)| **tree != TreeId::SPILLED)
            .map(|(&tree, root)| (tree, root.counts))
            .collect();
        let mut state = State {
            active: Delta::default(),
            layers: Layers::default(),
            intents: Intents::default(),
            views: Views::new(view),
            counts,
            corrections: 0,
            miscounted: BTreeSet::new(),
            dropped: BTreeMap::new(),
            spilled: None,
            late: Vec::new(),
            sealed_seq: 0,
            restored_bytes: 0,
            published_bytes: 0,
            merged: None,
            releasing: VecDeque::new(),
            given_up: Vec::new(),
            frozen: Vec::new(),
            frozen_extents: Vec::new(),
            next_seq: 0,
            loads: BTreeMap::new(),
        };
        loaded.put_into(&mut state, base);
        Rc::new_cyclic(|me| Partition {
            me: me.clone(),
            id,
            store,
            state: RefCell::new(state),
            pins: RefCell::default(),
            horizon: Cell::new(Timestamp::MIN),
            keeps_history: Cell::new(false),
            expired_views: Cell::new(0),
            reclaiming: Rc::default(),
            runs: Rc::default(),
            settling: Semaphore::new(1),
            is_settling: Cell::new(false),
            failed_runs: Cell::new(0),
            closed: Cell::new(false),
        })
    }

    /// Which partition this is.
    pub fn id(&self) -> PartitionId {
        self.id
    }

    /// The base's timestamp: unpinned snapshots below it are gone.
    pub fn base_timestamp(&self) -> Timestamp {
        self.state.borrow().views.current().timestamp()
    }

    /// Whether changes wait in the page file to be merged.
    pub(crate) fn has_spilled(&self) -> bool {
        self.state.borrow().spilled.is_some()
    }

    /// Whether changes will wait to be merged when the checkpoint that was just merged is
    /// installed.
    pub(crate) fn merged_spills(&self) -> bool {
        let state = self.state.borrow();
        state.merged.as_ref().is_some_and(Merged::spills)
    }

    /// What the last installed checkpoint left.
    pub(crate) fn roots(&self) -> PartitionRoots {
        self.state.borrow().views.current().roots
    }

    /// From now on only pins keep snapshots below `horizon` readable; versions that no other reader
    /// would see are dropped. Everything at or below it must be applied, and a checkpoint that is
    /// still to be sealed must not lie below it. It never goes back.
    pub(crate) fn raise_horizon(&self, horizon: Timestamp) {
        if horizon > self.horizon.get() {
            self.horizon.set(horizon);
            if self.keeps_history.get() {
                self.reap_views();
            }
        }
    }

    /// The timestamp from which on snapshots are kept readable without being open; none on a node
    /// without history.
    pub(super) fn history_from(&self) -> Option<Timestamp> {
        self.keeps_history.get().then_some(self.horizon.get())
    }

    /// While entries are applied again no older state is read, and a checkpoint comes only when all
    /// are applied up to its timestamp: the newest version of a key is enough.
    /// [`Partition::end_replay`] ends that.
    pub(crate) fn begin_replay(&self) {
        assert!(
            self.pins.borrow().is_empty(),
            "a snapshot is open during replay"
        );
        self.horizon.set(Timestamp::MAX);
    }

    /// During replay: the next checkpoint is at or above `stable`, and what is applied from now on
    /// lies above.
    pub(crate) fn keep_versions_from(&self, stable: Timestamp) {
        self.horizon.set(stable);
    }

    /// Ends what [`Partition::begin_replay`] began: all is applied, and the next checkpoint is at
    /// or above `horizon`. With `keeps_history`, snapshots from the horizon on can be opened at any
    /// time.
    pub(crate) fn end_replay(&self, horizon: Timestamp, keeps_history: bool) {
        self.horizon.set(horizon);
        self.keeps_history.set(keeps_history);
    }

    /// Every tree that has, or had since the last checkpoint, a key.
    pub fn tree_ids(&self) -> Vec<TreeId> {
        let mut ids: Vec<TreeId> = self.state.borrow().counts.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Exact counts at newest, and the size of the tree's pages at the last checkpoint.
    pub fn tree_stats(&self, tree: TreeId) -> TreeStats {
        let state = self.state.borrow();
        let counts = state.counts.get(&tree).copied().unwrap_or_default();
        let root = state.views.current().trees.get(&tree);
        TreeStats {
            records: counts.records,
            key_bytes: counts.key_bytes,
            value_bytes: counts.value_bytes,
            pages: root.map_or(0, |root| root.pages),
            page_bytes: root.map_or(0, |root| root.blocks * BLOCK_BYTES as u64),
        }
    }

    /// A number that stays the same as long as nothing of the partition is changed.
    pub fn edits(&self) -> u64 {
        self.state.borrow().active.edits()
    }

    /// Drops a tree with the first checkpoint at or above `after`, which is the timestamp of the
    /// catalog change that removed it; the tree is not read or written any more. Remembered in
    /// memory only: replay drops again.
    pub(crate) fn drop_tree(&self, tree: TreeId, after: Timestamp) {
        assert!(tree != TreeId::MASTER && tree != TreeId::SPILLED);
        self.state.borrow_mut().dropped.insert(tree, after);
        self.forget_load(tree);
    }

    /// Whether a tree was dropped and is still in the base, or in the changes of one who read it.
    pub(crate) fn is_dropping(&self, tree: TreeId) -> bool {
        self.state.borrow().dropped.contains_key(&tree)
    }

    /// Memory in use.
    pub fn memory(&self) -> PartitionMemory {
        self.memory_of(&self.state.borrow())
    }

    pub(super) fn memory_of(&self, state: &State) -> PartitionMemory {
        PartitionMemory {
            active_bytes: state.active.bytes(),
            sealed_bytes: (state.views.current())
                .with_sealed(|sealed| sealed.map_or(0, |sealed| sealed.delta.bytes()))
                .saturating_add(state.layers.delta().map_or(0, Delta::bytes))
                .saturating_sub(state.restored_bytes.max(state.published_bytes)),
            retired_bytes: state.views.retired_bytes()
                + state.published_bytes
                + state.layers.filter_bytes()
                + self.reclaiming.get(),
            layer_disk_bytes: state.layers.disk_bytes(),
            history_disk_bytes: state.views.retired_disk_bytes(),
            intent_bytes: state.intents.bytes(),
            intents: state.intents.len() as u64,
            open_bytes: state.intents.open_bytes(),
            cache_bytes: self.store.cache.bytes(),
            cache_budget_bytes: self.store.cache.budget(),
        }
    }

    /// Counters of the page file and the cache.
    pub fn page_stats(&self) -> PageStats {
        let space = self.store.space.borrow();
        let releasing: u64 = self
            .state
            .borrow()
            .releasing
            .iter()
            .map(|extent| extent.blocks)
            .sum();
        PageStats {
            hits: self.store.cache.hits.get(),
            misses: self.store.cache.misses.get(),
            evictions: self.store.cache.evictions.get(),
            bytes_read: self.store.file.bytes_read.get(),
            bytes_written: self.store.file.bytes_written.get(),
            pages_written: self.store.pages_written.get(),
            file_bytes: space.end() * BLOCK_BYTES as u64,
            free_bytes: (space.free_blocks() + releasing) * BLOCK_BYTES as u64,
        }
    }

    /// Old states that were given up, for want of memory, while snapshots of them were open.
    pub(crate) fn expired_views(&self) -> u64 {
        self.expired_views.get()
    }

    /// Has the whole node know when this partition finds no room on the disk.
    pub(crate) fn share_room(&self, room: Arc<DiskRoom>) {
        self.store.share_room(room);
    }

    /// How often old versions, or changes above the stable timestamp, could not be written to disk.
    pub(crate) fn failed_runs(&self) -> u64 {
        self.failed_runs.get()
    }

    /// Whether what could not be written may be tried again.
    pub(super) fn may_try_again(&self) -> bool {
        !self.closed.get() && self.store.may_try_again()
    }

    /// Closes the page file. Nothing is written: only a checkpoint makes changes durable.
    pub(crate) async fn close(&self) {
        self.closed.set(true);
        self.state.borrow().intents.wake_all();
        self.store.file.close().await;
    }
}

/// Reads the whole master tree: the root of every tree, so that nothing need be loaded to find one
/// later.
pub(crate) async fn load_trees(
    store: &PageStore,
    roots: &PartitionRoots,
) -> Result<(Option<TreeRoot>, FxHashMap<TreeId, TreeRoot>), ReadError> {
    let mut trees = FxHashMap::default();
    let Some((ptr, level)) = roots.master() else {
        return Ok((None, trees));
    };
    let corrupt = || {
        store.file.corrupt(
            ptr.offset(),
            "the master tree holds something other than roots",
        )
    };
    // The counts of the master tree are not stored: this walk finds them.
    let mut master = TreeRoot {
        ptr,
        level,
        counts: Counts::default(),
        pages: 0,
        blocks: 0,
    };
    let mut cursor = BaseCursor::default();
    loop {
        cursor
            .place(
                store,
                TreeId::MASTER,
                &master,
                Bound::Unbounded,
                Direction::Forward,
            )
            .await?;
        let Some((page, index)) = cursor.record() else {
            break;
        };
        let key = page.key(index);
        let id = TreeId(u64::from_be_bytes(
            key.as_slice().try_into().map_err(|_| corrupt())?,
        ));
        let root = TreeRoot::decode(&page.value(index)).ok_or_else(corrupt)?;
        master
            .counts
            .change(key.len(), None, Some(TreeRoot::BYTES as u64));
        trees.insert(id, root);
        cursor.advance(Direction::Forward);
    }
    let (pages, blocks) = store.count_pages(TreeId::MASTER, ptr, level).await?;
    Ok((
        Some(TreeRoot {
            pages,
            blocks,
            ..master
        }),
        trees,
    ))
}
