//! Error labels: what a driver learns about retrying, whatever the code.

use super::{Category, ErrorCode};

/// The labels drivers know.
pub mod labels {
    /// The write may be sent again under the same transaction number.
    pub const RETRYABLE_WRITE: &str = "RetryableWriteError";
    /// The whole transaction may be run again.
    pub const TRANSIENT_TRANSACTION: &str = "TransientTransactionError";
    /// It is not known whether the transaction committed.
    pub const UNKNOWN_TRANSACTION_COMMIT_RESULT: &str = "UnknownTransactionCommitResult";
    /// The change stream may be resumed from its last token.
    pub const RESUMABLE_CHANGE_STREAM: &str = "ResumableChangeStreamError";
    /// The change stream may not be resumed.
    pub const NON_RESUMABLE_CHANGE_STREAM: &str = "NonResumableChangeStreamError";
    /// The failed write changed nothing.
    pub const NO_WRITES_PERFORMED: &str = "NoWritesPerformed";
    /// The node refused the operation because it is under pressure.
    pub const SYSTEM_OVERLOADED: &str = "SystemOverloadedError";
}

/// What is known of the operation that failed.
#[derive(Clone, Copy, Debug, Default)]
pub struct LabelContext {
    /// It ran in a transaction.
    pub in_transaction: bool,
    /// It was commitTransaction or abortTransaction.
    pub is_commit_or_abort: bool,
    /// It carried a session and a transaction number outside a transaction.
    pub is_retryable_write: bool,
    /// It opened or continued a change stream.
    pub is_change_stream: bool,
    /// It is certain that nothing was written.
    pub no_writes_performed: bool,
}

/// The labels that follow from a code, or from the code of a write concern error, in this context.
///
/// Source: the Transactions, Retryable Writes and Change Streams driver specifications.
pub fn labels_for(
    code: ErrorCode,
    write_concern_code: Option<ErrorCode>,
    context: LabelContext,
) -> Vec<&'static str> {
    let mut found = Vec::new();
    let either = |test: fn(ErrorCode) -> bool| test(code) || write_concern_code.is_some_and(test);

    let retryable_write =
        (context.is_retryable_write || context.is_commit_or_abort) && either(is_retryable_write);
    if retryable_write {
        found.push(labels::RETRYABLE_WRITE);
    } else if context.in_transaction
        && is_transient_transaction(
            code,
            write_concern_code.is_some(),
            context.is_commit_or_abort,
        )
    {
        found.push(labels::TRANSIENT_TRANSACTION);
    }
    if retryable_write && context.no_writes_performed {
        found.push(labels::NO_WRITES_PERFORMED);
    }
    if context.is_change_stream {
        if is_resumable_change_stream(code) {
            found.push(labels::RESUMABLE_CHANGE_STREAM);
        } else if code.is(Category::NON_RESUMABLE_CHANGE_STREAM) {
            found.push(labels::NON_RESUMABLE_CHANGE_STREAM);
        }
    }
    if code.is(Category::SYSTEM_OVERLOADED) {
        found.push(labels::SYSTEM_OVERLOADED);
    }
    found
}

fn is_retryable_write(code: ErrorCode) -> bool {
    code.is(Category::RETRIABLE)
}

fn is_transient_transaction(
    code: ErrorCode,
    has_write_concern_error: bool,
    is_commit_or_abort: bool,
) -> bool {
    let always = matches!(
        code,
        ErrorCode::WRITE_CONFLICT
            | ErrorCode::LOCK_TIMEOUT
            | ErrorCode::PREPARED_TRANSACTION_IN_PROGRESS
            | ErrorCode::SHARD_CANNOT_REFRESH_DUE_TO_LOCKS_HELD
            | ErrorCode::STALE_DB_VERSION
            | ErrorCode::INTERNAL_TRANSACTION_NOT_SUPPORTED
    ) || code.is(Category::SNAPSHOT.and(Category::STALE_SHARD_VERSION));
    if always {
        return true;
    }
    if is_commit_or_abort {
        // The outcome of a commit is unknown after a network or failover error, so only this code,
        // and only when no write concern failed beside it, says that nothing was committed.
        code == ErrorCode::NO_SUCH_TRANSACTION && !has_write_concern_error
    } else {
        is_retryable_write(code) || code == ErrorCode::NO_SUCH_TRANSACTION
    }
}

fn is_resumable_change_stream(code: ErrorCode) -> bool {
    code.is(Category::NETWORK
        .and(Category::NOT_PRIMARY)
        .and(Category::NEED_RETARGETTING))
        || matches!(
            code,
            ErrorCode::SHUTDOWN_IN_PROGRESS
                | ErrorCode::INTERRUPTED_AT_SHUTDOWN
                | ErrorCode::EXCEEDED_TIME_LIMIT
                | ErrorCode::RETRY_CHANGE_STREAM
                | ErrorCode::FAILED_TO_SATISFY_READ_PREFERENCE
                | ErrorCode::STALE_DB_VERSION
                | ErrorCode::CURSOR_NOT_FOUND
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(code: ErrorCode, context: LabelContext, expected: &[&str]) {
        assert_eq!(
            labels_for(code, None, context),
            expected,
            "{code} {context:?}"
        );
    }

    #[test]
    fn labels_follow_from_code_and_context() {
        let none = LabelContext::default();
        let write = LabelContext {
            is_retryable_write: true,
            ..none
        };
        let transaction = LabelContext {
            in_transaction: true,
            ..none
        };
        let commit = LabelContext {
            is_commit_or_abort: true,
            in_transaction: true,
            ..none
        };
        let stream = LabelContext {
            is_change_stream: true,
            ..none
        };

        check(ErrorCode::NOT_WRITABLE_PRIMARY, none, &[]);
        check(
            ErrorCode::NOT_WRITABLE_PRIMARY,
            write,
            &["RetryableWriteError"],
        );
        check(ErrorCode::DUPLICATE_KEY, write, &[]);
        check(ErrorCode::WRITE_CONFLICT, write, &[]);
        check(
            ErrorCode::WRITE_CONFLICT,
            transaction,
            &["TransientTransactionError"],
        );
        check(
            ErrorCode::SNAPSHOT_TOO_OLD,
            transaction,
            &["TransientTransactionError"],
        );
        check(
            ErrorCode::NO_SUCH_TRANSACTION,
            commit,
            &["TransientTransactionError"],
        );
        check(
            ErrorCode::NOT_WRITABLE_PRIMARY,
            commit,
            &["RetryableWriteError"],
        );
        check(
            ErrorCode::CURSOR_NOT_FOUND,
            stream,
            &["ResumableChangeStreamError"],
        );
        check(
            ErrorCode::CHANGE_STREAM_HISTORY_LOST,
            stream,
            &["NonResumableChangeStreamError"],
        );
    }

    #[test]
    fn a_write_concern_code_counts_too() {
        let write = LabelContext {
            is_retryable_write: true,
            ..LabelContext::default()
        };
        let found = labels_for(ErrorCode::OK, Some(ErrorCode::PRIMARY_STEPPED_DOWN), write);
        assert_eq!(found, ["RetryableWriteError"]);
    }
}
