//! Settings of one partition's page file and cache, with a hostile variant for simulation.

use crate::limits::{BLOCK_BYTES, HISTORY_DISK_BYTES, LEAF_TARGET_BYTES};

/// Settings of one partition. They may differ at every open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionOptions {
    /// What the page cache may take while there are few changes.
    pub cache_bytes: u64,
    /// Changes beyond this many bytes are memory that the page cache does without, down to a
    /// quarter of it.
    pub changes_beside_cache_bytes: u64,
    /// Bytes of merged changes that are kept in memory for snapshots; beyond it they are written to
    /// disk.
    pub retired_bytes: u64,
    /// Bytes of disk that older states may keep for snapshots, if the live data takes less; beyond
    /// it the oldest snapshots end.
    pub history_bytes: u64,
    /// Changes up to this many bytes are spilled, not merged, where a merge would write much more
    /// than them; 0 merges always.
    pub spill_bytes: u64,
    /// Used bytes at which a leaf or inner page is full.
    pub leaf_target_bytes: u32,
    /// Most records in a page; 0 leaves it to their size.
    pub fanout: u32,
    /// The page file grows in steps of this size.
    pub file_step_bytes: u64,
    /// Pages are written in extents of up to this size.
    pub extent_bytes: u32,
    /// A merge lets readers have its pages, and gives up those that they replace, whenever it has
    /// built so much.
    pub part_bytes: u64,
    /// A fault that tests plant: single statements do not look at what other units hold.
    #[doc(hidden)]
    pub ignores_intents: bool,
    /// Another: of a key's versions only the newest comes into a run.
    #[doc(hidden)]
    pub loses_run_versions: bool,
    /// Another: readers pass runs by.
    #[doc(hidden)]
    pub skips_runs: bool,
}

impl Default for PartitionOptions {
    fn default() -> PartitionOptions {
        PartitionOptions {
            cache_bytes: 256 * 1024 * 1024,
            changes_beside_cache_bytes: 64 * 1024 * 1024,
            retired_bytes: 16 * 1024 * 1024,
            history_bytes: HISTORY_DISK_BYTES,
            spill_bytes: 32 * 1024 * 1024,
            leaf_target_bytes: LEAF_TARGET_BYTES as u32,
            fanout: 0,
            file_step_bytes: 16 * 1024 * 1024,
            extent_bytes: 1024 * 1024,
            part_bytes: 32 * 1024 * 1024,
            ignores_intents: false,
            loses_run_versions: false,
            skips_runs: false,
        }
    }
}

impl PartitionOptions {
    /// Tiny pages, a tiny cache and tiny steps, so that splits, merges, evictions and reuse are the
    /// common case.
    pub fn hostile() -> PartitionOptions {
        PartitionOptions {
            cache_bytes: 6 * BLOCK_BYTES as u64,
            changes_beside_cache_bytes: BLOCK_BYTES as u64,
            retired_bytes: BLOCK_BYTES as u64,
            history_bytes: HISTORY_DISK_BYTES,
            spill_bytes: 256 * 1024,
            leaf_target_bytes: 700,
            fanout: 5,
            file_step_bytes: 4 * BLOCK_BYTES as u64,
            extent_bytes: 3 * BLOCK_BYTES as u32,
            part_bytes: 3 * BLOCK_BYTES as u64,
            ignores_intents: false,
            loses_run_versions: false,
            skips_runs: false,
        }
    }

    /// Values longer than this lie in extents of their own.
    pub(crate) fn overflow_threshold(&self) -> usize {
        self.leaf_target_bytes as usize / 4
    }

    /// Most records in a page.
    pub(crate) fn max_records(&self) -> usize {
        // An inner page of one child would make the tree endlessly high.
        if self.fanout == 0 {
            usize::MAX
        } else {
            (self.fanout as usize).max(2)
        }
    }

    pub(crate) fn extent_blocks(&self) -> u64 {
        (u64::from(self.extent_bytes) / BLOCK_BYTES as u64).max(1)
    }

    pub(crate) fn file_step_blocks(&self) -> u64 {
        (self.file_step_bytes / BLOCK_BYTES as u64).max(1)
    }
}
