//! The random stream: splitmix64, small and fast, one for each thread.

/// A stream of random bits that a seed alone determines.
#[derive(Clone)]
pub struct Random(u64);

/// Turns one word into one that looks unrelated (the finaliser of splitmix64).
pub fn mix(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The seed of one of many streams that shall share nothing: a run's seed, and what distinguishes
/// the streams of that run.
pub fn derive(seed: u64, parts: &[u64]) -> u64 {
    parts
        .iter()
        .fold(mix(seed), |state, part| mix(state ^ mix(*part)))
}

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word
    }

    /// Uniform in 0..bound, without the bias of a remainder that matters (multiply and shift).
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Uniform in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
