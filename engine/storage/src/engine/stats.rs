//! Figures about storage, for serverStatus and for tests.

use pinion_clock::Timestamp;
use pinion_runtime::Duration;

use super::checkpoint::CheckpointTimes;
use super::storage::Storage;

/// Figures of one core since it was opened; those of all cores add up, except where said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageStats {
    /// What pages and changes may take together.
    pub memory_budget_bytes: u64,
    /// Bytes in the page cache, and what it may hold beside the changes that there are.
    pub cache_bytes: u64,
    pub cache_budget_bytes: u64,
    /// Bytes of changes not yet in the base, and what they may take.
    pub delta_bytes: u64,
    pub delta_budget_bytes: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub cache_evictions: u64,
    pub page_bytes_read: u64,
    pub page_bytes_written: u64,
    pub pages_written: u64,
    pub page_file_bytes: u64,
    pub page_free_bytes: u64,
    /// Checkpoints completed, and their times; counted by core 0.
    pub checkpoints: u64,
    pub checkpoint_last_ms: u64,
    pub checkpoint_total_ms: u64,
    pub ring_entries: u64,
    pub ring_entry_bytes: u64,
    pub ring_flushes: u64,
    pub ring_bytes: u64,
    pub ring_segments_created: u64,
    pub ring_segments_reused: u64,
    pub ring_segments_removed: u64,
    /// Segments that were cut off the log's beginning, and how long that took.
    pub log_truncations: u64,
    pub log_truncating_us: u64,
    /// Steps that waited for memory, and those that were refused for want of it.
    pub delayed_steps: u64,
    pub refused_steps: u64,
    /// Old states that were given up, for want of disk, while snapshots of them were open.
    pub expired_views: u64,
    /// Memory for merged changes that snapshots keep, and disk for those and for the pages of older
    /// states.
    pub retired_bytes: u64,
    pub history_disk_bytes: u64,
    /// Layers: changes above the stable timestamp that are on disk; counted by core 0. Their disk.
    pub layers: u64,
    pub layer_disk_bytes: u64,
    /// The timestamp of the oldest of them, 0 if there is none, and how far the stable timestamp is
    /// behind what is visible; the same on all cores.
    pub layered_since: u64,
    pub stable_lag_secs: u64,
    /// How often old versions, or changes above the stable timestamp, could not be written to disk,
    /// and were tried again.
    pub failed_runs: u64,
    /// How often something began to wait for room on a full disk; the same on all cores.
    pub waits_for_room: u64,
    /// Intents of units that are not decided yet.
    pub intents: u64,
    /// Units that stay open until their client ends them, counted in each partition in which they
    /// hold something, and the bytes of what they hold.
    pub open_units: u64,
    pub open_unit_bytes: u64,
}

impl std::ops::AddAssign for StorageStats {
    fn add_assign(&mut self, other: StorageStats) {
        self.memory_budget_bytes += other.memory_budget_bytes;
        self.cache_bytes += other.cache_bytes;
        self.cache_budget_bytes += other.cache_budget_bytes;
        self.delta_bytes += other.delta_bytes;
        self.delta_budget_bytes += other.delta_budget_bytes;
        self.cache_hits += other.cache_hits;
        self.cache_misses += other.cache_misses;
        self.cache_evictions += other.cache_evictions;
        self.page_bytes_read += other.page_bytes_read;
        self.page_bytes_written += other.page_bytes_written;
        self.pages_written += other.pages_written;
        self.page_file_bytes += other.page_file_bytes;
        self.page_free_bytes += other.page_free_bytes;
        self.checkpoints += other.checkpoints;
        self.checkpoint_last_ms += other.checkpoint_last_ms;
        self.checkpoint_total_ms += other.checkpoint_total_ms;
        self.ring_entries += other.ring_entries;
        self.ring_entry_bytes += other.ring_entry_bytes;
        self.ring_flushes += other.ring_flushes;
        self.ring_bytes += other.ring_bytes;
        self.ring_segments_created += other.ring_segments_created;
        self.ring_segments_reused += other.ring_segments_reused;
        self.ring_segments_removed += other.ring_segments_removed;
        self.log_truncations += other.log_truncations;
        self.log_truncating_us += other.log_truncating_us;
        self.delayed_steps += other.delayed_steps;
        self.refused_steps += other.refused_steps;
        self.expired_views += other.expired_views;
        self.retired_bytes += other.retired_bytes;
        self.history_disk_bytes += other.history_disk_bytes;
        self.layers += other.layers;
        self.layer_disk_bytes += other.layer_disk_bytes;
        self.layered_since = self.layered_since.max(other.layered_since);
        self.stable_lag_secs = self.stable_lag_secs.max(other.stable_lag_secs);
        self.failed_runs += other.failed_runs;
        self.waits_for_room = self.waits_for_room.max(other.waits_for_room);
        self.intents += other.intents;
        self.open_units += other.open_units;
        self.open_unit_bytes += other.open_unit_bytes;
    }
}

impl Storage {
    /// This core's figures.
    pub fn stats(&self) -> StorageStats {
        let ring = self.flusher.stats();
        let times = self.node.as_ref().map(|node| &node.times);
        let millis = |of: fn(&CheckpointTimes) -> Duration| -> u64 {
            times.map_or(0, |times| of(times).as_millis() as u64)
        };
        let (delayed_steps, refused_steps) = self.memory.delayed_and_refused();
        let mut stats = StorageStats {
            memory_budget_bytes: self.memory.budget_bytes(),
            delta_bytes: self.delta_bytes(),
            delta_budget_bytes: self.memory.delta_budget_bytes(),
            checkpoints: times.map_or(0, CheckpointTimes::count),
            checkpoint_last_ms: millis(CheckpointTimes::last),
            checkpoint_total_ms: millis(CheckpointTimes::total),
            ring_entries: ring.entries,
            ring_entry_bytes: ring.entry_bytes,
            ring_flushes: ring.flushes,
            ring_bytes: ring.frames * crate::ring::FRAME_BYTES as u64,
            ring_segments_created: ring.segments_created,
            ring_segments_reused: ring.segments_reused,
            ring_segments_removed: ring.segments_removed,
            log_truncations: ring.truncations,
            log_truncating_us: ring.truncating.as_micros() as u64,
            delayed_steps,
            refused_steps,
            layers: self
                .node
                .as_ref()
                .map_or(0, |node| node.layers.borrow().len() as u64),
            layered_since: self.shared.horizon.layered().map_or(0, Timestamp::as_u64),
            stable_lag_secs: self.stable_lag_secs(),
            waits_for_room: self.shared.room.waits(),
            ..StorageStats::default()
        };
        for partition in self.owned() {
            let (memory, pages) = (partition.memory(), partition.page_stats());
            stats.cache_bytes += memory.cache_bytes;
            stats.intents += memory.intents;
            stats.failed_runs += partition.failed_runs();
            stats.open_units += partition.open_units() as u64;
            stats.open_unit_bytes += memory.open_bytes;
            stats.retired_bytes += memory.retired_bytes;
            stats.history_disk_bytes += memory.history_disk_bytes;
            stats.layer_disk_bytes += memory.layer_disk_bytes;
            stats.expired_views += partition.expired_views();
            stats.cache_budget_bytes += memory.cache_budget_bytes;
            stats.cache_hits += pages.hits;
            stats.cache_misses += pages.misses;
            stats.cache_evictions += pages.evictions;
            stats.page_bytes_read += pages.bytes_read;
            stats.page_bytes_written += pages.bytes_written;
            stats.pages_written += pages.pages_written;
            stats.page_file_bytes += pages.file_bytes;
            stats.page_free_bytes += pages.free_bytes;
        }
        stats
    }
}
