//! The states of a transaction, and which command may come in which: a table without clocks,
//! storage or sessions.
//!
//! Source: replication document, "Life of a Multi-Document Transaction"; codes and texts are
//! MongoDB's.

use pinion_clock::Timestamp;
use pinion_wire::{Error, ErrorCode, Result};

/// What has become of the transaction that has a session's latest number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TxnState {
    /// It takes statements.
    InProgress,
    /// It waits for its outcome.
    Prepared,
    /// Its commit is in the log.
    Committed,
    /// Nothing of it has taken place, or will.
    Aborted,
}

/// What a session knows of its latest number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Active {
    /// -1 before the first.
    pub number: i64,
    /// `None` if that is the number of a retryable write, or of nothing.
    pub transaction: Option<TxnState>,
}

/// What a command wants of the transaction that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TxnAction {
    /// To be the first statement of a new one.
    Start,
    Statement,
    /// To be prepared.
    Prepare,
    /// To be committed, at a time that the command gives if it is prepared.
    Commit {
        at: Option<Timestamp>,
    },
    Abort,
}

impl TxnAction {
    /// Whether it is the last command of a transaction, or the last from the client that runs its
    /// statements.
    pub(crate) fn ends(self) -> bool {
        matches!(
            self,
            TxnAction::Prepare | TxnAction::Commit { .. } | TxnAction::Abort
        )
    }
}

/// What such a command does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admitted {
    /// It begins a transaction; one that the session has in progress is aborted before.
    Begins,
    /// It is one of the transaction in progress.
    Continues,
    /// It commits what is committed already.
    IsCommitted,
    /// It prepares what is prepared already, or is its outcome.
    IsPrepared,
    /// It ends what is aborted already.
    IsAborted,
}

/// Whether a command with this transaction number may run in a session, and as what.
///
/// # Errors
/// `TransactionTooOld`, `NoSuchTransaction`, `TransactionCommitted`,
/// `ConflictingOperationInProgress`, `PreparedTransactionInProgress`; `InvalidOptions` for a commit
/// with a time of what is not prepared, or without of what is.
pub(crate) fn admit(
    active: Active,
    action: TxnAction,
    number: i64,
    session: &str,
) -> Result<Admitted> {
    if number < active.number {
        return Err(too_old(active, number, session));
    }
    if action == TxnAction::Start {
        if number > active.number {
            return Ok(Admitted::Begins);
        }
        return Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            "Only servers in a sharded cluster can start a new transaction at the active transaction number",
        ));
    }
    let known = active.transaction.filter(|_| number == active.number);
    match (known, action) {
        (None, _) => Err(Error::new(
            ErrorCode::NO_SUCH_TRANSACTION,
            format!(
                "Given transaction number {number} does not match any in-progress transactions. The active \
                 transaction number is {}",
                active.number
            ),
        )),
        (Some(TxnState::InProgress), TxnAction::Commit { at: Some(_) }) => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "commitTransaction cannot provide commitTimestamp to unprepared transaction.",
        )),
        (Some(TxnState::InProgress), _) => Ok(Admitted::Continues),
        (Some(TxnState::Prepared), TxnAction::Commit { at: None }) => Err(Error::new(
            ErrorCode::INVALID_OPTIONS,
            "commitTransaction must provide commitTimestamp to prepared transaction.",
        )),
        (Some(TxnState::Prepared), action) if action.ends() => Ok(Admitted::IsPrepared),
        (Some(TxnState::Prepared), _) => Err(Error::new(
            ErrorCode::PREPARED_TRANSACTION_IN_PROGRESS,
            "Cannot call any operation other than abort, prepare or commit on a prepared transaction",
        )),
        (Some(TxnState::Committed), TxnAction::Commit { .. }) => Ok(Admitted::IsCommitted),
        (Some(TxnState::Committed), _) => Err(Error::new(
            ErrorCode::TRANSACTION_COMMITTED,
            format!("Transaction with {{ txnNumber: {number} }} has been committed."),
        )),
        (Some(TxnState::Aborted), action) if action.ends() => Ok(Admitted::IsAborted),
        (Some(TxnState::Aborted), _) => Err(aborted(number)),
    }
}

/// The reply to a command of a transaction that was aborted before.
pub(crate) fn aborted(number: i64) -> Error {
    Error::new(
        ErrorCode::NO_SUCH_TRANSACTION,
        format!("Transaction with {{ txnNumber: {number} }} has been aborted."),
    )
}

fn too_old(active: Active, number: i64, session: &str) -> Error {
    let newer = match active.transaction {
        Some(_) => "transaction",
        None => "retryable write",
    };
    Error::new(
        ErrorCode::TRANSACTION_TOO_OLD,
        format!(
            "Cannot start transaction with {{ txnNumber: {number} }} on session {session} because a newer {newer} with \
             txnNumber {} has already started on this session.",
            active.number
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_in_which_state() {
        use TxnAction::{Abort, Prepare, Start, Statement};
        const INVALID: i32 = 72;
        const PREPARED: i32 = 267;
        let commit = TxnAction::Commit { at: None };
        let commit_at = TxnAction::Commit {
            at: Some(Timestamp::new(7, 1)),
        };
        const NO_SUCH: i32 = 251;
        const COMMITTED: i32 = 256;
        const TOO_OLD: i32 = 225;
        const CONFLICTING: i32 = 117;
        let begins = Ok(Admitted::Begins);
        let continues = Ok(Admitted::Continues);
        let is_committed = Ok(Admitted::IsCommitted);
        // The number of the command is below the session's, the same, and above it.
        type Row = [Result<Admitted, i32>; 3];
        let check = |transaction: Option<TxnState>, action: TxnAction, expected: Row| {
            let number = 5;
            let active = Active {
                number,
                transaction,
            };
            let found = [4, 5, 6].map(|asked_for| {
                admit(active, action, asked_for, "s").map_err(|error| error.code.0)
            });
            assert_eq!(found, expected, "{transaction:?} {action:?}");
        };
        let old = Err(TOO_OLD);
        let all = [
            None,
            Some(TxnState::InProgress),
            Some(TxnState::Prepared),
            Some(TxnState::Committed),
            Some(TxnState::Aborted),
        ];
        for state in all {
            check(state, Start, [old, Err(CONFLICTING), begins]);
        }
        let in_progress = Some(TxnState::InProgress);
        check(in_progress, commit_at, [old, Err(INVALID), Err(NO_SUCH)]);
        let is_prepared = Ok(Admitted::IsPrepared);
        for action in [Prepare, commit_at, Abort] {
            let prepared = Some(TxnState::Prepared);
            check(prepared, action, [old, is_prepared, Err(NO_SUCH)]);
        }
        for (action, code) in [(Statement, PREPARED), (commit, INVALID)] {
            let prepared = Some(TxnState::Prepared);
            check(prepared, action, [old, Err(code), Err(NO_SUCH)]);
        }
        for action in [Statement, Prepare, commit, commit_at, Abort] {
            check(None, action, [old, Err(NO_SUCH), Err(NO_SUCH)]);
            if action != commit_at {
                check(in_progress, action, [old, continues, Err(NO_SUCH)]);
            }
            let answer = match action {
                Statement => Err(NO_SUCH),
                _ => Ok(Admitted::IsAborted),
            };
            check(Some(TxnState::Aborted), action, [old, answer, Err(NO_SUCH)]);
        }
        let committed = Some(TxnState::Committed);
        for action in [commit, commit_at] {
            check(committed, action, [old, is_committed, Err(NO_SUCH)]);
        }
        for action in [Statement, Prepare, Abort] {
            check(committed, action, [old, Err(COMMITTED), Err(NO_SUCH)]);
        }
    }

    #[test]
    fn a_session_begins_with_any_number() {
        let nothing = Active {
            number: -1,
            transaction: None,
        };
        assert_eq!(
            admit(nothing, TxnAction::Start, 0, "s").ok(),
            Some(Admitted::Begins)
        );
        let error = admit(nothing, TxnAction::Statement, 3, "s").expect_err("there is none");
        assert_eq!(
            error.message,
            "Given transaction number 3 does not match any in-progress transactions. The active transaction number is -1"
        );
    }
}
