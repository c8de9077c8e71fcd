//! What a session has executed of its latest retryable command.

use std::collections::{BTreeMap, BTreeSet};

use pinion_bson::RawBson;
use pinion_catalog::{RetryImage, Uuid};
use pinion_clock::{OpTime, Timestamp};
use pinion_storage::storage;
use pinion_wire::idl::Lsid;
use pinion_wire::idl::NO_USER;
use pinion_wire::{Error, ErrorCode, Result};

use crate::limits::MAX_KEPT_STATEMENTS;
use crate::transaction_state::{Active, TxnState, WriteState};

/// What a statement did with its document, as its entry in the oplog says.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The `_id` is known where an answer may name it.
    Insert {
        id: Option<RawBson>,
    },
    Update,
    Delete,
}

/// A statement that was executed.
#[derive(Clone, Debug, PartialEq)]
pub struct Executed {
    pub ts: Timestamp,
    pub change: Change,
    /// Which document its answer showed, which is kept.
    pub image: Option<RetryImage>,
    /// It was executed in an internal transaction, which may have been committed at a time before
    /// the entry of it.
    pub is_by_child: bool,
}

impl Executed {
    /// Once this is as safe as a command asks for, so is what the statement did.
    pub(crate) fn safe_with(&self) -> Timestamp {
        match self.is_by_child {
            true => storage().last_allotted(),
            false => self.ts,
        }
    }
}

/// What a record says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    pub txn_number: i64,
    pub last_write: OpTime,
    pub what: Recorded,
    /// It was executed in an internal transaction, and is no write of the session itself.
    pub is_by_child: bool,
}

/// What it is of.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Recorded {
    Statement(i32, Executed),
    /// What became of a transaction.
    Transaction(TxnState),
    /// A copy of what another node shows does not say so.
    Unknown,
}

/// The latest transaction number of a session, and what was executed of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    /// -1 before the first.
    txn_number: i64,
    /// The last write of that number.
    last_write: OpTime,
    statements: BTreeMap<i32, Executed>,
    /// `statements` are all that this node can know; otherwise others are in the records alone, and
    /// a caller that needs some reads them first.
    are_loaded: bool,
    /// Some were executed that this node does not know of.
    is_incomplete: bool,
    /// The number is that of a transaction.
    transaction: Option<TxnState>,
}

impl Default for History {
    fn default() -> History {
        History {
            txn_number: -1,
            last_write: OpTime::NULL,
            statements: BTreeMap::new(),
            are_loaded: true,
            is_incomplete: false,
            transaction: None,
        }
    }
}

impl History {
    /// Adds what a record says, in whatever order records come.
    pub(crate) fn add(&mut self, record: Record) {
        if record.txn_number < self.txn_number {
            return;
        }
        if record.txn_number > self.txn_number {
            *self = History {
                txn_number: record.txn_number,
                ..History::default()
            };
        }
        if !record.is_by_child {
            self.last_write = self.last_write.max(record.last_write);
        }
        match record.what {
            Recorded::Statement(stmt_id, executed) => {
                // A statement that wrote more than one document cannot be, so the newer one counts.
                let known = self
                    .statements
                    .entry(stmt_id)
                    .or_insert_with(|| executed.clone());
                if known.ts < executed.ts {
                    *known = executed;
                }
            }
            Recorded::Transaction(state) => self.transaction = Some(state),
            Recorded::Unknown => self.is_incomplete = true,
        }
    }

    /// Adds what another core's records say.
    pub(crate) fn merge(&mut self, other: History) {
        if other.txn_number > self.txn_number {
            *self = other;
            return;
        }
        if other.txn_number < self.txn_number {
            return;
        }
        self.last_write = self.last_write.max(other.last_write);
        self.is_incomplete |= other.is_incomplete;
        self.transaction = self.transaction.or(other.transaction);
        for (stmt_id, executed) in other.statements {
            let known = self
                .statements
                .entry(stmt_id)
                .or_insert_with(|| executed.clone());
            if known.ts < executed.ts {
                *known = executed;
            }
        }
    }

    /// Those of these statements that may have been executed without being known here, each once.
    pub(crate) fn unknown(&self, stmt_ids: impl Iterator<Item = i32>) -> Vec<i32> {
        if self.are_loaded {
            return Vec::new();
        }
        let is_unknown = |stmt_id: &i32| !self.statements.contains_key(stmt_id);
        let unknown: BTreeSet<i32> = stmt_ids.filter(is_unknown).collect();
        unknown.into_iter().collect()
    }

    /// Refuses a number below the latest.
    ///
    /// # Errors
    /// `TransactionTooOld`.
    pub(crate) fn check_begin(&self, lsid: &Lsid, txn_number: i64) -> Result<()> {
        if txn_number < self.txn_number {
            let newer = match self.transaction {
                Some(_) => "transaction",
                None => "retryable write",
            };
            return Err(Error::new(
                ErrorCode::TRANSACTION_TOO_OLD,
                format!(
                    "Retryable write with txnNumber {txn_number} is prohibited on session {} because a newer {newer} \
                     with txnNumber {} has already started on this session.",
                    session_text(lsid),
                    self.txn_number
                ),
            ));
        }
        Ok(())
    }

    /// Begins a command, or continues one.
    ///
    /// # Errors
    /// `TransactionTooOld` when the session has started a later one.
    ///
    /// # Panics
    /// If the number is that of a transaction.
    pub(crate) fn begin(&mut self, lsid: &Lsid, txn_number: i64) -> Result<()> {
        self.check_begin(lsid, txn_number)?;
        self.raise(txn_number);
        assert!(
            self.transaction.is_none(),
            "who begins a write has looked for a transaction of its number"
        );
        Ok(())
    }

    /// The session has come to this number, if it is above the latest.
    pub(crate) fn raise(&mut self, txn_number: i64) {
        if txn_number > self.txn_number {
            *self = History {
                txn_number,
                ..History::default()
            };
        }
    }

    /// What the latest number is of.
    pub(crate) fn active(&self) -> Active {
        let write = match (self.last_write.is_null(), self.statements.is_empty()) {
            // Statements of internal transactions are no writes of the session.
            (false, _) => WriteState::BySession,
            (true, true) if self.are_loaded => WriteState::Nothing,
            // Or there may be some in the records, which were not read.
            (true, _) => WriteState::ByChild,
        };
        Active {
            number: self.txn_number,
            transaction: self.transaction,
            write,
        }
    }

    /// A transaction begins, with a number above all before, or with that of one that was aborted
    /// or of nothing that was executed.
    pub(crate) fn begin_transaction(&mut self, txn_number: i64) {
        let Active {
            transaction, write, ..
        } = self.active();
        let is_reusable = match transaction {
            Some(state) => state == TxnState::Aborted,
            None => write == WriteState::Nothing,
        };
        assert!(
            txn_number > self.txn_number || (txn_number == self.txn_number && is_reusable),
            "the transaction number is in use"
        );
        *self = History {
            txn_number,
            transaction: Some(TxnState::InProgress),
            ..History::default()
        };
    }

    /// The transaction has come to its end.
    pub(crate) fn end_transaction(&mut self, state: TxnState) {
        let before = self.transaction.replace(state);
        let is_allowed = match before {
            Some(TxnState::InProgress) => matches!(
                state,
                TxnState::Prepared | TxnState::Committed | TxnState::Aborted
            ),
            Some(TxnState::Prepared) => {
                matches!(state, TxnState::Committed | TxnState::AbortedPrepared)
            }
            _ => false,
        };
        assert!(
            is_allowed,
            "a transaction went from {before:?} to {state:?}"
        );
    }

    /// The transaction was committed, prepared, or aborted when it was prepared, by this write.
    pub(crate) fn ended_by(&mut self, state: TxnState, written: OpTime) {
        self.end_transaction(state);
        self.last_write = written;
    }

    pub(crate) fn last_write(&self) -> OpTime {
        self.last_write
    }

    /// The statement, if it was executed.
    ///
    /// # Errors
    /// `IncompleteTransactionHistory` when that cannot be known.
    pub(crate) fn executed(&self, lsid: &Lsid, stmt_id: i32) -> Result<Option<&Executed>> {
        match self.statements.get(&stmt_id) {
            Some(executed) => Ok(Some(executed)),
            None if self.is_incomplete => Err(Error::new(
                ErrorCode::INCOMPLETE_TRANSACTION_HISTORY,
                format!(
                    "Incomplete history detected for transaction {} on session {}",
                    self.txn_number,
                    session_text(lsid)
                ),
            )),
            None => Ok(None),
        }
    }

    pub(crate) fn wrote(&mut self, stmt_id: i32, executed: Executed, term: pinion_clock::Term) {
        if !executed.is_by_child {
            let written = OpTime::new(executed.ts, term);
            self.last_write = self.last_write.max(written);
        }
        self.statements.insert(stmt_id, executed);
    }

    /// Forgets the statements if they are many: they are in their records, and the next command
    /// asks for none of them.
    pub(crate) fn shrink(&mut self) {
        if self.statements.len() > MAX_KEPT_STATEMENTS {
            self.leave_to_records();
        }
    }

    /// Forgets the statements: some have left records that are not known here.
    pub(crate) fn leave_to_records(&mut self) {
        self.statements = BTreeMap::new();
        self.are_loaded = false;
    }
}

/// A session as messages have it.
pub(crate) fn session_text(lsid: &Lsid) -> String {
    use base64::Engine;
    let uid = base64::engine::general_purpose::STANDARD.encode(lsid.uid.unwrap_or(NO_USER));
    let number = lsid.retryable_number().map(|number| number.to_string());
    let uuid = lsid.child.map(|child| Uuid(child.txn_uuid).to_string());
    format!(
        "{} - {uid} - {} - {}",
        Uuid(lsid.id),
        number.unwrap_or_default(),
        uuid.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinion_clock::Term;

    const LSID: Lsid = Lsid {
        id: [0x11; 16],
        uid: None,
        child: None,
    };

    fn executed(ts: u64) -> Executed {
        Executed {
            ts: Timestamp::from_u64(ts),
            change: Change::Update,
            image: None,
            is_by_child: false,
        }
    }

    fn record(txn_number: i64, ts: u64, stmt_id: Option<i32>) -> Record {
        Record {
            txn_number,
            last_write: OpTime::new(Timestamp::from_u64(ts), Term(1)),
            what: match stmt_id {
                Some(stmt_id) => Recorded::Statement(stmt_id, executed(ts)),
                None => Recorded::Unknown,
            },
            is_by_child: false,
        }
    }

    /// Adds records in every order, and on two cores, and looks at what is known then.
    fn check(records: &[Record], expected: (i64, u64, &[(i32, u64)], bool)) {
        let all = records.len();
        for first in 0..all {
            for on_one in 0..=all {
                let mut cores = [History::default(), History::default()];
                for at in 0..all {
                    let record = records[(first + at) % all].clone();
                    cores[usize::from(at >= on_one)].add(record);
                }
                let [mut history, other] = cores;
                history.merge(other);
                let known: Vec<_> = history
                    .statements
                    .iter()
                    .map(|(id, executed)| (*id, executed.ts.as_u64()))
                    .collect();
                let found = (
                    history.txn_number,
                    history.last_write.ts.as_u64(),
                    known.as_slice(),
                    history.is_incomplete,
                );
                assert_eq!(found, expected, "{records:?} from {first}, {on_one}");
            }
        }
    }

    #[test]
    fn the_latest_number_counts() {
        check(&[record(3, 10, Some(0))], (3, 10, &[(0, 10)], false));
        check(
            &[
                record(3, 10, Some(0)),
                record(4, 12, Some(1)),
                record(4, 11, Some(0)),
                record(2, 5, Some(7)),
            ],
            (4, 12, &[(0, 11), (1, 12)], false),
        );
        check(
            &[
                record(4, 9, None),
                record(4, 10, Some(1)),
                record(3, 1, Some(0)),
            ],
            (4, 10, &[(1, 10)], true),
        );
    }

    #[test]
    fn older_numbers_are_refused_and_newer_ones_begin() {
        let mut history = History::default();
        history.begin(&LSID, 22).expect("the first");
        assert_eq!(history.executed(&LSID, 0).expect("known"), None);
        history.wrote(0, executed(5), Term(1));
        assert_eq!(
            history.executed(&LSID, 0).expect("known"),
            Some(&executed(5))
        );
        assert_eq!(history.last_write().ts.as_u64(), 5);
        let error = history.begin(&LSID, 21).expect_err("too old");
        assert_eq!(error.code, ErrorCode::TRANSACTION_TOO_OLD);
        assert_eq!(
            error.message,
            "Retryable write with txnNumber 21 is prohibited on session 11111111-1111-1111-1111-111111111111 - \
             47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU= -  -  because a newer retryable write with txnNumber 22 has \
             already started on this session."
        );
        history.begin(&LSID, 22).expect("the same");
        assert_eq!(
            history.executed(&LSID, 0).expect("known"),
            Some(&executed(5))
        );
        history.begin(&LSID, 23).expect("a newer one");
        assert_eq!(history.executed(&LSID, 0).expect("known"), None);
        assert!(history.last_write().is_null());
    }

    #[test]
    fn what_is_not_known_is_not_executed_again() {
        let mut history = History::default();
        history.add(record(4, 9, None));
        history.begin(&LSID, 4).expect("the same");
        let error = history.executed(&LSID, 0).expect_err("nobody knows");
        assert_eq!(error.code, ErrorCode::INCOMPLETE_TRANSACTION_HISTORY);
        history.begin(&LSID, 5).expect("a newer one");
        assert_eq!(history.executed(&LSID, 0).expect("known"), None);
    }

    #[test]
    fn a_number_is_used_again_where_nothing_came_of_it() {
        let mut history = History::default();
        history.begin(&LSID, 4).expect("the first");
        assert_eq!(history.active().write, WriteState::Nothing);
        history.begin_transaction(4);
        history.end_transaction(TxnState::Aborted);
        history.begin_transaction(4);
        let state = history.active().transaction;
        assert_eq!(state, Some(TxnState::InProgress));
        history.end_transaction(TxnState::Prepared);
        history.end_transaction(TxnState::AbortedPrepared);
        history.begin_transaction(5);
        assert_eq!(history.active().number, 5);
    }

    #[test]
    fn what_was_executed_of_a_write_is_by_the_session_or_its_children() {
        let mut history = History::default();
        history.begin(&LSID, 4).expect("the first");
        let by_child = Executed {
            is_by_child: true,
            ..executed(5)
        };
        history.wrote(0, by_child, Term(1));
        assert_eq!(history.active().write, WriteState::ByChild);
        history.leave_to_records();
        assert_eq!(history.active().write, WriteState::ByChild);
        history.wrote(1, executed(6), Term(1));
        assert_eq!(history.active().write, WriteState::BySession);
        history.raise(5);
        assert_eq!(history.active().write, WriteState::Nothing);
    }

    #[test]
    #[should_panic(expected = "the transaction number is in use")]
    fn no_transaction_takes_the_number_of_a_write() {
        let mut history = History::default();
        history.begin(&LSID, 4).expect("the first");
        history.wrote(0, executed(5), Term(1));
        history.begin_transaction(4);
    }

    #[test]
    fn many_statements_are_left_to_their_records() {
        let mut history = History::default();
        history.begin(&LSID, 1).expect("the first");
        for id in 0..=MAX_KEPT_STATEMENTS as i32 {
            history.wrote(id, executed(1 + id as u64), Term(1));
            if id == 3 {
                history.shrink();
                assert!(history.unknown([3, 900].into_iter()).is_empty());
            }
        }
        history.shrink();
        assert_eq!(history.unknown([3, 900].into_iter()), [3, 900]);
        // What the records say of those that are asked for is enough.
        history.add(record(1, 4, Some(3)));
        history.add(record(0, 2, Some(900)));
        assert_eq!(history.unknown([3, 900].into_iter()), [900]);
        assert!(history.executed(&LSID, 3).expect("known").is_some());
        history.begin(&LSID, 2).expect("a newer one");
        assert!(history.unknown([3, 900].into_iter()).is_empty());
    }
}
