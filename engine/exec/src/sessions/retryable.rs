//! A retryable write while it runs: its session, and what it has to know of its statements.
//!
//! Source: sharding document, "Retryable writes"; the messages are MongoDB's.

use std::cell::RefCell;
use std::sync::Arc;

use pinion_catalog::{NO_USER, RetryImage, SessionStamp, is_replicated};
use pinion_clock::{Term, Timestamp};
use pinion_storage::storage;
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{Error, ErrorCode, Invocation, OpContext, Result};

use super::catalog::{CheckedOut, check_out};
use super::history::{Change, Executed, History};
use super::records::{RecordCollections, Stamp};
use super::statement_ids::StatementIds;
use crate::state::state;
use crate::transactions::is_in;

/// A command whose statements are executed once, however often it is sent. It has its session alone while it lives.
pub(crate) struct RetryableWrite {
    session: CheckedOut,
    history: RefCell<History>,
    txn_number: i64,
    ids: StatementIds,
    collections: Arc<RecordCollections>,
    /// The statements that were executed before, as they were asked for.
    retried: RefCell<Vec<i32>>,
}

/// Refuses a transaction number in a command that is not retried, outside of a transaction.
///
/// # Errors
/// 50768.
pub(crate) fn check_arguments(cmd: &Invocation) -> Result<()> {
    match cmd.command.spec.name {
        "insert" | "update" | "delete" | "findAndModify" | "bulkWrite" => Ok(()),
        name => Err(Error::new(
            ErrorCode(50768),
            format!(
                "txnNumber may only be provided for multi-document transactions and retryable write commands. \
                 autocommit:false was not provided, and {name} is not a retryable write command."
            ),
        )),
    }
}

/// Takes the session of a command of so many statements that is retryable; `None` if it is not.
///
/// # Errors
/// The statements' numbers do not fit, or the session cannot be had: see `check_out`.
pub(crate) async fn begin(
    ctx: &OpContext,
    ids: StatementIds,
    statements: usize,
) -> Result<Option<Box<RetryableWrite>>> {
    match (ctx.args.txn_number, &ctx.args.lsid) {
        (Some(txn_number), Some(lsid)) if !is_in(ctx) => {
            // In a box, as most commands need no room for it.
            Box::pin(begin_retryable(ctx, *lsid, txn_number, ids, statements))
                .await
                .map(Some)
        }
        _ => Ok(None),
    }
}

async fn begin_retryable(
    ctx: &OpContext,
    lsid: Lsid,
    txn_number: i64,
    ids: StatementIds,
    statements: usize,
) -> Result<Box<RetryableWrite>> {
    ids.check(statements)?;
    let lsid = Lsid {
        uid: Some(lsid.uid.unwrap_or(NO_USER)),
        ..lsid
    };
    let mut session = check_out(ctx, lsid, txn_number).await?;
    let collections = RecordCollections::ensure(ctx).await?;
    let history = session.take_history();
    Ok(Box::new(RetryableWrite {
        session,
        history: RefCell::new(history),
        txn_number,
        ids,
        collections,
        retried: RefCell::default(),
    }))
}

impl RetryableWrite {
    pub(crate) fn lsid(&self) -> &Lsid {
        self.session.lsid()
    }

    pub(crate) fn txn_number(&self) -> i64 {
        self.txn_number
    }

    /// What the statement at this place did, if it was executed before. It is told in the reply then.
    ///
    /// # Errors
    /// `IncompleteTransactionHistory`.
    pub(crate) fn executed(&self, place: usize) -> Result<Option<Executed>> {
        let stmt_id = self.ids.of(place);
        let history = self.history.borrow();
        let executed = history.executed(self.lsid(), stmt_id)?;
        if executed.is_some() {
            self.retried.borrow_mut().push(stmt_id);
        }
        Ok(executed.cloned())
    }

    /// Whether the statement at this place is known not to have been executed before.
    pub(crate) fn is_new(&self, place: usize) -> bool {
        let history = self.history.borrow();
        matches!(history.executed(self.lsid(), self.ids.of(place)), Ok(None))
    }

    /// The numbers of the statements that were executed before.
    pub(crate) fn take_retried(&self) -> Vec<i32> {
        let retried = self.retried.take();
        if !retried.is_empty() {
            let counters = &state().metrics.counters;
            counters.retried_commands.inc();
            counters.retried_statements.add(retried.len() as u64);
        }
        retried
    }

    /// What goes into the entry of a write of these statements; `None` where the namespace is this member's own, as nobody
    /// else has what is written there.
    pub(crate) fn stamp(
        &self,
        ns: &Namespace,
        places: impl IntoIterator<Item = usize>,
        image: Option<RetryImage>,
    ) -> Option<Stamp> {
        if !is_replicated(ns) {
            return None;
        }
        Some(Stamp {
            session: SessionStamp {
                lsid: *self.lsid(),
                txn_number: self.txn_number,
                stmt_ids: places.into_iter().map(|place| self.ids.of(place)).collect(),
                previous: self.history.borrow().last_write(),
                image,
            },
            collections: self.collections.clone(),
        })
    }

    /// The statement at this place was executed by a write at `ts`.
    pub(crate) fn wrote(
        &self,
        place: usize,
        ts: Timestamp,
        change: Change,
        image: Option<RetryImage>,
    ) {
        let executed = Executed { ts, change, image };
        let term = Term(storage().term());
        state().metrics.counters.session_records.inc();
        let mut history = self.history.borrow_mut();
        history.wrote(self.ids.of(place), executed, term);
    }

    /// Gives the session back: everything that was written is known.
    pub(crate) fn end(mut self: Box<Self>) {
        let mut history = self.history.take();
        history.shrink();
        self.session.put_back(history);
    }
}
