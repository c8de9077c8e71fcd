//! The sessions with retryable writes and transactions whose home is this core, and which command
//! has them now.
//!
//! A command that has the session of an internal transaction that executes a retryable write also
//! has that write's session, its parent (`family`); they have one home.
//!
//! Source: sharding document, "The logical session catalog".

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::rc::Rc;

use pinion_clock::OpTime;
use pinion_runtime::sync::Notify;
use pinion_runtime::{
    CoreId, Duration, Instant, LocalBoxFuture, Queue, call_on, core_id, on_all_cores, spawn,
    submit_to, try_core_local,
};
use pinion_service::interrupt::interruptible;
use pinion_service::node_info::{ClusterRole, node_info};
use pinion_service::session_ids::home_of;
use pinion_wire::idl::Lsid;
use pinion_wire::{Error, ErrorCode, InTransaction, OpContext, Result};

use super::family::{Conflict, conflict, latest_of_children};
use crate::limits::{EVICTED_SESSIONS_LOOK, MAX_CATALOG_SESSIONS};
use crate::open_transactions::{OpenTransaction, PreparedTransaction, lost, transactions};
use crate::statements::{History, Retries, load, session_text};
use crate::transaction_state::{Active, Admitted, TxnAction, TxnState, WriteState, admit};

/// One session at home.
pub(super) struct Session {
    /// A write has it.
    is_out: Cell<bool>,
    /// A write has brought it back.
    pub freed: Notify,
    /// `None` if it must be read from the records, and while a write has it.
    history: RefCell<Option<History>>,
    /// The transaction that is in progress, while no command has it.
    open: RefCell<Option<Box<OpenTransaction>>>,
    /// The command of a transaction that has the session.
    holder: RefCell<Option<OpContext>>,
    /// When the transaction in progress is too old.
    expires: Cell<Option<Instant>>,
    /// The transaction is to be aborted once its command brings it back.
    is_doomed: Cell<bool>,
    /// The number for which an internal transaction was aborted, as another came that executes the
    /// same write.
    pub gave_way: Cell<Option<i64>>,
    last_used: Cell<Instant>,
}

/// The sessions of one core. What is not here is read from the records.
#[derive(Default)]
pub struct SessionCatalog {
    sessions: RefCell<BTreeMap<Lsid, Rc<Session>>>,
    /// Those that have a transaction in progress.
    in_transactions: RefCell<BTreeSet<Lsid>>,
    /// Changes when what is known may be wrong, and what a write brings back with it.
    epoch: Cell<u64>,
    /// Where the look for a session that can go begins.
    hand: Cell<Option<Lsid>>,
}

/// Retryable writes of the sessions whose home this core is.
pub fn session_catalog() -> Rc<SessionCatalog> {
    pinion_runtime::core_local()
}

impl SessionCatalog {
    /// The session, new if it is not known. A task that holds the `Rc` waits for the session or has
    /// it.
    fn session(&self, lsid: &Lsid) -> Result<Rc<Session>> {
        if let Some(known) = self.sessions.borrow().get(lsid) {
            return Ok(known.clone());
        }
        if self.sessions.borrow().len() >= MAX_CATALOG_SESSIONS && !self.evict_one() {
            return Err(Error::new(
                ErrorCode::TOO_MANY_LOGICAL_SESSIONS,
                "cannot check out a session: too many have writes under way",
            ));
        }
        let session = Rc::new(Session {
            is_out: Cell::new(false),
            freed: Notify::new(),
            history: RefCell::default(),
            open: RefCell::default(),
            holder: RefCell::default(),
            expires: Cell::new(None),
            is_doomed: Cell::new(false),
            gave_way: Cell::new(None),
            last_used: Cell::new(pinion_runtime::now()),
        });
        self.sessions.borrow_mut().insert(*lsid, session.clone());
        Ok(session)
    }

    /// Forgets one that no command has or waits for, of a few.
    fn evict_one(&self) -> bool {
        let mut sessions = self.sessions.borrow_mut();
        let behind = self.hand.get().map_or(Bound::Unbounded, Bound::Excluded);
        let in_turn = sessions
            .range((behind, Bound::Unbounded))
            .chain(sessions.iter())
            .take(EVICTED_SESSIONS_LOOK);
        let mut last = None;
        let mut found = None;
        for (lsid, session) in in_turn {
            last = Some(*lsid);
            if is_idle(session) {
                found = Some(*lsid);
                break;
            }
        }
        self.hand.set(last);
        found.is_some_and(|lsid| sessions.remove(&lsid).is_some())
    }

    /// Forgets those that were not used since `before`.
    pub fn reap(&self, before: Instant) {
        let mut sessions = self.sessions.borrow_mut();
        sessions.retain(|_, session| !is_idle(session) || session.last_used.get() >= before);
    }

    fn check_in(&self, lsid: &Lsid, brought: Brought) {
        let session = self.sessions.borrow().get(lsid).cloned();
        let session = session.expect("one that is out is not forgotten");
        assert!(session.is_out.get(), "one that is in was brought back");
        session.holder.replace(None);
        let is_doomed = session.is_doomed.take() || brought.is_doomed;
        let is_known = brought.epoch == self.epoch.get();
        let history = brought.history.filter(|_| is_known);
        match brought.open {
            Some(open) if is_doomed || !is_known => {
                let (lsid, session) = (*lsid, session.clone());
                drop(spawn(Queue::Foreground, async move {
                    abort(&lsid, &session, open, history).await;
                }));
            }
            open => self.put_in(lsid, &session, open, history),
        }
    }

    /// The session is in again, with what is known of it.
    fn put_in(
        &self,
        lsid: &Lsid,
        session: &Session,
        open: Option<Box<OpenTransaction>>,
        history: Option<History>,
    ) {
        if open.is_none() {
            self.in_transactions.borrow_mut().remove(lsid);
            session.expires.set(None);
        }
        *session.open.borrow_mut() = open;
        *session.history.borrow_mut() = history;
        session.last_used.set(pinion_runtime::now());
        session.is_out.set(false);
        session.freed.notify_all();
    }

    /// The children of a session that have a transaction in progress which executes one of its
    /// retryable writes.
    pub(super) fn open_children(&self, parent: &Lsid) -> Vec<(i64, Lsid, Rc<Session>)> {
        let sessions = self.sessions.borrow();
        let open = self.in_transactions.borrow();
        let behind = (Bound::Excluded(*parent), Bound::Unbounded);
        let children = open
            .range(behind)
            .take_while(|lsid| lsid.parent() == *parent);
        let known = children.filter_map(|lsid| {
            let number = lsid.retryable_number()?;
            Some((number, *lsid, sessions.get(lsid)?.clone()))
        });
        known.collect()
    }

    /// Those that have a transaction in progress.
    pub(crate) fn with_transactions(&self) -> Vec<Lsid> {
        self.in_transactions.borrow().iter().copied().collect()
    }

    pub(crate) fn has_transaction(&self, lsid: &Lsid) -> bool {
        self.in_transactions.borrow().contains(lsid)
    }

    /// Those whose transaction has become too old by now.
    pub(crate) fn expired(&self, now: Instant) -> Vec<Lsid> {
        let sessions = self.sessions.borrow();
        let in_transactions = self.in_transactions.borrow();
        let is_over = |lsid: &&Lsid| {
            let expires = sessions.get(lsid).and_then(|session| session.expires.get());
            expires.is_some_and(|expires| expires <= now)
        };
        in_transactions.iter().filter(is_over).copied().collect()
    }

    /// Calls `f` with each transaction that no command has.
    pub(crate) fn for_each_idle(&self, mut f: impl FnMut(&OpenTransaction, Option<Instant>)) {
        let sessions = self.sessions.borrow();
        for lsid in self.in_transactions.borrow().iter() {
            if let Some(session) = sessions.get(lsid)
                && let Some(open) = &*session.open.borrow()
            {
                f(open, session.expires.get());
            }
        }
    }

    /// Aborts the transaction of a session. If a command has it, that is interrupted with this
    /// code, and it is aborted when it comes back.
    pub(crate) async fn abort(&self, lsid: &Lsid, code: ErrorCode) {
        let session = self.sessions.borrow().get(lsid).cloned();
        let Some(session) = session else { return };
        if session.is_out.get() {
            session.is_doomed.set(self.has_transaction(lsid));
            // One that ends it anyway may wait for its write concern for longer.
            if let Some(holder) = &*session.holder.borrow()
                && !matches!(
                    holder.command.in_transaction,
                    InTransaction::Commit | InTransaction::Abort
                )
            {
                holder.kill(code);
            }
            return;
        }
        let Some(open) = session.open.take() else {
            return;
        };
        session.is_out.set(true);
        let history = session.history.take();
        abort(lsid, &session, open, history).await;
    }

    fn forget(&self) {
        self.epoch.set(self.epoch.get() + 1);
        for session in self.sessions.borrow().values() {
            // That of a transaction in progress goes with it.
            if session.open.borrow().is_none() {
                *session.history.borrow_mut() = None;
            }
        }
    }
}

/// Aborts the transaction of a session that is out, and brings the session back.
async fn abort(
    lsid: &Lsid,
    session: &Session,
    open: Box<OpenTransaction>,
    history: Option<History>,
) {
    open.abort().await;
    let history = history.map(|mut history| {
        history.end_transaction(TxnState::Aborted);
        history
    });
    // What is left of a node that has ended needs nothing.
    if let Some(catalog) = try_core_local::<SessionCatalog>() {
        session.is_doomed.set(false);
        catalog.put_in(lsid, session, None, history);
    }
}

fn is_idle(session: &Rc<Session>) -> bool {
    !session.is_out.get() && session.open.borrow().is_none() && Rc::strong_count(session) == 1
}

/// What a command brings back with a session.
struct Brought {
    epoch: u64,
    history: Option<History>,
    open: Option<Box<OpenTransaction>>,
    /// Its transaction is to be aborted.
    is_doomed: bool,
}

/// A session that this command has alone. It is brought back when this is dropped, as it was unless
/// something may have been written.
pub struct CheckedOut {
    lsid: Lsid,
    home: CoreId,
    epoch: u64,
    /// `None` if what is known at home must be read again.
    history: Option<History>,
    open: Option<Box<OpenTransaction>>,
    /// Its transaction without an outcome, if it has one.
    prepared: Option<PreparedTransaction>,
    is_doomed: bool,
    /// The session whose retryable write is executed in this one. It is brought back behind it.
    parent: Option<Box<CheckedOut>>,
}

impl CheckedOut {
    pub(crate) fn lsid(&self) -> &Lsid {
        &self.lsid
    }

    /// Takes over what is known, to bring it back with what was written.
    pub(super) fn take_history(&mut self) -> History {
        self.history.take().expect("it is taken once")
    }

    pub(super) fn put_back(&mut self, history: History) {
        self.history = Some(history);
    }

    /// What is known of the write that is executed in this session for its parent: taken over as
    /// that of [`CheckedOut::take_history`].
    pub(crate) fn take_retries(&mut self) -> Option<Retries> {
        let number = self.lsid.retryable_number()?;
        let parent = self.parent.as_mut()?;
        let (lsid, history) = (parent.lsid, parent.take_history());
        Some(Retries::new((lsid, number), self.lsid, history))
    }

    /// Brings back what [`CheckedOut::take_retries`] gave.
    pub(crate) fn put_retries(&mut self, history: Option<History>) {
        if let (Some(parent), Some(mut history)) = (&mut self.parent, history) {
            history.shrink();
            parent.put_back(history);
        }
    }

    /// The last write of the latest number.
    pub(crate) fn last_write(&self) -> OpTime {
        self.history
            .as_ref()
            .map_or(OpTime::NULL, History::last_write)
    }

    pub(crate) fn take_open(&mut self) -> Option<Box<OpenTransaction>> {
        self.open.take()
    }

    pub(crate) fn take_prepared(&mut self) -> Option<PreparedTransaction> {
        self.prepared.take()
    }

    pub(crate) fn put_open(&mut self, open: Box<OpenTransaction>) {
        let before = self.open.replace(open);
        assert!(before.is_none(), "a session has one transaction");
    }

    /// The transaction without an outcome, if there is one, has come to its end or is prepared, by
    /// this write if there was one.
    pub(crate) fn end_transaction(&mut self, state: TxnState, written: OpTime) {
        let Some(history) = &mut self.history else {
            return;
        };
        match history.active().transaction {
            Some(TxnState::InProgress | TxnState::Prepared) if written.is_null() => {
                history.end_transaction(state);
            }
            Some(TxnState::InProgress | TxnState::Prepared) => history.ended_by(state, written),
            _ => {}
        }
    }

    /// What is known must be read again, of its parent too.
    pub(crate) fn forget(&mut self) {
        self.history = None;
        if let Some(parent) = &mut self.parent {
            parent.forget();
        }
    }

    /// Has its transaction aborted when it is brought back.
    pub(crate) fn doom(&mut self) {
        self.is_doomed = true;
    }
}

impl Drop for CheckedOut {
    fn drop(&mut self) {
        // What is left of a node that has ended needs nothing.
        if !pinion_runtime::is_core() {
            return;
        }
        let lsid = self.lsid;
        let brought = Brought {
            epoch: self.epoch,
            history: self.history.take(),
            open: self.open.take(),
            is_doomed: self.is_doomed,
        };
        let bring_back = move || {
            if let Some(catalog) = try_core_local::<SessionCatalog>() {
                catalog.check_in(&lsid, brought);
            }
        };
        match self.home == core_id() {
            true => bring_back(),
            false => drop(spawn(Queue::Foreground, call_on(self.home, bring_back))),
        }
    }
}

/// Waits until no other command has the session, and begins a retryable write with this number in
/// it. A transaction that is in progress with a lower one is aborted.
///
/// # Errors
/// `TransactionTooOld`, `IncompleteTransactionHistory`, `TooManyLogicalSessions`; the operation is
/// interrupted; a record cannot be read.
pub(super) async fn check_out(ctx: &OpContext, lsid: Lsid, txn_number: i64) -> Result<CheckedOut> {
    let (home, ctx) = (home_of(&lsid), ctx.clone());
    submit_to(home, Queue::Foreground, move || async move {
        begin_retryable(&ctx, lsid, txn_number, None, true).await
    })
    .await
}

/// The same, at home, where `by`, a child of the session, executes the write. If the child does not
/// begin (`begins`), but continues or ends what it has open, nothing is in its way: a command that
/// comes late must not harm the child that took its place.
async fn begin_retryable(
    ctx: &OpContext,
    lsid: Lsid,
    txn_number: i64,
    by: Option<Lsid>,
    begins: bool,
) -> Result<CheckedOut> {
    loop {
        let (session, mut out) = check_out_here(ctx, lsid).await?;
        let history = out.history.as_mut().expect("it was read");
        history.check_begin(&lsid, txn_number)?;
        let waits = match history.active().transaction {
            Some(TxnState::Prepared) => Some(outcome(&lsid, history.active().number)?),
            Some(_) if history.active().number == txn_number => return Err(converted()),
            _ if !begins => None,
            _ => make_way(&lsid, &session, txn_number, by).await,
        };
        if let Some(ended) = waits {
            let ended = ended.notified();
            drop((session, out));
            interruptible(ctx, ended).await?;
            continue;
        }
        history.begin(&lsid, txn_number)?;
        abort_before(&mut out).await;
        return Ok(out);
    }
}

/// Signals the outcome of the transaction that is prepared in a session.
fn outcome(lsid: &Lsid, number: i64) -> Result<Notify> {
    let ended = transactions().prepared.ended(lsid);
    ended.ok_or_else(|| lost(number))
}

/// Resolves conflicts with the internal transactions of a session that are in the way of a write or
/// transaction with this number. Returns the signal for the end of one that must be waited for;
/// then look again.
async fn make_way(
    lsid: &Lsid,
    session: &Session,
    txn_number: i64,
    by: Option<Lsid>,
) -> Option<Notify> {
    let catalog = &session_catalog();
    let code = ErrorCode::INTERRUPTED;
    loop {
        match conflict(lsid, session, txn_number, by) {
            Some(Conflict::Waits(ended)) => return Some(ended),
            Some(Conflict::GivesWay(child)) => catalog.abort(&child, code).await,
            None => break,
        }
    }
    // A transaction that executes an older write is useless now.
    for (number, child, _) in catalog.open_children(lsid) {
        if number < txn_number && Some(child) != by {
            catalog.abort(&child, code).await;
        }
    }
    None
}

/// Waits until no other command has the session, and gives it to one of a transaction.
///
/// # Errors
/// As of [`admit`], and of [`check_out`] for the parent of a session that executes a retryable
/// write; `TooManyLogicalSessions`; the operation is interrupted; a record cannot be read.
pub async fn check_out_transaction(
    ctx: &OpContext,
    lsid: Lsid,
    txn_number: i64,
    action: TxnAction,
    lifetime: Duration,
) -> Result<(CheckedOut, Admitted)> {
    let (home, ctx) = (home_of(&lsid), ctx.clone());
    submit_to(home, Queue::Foreground, move || async move {
        loop {
            let parent = match lsid.retryable_number() {
                None => None,
                Some(number) => {
                    let parent = lsid.parent();
                    let held = begin_retryable(
                        &ctx,
                        parent,
                        number,
                        Some(lsid),
                        action == TxnAction::Start,
                    )
                    .await?;
                    Some(Box::new(held))
                }
            };
            let (session, mut out) = check_out_here(&ctx, lsid).await?;
            out.parent = parent;
            let role = node_info().cluster_role;
            let mut active = out.history.as_ref().expect("it was read").active();
            // Only there a number is used again.
            let is_again = action == TxnAction::Start && txn_number == active.number;
            if role == ClusterRole::Shard && is_again {
                active = with_children(active, &out.lsid);
            }
            let begins_newer = action == TxnAction::Start && txn_number > active.number;
            let mut waits = match active.transaction {
                Some(TxnState::Prepared) if begins_newer => Some(outcome(&lsid, active.number)?),
                _ => None,
            };
            let mut admitted = None;
            if waits.is_none() {
                let found = admit(role, active, action, txn_number, &session_text(&lsid))?;
                // Those of a client are in the order of its retryable writes.
                if found == Admitted::Begins && lsid.child.is_none() {
                    waits = make_way(&lsid, &session, txn_number, None).await;
                }
                admitted = Some(found);
            }
            match (waits, admitted) {
                (Some(ended), _) => {
                    let ended = ended.notified();
                    drop((session, out));
                    interruptible(&ctx, ended).await?;
                }
                (None, admitted) => {
                    let admitted = admitted.expect("nothing is waited for");
                    return admitted_at_home(ctx, &session, out, (admitted, action), lifetime)
                        .await;
                }
            }
        }
    })
    .await
}

/// What a session knows of its latest number, with what its children have open of it.
fn with_children(active: Active, lsid: &Lsid) -> Active {
    match active.write == WriteState::Nothing && latest_of_children(lsid) == Some(active.number) {
        true => Active {
            write: WriteState::ByChild,
            ..active
        },
        false => active,
    }
}

/// The command has the session.
async fn admitted_at_home(
    ctx: OpContext,
    session: &Session,
    mut out: CheckedOut,
    (admitted, action): (Admitted, TxnAction),
    lifetime: Duration,
) -> Result<(CheckedOut, Admitted)> {
    let lsid = out.lsid;
    let txn_number = ctx.args.txn_number.expect("a command of a transaction");
    let is_known = |known: &PreparedTransaction| known.number == txn_number;
    if admitted == Admitted::IsPrepared && !out.prepared.as_ref().is_some_and(is_known) {
        return Err(lost(txn_number));
    }
    if admitted == Admitted::Begins {
        let history = out.history.as_mut().expect("it was read");
        history.begin_transaction(txn_number);
        abort_before(&mut out).await;
        session.expires.set(Some(pinion_runtime::now() + lifetime));
    }
    if matches!(admitted, Admitted::Begins | Admitted::Continues) {
        let catalog = &session_catalog();
        catalog.in_transactions.borrow_mut().insert(lsid);
    }
    if matches!(action, TxnAction::Commit { .. } | TxnAction::Prepare) {
        // It ends in any case.
        session.expires.set(None);
    }
    session.is_doomed.set(false);
    session.holder.replace(Some(ctx));
    Ok((out, admitted))
}

/// The answer to a retryable write whose number is that of a transaction of its client.
fn converted() -> Error {
    Error::new(
        ErrorCode::INCOMPLETE_TRANSACTION_HISTORY,
        "Cannot retry a retryable write that has been converted into a transaction",
    )
}

/// Aborts the transaction that is in progress: a later number has started.
async fn abort_before(out: &mut CheckedOut) {
    if let Some(open) = out.take_open() {
        open.abort().await;
    }
}

async fn check_out_here(ctx: &OpContext, lsid: Lsid) -> Result<(Rc<Session>, CheckedOut)> {
    let session = session_catalog().session(&lsid)?;
    loop {
        let freed = session.freed.notified();
        if !session.is_out.replace(true) {
            break;
        }
        interruptible(ctx, freed).await?;
    }
    let known = session.history.borrow_mut().take();
    let mut out = CheckedOut {
        lsid,
        home: core_id(),
        epoch: session_catalog().epoch.get(),
        history: known,
        open: session.open.take(),
        prepared: transactions().prepared.of(&lsid),
        is_doomed: false,
        parent: None,
    };
    if out.history.is_none() {
        let mut history = load(&lsid).await?;
        // What has left no record yet.
        if let Some(number) = latest_of_children(&lsid) {
            history.raise(number);
        }
        out.history = Some(history);
    }
    Ok((session, out))
}

/// Takes a session of which nothing need be known, if no write has it. It is unknown when it comes
/// back.
pub async fn check_out_idle(lsid: Lsid) -> Option<CheckedOut> {
    submit_to(home_of(&lsid), Queue::Background, move || async move {
        let catalog = &session_catalog();
        // What is recorded of a prepared transaction stays, and what one is about to record of its
        // parent's write.
        if transactions().prepared.of(&lsid).is_some() || latest_of_children(&lsid).is_some() {
            return None;
        }
        let session = catalog.session(&lsid).ok()?;
        if session.open.borrow().is_some() || session.is_out.replace(true) {
            return None;
        }
        Some(CheckedOut {
            lsid,
            home: core_id(),
            epoch: catalog.epoch.get(),
            history: None,
            open: None,
            prepared: None,
            is_doomed: false,
            parent: None,
        })
    })
    .await
}

/// Forgets what this node knows of retryable writes, as their records may have changed without it:
/// it was rolled back, or followed another member. Writes that are under way bring nothing back.
pub fn forget_all() -> LocalBoxFuture<'static, ()> {
    Box::pin(async move {
        on_all_cores(|_| async { session_catalog().forget() }).await;
    })
}
