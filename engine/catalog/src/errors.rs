//! Storage's errors as the errors a command answers.

use pinion_storage::{Fatal, ReadError, WriteError};
use pinion_wire::{Error, ErrorCode};

/// The answer for a statement that storage refused. Duplicates and conflicts that a caller handles
/// itself do not come here.
pub fn from_write_error(error: WriteError) -> Error {
    match error {
        WriteError::Conflict => Error::new(
            ErrorCode::WRITE_CONFLICT,
            "Caused by :: Write conflict during plan execution and yielding is disabled. :: Please retry your operation or multi-document transaction.",
        ),
        WriteError::TooLarge => Error::new(
            ErrorCode::BSON_OBJECT_TOO_LARGE,
            "the write is larger than storage accepts",
        ),
        WriteError::CacheFull => Error::new(
            ErrorCode::TEMPORARILY_UNAVAILABLE,
            "the part of the cache that holds changes is full; retry when the checkpoint has written them",
        ),
        WriteError::DiskFull => Error::new(
            ErrorCode::OUT_OF_DISK_SPACE,
            "the disk of the data directory is full; writes are taken again when there is room",
        ),
        WriteError::UnitTooLarge => Error::new(
            ErrorCode::TRANSACTION_TOO_LARGE_FOR_CACHE,
            "the transaction's changes take more of the cache than one transaction may",
        ),
        WriteError::UnitEnded => Error::new(
            ErrorCode::NO_SUCH_TRANSACTION,
            "the transaction was aborted: this node no longer led, or was restarted",
        ),
        WriteError::SnapshotTooOld => from_read_error(ReadError::SnapshotTooOld),
        WriteError::Following => {
            pinion_wire::interruption(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE)
        }
        WriteError::Fatal(fatal) => from_fatal(fatal),
        WriteError::Exists { .. } | WriteError::Duplicate { .. } => {
            Error::new(ErrorCode::DUPLICATE_KEY, "E11000 duplicate key error")
        }
        WriteError::Missing { .. } | WriteError::NotReached => {
            Error::internal(format!("unexpected outcome of a write: {error}"))
        }
    }
}

/// The answer when storage has stopped.
pub fn from_fatal(fatal: Fatal) -> Error {
    Error::internal(format!("storage has stopped: {fatal}"))
}

/// The answer for a read that storage refused.
pub fn from_read_error(error: ReadError) -> Error {
    match error {
        ReadError::SnapshotTooOld => Error::new(
            ErrorCode::SNAPSHOT_TOO_OLD,
            "the snapshot of this read is no longer available: it was opened too long ago, and memory for old versions is exhausted",
        ),
        ReadError::Corrupt { .. } => {
            Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, error.to_string())
        }
        ReadError::Io(_) => Error::internal(error.to_string()),
        ReadError::Interrupted => pinion_wire::interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN),
    }
}
