//! Which errors a definition goes by, and which it waits out.

use pinion_wire::{Category, Error, ErrorCode};

/// Whether the same step may succeed when it is tried again: nodes that cannot be reached, are no
/// primary, or end, and times that are up.
pub fn is_recoverable(error: &Error) -> bool {
    let categories = [
        Category::NETWORK,
        Category::NOT_PRIMARY,
        Category::SHUTDOWN,
        Category::CANCELLATION,
        Category::EXCEEDED_TIME_LIMIT,
        Category::WRITE_CONCERN,
        Category::SNAPSHOT,
        Category::RETRIABLE,
        Category::CURSOR_INVALIDATED,
    ];
    categories.into_iter().any(|category| error.is(category))
        || matches!(
            error.code,
            ErrorCode::FAILED_TO_SATISFY_READ_PREFERENCE
                | ErrorCode::WRITE_CONFLICT
                | ErrorCode::LOCK_BUSY
                | ErrorCode::INTERRUPTED
                | ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
        )
}

/// Whether the config servers refuse a command so before it does anything, by whichever of them.
pub fn is_refusal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::UNAUTHORIZED
            | ErrorCode::AUTHENTICATION_FAILED
            | ErrorCode::COMMAND_NOT_FOUND
            | ErrorCode::ILLEGAL_OPERATION
            | ErrorCode::BAD_VALUE
            | ErrorCode::INVALID_OPTIONS
            | ErrorCode::FAILED_TO_PARSE
            | ErrorCode::TYPE_MISMATCH
            | ErrorCode::SHARD_NOT_FOUND
            | ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes() {
        let check = |code: i32, recoverable, refusal| {
            let error = Error::new(ErrorCode(code), "x");
            assert_eq!(
                (is_recoverable(&error), is_refusal(error.code)),
                (recoverable, refusal),
                "{code}"
            );
        };
        // Network, not primary, shutdown, times, write concern, read preference.
        for code in [
            6, 7, 89, 9001, 10107, 189, 91, 11600, 50, 202, 262, 64, 133, 112, 11602,
        ] {
            check(code, true, false);
        }
        for code in [2, 9, 13, 14, 20, 70, 72, 117] {
            check(code, false, true);
        }
        // A gate that does not drain, another definition, a document that is there.
        for code in [24, 23, 11000, 8, 1] {
            check(code, false, false);
        }
    }
}
