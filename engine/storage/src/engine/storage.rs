//! The face of storage on one core: what it owns, what it shares, and what is true of the node.

use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use pinion_clock::{AdvanceError, Gossip, Timestamp, VectorClock, VectorTime};
use pinion_runtime::{CoreId, core_local, try_core_local};

use super::checkpoint::{CheckpointDemand, HorizonBounds, Intervals, NodeState, Pins};
use super::log::{Flusher, LogWords, RecordedDurable};
use super::options::{PlantedFault, StorageOptions};
use super::progress::{Bounds, Progress};
use super::units::Units;
use super::write::{Memory, Pressures, Roles};
use crate::base::Counts;
use crate::manifest::Manifest;
use crate::marks::Words;
use crate::partition::{KeptCounts, Partition};
use crate::room::DiskRoom;
use crate::sequencer::Sequencer;
use crate::types::{PartitionId, TreeId};
use crate::watermarks::{Mark, Watermarks};

/// What the cores of a node share: the sequencer and the watermarks, and a few published figures.
pub(super) struct Shared {
    words: Arc<Words>,
    pressures: Arc<Pressures>,
    pub(super) recorded_durable: RecordedDurable,
    pub(super) horizon: HorizonBounds,
    pub(super) demand: CheckpointDemand,
    pub(super) room: Arc<DiskRoom>,
    pub(super) log: LogWords,
    pub(super) bounds: Bounds,
    pub(super) intervals: Intervals,
    /// Distinguishes one opening of the directory from another.
    pub(super) incarnation: u64,
}

impl Shared {
    /// Of a directory that is being opened, as its manifest says.
    pub(super) fn new(
        cores: usize,
        options: &StorageOptions,
        manifest: &Manifest,
        clock: Arc<VectorClock>,
    ) -> Shared {
        Shared {
            words: Arc::new(Words {
                sequencer: Sequencer::new(manifest.base(), clock),
                marks: Watermarks::new(cores),
            }),
            pressures: Arc::new(Pressures::new(cores)),
            recorded_durable: RecordedDurable::new(manifest.all_durable),
            horizon: HorizonBounds::new(cores),
            demand: CheckpointDemand::default(),
            room: Arc::default(),
            log: LogWords::new(cores, manifest.retained_above),
            bounds: Bounds::new(options.is_member, manifest.stable()),
            intervals: Intervals::new(options),
            incarnation: manifest.epoch,
        }
    }
}

/// Storage as one core sees it. Get this core's with [`storage`].
pub struct Storage {
    this: Weak<Storage>,
    pub(super) core: CoreId,
    pub(super) cores: usize,
    pub(super) options: StorageOptions,
    pub(super) shared: Arc<Shared>,
    /// By partition number; `None` where another core is the owner.
    partitions: Vec<Option<Rc<Partition>>>,
    pub(super) roles: Roles,
    pub(super) progress: Progress,
    pub(super) flusher: Flusher,
    pub(super) units: Units,
    pub(super) pins: Pins,
    pub(super) memory: Memory,
    /// On core 0: what belongs to the node as a whole.
    pub(super) node: Option<NodeState>,
}

/// See [`Storage::partition_of_hash`]; the same on every thread.
#[derive(Clone, Copy, Debug)]
pub struct PartitionHash {
    partitions: u16,
}

impl PartitionHash {
    /// The partition of a hashed key.
    pub fn partition_of(self, key: &[u8]) -> PartitionId {
        PartitionId((hash_v1(key) % u64::from(self.partitions)) as u16)
    }
}

/// This core's storage.
///
/// # Panics
/// Before [`super::open`] has completed on this node.
pub fn storage() -> Rc<Storage> {
    core_local::<Storage>()
}

/// This core's storage, or nothing before it is open.
pub fn try_storage() -> Option<Rc<Storage>> {
    try_core_local::<Storage>()
}

impl Storage {
    /// The storage of one of the node's cores, whose base is open.
    pub(super) fn new(
        (core, cores): (CoreId, usize),
        options: StorageOptions,
        shared: Arc<Shared>,
        partitions: Vec<Option<Rc<Partition>>>,
        node: Option<NodeState>,
    ) -> Rc<Storage> {
        for (number, partition) in partitions.iter().enumerate() {
            let owner = owner_of(PartitionId(number as u16), cores);
            assert!(
                partition.is_some() == (owner == core),
                "partition {number} is open on its owner alone"
            );
        }
        assert!(node.is_some() == (core == CoreId(0)), "core 0 has the node");
        let counts = (partitions.iter().flatten().count(), partitions.len());
        Rc::new_cyclic(|this| Storage {
            this: this.clone(),
            core,
            cores,
            roles: Roles::new(),
            progress: Progress::new(core, cores, shared.words.clone()),
            flusher: Flusher::new(cores),
            units: Units::new(core),
            pins: Pins::default(),
            memory: Memory::new(&options, core, counts, shared.pressures.clone()),
            options,
            shared,
            partitions,
            node,
        })
    }

    /// The data directory.
    pub fn dir(&self) -> &Path {
        &self.options.dir
    }

    /// The fault that a test has planted.
    #[doc(hidden)]
    pub fn planted_fault(&self) -> PlantedFault {
        self.options.planted_fault
    }

    /// The number of partitions of the data directory.
    pub fn partition_count(&self) -> u16 {
        self.partitions.len() as u16
    }

    /// The core that owns a partition.
    pub fn owner(&self, partition: PartitionId) -> CoreId {
        assert!(
            usize::from(partition.0) < self.partitions.len(),
            "{partition} does not exist"
        );
        owner_of(partition, self.cores)
    }

    /// A partition, when this core owns it.
    pub fn partition(&self, partition: PartitionId) -> Option<Rc<Partition>> {
        self.partitions.get(usize::from(partition.0))?.clone()
    }

    /// The partition of a hashed key: a versioned hash of its bytes, modulo the number of
    /// partitions.
    pub fn partition_of_hash(&self, key: &[u8]) -> PartitionId {
        self.partition_hash().partition_of(key)
    }

    /// What decides where hashed keys belong, for a caller that computes that on another thread.
    pub fn partition_hash(&self) -> PartitionHash {
        PartitionHash {
            partitions: self.partitions.len() as u16,
        }
    }

    /// The last timestamp in the log: allotted to a write of this node, or logged for another.
    pub fn last_allotted(&self) -> Timestamp {
        self.progress.last_allotted()
    }

    /// Everything at or below it is applied on every owner.
    pub fn visible(&self) -> Timestamp {
        self.progress.reached(Mark::Applying)
    }

    /// Everything at or below it is durable, with nothing missing before it.
    pub fn all_durable(&self) -> Timestamp {
        self.progress.reached(Mark::Undurable)
    }

    /// Everything at or below it is in some ring's memory: what a reader of the oplog may see.
    pub fn oplog_read_timestamp(&self) -> Timestamp {
        self.progress.reached(Mark::Appending)
    }

    /// The cluster time: the highest timestamp that was allotted here or heard of.
    pub fn cluster_time(&self) -> Timestamp {
        self.progress.cluster_time()
    }

    /// The node's clock; where the directory is opened again in this process it stays the same.
    pub(super) fn clock(&self) -> &Arc<VectorClock> {
        self.progress.clock()
    }

    /// All components of the node's clock, in order.
    pub fn vector_time(&self) -> VectorTime {
        self.clock().snapshot(|| self.last_allotted())
    }

    /// Raises the config time, of a config server, to the point that a majority has. See
    /// [`VectorClock::tick_config_to`].
    pub fn tick_config_to(&self, commit_point: Timestamp) {
        self.clock().tick_config_to(commit_point);
        let now = self.vector_time();
        assert!(
            now.config() >= commit_point,
            "a component of the clock has gone back"
        );
    }

    /// Raises the topology time to that of the write which added or removed a shard. See
    /// [`VectorClock::tick_topology_to`].
    pub fn tick_topology_to(&self, config_time: Timestamp) {
        self.clock().tick_topology_to(config_time);
        let now = self.vector_time();
        assert!(
            now.topology() >= config_time,
            "a component of the clock has gone back"
        );
    }

    /// Learns times from another node: timestamps allotted from now on lie above them. See
    /// [`VectorClock::advance`].
    ///
    /// # Errors
    /// Those of [`VectorClock::advance`].
    pub fn learn_times(
        &self,
        gossip: Gossip,
        now_secs: u32,
        max_drift_secs: u32,
    ) -> Result<(), AdvanceError> {
        let last = || self.last_allotted();
        self.clock().advance(gossip, last, now_secs, max_drift_secs)
    }

    pub(super) fn rc(&self) -> Rc<Storage> {
        self.this
            .upgrade()
            .expect("storage lives as long as its core")
    }

    pub(super) fn other_cores(&self) -> impl Iterator<Item = CoreId> + use<> {
        let own = self.core;
        (0..self.cores as u16)
            .map(CoreId)
            .filter(move |&core| core != own)
    }

    /// The partitions that this core owns.
    pub(super) fn owned(&self) -> impl Iterator<Item = &Rc<Partition>> {
        self.partitions.iter().flatten()
    }

    /// A tree was dropped by the entry at `after`: it is gone from the base with the first
    /// checkpoint at or above that. Call it on every core.
    pub fn drop_tree(&self, tree: TreeId, after: Timestamp) {
        for partition in self.owned() {
            partition.drop_tree(tree, after);
        }
    }

    /// Corrects the counts of a tree in a partition of this core, of which there was `found` when
    /// `kept` was taken; what was written since is counted with it. The next checkpoint writes
    /// them. False if others corrected counts meanwhile: then `kept` does not show what is wrong
    /// any more.
    pub fn correct_counts(
        &self,
        partition: PartitionId,
        tree: TreeId,
        kept: KeptCounts,
        found: Counts,
    ) -> bool {
        let partition = self.owned_partition(partition);
        let corrected = partition.correct_counts(tree, kept, found);
        if corrected {
            self.shared.demand.note_untimed();
        }
        corrected
    }

    /// Whether a tree of this core's partitions was dropped and is not gone from the base yet:
    /// nothing may be written to another one under its number.
    pub fn is_dropping(&self, tree: TreeId) -> bool {
        self.owned().any(|partition| partition.is_dropping(tree))
    }
}

pub(super) fn owner_of(partition: PartitionId, cores: usize) -> CoreId {
    CoreId((usize::from(partition.0) % cores) as u16)
}

/// Hash version 1: FNV-1a over the bytes, then a finalizer so that the low bits depend on all of
/// them. It decides where keys lie on disk and may never change; another hash gets another version.
fn hash_v1(key: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for &byte in key {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_version_1_is_what_it_was() {
        let check = |key: &[u8], expected: u64| assert_eq!(hash_v1(key), expected, "{key:?}");
        check(b"", 0xefd0_1f60_ba99_2926);
        check(b"a", 0x82a2a958a9bece5b);
    }

    #[test]
    fn partitions_are_spread_over_cores() {
        let owners: Vec<u16> = (0..5)
            .map(|partition| owner_of(PartitionId(partition), 2).0)
            .collect();
        assert_eq!(owners, [0, 1, 0, 1, 0]);
    }
}
