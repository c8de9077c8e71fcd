//! A number that one core counts.

use std::cell::Cell;

/// A counter of one core; only its own core touches it.
#[derive(Debug, Default)]
pub struct Counter(Cell<u64>);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.set(self.0.get() + n);
    }

    /// Takes one off.
    pub fn dec(&self) {
        self.0.set(
            self.0
                .get()
                .checked_sub(1)
                .expect("a gauge went below zero"),
        );
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.get()
    }
}
