//! How far an operation has come, for `currentOp`.

use std::sync::atomic::{AtomicU64, Ordering};

/// Records and entries that were examined, of those that there are about.
#[derive(Debug, Default)]
pub struct Progress {
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    /// There is more to examine.
    pub fn expect(&self, more: u64) {
        self.total.fetch_add(more, Ordering::Relaxed);
    }

    /// One more was examined.
    pub fn advance(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
    }

    /// What is done, and of how much; others write on, so there may be more than was expected.
    pub fn counts(&self) -> (u64, u64) {
        let done = self.done.load(Ordering::Relaxed);
        (done, self.total.load(Ordering::Relaxed).max(done))
    }
}
