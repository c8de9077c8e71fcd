//! The transactions that clients run through this router, each at the core that its session has
//! its home on.
//!
//! A statement takes its transaction along, so two statements of one never run beside each other.
//!
//! Source: sharding document, "Transactions"; "The logical session catalog".

use std::cell::RefCell;
use std::rc::Rc;

use pinion_bson::{DocBuilder, RawBsonRef, RawDocument, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, Instant, Queue, spawn, submit_to};
use pinion_service::command_checks::{check_end_fields, check_has_transaction};
use pinion_service::interrupt::interruptible;
use pinion_service::session_ids::{at_home, home_of};
use pinion_sharding_protocol::ShardId;
use pinion_sharding_protocol::txn::{CommitPlan, CommitType, Refusal, Tracking, TransactionRouter};
use pinion_wire::idl::{Lsid, Namespace, ReadPreference};
use pinion_wire::{Category, Error, ErrorCode, Handler, Invocation, Reply, Result};
use rustc_hash::FxHashMap;

use crate::clock::bson_time;
use crate::cluster::Cluster;
use crate::concerns::with_default_level;
use crate::dispatch::{Answer, Route, named_collection, send_to, writes};
use crate::hosts::Retry;
use crate::limits::{ABORT_TIME, MAX_TRANSACTIONS};
use crate::placement::{flush_collection, forget_database};
use crate::reply::{passed_on, refused};
use crate::request::Request;
use crate::transaction_counts::TransactionCounts;
use crate::writes::first_error_of;

/// What `serverStatus` names as the cause where a client has aborted its transaction.
const CAUSE_OF_CLIENT: &str = "abort";

/// What a core knows of the sessions that have their home on it, and of the statements that it
/// runs.
#[derive(Default)]
pub(crate) struct RouterTransactions {
    sessions: RefCell<FxHashMap<Lsid, Session>>,
    /// By the number of the operation.
    running: RefCell<FxHashMap<i32, Rc<RefCell<Lease>>>>,
    counts: RefCell<TransactionCounts>,
}

struct Session {
    number: i64,
    /// `None` while a statement has it.
    transaction: Option<TransactionRouter>,
    returned: Rc<Notify>,
    last_used: Instant,
    counted_as: CountedAs,
    /// Its client is done with it while a statement runs.
    is_ended: bool,
}

/// What the transaction of a session counts as now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CountedAs {
    Over,
    Active,
    Inactive,
}

/// This core's.
pub(crate) fn transactions() -> Rc<RouterTransactions> {
    pinion_runtime::core_local()
}

/// What a statement, or the end of a transaction, comes with.
#[derive(Clone)]
struct Wanted {
    number: i64,
    starts: bool,
    read_concern: Option<RawDocumentBuf>,
    snapshot_at: Option<Timestamp>,
}

fn no_such(number: i64) -> Error {
    Error::new(
        ErrorCode::NO_SUCH_TRANSACTION,
        format!(
            "cannot continue txnId {number}: no known command has been sent by this router for this transaction"
        ),
    )
}

impl RouterTransactions {
    /// Takes a transaction out for a statement; `Ok(None)` while another one has it.
    fn take(&self, lsid: &Lsid, wanted: &Wanted) -> Result<Option<TransactionRouter>> {
        let number = wanted.number;
        let mut sessions = self.sessions.borrow_mut();
        let known = sessions.get_mut(lsid);
        if let Some(session) = &known
            && session.number > number
        {
            return Err(Error::new(
                ErrorCode::TRANSACTION_TOO_OLD,
                format!(
                    "txnNumber {number} is less than last txnNumber {} seen in session",
                    session.number
                ),
            ));
        }
        if let Some(session) = known {
            let Some(transaction) = session.transaction.take() else {
                return Ok(None);
            };
            session.last_used = pinion_runtime::now();
            let is_same = session.number == number;
            if is_same && wanted.starts {
                session.transaction = Some(transaction);
                return Err(Error::new(
                    ErrorCode::CONFLICTING_OPERATION_IN_PROGRESS,
                    format!("txnNumber {number} for session is already in progress"),
                ));
            }
            if is_same {
                if !transaction.tracking.is_over() {
                    self.count_as(session, CountedAs::Active);
                }
                return Ok(Some(transaction));
            }
            session.transaction = Some(transaction);
        }
        if !wanted.starts {
            return Err(no_such(number));
        }
        if sessions.len() >= MAX_TRANSACTIONS {
            return Err(Error::new(
                ErrorCode::TOO_MANY_LOGICAL_SESSIONS,
                "too many transactions are known to this router",
            ));
        }
        let mut session = Session {
            number,
            transaction: None,
            returned: Rc::default(),
            last_used: pinion_runtime::now(),
            counted_as: CountedAs::Over,
            is_ended: false,
        };
        self.count_as(&mut session, CountedAs::Active);
        self.counts.borrow_mut().started += 1;
        if let Some(mut before) = sessions.insert(*lsid, session) {
            // What becomes of one that was left open is not known.
            self.count_as(&mut before, CountedAs::Over);
        }
        let (concern, at) = (wanted.read_concern.clone(), wanted.snapshot_at);
        Ok(Some(TransactionRouter::new(number, concern, at)))
    }

    fn put_back(&self, lsid: &Lsid, mut transaction: TransactionRouter) {
        if let Some(session) = self.sessions.borrow_mut().get_mut(lsid)
            && session.number == transaction.number()
        {
            if session.is_ended {
                transaction.tracking.abandoned();
            }
            let counted_as = match transaction.tracking.is_over() {
                true => CountedAs::Over,
                false => CountedAs::Inactive,
            };
            self.count_as(session, counted_as);
            session.transaction = Some(transaction);
            session.returned.notify_all();
        }
    }

    fn count_as(&self, session: &mut Session, next: CountedAs) {
        let mut counts = self.counts.borrow_mut();
        let before = std::mem::replace(&mut session.counted_as, next);
        for (counted_as, step) in [(before, -1), (next, 1)] {
            let gauge = match counted_as {
                CountedAs::Over => continue,
                CountedAs::Active => &mut counts.active,
                CountedAs::Inactive => &mut counts.inactive,
            };
            *gauge = gauge.checked_add_signed(step).expect("it was counted");
        }
    }

    /// What this core has counted.
    pub(crate) fn counts(&self) -> TransactionCounts {
        self.counts.borrow().clone()
    }

    /// The client of a session is done with it: its transaction is no longer one that is open.
    pub(crate) fn session_ended(&self, lsid: &Lsid) {
        let mut sessions = self.sessions.borrow_mut();
        let Some(session) = sessions.get_mut(&at_home(lsid)) else {
            return;
        };
        match &mut session.transaction {
            Some(transaction) => {
                transaction.tracking.abandoned();
                self.count_as(session, CountedAs::Over);
            }
            None => session.is_ended = true,
        }
    }

    fn returned(&self, lsid: &Lsid) -> Option<Rc<Notify>> {
        let sessions = self.sessions.borrow();
        sessions.get(lsid).map(|session| session.returned.clone())
    }

    /// Forgets what no client has used since then.
    pub(crate) fn reap(&self, before: Instant) {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|_, session| {
            let is_kept = session.transaction.is_none() || session.last_used >= before;
            if !is_kept {
                self.count_as(session, CountedAs::Over);
            }
            is_kept
        });
    }
}

/// Counts something on this core.
fn count(act: impl FnOnce(&mut TransactionCounts)) {
    if let Some(here) = pinion_runtime::try_core_local::<RouterTransactions>() {
        act(&mut here.counts.borrow_mut());
    }
}

fn now_micros() -> u64 {
    pinion_runtime::now().as_nanos() / 1_000
}

/// Aborts a transaction one of whose statements has failed. Gives the shards that are to know.
fn fail_statement(transaction: &mut TransactionRouter, code: ErrorCode) -> Vec<ShardId> {
    if transaction.tracking.statement_failed() {
        count(|counts| counts.aborted(&code.name()));
    }
    transaction.abort()
}

/// A transaction that was taken from its home. It goes back there when this is dropped, wherever
/// that happens: also where an answer finds its asker gone.
struct Lease {
    home: CoreId,
    lsid: Lsid,
    transaction: Option<TransactionRouter>,
    /// A statement runs: if it is dropped now, how far it came is unknown.
    runs: bool,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (home, lsid) = (self.home, self.lsid);
        let Some(mut transaction) = self.transaction.take() else {
            return;
        };
        if self.runs {
            // Its shards abort it when the client says so, or when it has lived for too long.
            fail_statement(&mut transaction, ErrorCode::CLIENT_DISCONNECT);
        }
        if home == pinion_runtime::core_id() {
            if let Some(here) = pinion_runtime::try_core_local::<RouterTransactions>() {
                here.put_back(&lsid, transaction);
            }
            return;
        }
        spawn(Queue::Foreground, async move {
            submit_to(home, Queue::Foreground, move || async move {
                transactions().put_back(&lsid, transaction);
            })
            .await;
        });
    }
}

/// The transaction of a statement that runs.
struct Taken {
    op_id: i32,
    lease: Rc<RefCell<Lease>>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(here) = pinion_runtime::try_core_local::<RouterTransactions>() {
            here.running.borrow_mut().remove(&self.op_id);
        }
    }
}

/// Does something with a transaction that is taken.
fn with<R>(lease: &RefCell<Lease>, act: impl FnOnce(&mut TransactionRouter) -> R) -> R {
    let mut lease = lease.borrow_mut();
    act(lease
        .transaction
        .as_mut()
        .expect("it goes back when the lease ends"))
}

/// Takes the transaction of a statement, waiting for the one before it.
async fn take(cmd: &Invocation) -> Result<Taken> {
    let args = &cmd.ctx.args;
    let (Some(lsid), Some(number)) = (&args.lsid, args.txn_number) else {
        return Err(Error::internal("a statement without its transaction"));
    };
    let concern = concern_of_transaction(cmd);
    let wanted = Wanted {
        number,
        starts: args.start_transaction,
        snapshot_at: snapshot_time(concern.as_deref()),
        read_concern: concern,
    };
    let (home, lsid) = (home_of(lsid), at_home(lsid));
    let taking = submit_to(home, Queue::Foreground, move || async move {
        loop {
            match transactions().take(&lsid, &wanted) {
                Ok(Some(transaction)) => {
                    return Ok(Lease {
                        home,
                        lsid,
                        transaction: Some(transaction),
                        runs: false,
                    });
                }
                Err(error) => return Err(error),
                Ok(None) => {
                    if let Some(returned) = transactions().returned(&lsid) {
                        returned.notified().await;
                    }
                }
            }
        }
    });
    let lease = Rc::new(RefCell::new(interruptible(&cmd.ctx, taking).await??));
    let op_id = cmd.ctx.op_id;
    let here = transactions();
    here.running.borrow_mut().insert(op_id, lease.clone());
    Ok(Taken { op_id, lease })
}

/// The read concern that a transaction starts with: the client's, or the cluster's default.
fn concern_of_transaction(cmd: &Invocation) -> Option<RawDocumentBuf> {
    let named = pinion_bson::get(cmd.body(), "readConcern").and_then(|named| named.as_document());
    match cmd.ctx.args.start_transaction {
        true => with_default_level(named),
        false => named.map(RawDocument::to_owned),
    }
}

/// What all shards read of a transaction of level `snapshot`: the time that the client names, or
/// what this router knows of, which is not before what the client has seen.
fn snapshot_time(concern: Option<&RawDocument>) -> Option<Timestamp> {
    let concern = concern?;
    if pinion_bson::get(concern, "level").and_then(|level| level.as_str()) != Some("snapshot") {
        return None;
    }
    let time = |name| match pinion_bson::get(concern, name) {
        Some(RawBsonRef::Timestamp(time)) => Some(Timestamp::new(time.time, time.increment)),
        _ => None,
    };
    let known = Cluster::here().clock.time().cluster();
    let after = time("afterClusterTime");
    let at = time("atClusterTime").unwrap_or_else(|| known.max(after.unwrap_or(known)));
    (!at.is_null()).then_some(at)
}

fn running(cmd: &Invocation) -> Result<Rc<RefCell<Lease>>> {
    let here = transactions();
    let running = here.running.borrow().get(&cmd.ctx.op_id).cloned();
    running.ok_or_else(|| Error::internal("a statement without its transaction"))
}

/// Runs a statement of a transaction. If it fails, the transaction ends, as it does at the shard.
pub(crate) async fn run(cmd: Invocation, handler: Handler) -> Result<Reply> {
    if cmd.command.spec.in_transaction.ends() {
        return handler(cmd).await;
    }
    let taken = take(&cmd).await?;
    with(&taken.lease, TransactionRouter::next_statement);
    taken.lease.borrow_mut().runs = true;
    let mut outcome = handler(cmd.clone()).await;
    if outcome.is_err() && with(&taken.lease, TransactionRouter::may_be_routed_again) {
        forget_places(&cmd).await;
        outcome = handler(cmd.clone()).await;
    }
    taken.lease.borrow_mut().runs = false;
    match outcome {
        Ok(mut reply) => {
            with(&taken.lease, |transaction| {
                append_token(&mut reply, transaction)
            });
            Ok(reply)
        }
        Err(error) => {
            let shards = with(&taken.lease, |transaction| {
                fail_statement(transaction, error.code)
            });
            abort_in_background(&cmd, shards);
            Err(error)
        }
    }
}

/// Has this process ask again where the collections of a command are.
async fn forget_places(cmd: &Invocation) {
    let named = named_collection(cmd, cmd.db());
    let of_bulk = cmd.documents("nsInfo").ok();
    let of_bulk = of_bulk.iter().flat_map(|entries| entries.iter());
    let of_bulk = of_bulk.filter_map(|entry| {
        let name = pinion_bson::get(entry, "ns")?.as_str()?;
        Namespace::parse(name).ok()
    });
    for ns in named.into_iter().chain(of_bulk) {
        flush_collection(&ns).await;
        forget_database(ns.db()).await;
    }
}

/// Appends `recoveryToken`: by it another router finds the outcome.
fn append_token(reply: &mut DocBuilder, transaction: &TransactionRouter) {
    reply.start_document("recoveryToken");
    if let Some(shard) = transaction.recovery_shard() {
        reply.append("recoveryShardId", shard.as_str());
    }
    reply.end();
}

/// What all shards read of the transaction of a statement, where its level is `snapshot`.
pub(crate) fn snapshot_of(cmd: &Invocation) -> Option<Timestamp> {
    let lease = running(cmd).ok()?;
    with(&lease, |transaction| transaction.snapshot_time())
}

/// Sends a statement to a shard, with what the shard has to know of its transaction.
pub(crate) async fn send(cmd: &Invocation, route: &Route, request: Request) -> Result<Answer> {
    send_as(cmd, &route.shard, request, writes(cmd)).await
}

/// Sends a read of a statement, which may itself write elsewhere.
pub(crate) async fn send_read(
    cmd: &Invocation,
    shard: &ShardId,
    request: Request,
) -> Result<Answer> {
    send_as(cmd, shard, request, false).await
}

async fn send_as(
    cmd: &Invocation,
    shard: &ShardId,
    request: Request,
    writes: bool,
) -> Result<Answer> {
    let lease = running(cmd)?;
    let sent = with(&lease, |transaction| {
        let sent = transaction.send_to(shard, writes);
        sent.map_err(|refusal| refusal_error(&refusal, transaction.number()))
    });
    let fields = sent?;
    count(|counts| counts.contacted_participants += u64::from(fields.joins));
    let mut body = DocBuilder::new();
    for elem in pinion_bson::raw_elements(request.body()) {
        if !matches!(elem.name, b"startTransaction" | b"readConcern") {
            body.append_elem(&elem);
        }
    }
    if fields.starts {
        body.append("startTransaction", true);
    }
    if fields.is_coordinator {
        body.append("coordinator", true);
    }
    if let Some(concern) = read_concern(fields.read_concern, fields.at_cluster_time) {
        body.append("readConcern", &*concern);
    }
    let request = Request {
        body: body.finish(),
        sections: request.sections,
    };
    let outcome = send_request(cmd, shard, &request, Retry::Never).await;
    if let Ok(answer) = &outcome {
        with(&lease, |transaction| transaction.answered(shard));
        if let Some(code) = first_error_of(answer.body()) {
            // The shard has aborted its part.
            let shards = with(&lease, |transaction| fail_statement(transaction, code));
            abort_in_background(cmd, shards);
        }
    }
    outcome
}

/// Sends a request of a transaction to a shard.
async fn send_request(
    cmd: &Invocation,
    shard: &ShardId,
    request: &Request,
    retry: Retry,
) -> Result<Answer> {
    count(|counts| counts.requests += 1);
    send_to(cmd, shard, &ReadPreference::default(), request, retry).await
}

/// The read concern with which a shard starts its part.
fn read_concern(concern: Option<RawDocumentBuf>, at: Option<Timestamp>) -> Option<RawDocumentBuf> {
    let Some(at) = at else { return concern };
    let mut out = DocBuilder::new();
    for elem in concern
        .iter()
        .flat_map(|concern| pinion_bson::raw_elements(concern))
    {
        if !matches!(elem.name, b"afterClusterTime" | b"atClusterTime") {
            out.append_elem(&elem);
        }
    }
    out.append("atClusterTime", bson_time(at));
    Some(out.finish())
}

fn refusal_error(refusal: &Refusal, number: i64) -> Error {
    match refusal {
        Refusal::SecondWriter { first, second } => Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED,
            format!(
                "a transaction that writes on several shards is not supported: {first} was written, and the statement writes on {second}"
            ),
        ),
        Refusal::Ended => Error::new(
            ErrorCode::NO_SUCH_TRANSACTION,
            format!("Transaction {number} has been aborted or is being committed"),
        ),
    }
}

/// Whether a command that a shard refused as stale may be sent again. A transaction's part at that
/// shard is aborted before: it may have been started.
///
/// # Errors
/// The operation is interrupted.
pub(crate) async fn may_send_again(cmd: &Invocation, route: &Route) -> Result<bool> {
    if !pinion_service::session_ids::is_in(&cmd.ctx) {
        return Ok(true);
    }
    let lease = running(cmd)?;
    let may = with(&lease, |transaction| {
        transaction.refused_as_stale(&route.shard)
    });
    if may {
        abort_at(cmd, &route.shard).await;
    }
    Ok(may)
}

/// Appends the names of a transaction: those of the session, and its number.
fn append_names(out: &mut DocBuilder, cmd: &Invocation) {
    for name in ["lsid", "txnNumber", "autocommit"] {
        if let Some(value) = pinion_bson::get(cmd.body(), name) {
            out.append_raw(name, value);
        }
    }
}

/// Sends `abortTransaction` to a shard.
async fn abort_part(cmd: &Invocation, shard: &ShardId) -> Result<Answer> {
    let request = Request::own("admin", None, |out| {
        out.append("abortTransaction", 1i32);
        append_names(out, cmd);
    });
    send_request(cmd, shard, &request, Retry::Idempotent).await
}

/// Has a shard abort its part. Whether it has one does not count.
async fn abort_at(cmd: &Invocation, shard: &ShardId) {
    if let Err(error) = abort_part(cmd, shard).await {
        tracing::debug!(target: "TXN", id = 7_300_030u64, shard = %shard, error = error.message, "A shard did not abort its part of a transaction");
    }
}

/// Has shards abort their parts, while the client has its answer already. A shard that does not
/// hear of it aborts when the transaction has lived for too long.
fn abort_in_background(cmd: &Invocation, shards: Vec<ShardId>) {
    let mut cmd = cmd.clone();
    // What interrupted the statement does not interrupt this.
    let now = pinion_runtime::now();
    cmd.ctx.renew(cmd.ctx.op_id, now.as_nanos());
    let until = now + ABORT_TIME;
    cmd.ctx = cmd.ctx.with_deadline(Some(until.as_nanos()));
    spawn(Queue::Background, async move {
        for shard in shards {
            abort_at(&cmd, &shard).await;
        }
    });
}

/// `commitTransaction`.
pub(crate) async fn commit_transaction(cmd: Invocation) -> Result<Reply> {
    check_end_fields(&cmd)?;
    check_has_transaction(&cmd)?;
    let taken = match take(&cmd).await {
        Ok(taken) => taken,
        Err(error) if error.code == ErrorCode::NO_SUCH_TRANSACTION => {
            return commit_of_another_router(&cmd).await;
        }
        Err(error) => return Err(error),
    };
    let plan = with(&taken.lease, |transaction| match transaction.is_aborted() {
        true => Err(refusal_error(&Refusal::Ended, transaction.number())),
        false => {
            let participants = transaction.participants().count();
            let commit_type = transaction.commit_type();
            start_commit(&mut transaction.tracking, commit_type, participants);
            Ok(transaction.commit())
        }
    });
    let outcome = match plan? {
        CommitPlan::Nothing => Ok((Reply::new(), true)),
        CommitPlan::InTurn { first, last } => commit_in_turn(&cmd, &taken, &first, &last).await,
    };
    with(&taken.lease, |transaction| {
        end_commit(&mut transaction.tracking, &outcome);
    });
    outcome.map(|(reply, _)| reply)
}

/// What a commit has come to: the reply, and whether its write concern was fulfilled.
type Committed = (Reply, bool);

fn start_commit(tracking: &mut Tracking, commit_type: CommitType, participants: usize) {
    if tracking.start_commit(commit_type, now_micros()) {
        count(|counts| counts.commit_started(commit_type, participants as u64));
    }
}

/// Counts how a commit has ended, where that is known: its client sends it again otherwise.
fn end_commit(tracking: &mut Tracking, outcome: &Result<Committed>) {
    match outcome {
        Ok((_, true)) => {
            if let Some((commit_type, micros)) = tracking.committed(now_micros()) {
                count(|counts| counts.commit_succeeded(commit_type, micros));
            }
        }
        Ok((_, false)) => {}
        Err(error) if is_outcome_unknown(error) => {}
        Err(error) => {
            if tracking.aborted() {
                count(|counts| counts.aborted(&error.code.name()));
            }
        }
    }
}

/// Whether a commit that has failed so may have been done, or be done yet.
fn is_outcome_unknown(error: &Error) -> bool {
    let unknown = [
        Category::RETRIABLE,
        Category::NETWORK,
        Category::NOT_PRIMARY,
        Category::SHUTDOWN,
        Category::INTERRUPTION,
        Category::CANCELLATION,
        Category::EXCEEDED_TIME_LIMIT,
    ];
    unknown.into_iter().any(|category| error.is(category))
}

async fn commit_in_turn(
    cmd: &Invocation,
    taken: &Taken,
    first: &[ShardId],
    last: &ShardId,
) -> Result<Committed> {
    for shard in first {
        end_at(cmd, shard).await?;
    }
    with(&taken.lease, TransactionRouter::readers_committed);
    let (mut reply, is_fulfilled) = committed(&end_at(cmd, last).await?);
    with(&taken.lease, |transaction| {
        append_token(&mut reply, transaction)
    });
    Ok((reply, is_fulfilled))
}

/// What a shard has answered to a commit.
fn committed(answer: &Answer) -> Committed {
    let failed = pinion_bson::get(answer.body(), "writeConcernError");
    (passed_on(answer.body()), failed.is_none())
}

/// `commitTransaction` of a transaction that another router ran: the shard that was written first
/// knows what has become of it. One that is still open there is aborted, since what the other
/// router would have sent behind it is not known.
async fn commit_of_another_router(cmd: &Invocation) -> Result<Reply> {
    let Some(RawBsonRef::Document(token)) = pinion_bson::get(cmd.body(), "recoveryToken") else {
        return Err(Error::new(
            ErrorCode(50_940),
            "cannot commit with no participants",
        ));
    };
    let Some(RawBsonRef::String(shard)) = pinion_bson::get(token, "recoveryShardId") else {
        return Err(Error::new(
            ErrorCode::NO_SUCH_TRANSACTION,
            "Recovery token is empty, meaning the transaction only performed reads and can be safely retried",
        ));
    };
    let shard = ShardId::new(shard);
    let mut tracking = Tracking::default();
    count(|counts| counts.started += 1);
    // Which shards take part is not known here.
    start_commit(&mut tracking, CommitType::RecoverWithToken, 0);
    let outcome = recover_commit(cmd, &shard).await;
    end_commit(&mut tracking, &outcome);
    outcome.map(|(reply, _)| reply)
}

async fn recover_commit(cmd: &Invocation, shard: &ShardId) -> Result<Committed> {
    match abort_part(cmd, shard).await {
        Err(error) if error.is(Category::RETRIABLE) => return Err(refused(error)),
        // The shard says how it has ended.
        _ => {}
    }
    Ok(committed(&end_at(cmd, shard).await?))
}

/// Sends the end of a transaction to a shard.
async fn end_at(cmd: &Invocation, shard: &ShardId) -> Result<Answer> {
    let request = Request::with(cmd, "admin", None, |_| {});
    let mut body = DocBuilder::new();
    for elem in pinion_bson::raw_elements(request.body()) {
        if elem.name != b"recoveryToken" {
            body.append_elem(&elem);
        }
    }
    let request = Request {
        body: body.finish(),
        sections: Vec::new(),
    };
    send_request(cmd, shard, &request, Retry::Idempotent)
        .await
        .map_err(refused)
}

/// `abortTransaction`.
pub(crate) async fn abort_transaction(cmd: Invocation) -> Result<Reply> {
    check_end_fields(&cmd)?;
    check_has_transaction(&cmd)?;
    let taken = take(&cmd).await?;
    let (was_aborted, number, shards) = with(&taken.lease, |transaction| {
        let was_aborted = transaction.is_aborted();
        transaction.abort();
        let shards: Vec<ShardId> = transaction.participants().cloned().collect();
        if transaction.tracking.aborted() {
            let cause = match shards.is_empty() {
                true => ErrorCode::NO_SUCH_TRANSACTION.name(),
                false => CAUSE_OF_CLIENT.into(),
            };
            count(|counts| counts.aborted(&cause));
        }
        (was_aborted, transaction.number(), shards)
    });
    if was_aborted {
        // They may not know yet.
        abort_in_background(&cmd, shards);
        return Err(no_such(number));
    }
    if shards.is_empty() {
        return Err(no_such(number));
    }
    let mut outcome = Ok(Reply::new());
    for shard in &shards {
        match end_at(&cmd, shard).await {
            Ok(answer) if outcome.is_ok() => outcome = Ok(passed_on(answer.body())),
            Ok(_) => {}
            Err(error) if error.is(Category::RETRIABLE) || outcome.is_ok() => {
                outcome = Err(error);
            }
            Err(_) => {}
        }
    }
    outcome
}
