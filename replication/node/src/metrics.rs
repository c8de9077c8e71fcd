//! What a member counts of its own replication, for `serverStatus`.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use pinion_clock::Timestamp;
use pinion_exec::{Elections, MemberFigures, Transition};
use pinion_replication_protocol::config::HostPort;
use pinion_replication_protocol::node::{ElectionCounts, NodeCounts};
use pinion_runtime::{Duration, Instant, now};

use crate::limits::{BATCHES_AHEAD, MAX_BATCH_BYTES};

/// Counters of core 0, since the node started.
#[derive(Default)]
pub(crate) struct Metrics {
    figures: RefCell<MemberFigures>,
    last_source: RefCell<Option<HostPort>>,
    /// Entries that were fetched and are not logged, and their bytes. A batch may be logged before
    /// the fetcher learns that it was taken, so they can be below zero for a moment.
    unwritten: Cell<[i64; 2]>,
    /// The batches that are logged and not applied, by their last entries: how many entries, and
    /// since when.
    unapplied: RefCell<VecDeque<(Timestamp, u64, Instant)>>,
    effects: Rc<Cell<u64>>,
}

/// An effect of the machine that is being carried out.
pub(crate) struct InProgress(Rc<Cell<u64>>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

fn elections(counts: ElectionCounts) -> Elections {
    Elections {
        called: counts.called,
        successful: counts.successful,
    }
}

impl Metrics {
    fn count(&self, change: impl FnOnce(&mut MemberFigures)) {
        change(&mut self.figures.borrow_mut());
    }

    /// An effect is carried out until what this gives is dropped.
    pub(crate) fn begin_effect(&self) -> InProgress {
        self.effects.set(self.effects.get() + 1);
        InProgress(self.effects.clone())
    }

    /// A batch was handed over to be logged.
    pub(crate) fn handed_over(&self, entries: usize, bytes: usize) {
        let [entries_before, bytes_before] = self.unwritten.get();
        self.unwritten
            .set([entries_before + entries as i64, bytes_before + bytes as i64]);
    }

    /// Entries of others were logged.
    pub(crate) fn logged(&self, entries: usize, bytes: usize, took: Duration) {
        let [entries_before, bytes_before] = self.unwritten.get();
        self.unwritten
            .set([entries_before - entries as i64, bytes_before - bytes as i64]);
        self.count(|figures| {
            figures.written += entries as u64;
            figures.write_batches.add(took);
        });
    }

    /// Entries up to this one are given to the applier.
    pub(crate) fn applies(&self, last: Timestamp, entries: usize) {
        self.count(|figures| figures.handed_over += entries as u64);
        let batch = (last, entries as u64, now());
        self.unapplied.borrow_mut().push_back(batch);
    }

    /// Everything up to here is applied.
    pub(crate) fn applied(&self, up_to: Timestamp) {
        let mut unapplied = self.unapplied.borrow_mut();
        while let Some((_, entries, since)) = unapplied.pop_front_if(|(last, ..)| *last <= up_to) {
            self.count(|figures| {
                figures.applied += entries;
                figures.apply_batches.add(since.elapsed());
            });
        }
    }

    /// What was handed over, and is not logged or applied yet, never will be.
    pub(crate) fn forget_handed_over(&self) {
        self.unwritten.set([0, 0]);
        self.unapplied.borrow_mut().clear();
    }

    /// A cursor on a source's oplog was opened.
    pub(crate) fn opened(&self) {
        self.count(|figures| figures.readers_created += 1);
    }

    /// A batch has come that was waited for.
    pub(crate) fn batch(&self, waited: Duration) {
        self.count(|figures| figures.get_mores.add(waited));
    }

    pub(crate) fn fetched(&self, entries: usize, bytes: usize) {
        self.count(|figures| {
            figures.empty_batches += u64::from(entries == 0);
            figures.fetched += entries as u64;
            figures.fetched_bytes += bytes as u64;
        });
    }

    pub(crate) fn attempt_failed(&self, was_last: bool) {
        self.count(|figures| {
            figures.failed_initial_sync_attempts += 1;
            figures.failed_initial_syncs += u64::from(was_last);
        });
    }

    pub(crate) fn initial_sync_done(&self) {
        self.count(|figures| figures.initial_syncs += 1);
    }

    pub(crate) fn chose_source(&self, source: &HostPort) {
        let before = self.last_source.replace(Some(source.clone()));
        self.count(|figures| match before.as_ref() == Some(source) {
            true => figures.sources_same += 1,
            false => figures.sources_different += 1,
        });
    }

    /// The node has changed its state.
    pub(crate) fn changed_state(&self, transition: Transition) {
        self.count(|figures| figures.transition = transition);
    }

    /// The figures, with those that the machine counts.
    pub(crate) fn figures(&self, of_machine: &NodeCounts) -> MemberFigures {
        let mut figures = self.figures.borrow().clone();
        let [entries, bytes] = self.unwritten.get();
        figures.write_buffer.entries = u64::try_from(entries).unwrap_or(0);
        figures.write_buffer.bytes = u64::try_from(bytes).unwrap_or(0);
        figures.write_buffer_most_bytes = (BATCHES_AHEAD * MAX_BATCH_BYTES) as u64;
        figures.effects_in_progress = self.effects.get();
        take_counts(&mut figures, of_machine);
        figures
    }
}

fn take_counts(figures: &mut MemberFigures, counts: &NodeCounts) {
    figures.step_up_command = elections(counts.step_up_command);
    figures.priority_takeover = elections(counts.priority_takeover);
    figures.catch_up_takeover = elections(counts.catch_up_takeover);
    figures.election_timeout = elections(counts.election_timeout);
    figures.freeze_timeout = elections(counts.freeze_timeout);
    figures.step_downs_by_higher_term = counts.step_downs_by_higher_term;
    figures.catch_ups = counts.catch_ups;
    figures.average_catch_up_operations = counts.average_catch_up_operations();
    let ends = &counts.catch_up_ends;
    figures.catch_ups_succeeded = ends.succeeded;
    figures.catch_ups_already_caught_up = ends.already_caught_up;
    figures.catch_ups_skipped = ends.skipped;
    figures.catch_ups_timed_out = ends.timed_out;
    figures.catch_ups_failed_with_error = ends.failed_with_error;
    figures.catch_ups_failed_with_new_term = ends.failed_with_new_term;
    figures.catch_ups_aborted = ends.aborted_by_command;
    figures.attempts_to_become_secondary = counts.attempts_to_become_secondary;
    figures.new_member_reconfigs = counts.new_member_reconfigs;
    figures.position_reports = counts.position_reports;
    figures.sources_missing = counts.missing_sync_sources;
}
