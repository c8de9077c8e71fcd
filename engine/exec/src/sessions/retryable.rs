//! A retryable write while it runs: its session, and what it has to know of its statements.
//!
//! Source: sharding document, "Retryable writes"; the messages are MongoDB's.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_catalog::{RetryImage, SessionStamp, is_replicated};
use pinion_clock::{OpTime, Term, Timestamp};
use pinion_service::interrupt::interruptible;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::{at_home, is_in};
use pinion_storage::storage;
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{OpContext, Result};

use super::catalog::{CheckedOut, check_out};
use crate::open_transactions::Running;
use crate::statements::{
    Executed, ExecutedChange as Change, History, NO_STATEMENT, RecordCollections, Retries, Stamp,
    StatementIds, load_statements, twice,
};

/// A command whose statements are executed once, however often it is sent.
pub struct RetryableWrite {
    by: By,
    ids: StatementIds,
    collections: Arc<RecordCollections>,
    /// The statements that were executed before, as they were asked for.
    retried: RefCell<Vec<i32>>,
}

/// The session that executes it.
enum By {
    /// The session, which it has alone while it lives.
    Session {
        session: Box<CheckedOut>,
        history: RefCell<History>,
        txn_number: i64,
    },
    /// An internal transaction.
    Child(Rc<Running>, Rc<Retries>),
}

/// Takes the session of a command of `statements` statements that is retryable; `None` if it is
/// not.
///
/// # Errors
/// The statements' numbers do not fit, or the session cannot be checked out: see `check_out`.
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
        (Some(_), Some(lsid)) if lsid.retryable_number().is_some() => {
            Box::pin(begin_in_child(ctx, ids, statements)).await
        }
        _ => Ok(None),
    }
}

/// The same in an internal transaction that executes a retryable write.
async fn begin_in_child(
    ctx: &OpContext,
    ids: StatementIds,
    statements: usize,
) -> Result<Option<Box<RetryableWrite>>> {
    ids.check(statements)?;
    if let Some(stmt_id) = ids.repeated() {
        return Err(twice(stmt_id));
    }
    let running =
        crate::open_transactions::of(ctx).expect("surrounded as all commands of transactions");
    let retries = running.retries().expect("it came with its parent");
    retries
        .know(ctx, (0..statements).map(|place| ids.of(place)))
        .await?;
    let collections = RecordCollections::find().expect("they are made before a transaction begins");
    Ok(Some(Box::new(RetryableWrite {
        by: By::Child(running, retries),
        ids,
        collections: Arc::new(collections),
        retried: RefCell::default(),
    })))
}

async fn begin_retryable(
    ctx: &OpContext,
    lsid: Lsid,
    txn_number: i64,
    ids: StatementIds,
    statements: usize,
) -> Result<Box<RetryableWrite>> {
    ids.check(statements)?;
    let mut session = Box::new(check_out(ctx, at_home(&lsid), txn_number).await?);
    let collections = RecordCollections::ensure(ctx).await?;
    let mut history = session.take_history();
    let unknown = history.unknown((0..statements).map(|place| ids.of(place)));
    if !unknown.is_empty() {
        let load = load_statements(session.lsid(), &unknown);
        let records = interruptible(ctx, load).await??;
        records.into_iter().for_each(|record| history.add(record));
    }
    Ok(Box::new(RetryableWrite {
        by: By::Session {
            session,
            history: RefCell::new(history),
            txn_number,
        },
        ids,
        collections,
        retried: RefCell::default(),
    }))
}

impl RetryableWrite {
    /// That of the client.
    pub(crate) fn lsid(&self) -> &Lsid {
        match &self.by {
            By::Session { session, .. } => session.lsid(),
            By::Child(_, retries) => retries.parent(),
        }
    }

    pub(crate) fn txn_number(&self) -> i64 {
        match &self.by {
            By::Session { txn_number, .. } => *txn_number,
            By::Child(_, retries) => retries.number(),
        }
    }

    /// What the statement did, if it was executed before. Servers add statements to a client's that
    /// are none of it, and are executed each time.
    fn look_up(&self, stmt_id: i32) -> Result<Option<Executed>> {
        match &self.by {
            By::Session { history, .. } => {
                Ok(history.borrow().executed(self.lsid(), stmt_id)?.cloned())
            }
            By::Child(..) if stmt_id == NO_STATEMENT => Ok(None),
            By::Child(_, retries) => retries.executed(stmt_id),
        }
    }

    /// What the statement at this place did, if it was executed before. The reply reports it then.
    ///
    /// # Errors
    /// `IncompleteTransactionHistory`; 5875600 if the transaction that it is of has executed it.
    pub(crate) fn executed(&self, place: usize) -> Result<Option<Executed>> {
        let stmt_id = self.ids.of(place);
        let executed = self.look_up(stmt_id)?;
        if executed.is_some() {
            self.retried.borrow_mut().push(stmt_id);
        } else if let By::Child(running, _) = &self.by
            && running.has_executed(stmt_id)
        {
            return Err(twice(stmt_id));
        }
        Ok(executed)
    }

    /// Whether the statement at this place is known not to have been executed before.
    pub(crate) fn is_new(&self, place: usize) -> bool {
        let stmt_id = self.ids.of(place);
        let by_this = match &self.by {
            By::Child(running, _) => running.has_executed(stmt_id),
            By::Session { .. } => false,
        };
        !by_this && matches!(self.look_up(stmt_id), Ok(None))
    }

    /// The numbers of the statements that were executed before.
    pub(crate) fn take_retried(&self) -> Vec<i32> {
        let retried = self.retried.take();
        if !retried.is_empty() {
            let metrics = metrics();
            let counters = &metrics.counters;
            counters.retried_commands.inc();
            counters.retried_statements.add(retried.len() as u64);
        }
        retried
    }

    /// What goes into the entry of a write of these statements; `None` where the namespace is
    /// local, as no other member has what is written there, and for what is no statement of the
    /// client's.
    pub(crate) fn stamp(
        &self,
        ns: &Namespace,
        places: impl IntoIterator<Item = usize>,
        image: Option<RetryImage>,
    ) -> Option<Stamp> {
        if !is_replicated(ns) {
            return None;
        }
        let mut stmt_ids: Vec<i32> = places.into_iter().map(|place| self.ids.of(place)).collect();
        let (previous, child) = match &self.by {
            By::Session { history, .. } => (history.borrow().last_write(), None),
            By::Child(_, retries) => {
                stmt_ids.retain(|stmt_id| *stmt_id != NO_STATEMENT);
                if stmt_ids.is_empty() {
                    return None;
                }
                (OpTime::NULL, Some(*retries.child()))
            }
        };
        Some(Stamp {
            session: SessionStamp {
                lsid: *self.lsid(),
                txn_number: self.txn_number(),
                child,
                stmt_ids,
                previous,
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
        let stmt_id = self.ids.of(place);
        let executed = Executed {
            ts,
            change,
            image,
            is_by_child: matches!(self.by, By::Child(..)),
        };
        match &self.by {
            By::Session { history, .. } => {
                let term = Term(storage().term());
                metrics().counters.session_records.inc();
                history.borrow_mut().wrote(stmt_id, executed, term);
            }
            By::Child(..) if stmt_id == NO_STATEMENT => {}
            By::Child(running, _) => running.executed(stmt_id, executed),
        }
    }

    /// Gives the session back: everything that was written is known.
    pub(crate) fn end(self) {
        if let By::Session {
            mut session,
            history,
            ..
        } = self.by
        {
            let mut history = history.take();
            history.shrink();
            session.put_back(history);
        }
    }
}
