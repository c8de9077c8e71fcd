//! What an operation does while it runs, for what is told of slow ones.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Puts the plan of an operation into words, for those few operations of which it is told.
pub type PlanSummary = Box<dyn Fn() -> String + Send + Sync>;

/// What an operation has done so far, on whatever cores: told of slow operations.
#[derive(Default)]
pub struct OpWork {
    keys_examined: AtomicU64,
    docs_examined: AtomicU64,
    returned: AtomicU64,
    plan: OnceLock<PlanSummary>,
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

    /// Tells the plan; of an operation with several plans the first counts.
    pub fn planned(&self, summary: PlanSummary) {
        let _ = self.plan.set(summary);
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

    /// The plan in MongoDB's words, if the operation had one.
    pub fn plan_summary(&self) -> Option<String> {
        self.plan.get().map(|summary| summary())
    }
}

impl std::fmt::Debug for OpWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpWork")
            .field("keys_examined", &self.keys_examined())
            .field("docs_examined", &self.docs_examined())
            .field("returned", &self.documents_returned())
            .finish_non_exhaustive()
    }
}
