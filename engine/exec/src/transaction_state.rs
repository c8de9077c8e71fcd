//! The states of a transaction, and which command may come in which: a table without clocks,
//! storage or sessions.
//!
//! Source: replication document, "Life of a Multi-Document Transaction"; codes and texts are
//! MongoDB's.

use pinion_clock::Timestamp;
use pinion_service::node_info::ClusterRole;
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
    /// Nothing of it has taken place, or will. It was not prepared.
    Aborted,
    /// The same of one that was prepared: its abort is in the log.
    AbortedPrepared,
}

impl TxnState {
    /// As messages have it.
    fn name(self) -> &'static str {
        match self {
            TxnState::InProgress => "TxnState::InProgress",
            TxnState::Prepared => "TxnState::Prepared",
            TxnState::Committed => "TxnState::Committed",
            TxnState::Aborted => "TxnState::AbortedWithoutPrepare",
            TxnState::AbortedPrepared => "TxnState::AbortedWithPrepare",
        }
    }
}

/// What has been executed of a retryable write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteState {
    Nothing,
    /// An internal transaction executes it, or has done so.
    ByChild,
    /// The session itself has executed a statement.
    BySession,
}

/// What a session knows of its latest number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Active {
    /// -1 before the first.
    pub number: i64,
    /// `None` if that is the number of a retryable write, or of nothing.
    pub transaction: Option<TxnState>,
    /// Of the retryable write with that number.
    pub write: WriteState,
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
    /// It begins a transaction; one that the session has in progress is aborted before. Its number
    /// may be that of a transaction that was aborted, if a router starts it again.
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

/// Whether a command with this transaction number may run in a session of a node with this role,
/// and as what.
///
/// # Errors
/// `TransactionTooOld`, `NoSuchTransaction`, `TransactionCommitted`,
/// `ConflictingOperationInProgress`, `PreparedTransactionInProgress`; `InvalidOptions` for a commit
/// with a time of what is not prepared, or without of what is; 50911 and 6202002 for a transaction
/// that a router may not start again.
pub(crate) fn admit(
    role: ClusterRole,
    active: Active,
    action: TxnAction,
    number: i64,
    session: &str,
) -> Result<Admitted> {
    if number < active.number {
        return Err(too_old(active, number, session));
    }
    if action == TxnAction::Start {
        if number == active.number {
            check_start_again(role, active, session)?;
        }
        return Ok(Admitted::Begins);
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
        (Some(TxnState::Aborted | TxnState::AbortedPrepared), action) if action.ends() => {
            Ok(Admitted::IsAborted)
        }
        (Some(TxnState::Aborted | TxnState::AbortedPrepared), _) => Err(aborted(number)),
    }
}

/// Refuses a transaction with the session's current number. A shard starts one again
/// whose first statement failed there, since its router sends that once more when it knows better
/// where documents are. Nothing of the number may have been executed, and no coordinator may know
/// an outcome of it.
fn check_start_again(role: ClusterRole, active: Active, session: &str) -> Result<()> {
    if role != ClusterRole::Shard {
        return Err(Error::new(
            ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
            "Only servers in a sharded cluster can start a new transaction at the active transaction number",
        ));
    }
    let number = active.number;
    let state = match (active.transaction, active.write) {
        (Some(TxnState::Aborted), _) | (None, WriteState::Nothing) => return Ok(()),
        (None, WriteState::ByChild) => {
            return Err(Error::new(
                ErrorCode(6_202_002),
                format!(
                    "Cannot start transaction with session id {session} and transaction number {number} because a \
                     retryable write with the same transaction number is being executed in a retryable internal \
                     transaction"
                ),
            ));
        }
        (None, WriteState::BySession) => "TxnState::ExecutedRetryableWrite",
        (Some(state), _) => state.name(),
    };
    Err(Error::new(
        ErrorCode(50_911),
        format!(
            "Cannot start a transaction with session id {session} and transaction number {{ txnNumber: {number} }} \
             because a transaction with the same transaction number is in state {state}"
        ),
    ))
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
                write: WriteState::Nothing,
            };
            // A number that is started again aside, all nodes answer the same.
            let roles = [ClusterRole::None, ClusterRole::Shard];
            let of_action = if action == Start { &roles[..1] } else { &roles };
            for role in of_action {
                let found = [4, 5, 6].map(|asked_for| {
                    admit(*role, active, action, asked_for, "s").map_err(|error| error.code.0)
                });
                assert_eq!(found, expected, "{role:?} {transaction:?} {action:?}");
            }
        };
        let old = Err(TOO_OLD);
        let all = [
            None,
            Some(TxnState::InProgress),
            Some(TxnState::Prepared),
            Some(TxnState::Committed),
            Some(TxnState::Aborted),
            Some(TxnState::AbortedPrepared),
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
            for aborted in [TxnState::Aborted, TxnState::AbortedPrepared] {
                check(Some(aborted), action, [old, answer, Err(NO_SUCH)]);
            }
        }
        let committed = Some(TxnState::Committed);
        for action in [commit, commit_at] {
            check(committed, action, [old, is_committed, Err(NO_SUCH)]);
        }
        for action in [Statement, Prepare, Abort] {
            check(committed, action, [old, Err(COMMITTED), Err(NO_SUCH)]);
        }
    }

    /// What each kind of node answers to a start with the session's current number, and that other
    /// numbers are what they are in every state.
    #[track_caller]
    fn check_start(
        transaction: Option<TxnState>,
        write: WriteState,
        on_shard: Result<(), (i32, &str)>,
    ) {
        let number = 5;
        let active = Active {
            number,
            transaction,
            write,
        };
        let start = |role, number| {
            let admitted = admit(role, active, TxnAction::Start, number, "s");
            admitted.map_err(|error| (error.code.0, error.message))
        };
        let only_in_cluster = "Only servers in a sharded cluster can start a new transaction at the active transaction number";
        assert_eq!(
            start(ClusterRole::None, number),
            Err((117, only_in_cluster.to_owned()))
        );
        let expected = on_shard.map(|()| Admitted::Begins);
        let expected = expected.map_err(|(code, message)| (code, message.to_owned()));
        assert_eq!(start(ClusterRole::Shard, number), expected);
        for role in [ClusterRole::None, ClusterRole::Shard] {
            assert_eq!(start(role, number + 1), Ok(Admitted::Begins));
            let (code, _) = start(role, number - 1).expect_err("it is below the latest");
            assert_eq!(code, 225);
        }
    }

    #[test]
    fn a_shard_starts_again_what_has_done_nothing() {
        use WriteState::{ByChild, BySession, Nothing};
        let in_state = |state: &str| {
            format!(
                "Cannot start a transaction with session id s and transaction number {{ txnNumber: 5 }} because a \
                 transaction with the same transaction number is in state TxnState::{state}"
            )
        };
        check_start(None, Nothing, Ok(()));
        check_start(Some(TxnState::Aborted), Nothing, Ok(()));
        for (state, name) in [
            (TxnState::InProgress, "InProgress"),
            (TxnState::Prepared, "Prepared"),
            (TxnState::Committed, "Committed"),
            (TxnState::AbortedPrepared, "AbortedWithPrepare"),
        ] {
            check_start(Some(state), Nothing, Err((50_911, &in_state(name))));
        }
        let executed = in_state("ExecutedRetryableWrite");
        check_start(None, BySession, Err((50_911, &executed)));
        check_start(
            None,
            ByChild,
            Err((
                6_202_002,
                "Cannot start transaction with session id s and transaction number 5 because a retryable write with the \
                 same transaction number is being executed in a retryable internal transaction",
            )),
        );
    }

    #[test]
    fn a_session_begins_with_any_number() {
        let nothing = Active {
            number: -1,
            transaction: None,
            write: WriteState::Nothing,
        };
        let role = ClusterRole::None;
        assert_eq!(
            admit(role, nothing, TxnAction::Start, 0, "s").ok(),
            Some(Admitted::Begins)
        );
        let error = admit(role, nothing, TxnAction::Statement, 3, "s").expect_err("there is none");
        assert_eq!(
            error.message,
            "Given transaction number 3 does not match any in-progress transactions. The active transaction number is -1"
        );
    }
}
