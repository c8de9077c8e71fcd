//! Flow control: how many writes a primary may begin in the next second, so that the majority of
//! its set does not lag further behind it than is wanted.
//!
//! Source: execution document, "Flow Control"; what is decided where figures are missing is
//! MongoDB's.

use std::collections::VecDeque;

use pinion_clock::Timestamp;

/// More than any node can use: what is given where nothing lags.
pub const MAX_TICKETS: u32 = 1_000_000_000;

/// What an operator may set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowSettings {
    /// The lag that the set is to have at most.
    pub target_lag_secs: u32,
    /// The part of it from which on writes are slowed down.
    pub threshold: f64,
    pub min_tickets: u32,
    /// What is left of the rate when the lag is twice the threshold.
    pub decay: f64,
    pub fudge: f64,
    pub adder: u32,
    pub multiplier: f64,
    /// Operations between two samples; a set that is behind by fewer does not lag.
    pub sample_period: u64,
    pub max_samples: usize,
    /// For how long the majority may stand still before that is logged; 0 never logs it.
    pub warn_secs: u32,
}

impl FlowSettings {
    fn threshold_ms(&self) -> u64 {
        (1000.0 * self.threshold * f64::from(self.target_lag_secs)) as u64
    }
}

/// What a writable primary sees once a second. Counters run from the start of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPeriod {
    pub now_ms: u64,
    /// The last entry of the oplog.
    pub last: Timestamp,
    /// The last entry that a majority holds.
    pub committed: Timestamp,
    /// Entries of the oplog that this node has written.
    pub operations: u64,
    /// Locks that it took to write them.
    pub locks: u64,
    /// The tickets of the last second did not suffice.
    pub ran_out: bool,
}

/// What holds for the next second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowDecision {
    /// `None` where writes need no tickets.
    pub tickets: Option<u32>,
    pub target_rate: u32,
    pub locks_per_op: f64,
    /// Operations that a majority took over in the last second.
    pub sustained: u64,
    pub is_lagged: bool,
    pub lagged_count: u64,
    /// For how long the set has lagged in all, now included.
    pub lagged_ms: u64,
    /// The set lags and the majority does not move: people should look.
    pub warns: bool,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    ts: Timestamp,
    operations: u64,
    locks: u64,
}

/// What a primary remembers from one second to the next.
#[derive(Clone, Debug)]
pub struct FlowControl {
    /// Oldest first; at least one is at or before the commit point, where there is one.
    samples: VecDeque<Sample>,
    before: Option<FlowPeriod>,
    target_rate: u32,
    throttles: bool,
    lagged_since_ms: Option<u64>,
    lagged_count: u64,
    lagged_ms: u64,
    sustained: u64,
    locks_per_op: f64,
    /// When the majority last moved.
    moved_ms: u64,
}

impl Default for FlowControl {
    fn default() -> FlowControl {
        FlowControl {
            samples: VecDeque::new(),
            before: None,
            target_rate: MAX_TICKETS,
            throttles: false,
            lagged_since_ms: None,
            lagged_count: 0,
            lagged_ms: 0,
            sustained: 0,
            locks_per_op: 0.0,
            moved_ms: 0,
        }
    }
}

impl FlowControl {
    /// Nothing is controlled: the node is no writable primary, or the control is off.
    pub fn rest(&mut self, now_ms: u64) -> FlowDecision {
        self.samples.clear();
        self.before = None;
        self.throttles = false;
        self.target_rate = MAX_TICKETS;
        self.end_lag(now_ms);
        self.decision(now_ms, false)
    }

    /// Decides for the next second.
    ///
    /// # Panics
    /// When the time goes back.
    pub fn step(&mut self, settings: &FlowSettings, period: &FlowPeriod) -> FlowDecision {
        let before = self.before.replace(*period);
        // Counters restart when the data directory is opened again.
        let before = before.filter(|before| {
            period.operations >= before.operations && period.locks >= before.locks
        });
        let Some(before) = before else {
            self.samples.clear();
            self.sample(settings, period);
            self.moved_ms = period.now_ms;
            return self.decision(period.now_ms, false);
        };
        assert!(period.now_ms >= before.now_ms, "time goes back");
        self.sample(settings, period);
        let Some(locks_per_op) = self.last_locks_per_op() else {
            return self.healthy(settings, period);
        };
        self.locks_per_op = locks_per_op;
        // Of a commit point that went back, as a rollback may have it, nothing is known.
        if period.committed < before.committed {
            self.moved_ms = period.now_ms;
            return self.decision(period.now_ms, false);
        }
        let at_committed = self.operations_at(period.committed);
        let behind = period.operations.saturating_sub(at_committed);
        let lag_ms = lag_ms(period);
        if lag_ms < settings.threshold_ms() || behind < settings.sample_period {
            self.moved_ms = period.now_ms;
            self.trim(period.committed);
            return self.healthy(settings, period);
        }
        self.sustained = at_committed.saturating_sub(self.operations_at(before.committed));
        let locks_used = period.locks - before.locks;
        self.target_rate =
            lagged_tickets(settings, lag_ms, self.sustained, locks_per_op, locks_used);
        self.throttles = true;
        self.trim(period.committed);
        if self.lagged_since_ms.is_none() {
            self.lagged_since_ms = Some(period.now_ms);
            self.lagged_count += 1;
        }
        let warns = self.stands_still(settings, period.now_ms);
        self.decision(period.now_ms, warns)
    }

    /// The rate grows until it is none; writes need tickets as long as those of a second are all
    /// used.
    fn healthy(&mut self, settings: &FlowSettings, period: &FlowPeriod) -> FlowDecision {
        self.target_rate = healthy_tickets(settings, self.target_rate);
        self.throttles &= period.ran_out && self.target_rate < MAX_TICKETS;
        self.end_lag(period.now_ms);
        self.decision(period.now_ms, false)
    }

    fn end_lag(&mut self, now_ms: u64) {
        if let Some(since_ms) = self.lagged_since_ms.take() {
            self.lagged_ms += now_ms.saturating_sub(since_ms);
        }
    }

    fn stands_still(&mut self, settings: &FlowSettings, now_ms: u64) -> bool {
        if self.sustained > 0 {
            self.moved_ms = now_ms;
            return false;
        }
        let patience_ms = u64::from(settings.warn_secs) * 1000;
        let warns = patience_ms > 0 && now_ms - self.moved_ms >= patience_ms;
        if warns {
            self.moved_ms = now_ms;
        }
        warns
    }

    fn decision(&self, now_ms: u64, warns: bool) -> FlowDecision {
        let since_ms = self.lagged_since_ms.unwrap_or(now_ms);
        FlowDecision {
            tickets: self.throttles.then_some(self.target_rate),
            target_rate: self.target_rate,
            locks_per_op: self.locks_per_op,
            sustained: self.sustained,
            is_lagged: self.lagged_since_ms.is_some(),
            lagged_count: self.lagged_count,
            lagged_ms: self.lagged_ms + now_ms.saturating_sub(since_ms),
            warns,
        }
    }

    fn sample(&mut self, settings: &FlowSettings, period: &FlowPeriod) {
        let enough = self.samples.back().is_none_or(|last| {
            period.operations - last.operations >= settings.sample_period && period.last > last.ts
        });
        if !enough {
            return;
        }
        self.samples.push_back(Sample {
            ts: period.last,
            operations: period.operations,
            locks: period.locks,
        });
        while self.samples.len() > settings.max_samples {
            self.samples.pop_front();
        }
    }

    /// Forgets samples before the last one that is not above a timestamp.
    fn trim(&mut self, ts: Timestamp) {
        while self.samples.len() > 2 && self.samples[1].ts <= ts {
            self.samples.pop_front();
        }
    }

    fn last_locks_per_op(&self) -> Option<f64> {
        let last = self.samples.back()?;
        let before = self.samples.get(self.samples.len().checked_sub(2)?)?;
        let operations = last.operations - before.operations;
        Some((last.locks - before.locks) as f64 / operations.max(1) as f64)
    }

    /// How many entries there were at a timestamp. Entries of one second are numbered, so within
    /// the second of a sample this is exact; elsewhere it is what the sample before says.
    fn operations_at(&self, ts: Timestamp) -> u64 {
        let next = self.samples.partition_point(|sample| sample.ts <= ts);
        let after = self.samples.get(next);
        let Some(before) = next.checked_sub(1).and_then(|at| self.samples.get(at)) else {
            return after.map_or(0, |after| after.operations);
        };
        if let Some(after) = after.filter(|after| after.ts.secs() == ts.secs()) {
            let missing = u64::from(after.ts.inc() - ts.inc());
            return after
                .operations
                .saturating_sub(missing)
                .max(before.operations);
        }
        let beyond = match before.ts.secs() == ts.secs() {
            true => u64::from(ts.inc() - before.ts.inc()),
            false => 0,
        };
        let most = after.map_or(u64::MAX, |after| after.operations);
        (before.operations + beyond).min(most)
    }
}

fn lag_ms(period: &FlowPeriod) -> u64 {
    let secs = period.last.secs().saturating_sub(period.committed.secs());
    u64::from(secs) * 1000
}

/// The tickets of a second in which nothing lags, after one that had `before`.
fn healthy_tickets(settings: &FlowSettings, before: u32) -> u32 {
    capped((f64::from(before) + f64::from(settings.adder)) * settings.multiplier)
}

/// The tickets of a second while the set lags: as many operations as the majority takes over, and
/// the fewer the further it is behind. Where it takes over none, half of what was used.
fn lagged_tickets(
    settings: &FlowSettings,
    lag_ms: u64,
    sustained: u64,
    locks_per_op: f64,
    locks_used: u64,
) -> u32 {
    let threshold_ms = settings.threshold_ms();
    assert!(lag_ms >= threshold_ms, "the set lags");
    let tickets = match sustained {
        0 => locks_used as f64 / 2.0,
        _ => {
            let excess = (lag_ms - threshold_ms) as f64 / threshold_ms.max(1) as f64;
            let rate = sustained as f64 * settings.decay.powf(excess) * settings.fudge;
            rate * locks_per_op
        }
    };
    capped(tickets).max(settings.min_tickets)
}

fn capped(tickets: f64) -> u32 {
    tickets.min(f64::from(MAX_TICKETS)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTINGS: FlowSettings = FlowSettings {
        target_lag_secs: 10,
        threshold: 0.5,
        min_tickets: 100,
        decay: 0.5,
        fudge: 0.95,
        adder: 1000,
        multiplier: 1.05,
        sample_period: 1000,
        max_samples: 1000,
        warn_secs: 10,
    };

    #[test]
    fn rates_of_a_set_that_lags() {
        // The lag, what the majority took over, locks for each operation, locks used: tickets.
        for (lag_ms, sustained, locks_per_op, locks_used, tickets) in [
            (5_000, 10_000, 1.0, 0, 9_500),
            (5_000, 10_000, 0.5, 0, 4_750),
            (5_000, 10_000, 2.0, 0, 19_000),
            (10_000, 10_000, 1.0, 0, 4_750),
            (15_000, 10_000, 1.0, 0, 2_375),
            (7_500, 10_000, 1.0, 0, 6_717),
            (60_000, 10_000, 1.0, 0, 100),
            (5_000, 0, 1.0, 10_000, 5_000),
            (5_000, 0, 1.0, 150, 100),
            (5_000, 1, 1.0, 10_000, 100),
            (5_000, u64::MAX, 1.0, 0, MAX_TICKETS),
            (5_000, 10_000, 0.0, 0, 100),
        ] {
            let found = lagged_tickets(&SETTINGS, lag_ms, sustained, locks_per_op, locks_used);
            assert_eq!(
                found, tickets,
                "{lag_ms} {sustained} {locks_per_op} {locks_used}"
            );
        }
        let none = FlowSettings {
            min_tickets: 0,
            ..SETTINGS
        };
        assert_eq!(lagged_tickets(&none, 5_000, 0, 1.0, 0), 0);
        let at_once = FlowSettings {
            threshold: 0.0,
            ..SETTINGS
        };
        // Whatever lags is twice what it may be, and more.
        assert_eq!(lagged_tickets(&at_once, 0, 10_000, 1.0, 0), 9_500);
        assert_eq!(lagged_tickets(&at_once, 1_000, 10_000, 1.0, 0), 100);
    }

    #[test]
    fn rates_of_a_set_that_has_caught_up() {
        for (before, tickets) in [
            (0, 1_050),
            (100, 1_155),
            (100_000, 106_050),
            (999_999_000, MAX_TICKETS),
            (MAX_TICKETS, MAX_TICKETS),
        ] {
            assert_eq!(healthy_tickets(&SETTINGS, before), tickets, "{before}");
        }
    }

    /// A primary that writes a number of operations a second, one lock each, and a majority that
    /// applies a number of them.
    struct Set {
        control: FlowControl,
        secs: u32,
        operations: u64,
        committed: Timestamp,
    }

    impl Set {
        fn new() -> Set {
            Set {
                control: FlowControl::default(),
                secs: 1000,
                operations: 0,
                committed: Timestamp::new(1000, 1),
            }
        }

        fn second(&mut self, written: u32, committed_to: Option<Timestamp>) -> FlowDecision {
            self.secs += 1;
            self.operations += u64::from(written);
            self.committed = committed_to.unwrap_or(self.committed);
            let ran_out = self.control.throttles;
            let period = FlowPeriod {
                now_ms: u64::from(self.secs) * 1000,
                last: Timestamp::new(self.secs, written.max(1)),
                committed: self.committed,
                operations: self.operations,
                locks: self.operations,
                ran_out,
            };
            self.control.step(&SETTINGS, &period)
        }

        fn all_committed(&mut self, written: u32) -> FlowDecision {
            let last = Timestamp::new(self.secs + 1, written.max(1));
            self.second(written, Some(last))
        }
    }

    #[test]
    fn a_majority_that_stands_still_slows_writes_down_step_by_step() {
        let mut set = Set::new();
        for _ in 0..5 {
            let decision = set.all_committed(20_000);
            assert_eq!((decision.tickets, decision.is_lagged), (None, false));
        }
        // Below the threshold nothing is slowed down.
        for _ in 0..4 {
            assert_eq!(set.second(20_000, None).tickets, None);
        }
        let mut given = Vec::new();
        let mut warned = 0;
        for _ in 0..12 {
            let written = given.last().copied().unwrap_or(20_000);
            let decision = set.second(written, None);
            assert!(decision.is_lagged && decision.lagged_count == 1);
            warned += u32::from(decision.warns);
            given.push(decision.tickets.expect("it lags"));
        }
        let first = [
            10_000, 5_000, 2_500, 1_250, 625, 312, 156, 100, 100, 100, 100, 100,
        ];
        assert_eq!(given, first);
        assert_eq!(warned, 1);
        // Caught up: the rate grows as long as all is used.
        let decision = set.all_committed(100);
        assert_eq!((decision.tickets, decision.is_lagged), (Some(1_155), false));
        assert_eq!(decision.lagged_ms, 12_000);
        let decision = set.all_committed(1_155);
        assert_eq!(decision.tickets, Some(2_262));
        // And no further once it suffices.
        set.control.throttles = false;
        assert_eq!(set.all_committed(2_000).tickets, None);
    }

    #[test]
    fn a_majority_that_moves_slowly_gives_the_pace() {
        let mut set = Set::new();
        set.all_committed(10_000);
        for _ in 0..5 {
            set.second(10_000, None);
        }
        // It is 6 seconds behind and has taken over 4,000 operations.
        let committed = Timestamp::new(set.committed.secs() + 1, 4_000);
        let decision = set.second(10_000, Some(committed));
        assert_eq!(decision.sustained, 4_000);
        assert_eq!(decision.locks_per_op, 1.0);
        let lag_ms = 5_000;
        let expected = lagged_tickets(&SETTINGS, lag_ms, 4_000, 1.0, 10_000);
        assert_eq!(decision.tickets, Some(expected));
    }

    #[test]
    fn few_operations_are_no_lag() {
        let mut set = Set::new();
        for _ in 0..3 {
            set.all_committed(5_000);
        }
        // An entry now and then, as an idle primary writes it, while the others are away.
        for _ in 0..100 {
            assert_eq!(set.second(1, None).tickets, None);
        }
    }

    #[test]
    fn one_that_rests_starts_again() {
        let mut set = Set::new();
        set.all_committed(20_000);
        for _ in 0..10 {
            set.second(20_000, None);
        }
        assert!(set.control.throttles);
        let decision = set.control.rest(5_000_000);
        assert_eq!((decision.tickets, decision.is_lagged), (None, false));
        assert_eq!(decision.target_rate, MAX_TICKETS);
        assert_eq!(set.second(20_000, None).tickets, None);
    }

    #[test]
    fn samples_are_bounded() {
        let settings = FlowSettings {
            max_samples: 3,
            ..SETTINGS
        };
        let mut control = FlowControl::default();
        for second in 1..=20 {
            let period = FlowPeriod {
                now_ms: second * 1000,
                last: Timestamp::new(second as u32, 5000),
                committed: Timestamp::new(1, 1),
                operations: second * 5000,
                locks: second * 5000,
                ran_out: false,
            };
            control.step(&settings, &period);
            assert!(control.samples.len() <= 3);
        }
    }
}
