//! What makes a checkpoint necessary or urgent beside its interval; shared by all cores. And how
//! long checkpoints took.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pinion_runtime::Duration;

/// What the cores ask of the next checkpoint.
#[derive(Default)]
pub(in crate::engine) struct CheckpointDemand {
    /// How many callers wait for a checkpoint to be complete, so that it should be soon.
    awaited: AtomicUsize,
    /// Something was applied without a timestamp, or counts were corrected, since the last
    /// checkpoint started: there is something to write though no timestamp has moved.
    has_untimed: AtomicBool,
}

impl CheckpointDemand {
    pub(super) fn begin_await(&self) {
        self.awaited.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_await(&self) {
        let before = self.awaited.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a wait for a checkpoint ends once");
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.awaited.load(Ordering::Relaxed) > 0
    }

    /// Something was changed without a timestamp. Called after the change: a checkpoint that takes
    /// the word back before it seals its changes has it among them.
    pub(in crate::engine) fn note_untimed(&self) {
        if !self.has_untimed.load(Ordering::Relaxed) {
            self.has_untimed.store(true, Ordering::SeqCst);
        }
    }

    pub(super) fn has_untimed(&self) -> bool {
        self.has_untimed.load(Ordering::SeqCst)
    }

    /// A checkpoint starts, and has sealed nothing yet.
    pub(super) fn clear_untimed(&self) {
        self.has_untimed.store(false, Ordering::SeqCst);
    }
}

/// Checkpoints that are complete, and the time that they took.
#[derive(Default)]
pub(in crate::engine) struct CheckpointTimes {
    count: Cell<u64>,
    last: Cell<Duration>,
    total: Cell<Duration>,
}

impl CheckpointTimes {
    pub(super) fn add(&self, took: Duration) {
        self.count.set(self.count.get() + 1);
        self.last.set(took);
        self.total.set(self.total.get() + took);
    }

    pub(in crate::engine) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(in crate::engine) fn last(&self) -> Duration {
        self.last.get()
    }

    pub(in crate::engine) fn total(&self) -> Duration {
        self.total.get()
    }
}
