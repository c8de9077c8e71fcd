//! What the statements of one write command did.

use pinion_bson::RawBson;
use pinion_clock::Timestamp;
use pinion_service::metrics::metrics;
use pinion_wire::{Error, ErrorCode, Result};

use crate::sessions::RetryableWrite;
use crate::statements::{Executed, ExecutedChange};

/// A statement that failed.
#[derive(Debug)]
pub struct StatementError {
    pub index: usize,
    pub error: Error,
}

/// A document that an upsert made.
#[derive(Debug)]
pub struct Upserted {
    pub index: usize,
    pub id: RawBson,
}

/// The outcome of a batch.
#[derive(Debug, Default)]
pub struct BatchOutcome {
    /// Documents inserted, matched or deleted.
    pub n: i64,
    pub modified: i64,
    pub upserted: Vec<Upserted>,
    pub errors: Vec<StatementError>,
    /// The statements of a retryable write that were executed before, and are counted all the same.
    pub retried: Vec<i32>,
    /// The newest timestamp of the batch, which a journaled acknowledgement waits for.
    pub last: Option<Timestamp>,
}

impl BatchOutcome {
    pub(crate) fn wrote(&mut self, ts: Timestamp) {
        self.last = self.last.max(Some(ts));
    }

    /// Whether a statement was executed when its command was sent before; then it is counted.
    pub(crate) fn was_executed(
        &mut self,
        index: usize,
        retryable: Option<&RetryableWrite>,
    ) -> Result<bool> {
        let executed = match retryable {
            Some(retryable) => retryable.executed(index)?,
            None => None,
        };
        let was_executed = executed.is_some();
        if let Some(executed) = executed {
            self.retried(index, executed);
        }
        Ok(was_executed)
    }

    /// Counts a statement of a retryable write that was executed before.
    pub(crate) fn retried(&mut self, index: usize, executed: Executed) {
        self.wrote(executed.safe_with());
        self.n += 1;
        match executed.change {
            ExecutedChange::Insert { id: Some(id) } => self.upserted.push(Upserted { index, id }),
            ExecutedChange::Update => self.modified += 1,
            ExecutedChange::Insert { id: None } | ExecutedChange::Delete => {}
        }
    }

    pub(crate) fn failed(&mut self, index: usize, error: Error) {
        if error.code == ErrorCode::TRANSACTION_TOO_LARGE_FOR_CACHE {
            metrics().counters.too_large.inc();
        }
        self.errors.push(StatementError { index, error });
    }
}
