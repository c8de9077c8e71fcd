//! The pace of a checkpoint on one core: spread over time, so that the foreground has most of the core all the time, instead
//! of little of it for some seconds.
//!
//! As much is to be merged as of the time until the next checkpoint has passed, or of what would ask for that one has come:
//! new changes in memory, bytes in the ring. Whichever has come farthest counts, and all is merged well before the next.

use std::cell::Cell;
use std::sync::atomic::Ordering;

use pinion_runtime::{Duration, Instant, now};

use super::pressure::CHECKPOINT_AT;
use super::storage::{Phase, Storage};
use crate::base::Pace;

/// The part of the way to the next checkpoint on which a merge is complete, in percent.
const COMPLETE_AT: u64 = 75;
/// A merge of few changes need not take long: so many bytes of them a second are no burden.
const SLOWEST_BYTES_PER_SECOND: u64 = 16 * 1024 * 1024;
/// A rest shorter than this is none: timers cost something too.
const SHORTEST_REST: Duration = Duration::from_millis(1);
/// After which a resting merge looks again whether it is still ahead.
const LONGEST_REST: Duration = Duration::from_millis(10);

/// What a core merges for one checkpoint, and how far that has come.
pub(super) struct CorePace<'a> {
    storage: &'a Storage,
    started: Instant,
    /// How long the merge may take.
    over: Duration,
    /// Accounted bytes of the sealed changes, of all partitions, and those that are merged.
    total: u64,
    merged: Cell<u64>,
    /// Frames in the ring when the changes were sealed.
    frames: u64,
}

impl<'a> CorePace<'a> {
    /// The pace of what has just been sealed.
    pub(super) fn new(storage: &'a Storage) -> CorePace<'a> {
        let owned = storage.owned();
        let total = owned.map(|partition| partition.memory().sealed_bytes).sum();
        let slowest = Duration::from_millis(total * 1000 / SLOWEST_BYTES_PER_SECOND);
        let interval = storage.options.checkpoint_interval;
        CorePace {
            storage,
            started: now(),
            over: (interval / 100 * COMPLETE_AT as u32).min(slowest),
            total,
            merged: Cell::new(0),
            frames: storage.ring_frames(),
        }
    }

    /// The part of the changes that should be merged by now, in millionths.
    fn due(&self) -> u64 {
        let storage = self.storage;
        let owned = storage.owned();
        let new: u64 = owned.map(|partition| partition.memory().active_bytes).sum();
        let ring = storage.ring_bytes_since(self.frames);
        let of_time = millionths(self.started.elapsed().as_nanos(), self.over.as_nanos());
        let asking = storage.delta_budget() / 1000 * CHECKPOINT_AT;
        let of_memory = millionths_of_the_way(new, asking);
        let of_ring = millionths_of_the_way(ring, storage.options.ring_bytes_per_checkpoint);
        of_time.max(of_memory).max(of_ring)
    }
}

fn millionths(part: u128, whole: u128) -> u64 {
    u64::try_from(part * 1_000_000 / whole.max(1)).unwrap_or(u64::MAX)
}

fn millionths_of_the_way(now: u64, asking: u64) -> u64 {
    millionths(u128::from(now) * 100, u128::from(asking * COMPLETE_AT))
}

impl Pace for CorePace<'_> {
    fn merged(&self, bytes: u64) {
        self.merged.set(self.merged.get() + bytes);
    }

    fn rest(&self) -> Duration {
        if self.storage.hurries() {
            return Duration::ZERO;
        }
        let merged = millionths(u128::from(self.merged.get()), u128::from(self.total));
        let ahead = merged.min(1_000_000).saturating_sub(self.due());
        let rest = (self.over / 1_000_000).saturating_mul(ahead as u32);
        match rest {
            rest if rest < SHORTEST_REST => Duration::ZERO,
            rest => rest.min(LONGEST_REST),
        }
    }

    fn memory_freed(&self) {
        self.storage.publish_memory();
        self.storage.memory_freed.notify_all();
    }
}

impl Storage {
    /// Whether a checkpoint should be over soon: somebody waits for it, or memory is short.
    fn hurries(&self) -> bool {
        self.phase.get() != Phase::Writable
            || self.gate.is_closed()
            || self.shared.checkpoints_awaited.load(Ordering::Relaxed) > 0
            || self.is_short_of_memory()
            || self.fatal.borrow().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_in_millionths() {
        let check = |part, whole, expected| assert_eq!(millionths(part, whole), expected);
        check(0, 10, 0);
        check(5, 10, 500_000);
        check(20, 10, 2_000_000);
        check(1, 0, 1_000_000);
        check(u128::from(u64::MAX), 1, u64::MAX);
        assert_eq!(millionths_of_the_way(75, 100), 1_000_000);
        assert_eq!(millionths_of_the_way(15, 100), 200_000);
    }
}
