//! A transaction while one of its statements runs: what the statement reads, and how it writes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use pinion_catalog::{
    Collection, CollectionOptions, GateAccess, Uuid, core_catalog, plan_collection,
};
use pinion_clock::{OpTime, Timestamp};
use pinion_query::MultikeyPaths;
use pinion_runtime::Duration;
use pinion_service::interrupt::is_interruption;
use pinion_service::metrics::metrics;
use pinion_service::session_ids::{at_home, is_in};
use pinion_service::transaction_checks::check_namespace;
use pinion_storage::{ReadAt, Statement, TreeId, UnitId, WriteError, storage};
use pinion_wire::idl::{Lsid, Namespace};
use pinion_wire::{Error, ErrorCode, LabelContext, OpContext, Result, labels, labels_for};

use super::held::transactions;
use super::open::{CatalogUse, OpenTransaction};
use super::prepared::PreparedTransaction;
use super::shown::OpenShown;
use crate::gate_entry::enter;
use crate::limits::NESTED_GATE_TIMEOUT;
use crate::parameters::parameters;
use crate::statements::{Executed, Retries};
use crate::topology::Intent;
use crate::transaction_state::TxnState;

/// What statements of a transaction read: its snapshot, and over it what it has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InUnit {
    pub at: Timestamp,
    pub unit: UnitId,
}

impl InUnit {
    pub(crate) fn read_at(self) -> ReadAt {
        ReadAt::In {
            at: self.at,
            unit: self.unit,
        }
    }
}

/// How a transaction has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub state: TxnState,
    /// Its last write, if it was committed with one.
    pub written: OpTime,
}

/// The transaction that a statement of this core is of.
pub struct Running {
    lsid: Lsid,
    /// `None` while it writes, once it has ended, and on a core that it visits.
    open: RefCell<Option<Box<OpenTransaction>>>,
    known: RefCell<CatalogUse>,
    /// `None` if it was committed before this command.
    reads: Option<InUnit>,
    shown: Option<OpenShown>,
    /// What it has written last, if it was committed before.
    committed: OpTime,
    /// The prepared transaction, if it was prepared before.
    prepared: Option<PreparedTransaction>,
    /// What is known of the retryable write that it executes.
    retries: RefCell<Option<Rc<Retries>>>,
    has_failed: Cell<bool>,
    ended: Cell<Option<Ended>>,
}

/// The transaction that an operation of this core is in.
pub(crate) fn of(ctx: &OpContext) -> Option<Rc<Running>> {
    if !is_in(ctx) {
        return None;
    }
    let lsid = at_home(ctx.args.lsid.as_ref()?);
    transactions().running.borrow().get(&lsid).cloned()
}

/// A statement has failed in a part of its reply: its transaction is aborted.
pub(crate) fn fail(ctx: &OpContext) {
    if let Some(running) = of(ctx) {
        running.has_failed.set(true);
    }
}

/// Whether an error is the answer to the whole command, and not one of a statement in it: it was
/// stopped, or its transaction may be tried again as a whole.
pub(crate) fn ends_command(ctx: &OpContext, error: &Error) -> bool {
    is_interruption(error) || (is_in(ctx) && is_transient(error.code))
}

fn is_transient(code: ErrorCode) -> bool {
    let context = LabelContext {
        in_transaction: true,
        ..LabelContext::default()
    };
    labels_for(code, None, context).contains(&labels::TRANSIENT_TRANSACTION)
}

impl Running {
    /// A statement begins on this core.
    ///
    /// # Panics
    /// If the session runs another one here.
    pub(crate) fn begin(mut open: Box<OpenTransaction>) -> Rc<Running> {
        let known = std::mem::take(&mut open.known);
        let reads = InUnit {
            at: open.unit.snapshot(),
            unit: open.unit.id(),
        };
        Running::enter(Running {
            lsid: open.lsid,
            shown: Some(OpenShown::of(&open, None)),
            open: RefCell::new(Some(open)),
            known: RefCell::new(known),
            reads: Some(reads),
            committed: OpTime::NULL,
            prepared: None,
            retries: RefCell::default(),
            has_failed: Cell::new(false),
            ended: Cell::new(None),
        })
    }

    /// A commit comes again.
    pub(crate) fn committed(lsid: Lsid, written: OpTime) -> Rc<Running> {
        Running::enter(Running::without_open(lsid, None, written))
    }

    /// One that was prepared has its outcome, or is prepared again.
    pub(crate) fn prepared(prepared: PreparedTransaction) -> Rc<Running> {
        let running = Running::without_open(prepared.lsid, None, OpTime::NULL);
        Running::enter(Running {
            shown: Some(prepared.shown.clone()),
            prepared: Some(prepared),
            ..running
        })
    }

    fn without_open(lsid: Lsid, reads: Option<InUnit>, committed: OpTime) -> Running {
        Running {
            lsid,
            open: RefCell::new(None),
            known: RefCell::default(),
            reads,
            shown: None,
            committed,
            prepared: None,
            retries: RefCell::default(),
            has_failed: Cell::new(false),
            ended: Cell::new(None),
        }
    }

    /// What a statement takes along to another core, where a part of it runs.
    pub(crate) fn visit(&self) -> Visit {
        Visit {
            lsid: self.lsid,
            reads: self.reads(),
            known: self.known.borrow().clone(),
        }
    }

    /// The visit is over.
    pub(crate) fn come_back(&self, known: CatalogUse) {
        *self.known.borrow_mut() = known;
    }

    fn enter(running: Running) -> Rc<Running> {
        let running = Rc::new(running);
        let transactions = transactions();
        let table = &transactions.running;
        let before = table.borrow_mut().insert(running.lsid, running.clone());
        assert!(before.is_none(), "a session runs one command at a time");
        running
    }

    pub(crate) fn leave(&self) {
        if let Some(transactions) = pinion_runtime::try_core_local::<super::Transactions>() {
            transactions.running.borrow_mut().remove(&self.lsid);
        }
    }

    /// A statement begins, of which this is known.
    pub(crate) fn set_retries(&self, retries: Option<Retries>) {
        *self.retries.borrow_mut() = retries.map(Rc::new);
    }

    /// What is known of the retryable write that the transaction executes, if it executes one.
    pub(crate) fn retries(&self) -> Option<Rc<Retries>> {
        self.retries.borrow().clone()
    }

    /// Whether the transaction has executed a statement of that write.
    pub(crate) fn has_executed(&self, stmt_id: i32) -> bool {
        let open = self.open.borrow();
        let open = open.as_ref().expect("nothing writes while this is asked");
        open.statements.contains_key(&stmt_id)
    }

    /// The transaction has executed a statement of that write.
    pub(crate) fn executed(&self, stmt_id: i32, executed: Executed) {
        let mut open = self.open.borrow_mut();
        let open = open.as_mut().expect("nothing writes while this is told");
        open.statements.insert(stmt_id, executed);
    }

    pub(crate) fn shown(&self) -> Option<&OpenShown> {
        self.shown.as_ref()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.get()
    }

    pub(crate) fn take_open(&self) -> Option<Box<OpenTransaction>> {
        let mut open = self.open.take()?;
        open.known = self.known.take();
        Some(open)
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended.get()
    }

    pub(crate) fn end(&self, state: TxnState, written: OpTime) {
        self.ended.set(Some(Ended { state, written }));
    }

    /// Whether it was committed before this command.
    pub(crate) fn was_committed(&self) -> bool {
        self.reads.is_none() && self.prepared.is_none()
    }

    /// The transaction, if it was prepared before this command.
    pub(crate) fn was_prepared(&self) -> Option<&PreparedTransaction> {
        self.prepared.as_ref()
    }

    /// What the transaction wrote last, once it is committed or prepared, or given up after that;
    /// null of one that has written nothing.
    pub(crate) fn written(&self) -> Option<OpTime> {
        let ended = self.ended.get().map(|ended| ended.written);
        match (self.was_committed(), &self.prepared) {
            (true, _) => Some(self.committed),
            (false, Some(prepared)) => ended.or(Some(prepared.at)),
            (false, None) => ended,
        }
    }

    /// What its statements read.
    pub(crate) fn reads(&self) -> InUnit {
        self.reads
            .expect("what is committed already runs no statement")
    }

    /// Passes the gate of a namespace for as long as the transaction is open. Behind one that it
    /// has passed already it is, whatever waits for it there.
    ///
    /// # Errors
    /// `LockTimeout` if the gate stays closed; the namespace is none of a transaction's.
    pub(crate) async fn enter_gate(
        &self,
        ctx: &OpContext,
        ns: &Namespace,
        access: GateAccess,
    ) -> Result<()> {
        check_namespace(ctx, ns)?;
        let access = match access {
            GateAccess::Read => GateAccess::ReadAndStay,
            other => other,
        };
        let has_passed = self.known.borrow().passed.iter().any(|(passed, as_what)| {
            passed == ns && (*as_what == access || *as_what == GateAccess::Write)
        });
        if has_passed {
            return Ok(());
        }
        let patience_ms = parameters().borrow().transaction_lock_timeout_ms;
        let entering = enter(ctx, ns, access);
        let pass = match patience_ms {
            ..0 => entering.await?,
            ms => {
                // What is open now is passed in the first poll, however short the patience.
                let patience = Duration::from_millis(ms.max(1) as u64);
                match pinion_runtime::timeout(patience, entering).await {
                    Ok(pass) => pass?,
                    Err(_) => return Err(lock_timeout(ns, access, ms)),
                }
            }
        };
        transactions().hold(self.lsid, ns.clone(), access, pass);
        self.known.borrow_mut().passed.push((ns.clone(), access));
        Ok(())
    }

    /// Whether the transaction has written nothing so far.
    pub(crate) fn is_read_only(&self) -> bool {
        let open = self.open.borrow();
        open.as_ref().is_none_or(|open| open.operations.is_empty())
    }

    /// Whether the transaction has written to a collection.
    pub(crate) fn has_written(&self, uuid: Uuid) -> bool {
        let open = self.open.borrow();
        let open = open.as_ref().expect("nothing writes while this is asked");
        open.operations.iter().any(|operation| {
            let operation = pinion_catalog::stored_document(operation);
            pinion_bson::get(operation, "ui").and_then(Uuid::from_bson) == Some(uuid)
        })
    }

    /// The collection of this name that the transaction makes.
    pub(crate) fn planned(&self, ns: &Namespace) -> Option<Arc<Collection>> {
        let known = self.known.borrow();
        known.planned.iter().find(|made| made.ns == *ns).cloned()
    }

    fn is_planned(&self, uuid: Uuid) -> bool {
        let known = self.known.borrow();
        known.planned.iter().any(|made| made.uuid == uuid)
    }

    /// Makes a collection, for the transaction alone until it commits; false if others have made
    /// one of the name.
    ///
    /// # Errors
    /// As of [`plan_collection`], and of [`Running::enter_gate`].
    pub(crate) async fn plan(
        &self,
        ctx: &OpContext,
        ns: &Namespace,
        options: CollectionOptions,
    ) -> Result<bool> {
        self.enter_gate(ctx, ns, GateAccess::Write).await?;
        let planning = plan_collection(ctx, ns.clone(), options);
        let Some(made) = changing(ctx, ns, planning).await? else {
            return Ok(false);
        };
        self.known.borrow_mut().planned.push(made);
        Ok(true)
    }

    /// What the transaction makes is different now.
    ///
    /// # Panics
    /// If it makes no such collection.
    pub(crate) fn replan(&self, changed: Arc<Collection>) {
        let mut known = self.known.borrow_mut();
        let mut planned = known.planned.iter_mut();
        let of_uuid = planned.find(|made| made.uuid == changed.uuid);
        *of_uuid.expect("it was planned") = changed;
    }

    /// Notes arrays in indexes of a collection that the transaction makes; false if it makes no
    /// such collection.
    pub(crate) fn plan_multikey(&self, uuid: Uuid, found: &[(TreeId, MultikeyPaths)]) -> bool {
        let mut known = self.known.borrow_mut();
        let mut planned = known.planned.iter_mut();
        let made = planned.find(|made| made.uuid == uuid);
        let is_own = made.is_some();
        if let Some(made) = made {
            *made = Arc::new(made.with_multikey(found));
        }
        is_own
    }

    /// Whether a collection is now what it was at the transaction's snapshot.
    ///
    /// # Errors
    /// `SnapshotUnavailable`, `WriteConflict`: the whole transaction may be tried again.
    pub(crate) fn check_unchanged(
        &self,
        ns: &Namespace,
        collection: Option<&Collection>,
        intent: Intent,
    ) -> Result<()> {
        if collection.is_some_and(|found| self.is_planned(found.uuid)) {
            return Ok(());
        }
        let (current, at) = (core_catalog().current(), self.reads().at);
        let changed_at = match collection {
            // What had this name at the snapshot may be gone.
            None => current.gone_at(ns),
            Some(found) => current.changed_at(found.number).max(found.visible_from),
        };
        if changed_at <= at {
            return Ok(());
        }
        let (code, what) = match intent {
            Intent::Read => (
                ErrorCode::SNAPSHOT_UNAVAILABLE,
                "Unable to read from a snapshot",
            ),
            Intent::Write => (ErrorCode::WRITE_CONFLICT, "Unable to write to a collection"),
        };
        Err(Error::new(
            code,
            format!(
                "{what} due to pending collection catalog changes to collection '{ns}'; please retry the operation. \
                 Snapshot timestamp is {at}. Collection minimum timestamp is {changed_at}"
            ),
        ))
    }

    /// Executes statements in their order, up to the first that is refused.
    pub(crate) async fn execute(
        &self,
        statements: Vec<Statement>,
    ) -> Vec<std::result::Result<Timestamp, WriteError>> {
        let at = self.reads().at;
        let mut results = Vec::with_capacity(statements.len());
        let mut taken = Taken {
            open: Some(self.open.take().expect("one statement writes at a time")),
            running: self,
        };
        let mut is_refused = false;
        for Statement { writes, entry } in statements {
            if is_refused {
                results.push(Err(WriteError::NotReached));
                continue;
            }
            let open = taken.open.as_mut().expect("it is here until it is dropped");
            let room = match &entry {
                Some(operation) => open.take_room(operation),
                None => Ok(()),
            };
            let written = match room {
                Ok(()) => storage().write_unit(&mut open.unit, writes).await,
                Err(error) => Err(error),
            };
            match written {
                Ok(()) => {
                    if let Some(operation) = entry {
                        open.add(operation);
                    }
                    results.push(Ok(at));
                }
                Err(error) => {
                    is_refused = true;
                    // Memory is free when others have ended: the whole transaction may be tried
                    // again.
                    let error = match error {
                        WriteError::CacheFull => {
                            let metrics = metrics();
                            let counters = &metrics.counters;
                            counters.unavailable.inc();
                            counters.unavailable_as_conflict.inc();
                            WriteError::Conflict
                        }
                        error => error,
                    };
                    results.push(Err(error));
                }
            }
        }
        results
    }
}

/// A part of a statement on another core than the one that has the transaction.
pub(crate) struct Visit {
    lsid: Lsid,
    reads: InUnit,
    known: CatalogUse,
}

impl Visit {
    /// Runs the part on this core, where its operation finds the transaction meanwhile. Also
    /// returns the argument of [`Running::come_back`].
    pub(crate) async fn run<R>(self, part: impl Future<Output = R>) -> (R, CatalogUse) {
        let running = Running::without_open(self.lsid, Some(self.reads), OpTime::NULL);
        *running.known.borrow_mut() = self.known;
        let running = Visiting(Running::enter(running));
        let result = part.await;
        (result, running.0.known.take())
    }
}

/// While this lives a transaction is found on this core.
struct Visiting(Rc<Running>);

impl Drop for Visiting {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The transaction while it writes. It comes back whatever becomes of the write.
struct Taken<'r> {
    open: Option<Box<OpenTransaction>>,
    running: &'r Running,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.running.open.borrow_mut() = self.open.take();
    }
}

/// Waits for a change of the catalog that a statement needs. One of a transaction does not wait for
/// long: what is changed before it may wait for this very transaction.
///
/// # Errors
/// `LockTimeout` in a transaction, and the change may take place later; those of the change.
pub(crate) async fn changing<T>(
    ctx: &OpContext,
    ns: &Namespace,
    change: impl Future<Output = Result<T>>,
) -> Result<T> {
    if !is_in(ctx) {
        return change.await;
    }
    match pinion_runtime::timeout(NESTED_GATE_TIMEOUT, change).await {
        Ok(changed) => changed,
        Err(_) => Err(Error::new(
            ErrorCode::LOCK_TIMEOUT,
            format!("Unable to change '{ns}' in time: another change is under way."),
        )),
    }
}

fn lock_timeout(ns: &Namespace, access: GateAccess, ms: i32) -> Error {
    let mode = match access {
        GateAccess::Read | GateAccess::ReadAndStay => "IS",
        GateAccess::Write => "IX",
    };
    Error::new(
        ErrorCode::LOCK_TIMEOUT,
        format!("Unable to acquire {mode} lock on '{ns}' within {ms}ms."),
    )
}
