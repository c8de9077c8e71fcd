//! What a node is opened with.

use std::path::PathBuf;

use pinion_runtime::Duration;

use super::log::LogRetention;
use crate::base::PartitionOptions;
use crate::limits::{HISTORY_DISK_BYTES, LOG_TAIL_BYTES, SEGMENT_BYTES};
use crate::ring::Stamps;

/// In the few hundred frames of a simulated ring, stamps of two places are then near each other
/// every few openings, and equal as good as never: a torn frame over a stale one with equal stamps
/// cannot be distinguished from a damaged one.
const HOSTILE_STAMP_BITS: u32 = 20;

/// Options of storage. The defaults serve a node; [`StorageOptions::hostile`] makes everything tiny
/// for simulation.
#[derive(Clone, Debug)]
pub struct StorageOptions {
    /// The data directory; made when it does not exist.
    pub dir: PathBuf,
    /// Partitions of a new data directory; the number of cores when absent. An existing directory
    /// has its own number, and opening it with another one fails.
    pub partitions: Option<u16>,
    /// The node is a member of a replica set: what lies above the stable timestamp
    /// ([`super::Storage::set_stable`]) may have to be rolled back, so checkpoints do not hold it,
    /// and history is kept ([`super::Storage::set_oldest`]).
    pub is_member: bool,
    /// Memory for pages and changes, over all cores.
    pub cache_bytes: u64,
    /// The part of `cache_bytes` that changes not yet in the base may take, in percent.
    pub delta_percent: u64,
    /// Rings are flushed at least this often.
    pub journal_commit_interval: Duration,
    /// Checkpoints are taken at least this often while there is something to write.
    pub checkpoint_interval: Duration,
    /// Size of a ring segment, a multiple of 4096.
    pub segment_bytes: u64,
    /// Ring bytes of one core since the last checkpoint that start one.
    pub ring_bytes_per_checkpoint: u64,
    /// How much of the log is kept beyond what recovery needs; nothing when absent.
    pub log_retention: Option<LogRetention>,
    /// With a retention: memory for the latest entries of each ring, beside those that are not on
    /// the device yet, so that readers at the end of the log never touch the disk.
    pub log_tail_bytes: usize,
    /// Disk that old states may keep for snapshots, over all partitions: their pages, and the
    /// changes between them. Where the live data takes more, they may keep as much as that. Beyond
    /// it the oldest snapshots end.
    pub history_bytes: u64,
    /// How long a write waits for memory before it is refused.
    pub memory_wait: Duration,
    /// Passed on to partitions; their cache is set from `cache_bytes`.
    pub partition: PartitionOptions,
    /// How many bits of a frame's stamps distinguish one place from another, from 16 to 32. A
    /// directory is read as it was written, so only simulations set it.
    #[doc(hidden)]
    pub stamp_bits: u32,
    /// A fault that tests plant to see whether they would find it.
    #[doc(hidden)]
    pub planted_fault: PlantedFault,
}

impl StorageOptions {
    /// The defaults of a node, with a cache of 256 MiB.
    pub fn new(dir: impl Into<PathBuf>) -> StorageOptions {
        StorageOptions {
            dir: dir.into(),
            partitions: None,
            is_member: false,
            cache_bytes: 256 * 1024 * 1024,
            delta_percent: 40,
            journal_commit_interval: Duration::from_millis(100),
            checkpoint_interval: Duration::from_secs(60),
            segment_bytes: SEGMENT_BYTES,
            ring_bytes_per_checkpoint: crate::limits::RING_BYTES_PER_CHECKPOINT,
            log_retention: None,
            log_tail_bytes: LOG_TAIL_BYTES,
            history_bytes: HISTORY_DISK_BYTES,
            memory_wait: Duration::from_secs(10),
            partition: PartitionOptions::default(),
            stamp_bits: u32::BITS,
            planted_fault: PlantedFault::None,
        }
    }

    /// Tiny rings, pages and caches, short intervals and narrow stamps, so that wrap-around,
    /// eviction, checkpoints and stamps that are alike by chance are the common case.
    pub fn hostile(dir: impl Into<PathBuf>) -> StorageOptions {
        StorageOptions {
            cache_bytes: 4 * 1024 * 1024,
            journal_commit_interval: Duration::from_millis(20),
            checkpoint_interval: Duration::from_millis(500),
            segment_bytes: 8 * 4096,
            ring_bytes_per_checkpoint: 256 * 1024,
            log_tail_bytes: 16 * 1024,
            memory_wait: Duration::from_secs(2),
            partition: PartitionOptions::hostile(),
            stamp_bits: HOSTILE_STAMP_BITS,
            ..StorageOptions::new(dir)
        }
    }
}

impl StorageOptions {
    /// What of the log's end each ring keeps in memory.
    pub(super) fn tail_bytes(&self) -> usize {
        self.log_retention.map_or(0, |_| self.log_tail_bytes)
    }

    pub(super) fn stamps(&self) -> Stamps {
        Stamps::new(self.stamp_bits)
    }
}

/// Faults that the tests of crash recovery must be able to find.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlantedFault {
    #[default]
    None,
    /// A journaled write is acknowledged before its ring is flushed.
    AcknowledgeBeforeFlush,
    /// Rings are written and never flushed to the device.
    FlushSkipped,
    /// The checksums of ring frames are not looked at.
    ChecksumNotChecked,
    /// A superblock is written before the pages that its manifest names are on the device.
    SuperblockBeforePages,
    /// Recovery does not follow the links between entries.
    LinksIgnored,
    /// Recovery takes entries of older epochs above a cut.
    EpochIgnored,
    /// What is written to a collection while an index is built over it is not brought into the
    /// index.
    LateWritesMissed,
    /// A unique index entry is written without looking for others.
    UniqueIntentSkipped,
    /// A single statement does not look at what other units hold.
    IntentsIgnored,
    /// The commit of a unit is acknowledged before its owners have resolved it.
    AcknowledgeBeforeResolve,
    /// Of several versions of a key only the newest is written to a run.
    VersionsLost,
    /// Readers pass by what lies in runs.
    RunsSkipped,
    /// A rollback leaves what layers hold above its cut.
    LayersKept,
    /// Now and then a core panics between the allotment of a timestamp and its application.
    PanicInCommit,
}

impl PlantedFault {
    /// All faults, for a campaign that plants each.
    pub const ALL: [PlantedFault; 8] = [
        PlantedFault::AcknowledgeBeforeFlush,
        PlantedFault::FlushSkipped,
        PlantedFault::ChecksumNotChecked,
        PlantedFault::SuperblockBeforePages,
        PlantedFault::LinksIgnored,
        PlantedFault::EpochIgnored,
        PlantedFault::UniqueIntentSkipped,
        PlantedFault::PanicInCommit,
    ];

    /// Those that need old versions on disk, or changes above the stable timestamp.
    pub const OF_RUNS: [PlantedFault; 3] = [
        PlantedFault::VersionsLost,
        PlantedFault::RunsSkipped,
        PlantedFault::LayersKept,
    ];

    /// Those that only a client of units that stay open can meet.
    pub const OF_OPEN_UNITS: [PlantedFault; 2] = [
        PlantedFault::IntentsIgnored,
        PlantedFault::AcknowledgeBeforeResolve,
    ];
}
