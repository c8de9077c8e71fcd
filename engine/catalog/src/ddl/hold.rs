//! Critical sections: gates that stay closed for longer than the task that asked for it.
//!
//! A hold is a task on core 0, which locks its scope against changes of the catalog, closes the
//! gates as it is asked to, and opens them when it ends. Its guard may be anywhere. So one that is
//! dropped, also while the hold is being taken, has everything opened again, and in the order in
//! which it was closed.
//!
//! Changes of the catalog that are a part of the critical section pass its lock, and close its
//! gates in addition; all others wait until it ends. A node that stops to lead ends all holds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use pinion_runtime::sync::{Notify, OneshotSender, oneshot};
use pinion_runtime::{CoreId, Instant, LocalBoxFuture, Queue, is_core, now, spawn, submit_to};
use pinion_wire::idl::Namespace;
use pinion_wire::{CommandSpec, Error, ErrorCode, OpContext, Result, interruption};

use super::coordinator::{Coordinator, close_gates, set_gates};
use super::locks::Scope;
use super::series::together;
use crate::catalog::core_catalog;
use crate::gates::{GateMode, GateOf, HeldDatabase, HoldId, Holder};

/// What runs a hold, in the place of a command.
static TASK: CommandSpec = CommandSpec::of_task("criticalSection");

/// The holds of a node. Lives on core 0 with the coordinator.
#[derive(Default)]
pub(crate) struct Holds {
    taken: RefCell<BTreeMap<HoldId, Rc<Held>>>,
}

/// A hold as core 0 knows it.
struct Held {
    /// What it is of, in words.
    of: String,
    holder: Holder,
    gates: Arc<[GateOf]>,
    /// Killed to end it.
    ctx: OpContext,
    asked: RefCell<VecDeque<HoldRequest>>,
    has_left: Cell<bool>,
    changed: Notify,
}

/// What its gates are to keep out, and until when they are to be drained.
struct HoldRequest {
    mode: GateMode,
    deadline: Instant,
    answer: OneshotSender<Result<()>>,
}

/// A critical section: gates that are closed on every core until this is released or dropped.
#[must_use]
pub struct Hold {
    id: HoldId,
    is_released: bool,
}

/// Begins the critical section of a namespace; of a series and its buckets together. Operations
/// that `mode` keeps out wait from now on, and those that came before have ended when this gives
/// the guard.
///
/// # Errors
/// `LockTimeout` if they have not, or another change or critical section of the namespace has not,
/// at the deadline; `InterruptedDueToReplStateChange` if the node does not lead. Nothing is left
/// closed then.
///
/// # Panics
/// If `mode` is `Open`.
pub fn hold(
    ns: Namespace,
    mode: GateMode,
    deadline: Instant,
) -> LocalBoxFuture<'static, Result<Hold>> {
    hold_together(&[ns], mode, deadline)
}

/// The same for several namespaces, as one critical section: a change of the catalog that concerns
/// all of them is a part of it.
///
/// # Errors
/// Those of [`hold`].
///
/// # Panics
/// If `mode` is `Open`.
pub fn hold_together(
    namespaces: &[Namespace],
    mode: GateMode,
    deadline: Instant,
) -> LocalBoxFuture<'static, Result<Hold>> {
    let mut all: Vec<Namespace> = namespaces.iter().flat_map(together).collect();
    all.sort();
    all.dedup();
    let names: Vec<&str> = namespaces.iter().map(Namespace::as_str).collect();
    let gates = all.iter().cloned().map(GateOf::Namespace).collect();
    take(
        names.join(" and "),
        Scope::Namespaces(all),
        gates,
        mode,
        deadline,
    )
}

/// The same for a database and all that is in it, or will be.
///
/// # Errors
/// Those of [`hold`].
///
/// # Panics
/// If `mode` is `Open`.
pub fn hold_database(
    db: String,
    mode: GateMode,
    deadline: Instant,
) -> LocalBoxFuture<'static, Result<Hold>> {
    hold_database_but(db, Vec::new(), mode, deadline)
}

/// The same, but for the documents of some namespaces, which stay open. Their definitions are kept
/// out too.
///
/// # Errors
/// Those of [`hold`].
///
/// # Panics
/// If `mode` is `Open`.
pub fn hold_database_but(
    db: String,
    open: Vec<Namespace>,
    mode: GateMode,
    deadline: Instant,
) -> LocalBoxFuture<'static, Result<Hold>> {
    let gates = vec![GateOf::Database(HeldDatabase::new(db.clone(), open))];
    take(db.clone(), Scope::Database(db), gates, mode, deadline)
}

fn take(
    of: String,
    scope: Scope,
    mut gates: Vec<GateOf>,
    mode: GateMode,
    deadline: Instant,
) -> LocalBoxFuture<'static, Result<Hold>> {
    // As changes of the catalog close gates of several namespaces.
    gates.sort_by(|a, b| a.name().cmp(b.name()));
    Box::pin(async move {
        // The guard is there before anything is closed.
        let begin = move || async move { begin(of, scope, gates.into()) };
        let hold = submit_to(CoreId(0), Queue::Foreground, begin).await?;
        hold.set_mode(mode, deadline).await?;
        Ok(hold)
    })
}

impl Hold {
    pub fn id(&self) -> HoldId {
        self.id
    }

    /// Has the gates keep out more, or less: writers at first, and then every access.
    ///
    /// # Errors
    /// Those of [`hold`], after which the gates are as before; the code with which the node has
    /// ended the hold.
    ///
    /// # Panics
    /// If `mode` is `Open`.
    pub async fn set_mode(&self, mode: GateMode, deadline: Instant) -> Result<()> {
        assert!(
            mode != GateMode::Open,
            "a hold is released to open its gates"
        );
        let id = self.id;
        let ask = move || async move { ask(id, mode, deadline).await };
        submit_to(CoreId(0), Queue::Foreground, ask).await
    }

    /// The same operation as a part of the critical section: its changes of the catalog pass this.
    #[must_use]
    pub fn admit(&self, ctx: &OpContext) -> OpContext {
        ctx.clone().within(self.id)
    }

    /// Opens the gates; they are open on every core when this is done.
    pub async fn release(mut self) {
        self.is_released = true;
        end(self.id).await;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        // Of a node that is gone there is nothing to open.
        if !self.is_released && is_core() {
            drop(spawn(Queue::Foreground, end(self.id)));
        }
    }
}

fn begin(of: String, scope: Scope, gates: Arc<[GateOf]>) -> Result<Hold> {
    // A node that ceases to lead makes waiting changes give up, ends all holds, and admits changes
    // again when it follows.
    if core_catalog().gates().gives_up() || !pinion_storage::storage().leads() {
        return Err(interruption(
            ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE,
        ));
    }
    let coordinator = pinion_runtime::core_local::<Coordinator>();
    let id = coordinator.hold_id();
    let held = Rc::new(Held {
        of,
        holder: Holder::CriticalSection(id),
        gates,
        ctx: OpContext::internal(0, &TASK, "admin", now().as_nanos()),
        asked: RefCell::default(),
        has_left: Cell::new(false),
        changed: Notify::new(),
    });
    let displaced = (coordinator.holds.taken.borrow_mut()).insert(id, held.clone());
    assert!(
        displaced.is_none(),
        "two critical sections have the number {id}"
    );
    drop(spawn(Queue::Foreground, async move {
        coordinator.keep(id, scope, &held).await;
        coordinator.holds.taken.borrow_mut().remove(&id);
        held.has_left.set(true);
        held.changed.notify_all();
    }));
    Ok(Hold {
        id,
        is_released: false,
    })
}

fn find(id: HoldId) -> Option<Rc<Held>> {
    // The data may have been opened again since.
    let coordinator = pinion_runtime::try_core_local::<Coordinator>()?;
    let taken = coordinator.holds.taken.borrow();
    taken.get(&id).cloned()
}

async fn ask(id: HoldId, mode: GateMode, deadline: Instant) -> Result<()> {
    let ended = || interruption(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE);
    let held = find(id).ok_or_else(ended)?;
    let (answer, answered) = oneshot();
    held.asked.borrow_mut().push_back(HoldRequest {
        mode,
        deadline,
        answer,
    });
    held.changed.notify_all();
    answered.await.unwrap_or_else(|_| Err(ended()))
}

async fn end(id: HoldId) {
    let end = move || async move {
        if let Some(held) = find(id) {
            held.end(ErrorCode::INTERRUPTED).await;
        }
    };
    submit_to(CoreId(0), Queue::Foreground, end).await;
}

/// Ends all holds, also those that are being taken: this node leads no longer. Call it on core 0.
pub fn end_holds() -> LocalBoxFuture<'static, ()> {
    Box::pin(async {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        let all: Vec<Rc<Held>> = coordinator.holds.taken.borrow().values().cloned().collect();
        for held in all {
            held.end(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE)
                .await;
        }
    })
}

impl Held {
    /// Opens the gates, and waits until the task has left.
    async fn end(&self, code: ErrorCode) {
        self.ctx.kill(code);
        self.changed.notify_all();
        // What the task has under way on some core either has closed its gate before this, or finds
        // that it was killed.
        set_gates(&self.gates, self.holder, GateMode::Open).await;
        while !self.has_left.get() {
            self.changed.notified().await;
        }
    }

    /// What is asked next; `None` once it has ended.
    async fn next(&self) -> Option<HoldRequest> {
        loop {
            let changed = self.changed.notified();
            if self.ctx.killed().is_some() {
                return None;
            }
            if let Some(asked) = self.asked.borrow_mut().pop_front() {
                return Some(asked);
            }
            changed.await;
        }
    }

    /// The error of a hold that was not taken, or not made stronger.
    fn failed(&self, error: Error) -> Error {
        match error.code {
            ErrorCode::MAX_TIME_MS_EXPIRED => Error::new(
                ErrorCode::LOCK_TIMEOUT,
                format!(
                    "the critical section of {} was not entered in time: operations that began before it are under way",
                    self.of
                ),
            ),
            _ => error,
        }
    }
}

impl Coordinator {
    /// Keeps gates closed as it is asked to, until the hold ends.
    async fn keep(&self, id: HoldId, scope: Scope, held: &Held) {
        let mut lock = None;
        let mut mode = GateMode::Open;
        while let Some(asked) = held.next().await {
            let deadline = Some(asked.deadline.as_nanos());
            let ctx = held.ctx.clone().with_deadline(deadline);
            let closing = async {
                if lock.is_none() {
                    lock = Some(self.lock_to_hold(&ctx, id, scope.clone()).await?);
                }
                close_gates(Some(&ctx), &held.gates, held.holder, (mode, asked.mode)).await
            };
            let closed = closing.await;
            if closed.is_ok() {
                mode = asked.mode;
            }
            // What was closed in vain opens again, and what is to keep out less.
            set_gates(&held.gates, held.holder, mode).await;
            if mode == GateMode::Open {
                lock = None;
            }
            // Where the guard is gone there is no receiver.
            let _ = asked
                .answer
                .send(closed.map_err(|error| held.failed(error)));
        }
        set_gates(&held.gates, held.holder, GateMode::Open).await;
    }
}
