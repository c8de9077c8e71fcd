//! What an operation does while it runs, for what is reported of slow and profiled ones.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use pinion_bson::DocBuilder;

/// Describes the plan of an operation, for those few operations that are reported.
pub trait PlanReport: Send + Sync {
    /// The plan in a few words.
    fn summary(&self) -> String;

    /// Appends the hashes of the query and of its plans, if it has some, and how the plan was
    /// chosen.
    fn append_choice(&self, out: &mut DocBuilder) {
        let _ = out;
    }

    /// Appends what the plan's stages did, if that is known of each. `work` is all that the
    /// operation did, which has taken so long by now.
    fn append_stages(&self, out: &mut DocBuilder, work: &OpWork, millis: u64) {
        let _ = (out, work, millis);
    }
}

/// How often an operation passed gates of one kind.
#[derive(Debug, Default)]
struct Passes {
    passed: AtomicU64,
    waited: AtomicU64,
    wait_us: AtomicU64,
}

/// What an operation has done so far, on whatever cores.
#[derive(Default)]
pub struct OpWork {
    keys_examined: AtomicU64,
    docs_examined: AtomicU64,
    returned: AtomicU64,
    matched: AtomicU64,
    modified: AtomicU64,
    inserted: AtomicU64,
    deleted: AtomicU64,
    upserted: AtomicU64,
    sorted: AtomicBool,
    used_disk: AtomicBool,
    exhausted: AtomicBool,
    reads_changes: AtomicBool,
    cursor: AtomicI64,
    awaited_ns: AtomicU64,
    slow_line: AtomicU8,
    plan: OnceLock<Arc<dyn PlanReport>>,
    yields: AtomicU64,
    /// Of readers and of writers.
    gates: [Passes; 2],
    /// Of flow control.
    tickets: Passes,
    awaits_ticket: AtomicBool,
    originating: OnceLock<Bytes>,
}

/// Documents that a write found and changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    pub matched: u64,
    pub modified: u64,
    pub inserted: u64,
    pub deleted: u64,
    pub upserted: u64,
}

/// What an operation passes a gate for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GateKind {
    Read = 0,
    Write = 1,
}

/// Whether an operation has its line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowLine {
    /// If it took as long as the node's threshold says.
    ByTime,
    /// A filter or a sample decided.
    Decided(bool),
}

impl OpWork {
    /// It opens or continues a change stream, whose errors say whether the client may resume it.
    pub fn reads_changes(&self) {
        self.reads_changes.store(true, Ordering::Relaxed);
    }

    /// Whether it opens or continues a change stream.
    pub fn is_of_change_stream(&self) -> bool {
        self.reads_changes.load(Ordering::Relaxed)
    }

    /// Counts keys of indexes and documents that were looked at.
    pub fn examined(&self, keys: u64, docs: u64) {
        self.keys_examined.fetch_add(keys, Ordering::Relaxed);
        self.docs_examined.fetch_add(docs, Ordering::Relaxed);
    }

    /// Counts documents that went into the reply.
    pub fn returned(&self, documents: u64) {
        self.returned.fetch_add(documents, Ordering::Relaxed);
    }

    /// Counts documents that were written.
    pub fn wrote(&self, written: Written) {
        let count = |counter: &AtomicU64, by: u64| {
            if by > 0 {
                counter.fetch_add(by, Ordering::Relaxed);
            }
        };
        count(&self.matched, written.matched);
        count(&self.modified, written.modified);
        count(&self.inserted, written.inserted);
        count(&self.deleted, written.deleted);
        count(&self.upserted, written.upserted);
    }

    /// Notes the plan; of an operation with several plans the first counts.
    pub fn planned(&self, plan: Arc<dyn PlanReport>) {
        let _ = self.plan.set(plan);
    }

    /// Counts that the operation let others run, or left its state for a newer one.
    pub fn yielded(&self) {
        self.yields.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts that the operation passed the gate of a namespace, and how long it waited if it had
    /// to.
    pub fn passed_gate(&self, access: GateKind, wait_us: Option<u64>) {
        let passes = &self.gates[access as usize];
        passes.passed.fetch_add(1, Ordering::Relaxed);
        if let Some(us) = wait_us {
            passes.waited.fetch_add(1, Ordering::Relaxed);
            passes.wait_us.fetch_add(us, Ordering::Relaxed);
        }
    }

    /// Appends the gates that were passed, in MongoDB's words: an operation behind the gate of a
    /// namespace holds the collection in an intent mode.
    pub fn append_locks(&self, out: &mut DocBuilder) {
        type Figure = fn(&Passes) -> &AtomicU64;
        let figures: [(&str, Figure); 3] = [
            ("acquireCount", |passes| &passes.passed),
            ("acquireWaitCount", |passes| &passes.waited),
            ("timeAcquiringMicros", |passes| &passes.wait_us),
        ];
        if self
            .gates
            .iter()
            .all(|passes| passes.passed.load(Ordering::Relaxed) == 0)
        {
            return;
        }
        out.start_document("Collection");
        for (name, figure) in figures {
            let counts = self
                .gates
                .each_ref()
                .map(|passes| figure(passes).load(Ordering::Relaxed));
            if counts == [0, 0] {
                continue;
            }
            out.start_document(name);
            for (mode, count) in ["r", "w"].into_iter().zip(counts) {
                if count > 0 {
                    out.append(mode, count as i64);
                }
            }
            out.end();
        }
        out.end();
    }

    /// Notes whether the operation waits for a ticket of flow control now.
    pub fn set_awaits_ticket(&self, awaits: bool) {
        self.awaits_ticket.store(awaits, Ordering::Relaxed);
    }

    pub fn awaits_ticket(&self) -> bool {
        self.awaits_ticket.load(Ordering::Relaxed)
    }

    /// Counts that the operation took a ticket of flow control, and how long it waited if it had
    /// to.
    pub fn took_ticket(&self, wait_us: Option<u64>) {
        self.tickets.passed.fetch_add(1, Ordering::Relaxed);
        self.waited_for_ticket(wait_us);
    }

    /// Counts a wait for a ticket, whether or not one was taken.
    pub fn waited_for_ticket(&self, wait_us: Option<u64>) {
        if let Some(us) = wait_us {
            self.tickets.waited.fetch_add(1, Ordering::Relaxed);
            self.tickets.wait_us.fetch_add(us, Ordering::Relaxed);
        }
    }

    /// Appends the tickets of flow control that were taken, as far as there were some.
    pub fn append_tickets(&self, out: &mut DocBuilder) {
        for (name, count) in [
            ("acquireCount", &self.tickets.passed),
            ("acquireWaitCount", &self.tickets.waited),
            ("timeAcquiringMicros", &self.tickets.wait_us),
        ] {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                out.append(name, count as i64);
            }
        }
    }

    /// Notes that documents are sorted in memory.
    pub fn sorts(&self) {
        self.sorted.store(true, Ordering::Relaxed);
    }

    /// Notes that the operation spilled to disk.
    pub fn spilled(&self) {
        self.used_disk.store(true, Ordering::Relaxed);
    }

    /// Notes which cursor the operation left; 0 says that it read to the end.
    pub fn left_cursor(&self, id: i64) {
        match id {
            0 => self.exhausted.store(true, Ordering::Relaxed),
            id => self.cursor.store(id, Ordering::Relaxed),
        }
    }

    /// Notes the command that made the cursor which the operation reads on.
    pub fn continues(&self, originating: Bytes) {
        let _ = self.originating.set(originating);
    }

    /// Counts nanoseconds in which the operation waited for data as its client wants it to: they
    /// are no part of its time.
    pub fn awaited_data(&self, ns: u64) {
        self.awaited_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Nanoseconds in which it waited for data.
    pub fn awaited_ns(&self) -> u64 {
        self.awaited_ns.load(Ordering::Relaxed)
    }

    /// Decides whether the operation has its line in the log, whatever time it took.
    pub fn decide_slow_line(&self, written: bool) {
        let decided = if written { LINE_WRITTEN } else { LINE_OMITTED };
        self.slow_line.store(decided, Ordering::Relaxed);
    }

    /// Takes over what a statement of the operation did.
    pub fn add(&self, statement: &OpWork) {
        self.examined(statement.keys_examined(), statement.docs_examined());
        self.returned(statement.documents_returned());
        self.wrote(statement.written());
        if statement.has_sort() {
            self.sorts();
        }
        if statement.used_disk() {
            self.spilled();
        }
        if let Some(plan) = statement.plan() {
            self.planned(plan.clone());
        }
        let moved = |from: &AtomicU64, to: &AtomicU64| {
            to.fetch_add(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        moved(&statement.yields, &self.yields);
        let tickets = [(&statement.tickets, &self.tickets)];
        for (from, to) in statement.gates.iter().zip(&self.gates).chain(tickets) {
            moved(&from.passed, &to.passed);
            moved(&from.waited, &to.waited);
            moved(&from.wait_us, &to.wait_us);
        }
    }

    /// How often the operation let others run.
    pub fn yields(&self) -> u64 {
        self.yields.load(Ordering::Relaxed)
    }

    pub fn keys_examined(&self) -> u64 {
        self.keys_examined.load(Ordering::Relaxed)
    }

    pub fn docs_examined(&self) -> u64 {
        self.docs_examined.load(Ordering::Relaxed)
    }

    pub fn documents_returned(&self) -> u64 {
        self.returned.load(Ordering::Relaxed)
    }

    pub fn written(&self) -> Written {
        Written {
            matched: self.matched.load(Ordering::Relaxed),
            modified: self.modified.load(Ordering::Relaxed),
            inserted: self.inserted.load(Ordering::Relaxed),
            deleted: self.deleted.load(Ordering::Relaxed),
            upserted: self.upserted.load(Ordering::Relaxed),
        }
    }

    pub fn used_disk(&self) -> bool {
        self.used_disk.load(Ordering::Relaxed)
    }

    pub fn has_sort(&self) -> bool {
        self.sorted.load(Ordering::Relaxed)
    }

    /// Whether the operation read its cursor to the end.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted.load(Ordering::Relaxed)
    }

    /// The cursor that the operation left behind.
    pub fn cursor(&self) -> Option<i64> {
        match self.cursor.load(Ordering::Relaxed) {
            0 => None,
            id => Some(id),
        }
    }

    /// The command that made the cursor which the operation read on.
    pub fn originating(&self) -> Option<&Bytes> {
        self.originating.get()
    }

    pub fn slow_line(&self) -> SlowLine {
        match self.slow_line.load(Ordering::Relaxed) {
            LINE_WRITTEN => SlowLine::Decided(true),
            LINE_OMITTED => SlowLine::Decided(false),
            _ => SlowLine::ByTime,
        }
    }

    /// The plan in MongoDB's words, if the operation had one.
    pub fn plan_summary(&self) -> Option<String> {
        self.plan().map(|plan| plan.summary())
    }

    /// The plan, if the operation had one.
    pub fn plan(&self) -> Option<&Arc<dyn PlanReport>> {
        self.plan.get()
    }
}

const LINE_WRITTEN: u8 = 1;
const LINE_OMITTED: u8 = 2;

impl std::fmt::Debug for OpWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpWork")
            .field("keys_examined", &self.keys_examined())
            .field("docs_examined", &self.docs_examined())
            .field("returned", &self.documents_returned())
            .field("written", &self.written())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use pinion_bson::rawdoc;

    use super::*;

    #[test]
    fn an_operation_takes_over_what_its_statements_did() {
        let (whole, statement) = (OpWork::default(), OpWork::default());
        let written = Written {
            matched: 2,
            modified: 1,
            ..Written::default()
        };
        statement.examined(3, 2);
        statement.wrote(written);
        statement.planned(Arc::new(Scan));
        statement.passed_gate(GateKind::Write, Some(7));
        whole.add(&statement);
        whole.add(&statement);
        assert_eq!((whole.keys_examined(), whole.docs_examined()), (6, 4));
        assert_eq!(whole.written().matched, 4);
        assert_eq!(whole.plan_summary().as_deref(), Some("COLLSCAN"));
        assert!(!whole.has_sort());
        let mut locks = DocBuilder::new();
        whole.append_locks(&mut locks);
        let expected = rawdoc! {
            "Collection": {
                "acquireCount": { "w": 2_i64 },
                "acquireWaitCount": { "w": 2_i64 },
                "timeAcquiringMicros": { "w": 14_i64 },
            },
        };
        assert_eq!(locks.finish(), expected);
    }

    struct Scan;

    impl PlanReport for Scan {
        fn summary(&self) -> String {
            "COLLSCAN".into()
        }
    }

    #[test]
    fn what_was_decided_of_the_line_stays() {
        let work = OpWork::default();
        assert_eq!(work.slow_line(), SlowLine::ByTime);
        work.decide_slow_line(false);
        assert_eq!(work.slow_line(), SlowLine::Decided(false));
    }
}
