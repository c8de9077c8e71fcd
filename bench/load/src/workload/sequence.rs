//! The keys of inserts: given out once each, and announced to readers when they are acknowledged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Keys that may be given out and not yet acknowledged.
const WINDOW: usize = 1 << 20;

/// YCSB's `AcknowledgedCounterGenerator`, shared by all threads: `newest` is the last key below
/// which every insert is acknowledged, so that no reader asks for a document that may not be there
/// yet.
pub struct Sequence {
    next: AtomicU64,
    newest: AtomicU64,
    acknowledged: Vec<AtomicBool>,
    advancing: AtomicBool,
}

impl Sequence {
    /// `first` is the first key given out.
    pub fn new(first: u64) -> Self {
        Self {
            next: AtomicU64::new(first),
            newest: AtomicU64::new(first.wrapping_sub(1)),
            acknowledged: (0..WINDOW).map(|_| AtomicBool::new(false)).collect(),
            advancing: AtomicBool::new(false),
        }
    }

    /// `count` consecutive keys that no other caller gets.
    pub fn take(&self, count: u64) -> u64 {
        self.next.fetch_add(count, Ordering::Relaxed)
    }

    /// The newest key that readers may ask for.
    pub fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// A key's insert was acknowledged.
    pub fn acknowledge(&self, key: u64) {
        self.slot(key).store(true, Ordering::Release);
        // The thread that holds the flag advances for all; a key acknowledged meanwhile is seen by
        // the next to come.
        while !self.advancing.swap(true, Ordering::AcqRel) {
            let before = self.newest.load(Ordering::Relaxed);
            let mut newest = before;
            while self
                .slot(newest.wrapping_add(1))
                .swap(false, Ordering::AcqRel)
            {
                newest = newest.wrapping_add(1);
            }
            self.newest.store(newest, Ordering::Release);
            self.advancing.store(false, Ordering::Release);
            if newest == before {
                break;
            }
        }
    }

    fn slot(&self, key: u64) -> &AtomicBool {
        &self.acknowledged[key as usize % WINDOW]
    }
}
