//! When spinning before sleep pays: only if the last pauses between events were about as short as
//! the spin.

use std::cell::Cell;
use std::time::Duration;

/// Remembers how long a core has been resting between events.
pub(super) struct Spin {
    limit_ns: u64,
    /// Moving average of the last rests, each counted up to `CAP` limits so that one long rest is
    /// soon forgotten.
    average_ns: Cell<u64>,
}

const CAP: u64 = 4;

impl Spin {
    pub fn new(limit: Duration) -> Spin {
        let limit_ns = limit.as_nanos() as u64;
        Spin {
            limit_ns,
            average_ns: Cell::new(limit_ns * CAP),
        }
    }

    pub fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    /// Whether the next event is likely to come within the limit.
    pub fn worth_it(&self) -> bool {
        self.average_ns.get() < self.limit_ns
    }

    /// Learns how long a rest was.
    pub fn record(&self, rested_ns: u64) {
        let average = self.average_ns.get();
        self.average_ns
            .set((average * 3 + rested_ns.min(self.limit_ns * CAP)) / 4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spins_only_after_short_rests() {
        let spin = Spin::new(Duration::from_micros(50));
        assert!(!spin.worth_it());
        (0..20).for_each(|_| spin.record(10_000));
        assert!(spin.worth_it());
        spin.record(10_000_000);
        spin.record(10_000_000);
        assert!(!spin.worth_it());
        (0..5).for_each(|_| spin.record(20_000));
        assert!(spin.worth_it());

        let off = Spin::new(Duration::ZERO);
        (0..20).for_each(|_| off.record(1));
        assert!(!off.worth_it());
    }
}
