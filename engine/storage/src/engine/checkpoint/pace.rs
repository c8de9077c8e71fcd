//! The pace of a checkpoint on one core: spread over time, so that the foreground has most of the
//! core all the time, instead of little of it for some seconds.
//!
//! As much is to be merged as of the time until the next checkpoint has passed, or of what would
//! ask for that one has come: new changes in memory, bytes in the ring. Whichever has come farthest
//! counts, and all is merged well before the next.
//!
//! While the foreground has fallen behind, after a pause of the machine or in a burst, a merge
//! makes way for it: it does nothing until the foreground runs out of work, unless it would be late
//! by more than a part of the way. A merge that is later than that gets more of the core, the more
//! the later it is: checkpoints that do not end make the log long, and memory short.

use std::cell::Cell;

use pinion_runtime::{
    BACKGROUND_SHARES, Duration, Instant, foreground_idles, now, set_background_shares,
};

use crate::base::Pace;
use crate::engine::storage::Storage;
use crate::engine::write::CHECKPOINT_AT;

/// The part of the way to the next checkpoint on which a merge is complete, in percent.
const COMPLETE_AT: u64 = 75;
/// How late a merge may become to make way for the foreground, in percent of the interval, and of
/// the way to what asks for the next.
const LATE_AT_MOST: u32 = 20;
const LATE_MILLIONTHS: u64 = LATE_AT_MOST as u64 * 10_000;
/// Shares of the core for a merge that is later than it may be by as much again, or that is
/// awaited: with them it has two sevenths of a core whose foreground always has work, instead of an
/// eleventh.
const LATE_SHARES: usize = 400;
/// A foreground that has not run out of work for longer than this has fallen behind.
const BEHIND_AFTER: Duration = Duration::from_millis(1);
/// A merge of few changes need not take long: at this many bytes a second it is no burden.
const SLOWEST_BYTES_PER_SECOND: u64 = 16 * 1024 * 1024;
/// A rest shorter than this is none: timers cost something too.
const SHORTEST_REST: Duration = Duration::from_millis(1);
/// After which a resting merge looks again whether it is still ahead.
const LONGEST_REST: Duration = Duration::from_millis(10);

/// What a core merges for one checkpoint, and how far that has come.
pub(super) struct CorePace<'a> {
    storage: &'a Storage,
    started: Instant,
    /// How long the merge may take, and how late it may become beside a foreground that has fallen
    /// behind.
    over: Duration,
    leeway: Duration,
    /// Accounted bytes of the sealed changes, of all partitions, and those that are merged.
    total: u64,
    merged: Cell<u64>,
    /// Frames in the ring when the changes were sealed.
    frames: u64,
    /// How many breaks of the foreground the runtime last reported, and when the number last
    /// changed.
    idles: Cell<u64>,
    idle_seen: Cell<Instant>,
}

impl<'a> CorePace<'a> {
    /// The pace of what has just been sealed.
    pub(super) fn new(storage: &'a Storage) -> CorePace<'a> {
        let owned = storage.owned();
        let total = owned.map(|partition| partition.memory().sealed_bytes).sum();
        let slowest = Duration::from_millis(total * 1000 / SLOWEST_BYTES_PER_SECOND);
        let interval = storage.checkpoint_interval();
        CorePace {
            storage,
            started: now(),
            over: (interval / 100 * COMPLETE_AT as u32).min(slowest),
            leeway: interval / 100 * LATE_AT_MOST,
            total,
            merged: Cell::new(0),
            frames: storage.flusher.frames(),
            idles: Cell::new(foreground_idles()),
            idle_seen: Cell::new(now()),
        }
    }

    /// The part of the changes that should be merged after so long, in millionths, as far as time
    /// asks for it.
    fn due_after(&self, elapsed: Duration) -> u64 {
        millionths(elapsed.as_nanos(), self.over.as_nanos())
    }

    /// The same, as new changes in memory and the ring's length ask for it.
    fn demanded(&self) -> u64 {
        let storage = self.storage;
        let owned = storage.owned();
        let new: u64 = owned.map(|partition| partition.memory().active_bytes).sum();
        let ring = storage.flusher.bytes_since(self.frames);
        let asking = storage.memory.delta_budget_bytes() / 1000 * CHECKPOINT_AT;
        let of_memory = millionths_of_the_way(new, asking);
        let of_ring = millionths_of_the_way(ring, storage.options.ring_bytes_per_checkpoint);
        of_memory.max(of_ring)
    }

    /// Looks whether this core's foreground has had work for long without a break.
    fn sees_foreground_behind(&self) -> bool {
        let idles = foreground_idles();
        if self.idles.replace(idles) != idles {
            self.idle_seen.set(now());
        }
        self.idle_seen.get().elapsed() > BEHIND_AFTER
    }
}

/// Shares of the core for a merge that is so much later than it may be.
fn shares_when_late(late_millionths: u64) -> usize {
    let late = late_millionths.min(LATE_MILLIONTHS) as usize;
    BACKGROUND_SHARES + (LATE_SHARES - BACKGROUND_SHARES) * late / LATE_MILLIONTHS as usize
}

impl Drop for CorePace<'_> {
    fn drop(&mut self) {
        set_background_shares(BACKGROUND_SHARES);
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
            set_background_shares(LATE_SHARES);
            return Duration::ZERO;
        }
        let merged =
            millionths(u128::from(self.merged.get()), u128::from(self.total)).min(1_000_000);
        let (elapsed, demanded) = (self.started.elapsed(), self.demanded());
        let ahead = merged.saturating_sub(demanded.max(self.due_after(elapsed)));
        let rest = (self.over / 1_000_000).saturating_mul(ahead as u32);
        if rest >= SHORTEST_REST {
            set_background_shares(BACKGROUND_SHARES);
            return rest.min(LONGEST_REST);
        }
        let late_by_time = self.due_after(elapsed.saturating_sub(self.leeway));
        let late_by_demand = demanded.saturating_sub(LATE_MILLIONTHS);
        let late = late_by_time.max(late_by_demand).saturating_sub(merged);
        set_background_shares(shares_when_late(late));
        match late == 0 && self.sees_foreground_behind() {
            true => SHORTEST_REST,
            false => Duration::ZERO,
        }
    }

    fn memory_freed(&self) {
        self.storage.publish_memory();
        self.storage.memory.wake_writers();
    }
}

impl Storage {
    /// Whether a checkpoint should be over soon: it is awaited, or memory is short.
    fn hurries(&self) -> bool {
        !self.roles.is_writable()
            || self.roles.is_closing()
            || self.shared.demand.is_awaited()
            || self.is_short_of_memory()
            || self.roles.has_failed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_gets_more_of_the_core_the_later_it_is() {
        let check = |late, expected| assert_eq!(shares_when_late(late), expected, "{late}");
        check(0, BACKGROUND_SHARES);
        check(LATE_MILLIONTHS / 2, 250);
        check(LATE_MILLIONTHS, LATE_SHARES);
        check(u64::MAX, LATE_SHARES);
    }

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
