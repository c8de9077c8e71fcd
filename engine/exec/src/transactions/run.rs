//! A statement of a transaction from its session's home and back.

use std::rc::Rc;

use pinion_catalog::from_fatal;
use pinion_clock::{OpTime, Timestamp};
use pinion_runtime::{Duration, Queue, spawn};
use pinion_service::interrupt::interruptible;
use pinion_service::metrics::metrics;
use pinion_service::node_info::is_behind_v44;
use pinion_service::session_ids::at_home;
use pinion_storage::storage;
use pinion_wire::idl::ReadConcern;
use pinion_wire::{Error, ErrorCode, Handler, Invocation, OpContext, Reply, Result};

use super::refusals::action_of;
use crate::concern::{acknowledge, complete_outcome, prepare_transaction};
use crate::limits::MAX_SNAPSHOT_RETRIES;
use crate::open_transactions::{OpenTransaction, Running};
use crate::parameters::parameters;
use crate::sessions::{CheckedOut, check_out_transaction};
use crate::statements::RecordCollections;
use crate::topology::{check_runs_here, not_primary, replica_set, set_view};
use crate::transaction_state::{Admitted, TxnAction, TxnState, aborted};

/// Why a command of a transaction failed.
struct Failed {
    error: Error,
    /// The transaction was aborted before anything of it was logged. No other member has had it, so
    /// it is nowhere.
    is_final: bool,
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed {
            error,
            is_final: false,
        }
    }
}

/// Runs a command of a transaction. One that fails aborts it.
///
/// A command that ends a transaction waits for its write concern after the session is back at home:
/// one that sends it again need not wait for that.
///
/// # Errors
/// Those of the command, and as of [`super::admit`]. `NoSuchTransaction` to a command that ends a
/// transaction says that it neither has been nor will be committed or prepared, unless a
/// `writeConcernError` comes with it.
pub(crate) async fn run(cmd: Invocation, handler: Handler) -> Result<Reply> {
    let (ctx, action) = (cmd.ctx.clone(), action_of(&cmd)?);
    if !action.ends() {
        let ran = run_statement(cmd, handler, action).await;
        return ran.map(|(reply, _)| reply).map_err(|failed| failed.error);
    }
    let term = term_of_writes();
    // What is decided of a transaction is noted at its session's home, though the client be gone.
    let running = spawn(Queue::Foreground, run_statement(cmd, handler, action));
    match running.await.expect("it runs to its end") {
        Ok((mut reply, written)) => {
            acknowledge(&ctx, written, &mut reply).await?;
            Ok(reply)
        }
        Err(Failed { error, is_final })
            if error.code != ErrorCode::NO_SUCH_TRANSACTION || is_final =>
        {
            Err(error)
        }
        Err(Failed { error, .. }) => Err(certain(&ctx, error, term).await),
    }
}

/// The term in which this node takes writes now, if it does.
fn term_of_writes() -> Option<i64> {
    let view = set_view()?;
    view.writable.then_some(view.term)
}

/// The answer that a transaction is not known here, once that is certain. Something is logged
/// first: a majority may have all that this node has already while another member, of a later term,
/// has the commit.
///
/// `term` is that in which its session was examined. A node that has led again since has applied
/// what others logged.
async fn certain(ctx: &OpContext, error: Error, term: Option<i64>) -> Error {
    let Some(set) = replica_set() else {
        return error;
    };
    match interruptible(ctx, set.write_noop("NoSuchTransaction error")).await {
        Ok(Ok(_)) if term.is_none() || term_of_writes() != term => not_primary(),
        Ok(Ok(ts)) => complete_outcome(ctx, error, ts).await,
        Ok(Err(refused)) | Err(refused) => refused,
    }
}

/// Runs a command with its session. Gives its reply, and what a commit has written.
async fn run_statement(
    mut cmd: Invocation,
    handler: Handler,
    action: TxnAction,
) -> Result<(Reply, Option<Timestamp>), Failed> {
    let ctx = cmd.ctx.clone();
    let (Some(lsid), Some(number)) = (&ctx.args.lsid, ctx.args.txn_number) else {
        unreachable!("autocommit comes with both, or is refused");
    };
    let lsid = at_home(lsid);
    let limit_secs = parameters().borrow().transaction_lifetime_secs;
    let lifetime = Duration::from_secs(limit_secs.max(1) as u64);
    let (mut session, admitted) =
        check_out_transaction(&ctx, lsid, number, action, lifetime).await?;
    if admitted == Admitted::IsAborted {
        return Err(Failed {
            error: aborted(number),
            is_final: session.last_write().is_null(),
        });
    }
    let began = pinion_runtime::now();
    let open = match open_of(&cmd, &mut session, admitted, number).await {
        Ok(open) => open,
        Err(error) => {
            if matches!(admitted, Admitted::Begins | Admitted::Continues) {
                session.abort_open().await;
            }
            return Err(error.into());
        }
    };
    let running = match (open, session.take_prepared()) {
        (Some(open), _) => Running::begin(open),
        (None, Some(prepared)) if admitted == Admitted::IsPrepared => Running::prepared(prepared),
        (None, _) => Running::committed(lsid, session.last_write()),
    };
    running.set_retries(session.take_retries());
    let mut statement = Statement {
        session,
        running: running.clone(),
        begins: admitted == Admitted::Begins,
        is_complete: false,
    };
    cmd.ctx.read_concern = ReadConcern::default();
    let mut result = handler(cmd).await;
    statement.is_complete = true;
    if let Ok(reply) = &mut result
        && !action.ends()
        && is_behind_v44()
    {
        // By this a router of MongoDB 4.4 chooses how the transaction is committed.
        reply.append("readOnly", running.is_read_only());
    }
    let reply = statement.finish(began.elapsed(), result).await?;
    let written = running.written().filter(|written| !written.is_null());
    Ok((reply, written.map(|written| written.ts)))
}

/// The open transaction that a command continues or begins, if it does.
async fn open_of(
    cmd: &Invocation,
    session: &mut CheckedOut,
    admitted: Admitted,
    number: i64,
) -> Result<Option<Box<OpenTransaction>>> {
    // The node may have stepped down before its sessions were asked for their transactions.
    check_runs_here(cmd)?;
    if admitted == Admitted::Begins {
        return begin(cmd, session, number).await.map(Some);
    }
    match (admitted, session.take_open()) {
        // A command before this one was given up when it was about to abort it.
        (Admitted::Continues, None) => Err(aborted(number)),
        (_, open) => Ok(open),
    }
}

/// Begins a transaction with the read concern of its first statement.
async fn begin(
    cmd: &Invocation,
    session: &CheckedOut,
    number: i64,
) -> Result<Box<OpenTransaction>> {
    let concern = prepare_transaction(cmd).await?;
    let ctx = &cmd.ctx;
    // What records the commit is there before anything is held that a change of the catalog would
    // wait for.
    RecordCollections::ensure(ctx).await?;
    let mut attempts = 0;
    loop {
        let at = snapshot(ctx, &concern).await?;
        let opened = OpenTransaction::begin(*session.lsid(), number, concern, at).await;
        match opened {
            Err(error)
                if error.code == ErrorCode::SNAPSHOT_TOO_OLD
                    && concern.at_cluster_time.is_none()
                    && attempts < MAX_SNAPSHOT_RETRIES =>
            {
                attempts += 1;
            }
            Ok(open) => {
                metrics().counters.transactions_started.inc();
                return Ok(open);
            }
            error => return error,
        }
    }
}

/// The time of the state that a transaction reads: the one that it names, or that of everything
/// acknowledged so far. What is not committed by then is by the time its own commit is.
async fn snapshot(ctx: &OpContext, concern: &ReadConcern) -> Result<Timestamp> {
    match concern.at_cluster_time {
        Some(at) => Ok(at),
        None => interruptible(ctx, storage().read_timestamp())
            .await?
            .map_err(from_fatal),
    }
}

/// A command and what it has taken along. It is given back whatever becomes of the command.
struct Statement {
    session: CheckedOut,
    running: Rc<Running>,
    /// Its transaction started with it.
    begins: bool,
    is_complete: bool,
}

impl Statement {
    async fn finish(mut self, took: Duration, result: Result<Reply>) -> Result<Reply> {
        let conflicts = |error: &Error| error.code == ErrorCode::WRITE_CONFLICT;
        if result.as_ref().is_err_and(conflicts) {
            metrics().counters.write_conflicts.inc();
        }
        let running = self.running.clone();
        let retries = running.retries();
        self.session
            .put_retries(retries.and_then(|retries| retries.take()));
        if let Some(ended) = running.ended() {
            self.session.end_transaction(ended.state, ended.written);
        } else if let Some(mut open) = running.take_open() {
            open.active += took;
            self.session.put_open(open);
            // Nothing of such a statement was done: its router sends it in another form, and knows
            // of what the transaction has done here before.
            let is_view = |error: &Error| {
                error.code == ErrorCode::COMMAND_ON_SHARDED_VIEW_NOT_SUPPORTED_ON_MONGOD
            };
            let fails = match &result {
                Ok(_) => false,
                Err(error) => self.begins || !is_view(error),
            };
            if fails || running.has_failed() {
                self.session.abort_open().await;
            }
        }
        result
    }
}

impl Drop for Statement {
    fn drop(&mut self) {
        self.running.leave();
        if self.is_complete {
            return;
        }
        // The command was given up: what it has done of its statement is not known.
        match self.running.ended() {
            Some(ended) => self.session.end_transaction(ended.state, ended.written),
            None => {
                match self.running.take_open() {
                    Some(open) => self.session.put_open(open),
                    // It was about to be ended, and how that went out is in its record.
                    None => self.session.forget(),
                }
                self.session.doom();
            }
        }
    }
}

impl CheckedOut {
    /// Aborts the transaction, if it is open.
    async fn abort_open(&mut self) {
        if let Some(open) = self.take_open() {
            open.abort().await;
        }
        self.end_transaction(TxnState::Aborted, OpTime::NULL);
    }
}
