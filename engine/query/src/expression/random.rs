//! Random numbers of expressions.

use std::sync::atomic::{AtomicU64, Ordering};

/// A stream of random numbers. A copy is a stream of its own, so that `$rand` has one wherever it
/// stands, and on every core that evaluates it.
#[derive(Debug, Default)]
pub struct Random(AtomicU64);

impl Random {
    /// The stream of a seed, which the caller draws.
    pub fn seeded(seed: u64) -> Random {
        Random(AtomicU64::new(seed))
    }

    /// SplitMix64: a counter that goes up by an odd step, its bits mixed.
    pub(crate) fn next_u64(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.0.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to but without 1.
    pub(crate) fn next_f64(&self) -> f64 {
        // As many bits as a double has digits.
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

impl Clone for Random {
    fn clone(&self) -> Random {
        Random::seeded(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_evenly() {
        let random = Random::seeded(7);
        let numbers: Vec<f64> = (0..10_000).map(|_| random.next_f64()).collect();
        assert!(numbers.iter().all(|v| (0.0..1.0).contains(v)));
        let mean = numbers.iter().sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
    }

    #[test]
    fn copies_go_their_own_ways() {
        let random = Random::seeded(7);
        let (one, other) = (random.clone(), random.clone());
        assert_ne!(one.next_u64(), other.next_u64());
        assert_eq!(
            Random::seeded(7).next_u64(),
            Random::seeded(7).next_u64(),
            "a seed gives the same numbers each time"
        );
    }
}
