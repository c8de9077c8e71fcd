//! What a member counts of its decisions since it started, for `electionMetrics` and `metrics.repl`
//! of `serverStatus`.
//!
//! The names, and what counts as which, are MongoDB's.

use super::Node;
use super::candidate::Reason;

/// Elections for one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ElectionCounts {
    pub called: u64,
    /// Those that made this node the primary.
    pub successful: u64,
}

/// Everything that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeCounts {
    pub step_up_command: ElectionCounts,
    pub priority_takeover: ElectionCounts,
    pub catch_up_takeover: ElectionCounts,
    pub election_timeout: ElectionCounts,
    /// Of a set of one, which elects itself without waiting, also at the end of a freeze.
    pub freeze_timeout: ElectionCounts,
    pub step_downs_by_higher_term: u64,
    /// Catch-ups in which something was missing.
    pub catch_ups: u64,
    pub catch_up_ends: CatchUpCounts,
    /// Entries that were fetched to catch up.
    pub catch_up_operations: u64,
    /// How often recovery was left for the state of a secondary.
    pub attempts_to_become_secondary: u64,
    /// Members that were given their vote when they had their data.
    pub new_member_reconfigs: u64,
    /// Positions sent upstream.
    pub position_reports: u64,
    /// How often a sync source was looked for in vain.
    pub missing_sync_sources: u64,
}

impl NodeCounts {
    /// Entries that a catch-up has fetched on average.
    pub fn average_catch_up_operations(&self) -> f64 {
        match self.catch_ups {
            0 => 0.0,
            catch_ups => self.catch_up_operations as f64 / catch_ups as f64,
        }
    }
}

/// Catch-ups by how they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CatchUpCounts {
    pub succeeded: u64,
    pub already_caught_up: u64,
    pub skipped: u64,
    pub timed_out: u64,
    pub failed_with_error: u64,
    pub failed_with_new_term: u64,
    pub aborted_by_command: u64,
}

/// How a catch-up ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CatchUpEnd {
    Succeeded,
    AlreadyCaughtUp,
    Skipped,
    TimedOut,
    OtherBranch,
    Aborted,
    /// It stepped down before.
    SteppedDown,
    NewTerm,
}

impl CatchUpEnd {
    /// As the log names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            CatchUpEnd::Succeeded => "succeeded",
            CatchUpEnd::AlreadyCaughtUp => "already caught up",
            CatchUpEnd::Skipped => "skipped",
            CatchUpEnd::TimedOut => "timed out",
            CatchUpEnd::OtherBranch => "a source is on another branch",
            CatchUpEnd::Aborted => "aborted",
            CatchUpEnd::SteppedDown => "stepped down",
            CatchUpEnd::NewTerm => "a later term was seen",
        }
    }
}

impl Node {
    pub fn counts(&self) -> &NodeCounts {
        &self.counts
    }

    fn elections(&mut self, reason: Reason) -> &mut ElectionCounts {
        let counts = &mut self.counts;
        match reason {
            Reason::StepUp | Reason::StepUpSkipDryRun => &mut counts.step_up_command,
            Reason::PriorityTakeover => &mut counts.priority_takeover,
            Reason::CatchupTakeover => &mut counts.catch_up_takeover,
            Reason::ElectionTimeout => &mut counts.election_timeout,
            Reason::SingleNode => &mut counts.freeze_timeout,
        }
    }

    pub(super) fn count_election(&mut self, reason: Reason) {
        self.elections(reason).called += 1;
    }

    pub(super) fn count_election_won(&mut self, reason: Reason) {
        self.elections(reason).successful += 1;
    }

    pub(super) fn count_catch_up_end(&mut self, end: CatchUpEnd) {
        let ends = &mut self.counts.catch_up_ends;
        let count = match end {
            CatchUpEnd::Succeeded => &mut ends.succeeded,
            CatchUpEnd::AlreadyCaughtUp => &mut ends.already_caught_up,
            CatchUpEnd::Skipped => &mut ends.skipped,
            CatchUpEnd::TimedOut => &mut ends.timed_out,
            CatchUpEnd::OtherBranch | CatchUpEnd::SteppedDown => &mut ends.failed_with_error,
            CatchUpEnd::Aborted => &mut ends.aborted_by_command,
            CatchUpEnd::NewTerm => &mut ends.failed_with_new_term,
        };
        *count += 1;
    }
}
