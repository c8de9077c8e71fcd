//! How often something is acquired in one mode, and waited for.

use std::cell::Cell;
use std::ops::AddAssign;

use pinion_runtime::Instant;

/// Counts since the node started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acquisitions {
    pub count: u64,
    /// Waits, also those that were given up.
    pub waits: u64,
    pub wait_us: u64,
}

impl AddAssign for Acquisitions {
    fn add_assign(&mut self, other: Acquisitions) {
        self.count += other.count;
        self.waits += other.waits;
        self.wait_us += other.wait_us;
    }
}

/// The counts of one core.
#[derive(Default)]
pub(crate) struct Tally(Cell<Acquisitions>);

impl Tally {
    pub(crate) fn get(&self) -> Acquisitions {
        self.0.get()
    }

    pub(crate) fn acquired(&self) {
        self.add(Acquisitions {
            count: 1,
            ..Acquisitions::default()
        });
    }

    /// Begins a wait, which is counted when it ends.
    pub(crate) fn begin_wait(&self) -> CountedWait<'_> {
        CountedWait {
            tally: self,
            began: pinion_runtime::now(),
        }
    }

    fn add(&self, more: Acquisitions) {
        let mut sum = self.0.get();
        sum += more;
        self.0.set(sum);
    }
}

/// A wait that is counted when this is dropped, also if it is given up.
pub struct CountedWait<'a> {
    tally: &'a Tally,
    began: Instant,
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.tally.add(Acquisitions {
            count: 0,
            waits: 1,
            wait_us: self.began.elapsed().as_micros() as u64,
        });
    }
}
