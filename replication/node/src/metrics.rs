//! What a member counts of its own replication, for `metrics.repl` of `serverStatus`.

use std::cell::{Cell, RefCell};

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_replication_protocol::config::HostPort;
use pinion_runtime::Duration;

/// Counters of core 0, since the node started.
#[derive(Default)]
pub(crate) struct Metrics {
    /// Entries of others that were handed to the applier.
    applied: Cell<u64>,
    fetched: Cell<u64>,
    fetched_bytes: Cell<u64>,
    batches: Cell<u64>,
    empty_batches: Cell<u64>,
    batches_us: Cell<u64>,
    cursors: Cell<u64>,
    initial_syncs: Cell<u64>,
    failed_attempts: Cell<u64>,
    failed_initial_syncs: Cell<u64>,
    chose_same: Cell<u64>,
    chose_other: Cell<u64>,
    last_source: RefCell<Option<HostPort>>,
}

fn add(counter: &Cell<u64>, count: u64) {
    counter.set(counter.get() + count);
}

impl Metrics {
    pub(crate) fn applied(&self, entries: usize) {
        add(&self.applied, entries as u64);
    }

    /// A cursor on a source's oplog was opened.
    pub(crate) fn opened(&self) {
        add(&self.cursors, 1);
    }

    /// A batch has come that was waited for.
    pub(crate) fn batch(&self, waited: Duration) {
        add(&self.batches, 1);
        add(&self.batches_us, waited.as_micros() as u64);
    }

    pub(crate) fn fetched(&self, entries: usize, bytes: usize) {
        match entries {
            0 => add(&self.empty_batches, 1),
            entries => add(&self.fetched, entries as u64),
        }
        add(&self.fetched_bytes, bytes as u64);
    }

    pub(crate) fn attempt_failed(&self, was_last: bool) {
        add(&self.failed_attempts, 1);
        add(&self.failed_initial_syncs, u64::from(was_last));
    }

    pub(crate) fn initial_sync_done(&self) {
        add(&self.initial_syncs, 1);
    }

    pub(crate) fn chose_source(&self, source: &HostPort) {
        let before = self.last_source.replace(Some(source.clone()));
        match before.as_ref() == Some(source) {
            true => add(&self.chose_same, 1),
            false => add(&self.chose_other, 1),
        }
    }

    /// The document, in MongoDB's shape.
    pub(crate) fn document(&self) -> RawDocumentBuf {
        let mut out = DocBuilder::new();
        let shown = |counter: &Cell<u64>| counter.get() as i64;
        out.start_document("apply")
            .append("ops", shown(&self.applied))
            .end();
        out.start_document("initialSync")
            .append("completed", shown(&self.initial_syncs))
            .append("failedAttempts", shown(&self.failed_attempts))
            .append("failures", shown(&self.failed_initial_syncs))
            .end();
        out.start_document("network")
            .append("bytes", shown(&self.fetched_bytes));
        out.start_document("getmores")
            .append("num", self.batches.get() as i32)
            .append("totalMillis", (self.batches_us.get() / 1000) as i32)
            .append("numEmptyBatches", shown(&self.empty_batches))
            .end();
        out.append("ops", shown(&self.fetched))
            .append("readersCreated", shown(&self.cursors))
            .end();
        out.start_document("syncSource")
            .append(
                "numSelections",
                (self.chose_same.get() + self.chose_other.get()) as i64,
            )
            .append("numTimesChoseDifferent", shown(&self.chose_other))
            .append("numTimesChoseSame", shown(&self.chose_same))
            .end();
        out.finish()
    }
}
