//! What the statements of one write command did.

use std::ops::Range;

use pinion_bson::RawBson;
use pinion_clock::Timestamp;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::is_in;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::open_transactions::ends_command;
use crate::placement::stops_batch;
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

    /// Takes in that the first of the statements at these places, the last of the batch included,
    /// failed. True where none behind it is tried.
    ///
    /// # Errors
    /// This error, where it is the answer to the whole command.
    pub(crate) fn fail_from(
        &mut self,
        ctx: &OpContext,
        rest: Range<usize>,
        ordered: bool,
        error: Error,
    ) -> Result<bool> {
        if ends_command(ctx, &error) {
            return Err(error);
        }
        if stops_batch(&error) {
            self.stop(rest, ordered, &error);
            return Ok(true);
        }
        self.failed(rest.start, error);
        Ok(ordered || is_in(ctx))
    }

    /// Statements that did not take place fail with an error of the first of them that stops the
    /// batch: in order it alone, and otherwise all of them.
    pub(crate) fn stop(
        &mut self,
        rest: impl IntoIterator<Item = usize>,
        ordered: bool,
        error: &Error,
    ) {
        let most = if ordered { 1 } else { usize::MAX };
        for index in rest.into_iter().take(most) {
            self.failed(index, error.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stops_a_batch_is_the_error_of_all_that_is_left() {
        let error = Error::new(ErrorCode::STALE_CONFIG, "stale");
        let failed = |ordered: bool| {
            let mut outcome = BatchOutcome::default();
            outcome.stop(2..5, ordered, &error);
            let failed = outcome.errors.iter();
            failed.map(|failure| failure.index).collect::<Vec<usize>>()
        };
        assert_eq!(failed(true), [2]);
        assert_eq!(failed(false), [2, 3, 4]);
    }
}
