//! Latencies of one class of operations, and their histogram.

use std::cell::RefCell;

use pinion_bson::DocBuilder;

use crate::counter::Counter;

/// Steps of a histogram: one from each power of two of microseconds to the next, and two from 2 ms
/// to 2 s, as operations are expected to take.
const STEPS: usize = 51;

/// The powers of two from which on there are two steps to the next, and from which on there is one
/// again.
const HALVED_FROM: usize = 11;
const WHOLE_FROM: usize = 21;

/// How many operations took how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Histogram([u64; STEPS]);

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram([0; STEPS])
    }
}

/// The step of a latency. The last one has all that are longer.
fn step_of(us: u64) -> usize {
    let power = us.max(1).ilog2() as usize;
    let step = match power {
        0..HALVED_FROM => power,
        HALVED_FROM..WHOLE_FROM => {
            let is_upper = us >= 3 << (power - 1);
            2 * power - HALVED_FROM + usize::from(is_upper)
        }
        _ => power + WHOLE_FROM - HALVED_FROM,
    };
    step.min(STEPS - 1)
}

/// The least latency of a step.
fn least_us(step: usize) -> u64 {
    const LAST_HALVED: usize = 2 * WHOLE_FROM - HALVED_FROM;
    match step {
        0 => 0,
        1..HALVED_FROM => 1 << step,
        HALVED_FROM..LAST_HALVED => {
            let half = 1 << ((step + HALVED_FROM) / 2 - 1);
            match (step + HALVED_FROM).is_multiple_of(2) {
                true => 2 * half,
                false => 3 * half,
            }
        }
        _ => 1 << (step + HALVED_FROM - WHOLE_FROM),
    }
}

/// Latencies of one class of operations on one core.
#[derive(Debug, Default)]
pub struct Latency {
    ops: Counter,
    total_us: Counter,
    histogram: RefCell<Histogram>,
}

impl Latency {
    /// Records an operation that took `us` microseconds.
    pub fn record(&self, us: u64) {
        self.ops.inc();
        self.total_us.add(us);
        self.histogram.borrow_mut().0[step_of(us)] += 1;
    }
}

/// Latencies of one class of operations, summed over cores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencyValues {
    pub ops: u64,
    pub total_us: u64,
    histogram: Histogram,
}

impl LatencyValues {
    /// The present values of one core.
    pub fn of(latency: &Latency) -> LatencyValues {
        LatencyValues {
            ops: latency.ops.get(),
            total_us: latency.total_us.get(),
            histogram: *latency.histogram.borrow(),
        }
    }

    /// Operations of one step of the histogram.
    #[cfg(test)]
    pub(crate) fn count_of_step(&self, step: usize) -> u64 {
        self.histogram.0[step]
    }

    /// Adds another core's values.
    pub fn add(&mut self, other: &LatencyValues) {
        self.ops += other.ops;
        self.total_us += other.total_us;
        for (mine, theirs) in self.histogram.0.iter_mut().zip(other.histogram.0) {
            *mine += theirs;
        }
    }

    /// Appends the values, with the steps that are not empty where `histogram` asks for them.
    pub fn append(&self, out: &mut DocBuilder, histogram: bool) {
        if histogram {
            out.start_array("histogram");
            let counts = self.histogram.0.iter().enumerate();
            for (step, count) in counts.filter(|(_, count)| **count > 0) {
                out.push_document()
                    .append("micros", least_us(step) as i64)
                    .append("count", *count as i64)
                    .end();
            }
            out.end();
        }
        out.append("latency", self.total_us as i64)
            .append("ops", self.ops as i64);
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn steps_are_powers_of_two_and_halves_of_them() {
        let first: Vec<u64> = (0..20).map(least_us).collect();
        let expected = [
            0, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12_288,
            16_384, 24_576, 32_768,
        ];
        assert_eq!(first, expected);
        let around_a_second: Vec<u64> = (28..34).map(least_us).collect();
        let expected = [
            786_432, 1_048_576, 1_572_864, 2_097_152, 4_194_304, 8_388_608,
        ];
        assert_eq!(around_a_second, expected);
        assert_eq!(least_us(STEPS - 1), 1 << 40);
        for step in 1..STEPS {
            let least = least_us(step);
            assert_eq!((step_of(least - 1), step_of(least)), (step - 1, step));
        }
        assert_eq!((step_of(0), step_of(u64::MAX)), (0, STEPS - 1));
    }

    #[test]
    fn cores_are_summed_and_empty_steps_left_out() {
        let (one, other) = (Latency::default(), Latency::default());
        one.record(3000);
        one.record(1);
        other.record(2500);
        other.record(3072);
        let mut sum = LatencyValues::of(&one);
        sum.add(&LatencyValues::of(&other));
        let mut out = DocBuilder::new();
        sum.append(&mut out, true);
        let expected = rawdoc! {
            "histogram": [
                { "micros": 0i64, "count": 1i64 },
                { "micros": 2048i64, "count": 2i64 },
                { "micros": 3072i64, "count": 1i64 },
            ],
            "latency": 8573i64,
            "ops": 4i64,
        };
        assert_eq!(out.finish(), expected);
    }
}
