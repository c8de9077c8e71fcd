//! Random streams: one for each consumer, seeded by the operating system or by the simulation.

use std::cell::RefCell;

use crate::context::{self, StreamSeed};

/// A random stream (xoshiro256++). Not for secrets: keys and salts come from [`os_random`].
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream that follows from `seed`.
    pub fn from_seed(seed: u64) -> Rng {
        let mut seed = seed;
        let state = std::array::from_fn(|_| splitmix(&mut seed));
        Rng { state }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = &mut self.state;
        let result = a.wrapping_add(*d).rotate_left(23).wrapping_add(*a);
        let t = *b << 17;
        *c ^= *a;
        *d ^= *b;
        *b ^= *c;
        *a ^= *d;
        *c ^= t;
        *d = d.rotate_left(45);
        result
    }

    /// A number in `0..n`.
    ///
    /// # Panics
    /// When `n` is zero.
    pub fn below(&mut self, n: u64) -> u64 {
        assert!(n > 0, "there is no number below zero");
        // Multiply-shift: the bias is below 2^-32 for every n that occurs, and the result is the
        // same everywhere.
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        match (high - low).checked_add(1) {
            Some(span) => low + self.below(span),
            None => self.next_u64(),
        }
    }

    /// A number in `0.0..1.0`.
    pub fn f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // Zero takes nothing from the stream, so that switching a fault off leaves the rest of a
        // run as it was.
        probability > 0.0 && self.f64() < probability
    }

    /// Fills `bytes` with random bytes.
    pub fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let random = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
    }
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Mixes numbers and a name into one seed.
pub(crate) fn derive_seed(parts: &[u64], name: &str) -> u64 {
    let mut state = 0x0070_696e_696f_6e00;
    for part in parts {
        state = splitmix(&mut state) ^ *part;
    }
    for byte in name.bytes() {
        state = splitmix(&mut state) ^ u64::from(byte);
    }
    splitmix(&mut state)
}

/// Gives out the streams of one core.
pub(crate) struct StreamSource {
    seed: StreamSeed,
    /// How often each name was asked for: the second stream of a name must not repeat the first.
    given: RefCell<Vec<(&'static str, u64)>>,
}

impl StreamSource {
    pub(crate) fn new(seed: StreamSeed) -> StreamSource {
        StreamSource {
            seed,
            given: RefCell::new(Vec::new()),
        }
    }

    fn stream(&self, name: &'static str) -> Rng {
        let seed = match self.seed {
            StreamSeed::Os => {
                let mut bytes = [0; 8];
                crate::real::fill_os_random(&mut bytes);
                return Rng::from_seed(u64::from_le_bytes(bytes));
            }
            StreamSeed::Fixed(seed) => seed,
        };
        let mut given = self.given.borrow_mut();
        let ordinal = match given.iter_mut().find(|(existing, _)| *existing == name) {
            Some((_, count)) => {
                *count += 1;
                *count
            }
            None => {
                given.push((name, 0));
                0
            }
        };
        Rng::from_seed(derive_seed(&[seed, ordinal], name))
    }

    fn os_bytes(&self, bytes: &mut [u8]) {
        match self.seed {
            StreamSeed::Os => crate::real::fill_os_random(bytes),
            StreamSeed::Fixed(_) => self.stream("os random").fill_bytes(bytes),
        }
    }
}

/// A new random stream for the consumer `name`. Each call gives another stream; in a simulation it
/// depends on the seed, the node, the core, its number of starts, the name and how often the name
/// was asked for, and on nothing else.
pub fn random_stream(name: &'static str) -> Rng {
    context::with(|context| context.streams.stream(name))
}

/// Fills `bytes` from the operating system's generator, for keys and salts. Seeded in a simulation.
pub fn os_random(bytes: &mut [u8]) {
    context::with(|context| context.streams.os_bytes(bytes));
}
