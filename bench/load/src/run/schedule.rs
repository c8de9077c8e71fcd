//! When the requests of an open loop are due: a constant rate, whatever the server does.

/// One thread's share of the schedule; times in nanoseconds since the run's zero.
#[derive(Clone, Debug)]
pub struct Schedule {
    start_ns: u64,
    /// Nanoseconds between two requests of this thread.
    period_ns: f64,
    /// Requests given out.
    issued: u64,
}

impl Schedule {
    /// Thread `number` of `threads` takes every `threads`-th request of `rate` a second in all.
    pub fn new(start_ns: u64, rate: f64, number: usize, threads: usize) -> Self {
        assert!(rate > 0.0 && number < threads);
        let period_ns = 1e9 * threads as f64 / rate;
        Self {
            start_ns: start_ns + (period_ns * number as f64 / threads as f64).round() as u64,
            period_ns,
            issued: 0,
        }
    }

    /// When the next request is due. It is computed from the beginning, so errors of rounding do
    /// not add up.
    pub fn next_ns(&self) -> u64 {
        self.start_ns + (self.issued as f64 * self.period_ns).round() as u64
    }

    /// The next request was given out.
    pub fn advance(&mut self) {
        self.issued += 1;
    }

    /// Requests that were due before `end_ns` and are not given out.
    pub fn owed(&self, end_ns: u64) -> u64 {
        // What the next time says goes before a division that rounds otherwise.
        if self.next_ns() >= end_ns {
            return 0;
        }
        let due = (end_ns.saturating_sub(self.start_ns) as f64 / self.period_ns).ceil() as u64;
        due.saturating_sub(self.issued).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::Schedule;

    #[test]
    fn the_threads_together_hold_the_rate_evenly() {
        let mut schedules: Vec<_> = (0..3)
            .map(|number| Schedule::new(500, 7_000.0, number, 3))
            .collect();
        let mut times = Vec::new();
        for schedule in &mut schedules {
            while schedule.next_ns() < 500 + 1_000_000_000 {
                times.push(schedule.next_ns());
                schedule.advance();
            }
            assert_eq!(schedule.owed(500 + 1_000_000_000), 0);
        }
        times.sort_unstable();
        assert_eq!(times.len(), 7_000);
        let gap = 1_000_000_000 / 7_000;
        assert!(
            times
                .windows(2)
                .all(|pair| (gap - 2..=gap + 2).contains(&(pair[1] - pair[0])))
        );
    }

    #[test]
    fn what_is_not_given_out_is_owed() {
        let mut schedule = Schedule::new(0, 1_000.0, 0, 1);
        schedule.advance();
        assert_eq!(schedule.owed(10_000_000), 9);
    }
}
