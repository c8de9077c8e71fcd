//! How often rings are flushed and checkpoints are taken, which an operator may change while the
//! node runs.

use std::sync::atomic::{AtomicU64, Ordering};

use pinion_runtime::{CoreId, Duration, LocalBoxFuture, Queue, submit_to};

use crate::engine::options::StorageOptions;
use crate::engine::storage::{Storage, storage};

/// The intervals of all cores, in nanoseconds.
pub(in crate::engine) struct Intervals {
    journal_ns: AtomicU64,
    checkpoint_ns: AtomicU64,
}

/// As nanoseconds; what is longer than they reach is for ever.
fn nanos(interval: Duration) -> u64 {
    u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX)
}

fn interval(nanos: &AtomicU64) -> Duration {
    match nanos.load(Ordering::Relaxed) {
        u64::MAX => Duration::MAX,
        nanos => Duration::from_nanos(nanos),
    }
}

impl Intervals {
    pub(in crate::engine) fn new(options: &StorageOptions) -> Intervals {
        Intervals {
            journal_ns: AtomicU64::new(nanos(options.journal_commit_interval)),
            checkpoint_ns: AtomicU64::new(nanos(options.checkpoint_interval)),
        }
    }
}

impl Storage {
    /// Rings are flushed at least this often.
    pub fn journal_commit_interval(&self) -> Duration {
        interval(&self.shared.intervals.journal_ns)
    }

    /// Checkpoints are taken at least this often while there is something to write; `Duration::MAX`
    /// for those alone that are asked for.
    pub fn checkpoint_interval(&self) -> Duration {
        interval(&self.shared.intervals.checkpoint_ns)
    }

    /// Sets how often rings are flushed. It holds from the flush on that is waited for now.
    pub fn set_journal_commit_interval(&self, interval: Duration) {
        let of_all = &self.shared.intervals.journal_ns;
        of_all.store(nanos(interval), Ordering::Relaxed);
    }

    /// Sets how often checkpoints are taken. The first is taken now, and the others count from it.
    pub fn set_checkpoint_interval(&self, interval: Duration) -> LocalBoxFuture<'_, ()> {
        let of_all = &self.shared.intervals.checkpoint_ns;
        of_all.store(nanos(interval), Ordering::Relaxed);
        Box::pin(submit_to(CoreId(0), Queue::Foreground, || async {
            storage().node_state().demand.notify_one();
        }))
    }
}
