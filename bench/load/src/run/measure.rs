//! What one thread counts in one interval, and what failed.

use hdrhistogram::Histogram;

use crate::workload::Kind;

/// Latencies up to this are distinguished; longer ones count as this.
const MAX_LATENCY_NS: u64 = 600_000_000_000;
/// Messages of failures that are kept; the rest is counted.
const KEPT_MESSAGES: usize = 5;

/// A histogram of nanoseconds, three significant digits.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3).expect("the bounds of the histogram are valid")
}

/// Failures; none of them is an operation.
#[derive(Clone, Default, Debug)]
pub struct Failures {
    /// The server said that it failed.
    pub errors: u64,
    /// The document was not there.
    pub misses: u64,
    /// The reply was not what it must be.
    pub wrong: u64,
    /// Transactions that were tried again because of another one; they fail nothing.
    pub conflicts: u64,
    pub messages: Vec<String>,
}

impl Failures {
    pub fn note(&mut self, message: String) {
        if self.messages.len() < KEPT_MESSAGES && !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    pub fn add(&mut self, other: &Self) {
        self.errors += other.errors;
        self.misses += other.misses;
        self.wrong += other.wrong;
        self.conflicts += other.conflicts;
        for message in &other.messages {
            self.note(message.clone());
        }
    }
}

/// Latencies of the operations that completed in one interval.
pub struct Interval {
    pub number: u64,
    pub latencies: [Option<Box<Histogram<u64>>>; Kind::COUNT],
    pub documents: u64,
    /// Replies whose values were compared byte for byte.
    pub compared: u64,
    pub failures: Failures,
}

impl Interval {
    pub fn new(number: u64) -> Self {
        Self {
            number,
            latencies: [const { None }; Kind::COUNT],
            documents: 0,
            compared: 0,
            failures: Failures::default(),
        }
    }

    pub fn record(&mut self, kind: Kind, latency_ns: u64, documents: u64) {
        self.latencies[kind as usize]
            .get_or_insert_with(|| Box::new(histogram()))
            .saturating_record(latency_ns.max(1));
        self.documents += documents;
    }

    /// Takes what another thread counted in the same interval.
    pub fn add(&mut self, other: Self) {
        for (mine, theirs) in self.latencies.iter_mut().zip(other.latencies) {
            match (mine.as_mut(), theirs) {
                (Some(mine), Some(theirs)) => mine
                    .add(&*theirs)
                    .expect("all histograms have the same bounds"),
                (None, theirs) => *mine = theirs,
                (_, None) => {}
            }
        }
        self.documents += other.documents;
        self.compared += other.compared;
        self.failures.add(&other.failures);
    }

    /// All kinds together.
    pub fn all(&self) -> Histogram<u64> {
        let mut sum = histogram();
        for latencies in self.latencies.iter().flatten() {
            sum.add(&**latencies)
                .expect("all histograms have the same bounds");
        }
        sum
    }
}
