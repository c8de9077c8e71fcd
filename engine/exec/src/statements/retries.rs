//! What a statement of an internal transaction knows of the retryable write that the transaction
//! executes.

use std::cell::RefCell;
use std::collections::BTreeMap;

use pinion_clock::{Term, Timestamp};
use pinion_service::interrupt::interruptible;
use pinion_wire::idl::Lsid;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::history::{Executed, History};
use super::load::load_statements;

/// What the transaction has executed so far: it takes place with its commit.
pub(crate) type Pending = BTreeMap<i32, Executed>;

/// The retryable write of a session, for the statements of one of its children.
pub(crate) struct Retries {
    parent: Lsid,
    number: i64,
    child: Lsid,
    /// What the session has executed of it; `None` where that is to be read again.
    history: RefCell<Option<History>>,
}

impl Retries {
    pub(crate) fn new((parent, number): (Lsid, i64), child: Lsid, history: History) -> Retries {
        Retries {
            parent,
            number,
            child,
            history: RefCell::new(Some(history)),
        }
    }

    /// The session that the write is of.
    pub(crate) fn parent(&self) -> &Lsid {
        &self.parent
    }

    pub(crate) fn child(&self) -> &Lsid {
        &self.child
    }

    /// The number of the write.
    pub(crate) fn number(&self) -> i64 {
        self.number
    }

    /// Has it known of these statements whether they were executed.
    ///
    /// # Errors
    /// A record cannot be read, or the operation is stopped.
    pub(crate) async fn know(
        &self,
        ctx: &OpContext,
        stmt_ids: impl Iterator<Item = i32>,
    ) -> Result<()> {
        let unknown = {
            let history = self.history.borrow();
            let history = history.as_ref().expect("no statement runs behind the end");
            history.unknown(stmt_ids)
        };
        if !unknown.is_empty() {
            let load = load_statements(&self.parent, &unknown);
            let records = interruptible(ctx, load).await??;
            if let Some(history) = &mut *self.history.borrow_mut() {
                records.into_iter().for_each(|record| history.add(record));
            }
        }
        Ok(())
    }

    /// The statement, if it was executed and that is committed.
    ///
    /// # Errors
    /// `IncompleteTransactionHistory`.
    pub(crate) fn executed(&self, stmt_id: i32) -> Result<Option<Executed>> {
        let history = self.history.borrow();
        let history = history.as_ref().expect("no statement runs behind the end");
        Ok(history.executed(&self.parent, stmt_id)?.cloned())
    }

    /// The transaction was committed at `ts`, and these statements with it.
    pub(crate) fn committed(&self, statements: Pending, ts: Timestamp, term: Term) {
        if let Some(history) = &mut *self.history.borrow_mut() {
            for (stmt_id, executed) in statements {
                history.wrote(stmt_id, Executed { ts, ..executed }, term);
            }
        }
    }

    /// The transaction was committed, and what it has executed is in its records alone.
    pub(crate) fn leave_to_records(&self) {
        if let Some(history) = &mut *self.history.borrow_mut() {
            history.leave_to_records();
        }
    }

    /// Gives back what is known.
    pub(crate) fn take(&self) -> Option<History> {
        self.history.take()
    }
}

/// Refuses two statements of one transaction that are the same one.
///
/// # Errors
/// 5875600.
pub(crate) fn twice(stmt_id: i32) -> Error {
    Error::new(
        ErrorCode(5_875_600),
        format!("Found two operations using the same stmtId of {stmt_id}"),
    )
}

/// Refuses to keep the documents that more than one statement of a transaction has answered with:
/// there is one for each write of a session.
///
/// # Errors
/// 6054001.
pub(crate) fn check_images(statements: &Pending) -> Result<()> {
    let images = statements
        .values()
        .filter(|executed| executed.image.is_some());
    match images.count() {
        0 | 1 => Ok(()),
        _ => Err(Error::new(
            ErrorCode(6_054_001),
            "config.image_collection can only store the pre or post image of one findAndModify operation for each transaction",
        )),
    }
}
