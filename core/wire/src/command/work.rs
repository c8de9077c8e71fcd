//! What an operation does while it runs, for what is reported of slow and profiled ones.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};

use bytes::Bytes;

/// Puts the plan of an operation into words, for those few operations of which it is told.
pub type PlanSummary = Box<dyn Fn() -> String + Send + Sync>;

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
    cursor: AtomicI64,
    slow_line: AtomicU8,
    plan: OnceLock<PlanSummary>,
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

/// Whether an operation has its line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlowLine {
    /// If it took as long as the node's threshold says.
    ByTime,
    /// A filter or a sample decided.
    Decided(bool),
}

impl OpWork {
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

    /// Tells the plan; of an operation with several plans the first counts.
    pub fn planned(&self, summary: PlanSummary) {
        let _ = self.plan.set(summary);
    }

    /// Tells that documents are sorted in memory.
    pub fn sorts(&self) {
        self.sorted.store(true, Ordering::Relaxed);
    }

    /// Tells that something was put on disk for want of memory.
    pub fn spilled(&self) {
        self.used_disk.store(true, Ordering::Relaxed);
    }

    /// Tells which cursor the operation left; 0 says that it read to the end.
    pub fn left_cursor(&self, id: i64) {
        match id {
            0 => self.exhausted.store(true, Ordering::Relaxed),
            id => self.cursor.store(id, Ordering::Relaxed),
        }
    }

    /// Tells the command that made the cursor which the operation reads on.
    pub fn continues(&self, originating: Bytes) {
        let _ = self.originating.set(originating);
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
        if let Some(summary) = statement.plan_summary() {
            self.planned(Box::new(move || summary.clone()));
        }
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
        self.plan.get().map(|summary| summary())
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
        statement.planned(Box::new(|| "COLLSCAN".into()));
        whole.add(&statement);
        whole.add(&statement);
        assert_eq!((whole.keys_examined(), whole.docs_examined()), (6, 4));
        assert_eq!(whole.written().matched, 4);
        assert_eq!(whole.plan_summary().as_deref(), Some("COLLSCAN"));
        assert!(!whole.has_sort());
    }

    #[test]
    fn what_was_decided_of_the_line_stays() {
        let work = OpWork::default();
        assert_eq!(work.slow_line(), SlowLine::ByTime);
        work.decide_slow_line(false);
        assert_eq!(work.slow_line(), SlowLine::Decided(false));
    }
}
