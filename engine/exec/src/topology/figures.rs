//! What the driver of a member counts.

use pinion_runtime::Duration;

/// Elections that a member called for one reason, and those of them that it won.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Elections {
    pub called: u64,
    pub successful: u64,
}

/// Something that is done again and again, and the time that it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    pub count: u64,
    pub total: Duration,
}

impl Rounds {
    pub fn add(&mut self, took: Duration) {
        self.count += 1;
        self.total += took;
    }
}

/// Entries that wait, their bytes, and the most that may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffered {
    pub entries: u64,
    pub bytes: u64,
}

/// The last change between a primary and a secondary, and what it met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transition {
    /// `stepUp`, `stepDown` or `rollback`; empty before the first.
    pub name: &'static str,
    /// Operations that were interrupted, and those that continued.
    pub killed: u64,
    pub running: u64,
}

/// What the driver of a member counts, since the node started.
#[derive(Clone, Debug, Default)]
pub struct MemberFigures {
    pub step_up_command: Elections,
    pub priority_takeover: Elections,
    pub catch_up_takeover: Elections,
    pub election_timeout: Elections,
    pub freeze_timeout: Elections,
    pub step_downs_by_higher_term: u64,
    pub catch_ups: u64,
    pub catch_ups_succeeded: u64,
    pub catch_ups_already_caught_up: u64,
    pub catch_ups_skipped: u64,
    pub catch_ups_timed_out: u64,
    pub catch_ups_failed_with_error: u64,
    pub catch_ups_failed_with_new_term: u64,
    pub catch_ups_aborted: u64,
    pub average_catch_up_operations: f64,
    pub attempts_to_become_secondary: u64,
    /// Entries that were handed over to be applied, and those that are.
    pub handed_over: u64,
    pub applied: u64,
    pub apply_batches: Rounds,
    /// Fetched, and not logged yet.
    pub write_buffer: Buffered,
    /// Logged, and not applied yet.
    pub apply_buffer: Buffered,
    pub write_buffer_most_bytes: u64,
    pub written: u64,
    pub write_batches: Rounds,
    /// What the driver carries out now, and requests that wait for an answer.
    pub effects_in_progress: u64,
    pub requests_in_progress: u64,
    /// Timers that run, and commands that wait for an event.
    pub timers: u64,
    pub commands_waiting: u64,
    pub initial_syncs: u64,
    pub failed_initial_sync_attempts: u64,
    pub failed_initial_syncs: u64,
    pub fetched: u64,
    pub fetched_bytes: u64,
    pub get_mores: Rounds,
    pub empty_batches: u64,
    pub readers_created: u64,
    pub position_reports: u64,
    pub new_member_reconfigs: u64,
    pub transition: Transition,
    pub sources_same: u64,
    pub sources_different: u64,
    pub sources_missing: u64,
    /// The shortest time for which entries are kept.
    pub oplog_min_age: Duration,
}
