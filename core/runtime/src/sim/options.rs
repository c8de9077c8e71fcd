//! What a simulation and its faults can be set to.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::random::{Rng, derive_seed};

/// Settings of a simulation. Latencies are drawn evenly from their range, in nanoseconds.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Room of the queue between two cores.
    pub mesh_slots: usize,
    /// How long a message between two cores takes.
    pub mesh_latency_ns: RangeInclusive<u64>,
    /// Virtual time that one poll of a task takes.
    pub poll_ns: RangeInclusive<u64>,
    /// Of 1024 polls, how many are followed by a pause of the whole core, as when the system takes
    /// its processor away.
    pub pauses_of_1024: u64,
    pub pause_ns: RangeInclusive<u64>,
    pub disk_read_ns: RangeInclusive<u64>,
    pub disk_write_ns: RangeInclusive<u64>,
    pub disk_sync_ns: RangeInclusive<u64>,
    /// Of 1024 disk operations, how many take twenty times as long.
    pub slow_disk_operations_of_1024: u64,
    /// Bytes a node's disk holds.
    pub disk_bytes: u64,
    /// One way between two nodes.
    pub link_ns: RangeInclusive<u64>,
    /// Largest piece in which bytes of a connection travel; smaller pieces are cut at random.
    pub segment_bytes: usize,
    /// How far a node's wall clock may be off, either way.
    pub wall_skew: Duration,
    /// Virtual time after which a run is stuck.
    pub time_limit: Duration,
    /// Prints every step to standard error, to find where two runs part.
    pub print_trace: bool,
}

impl Default for SimOptions {
    fn default() -> SimOptions {
        SimOptions {
            mesh_slots: 64,
            mesh_latency_ns: 200..=5_000,
            poll_ns: 100..=1_500,
            pauses_of_1024: 1,
            pause_ns: 10_000..=3_000_000,
            disk_read_ns: 20_000..=150_000,
            disk_write_ns: 20_000..=200_000,
            disk_sync_ns: 50_000..=500_000,
            slow_disk_operations_of_1024: 4,
            disk_bytes: 1 << 40,
            link_ns: 20_000..=500_000,
            segment_bytes: 16 * 1024,
            wall_skew: Duration::ZERO,
            time_limit: Duration::from_secs(24 * 3600),
            print_trace: false,
        }
    }
}

impl SimOptions {
    /// Settings drawn from the seed: from roomy to hostile, so that full queues, pauses and slow
    /// disks are common in some runs and absent in others.
    pub fn random(seed: u64) -> SimOptions {
        let mut rng = Rng::from_seed(derive_seed(&[seed], "options"));
        let mut pick = |choices: &[u64]| choices[rng.below(choices.len() as u64) as usize];
        SimOptions {
            mesh_slots: pick(&[1, 2, 4, 16, 64]) as usize,
            mesh_latency_ns: 100..=pick(&[1_000, 5_000, 100_000]),
            poll_ns: 50..=pick(&[500, 1_500, 20_000]),
            pauses_of_1024: pick(&[0, 1, 8]),
            pause_ns: 10_000..=pick(&[100_000, 3_000_000, 30_000_000]),
            disk_read_ns: 5_000..=pick(&[10_000, 150_000, 2_000_000]),
            disk_write_ns: 5_000..=pick(&[10_000, 200_000, 3_000_000]),
            disk_sync_ns: 5_000..=pick(&[10_000, 500_000, 5_000_000]),
            slow_disk_operations_of_1024: pick(&[0, 4, 40]),
            link_ns: 1_000..=pick(&[50_000, 500_000, 5_000_000]),
            segment_bytes: pick(&[64, 1024, 16 * 1024, 64 * 1024]) as usize,
            ..SimOptions::default()
        }
    }
}

/// Faults of the disk of a node. The default has none.
#[derive(Clone, Debug, Default)]
pub struct DiskFaults {
    /// Probability that a read, a write or a flush fails with an I/O error. A failed write may have
    /// been done in part.
    pub read_error: f64,
    pub write_error: f64,
    pub sync_error: f64,
    /// Probability that a read finds one bit of its data changed, on the disk and so for good.
    pub bit_flip: f64,
    /// Factor on the time operations take; zero counts as one.
    pub slowness: u64,
    /// Only files whose path contains this.
    pub path_contains: Option<String>,
}

/// Faults of one direction between two nodes. The default has none.
#[derive(Clone, Debug, Default)]
pub struct LinkFaults {
    /// Nothing passes.
    pub cut: bool,
    /// Probability that a piece is lost, which for a TCP stream is a delay of 200 ms to 2 s for it
    /// and all behind it.
    pub loss: f64,
    /// Probability, for each piece, that the connection is reset.
    pub reset: f64,
    /// Added to the way of every piece.
    pub delay: Duration,
}
