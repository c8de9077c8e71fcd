//! The coordinator of DDL, on core 0.
//!
//! An operation holds the locks of what it changes, closes the namespace's gate on every core where
//! that is needed, which drains what is in flight there, and then commits: it computes its change
//! from the newest catalog, writes rows and entry in one statement, and installs the new version on
//! every core. Commits are made one at a time; everything that may take long, draining and
//! building, is done before one, beside those of other namespaces. An operation runs as a task of
//! its own: a caller that goes away in the middle leaves no gate closed. While the node is locked
//! against writes none begins; the callers wait, each on its own core, until their operation is
//! stopped.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::RawDocumentBuf;
use pinion_clock::Timestamp;
use pinion_runtime::sync::Semaphore;
use pinion_runtime::{CoreId, LocalBoxFuture, Queue, Rng, submit_to};
use pinion_service::interrupt::interruptible;
use pinion_storage::{Statement, TreeId};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result, interruption};

use super::builds::Builds;
use super::guard::{Definition, admit, admit_behind_gates};
use super::hold::Holds;
use super::locks::{AwaitedLock, Claim, DatabaseLocks, Lock, Locks, Scope};
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::errors::from_write_error;
use crate::gates::{GateMode, GateOf, HoldId, Holder, NotDrained};
use crate::names::{OWN_COMMANDS, command_namespace, is_replicated};
use crate::oplog::{Observers, OpEvent, OpKind};
use crate::oplog_format::oplog_format;
use crate::uuid::Uuid;

/// The coordinator's state; lives on core 0 alone.
pub(crate) struct Coordinator {
    locks: Locks,
    commits: Semaphore,
    /// Numbers below this have been given out, some of them perhaps to operations that have not
    /// committed yet.
    given: Cell<u64>,
    /// The same for what is not replicated.
    own_given: Cell<u64>,
    /// Changes of the catalog that have closed gates.
    changes: Cell<u64>,
    rng: RefCell<Rng>,
    pub(super) builds: Builds,
    pub(super) holds: Holds,
    /// The catalog was copied from a member of MongoDB: the numbers in it were given out here.
    pub(super) is_listed: Cell<bool>,
    /// A fault that the simulation plants to see whether it would find it: readers are not kept out
    /// while a logged command is applied.
    pub(super) reads_unfenced: Cell<bool>,
}

/// What a commit writes.
pub(super) struct Commit {
    pub change: CatalogChange,
    pub kind: OpKind,
    /// The namespace of the entry.
    pub ns: String,
    pub uuid: Option<Uuid>,
    pub o: RawDocumentBuf,
    /// What the entry has in the place of the change, where that is not to stand there.
    pub o2: Option<RawDocumentBuf>,
    /// Change streams do not show it: they show another shard's.
    pub from_migrate: bool,
}

impl Commit {
    /// A command on a collection.
    pub(super) fn command(
        ns: &Namespace,
        uuid: Option<Uuid>,
        o: RawDocumentBuf,
        change: CatalogChange,
    ) -> Commit {
        Commit {
            change,
            kind: OpKind::Command,
            ns: command_namespace(ns),
            uuid,
            o,
            o2: None,
            from_migrate: false,
        }
    }
}

impl Coordinator {
    pub(crate) fn new() -> Coordinator {
        Coordinator {
            locks: Locks::default(),
            commits: Semaphore::new(1),
            given: Cell::new(0),
            own_given: Cell::new(0),
            changes: Cell::new(0),
            rng: RefCell::new(pinion_runtime::random_stream("catalog")),
            builds: Builds::default(),
            holds: Holds::default(),
            is_listed: Cell::new(false),
            reads_unfenced: Cell::new(false),
        }
    }

    pub(super) async fn lock(&self, scope: Scope) -> Lock<'_> {
        self.locks.lock(scope, Claim::Change, None).await
    }

    /// The same to end a build. What is made within a critical section may wait for that end.
    pub(super) async fn lock_to_end_build(&self, ns: &Namespace) -> Lock<'_> {
        let scope = Scope::one(ns);
        self.locks.lock(scope, Claim::BuildEnd, None).await
    }

    /// The same for a critical section, taken by a context of its own.
    ///
    /// # Errors
    /// Its time is up, or it is given up.
    pub(super) async fn lock_to_hold(
        &self,
        ctx: &OpContext,
        id: HoldId,
        scope: Scope,
    ) -> Result<Lock<'_>> {
        let claim = Claim::CriticalSection(id);
        interruptible(ctx, self.locks.lock(scope, claim, None)).await
    }

    fn database_locks(&self) -> DatabaseLocks {
        self.locks.counts()
    }

    /// The same for a client's operation, which may be stopped while it waits: the holder of the
    /// lock may wait for a transaction that is prepared, for as long as that has no outcome.
    ///
    /// # Errors
    /// The operation is stopped; what it goes by has changed while it waited.
    pub(super) async fn lock_for(&self, ctx: &OpContext, scope: Scope) -> Result<Lock<'_>> {
        let op_id = Some(ctx.op_id);
        let namespaces = scope.namespaces().to_vec();
        let lock = interruptible(ctx, self.locks.lock(scope, Claim::of(ctx), op_id)).await?;
        // What closes no gate, as the making of a collection, may have waited here for a critical
        // section in which the database went away.
        admit_behind_gates(ctx, &namespaces)?;
        Ok(lock)
    }

    /// A number for what closes gates.
    fn holder(&self) -> Holder {
        let number = self.changes.get();
        self.changes.set(number + 1);
        Holder::Ddl(number)
    }

    pub(super) fn uuid(&self) -> Uuid {
        Uuid::random(&mut self.rng.borrow_mut())
    }

    /// Gives out numbers for a collection of this name, or for what belongs to it; the first of
    /// them. What belongs to a collection that is there is replicated as that is.
    pub(super) fn numbers(&self, ns: &Namespace, count: u64) -> u64 {
        let current = core_catalog().current();
        let there = current.get(ns).map(|collection| collection.is_replicated());
        let is_replicated = there.unwrap_or_else(|| is_replicated(ns));
        let first = self.next_number(&current, is_replicated);
        self.given(is_replicated).set(first + count);
        first
    }

    /// A number that no critical section of this process has.
    pub(super) fn hold_id(&self) -> HoldId {
        let drawn = self.rng.borrow_mut().next_u64();
        HoldId::new(drawn).unwrap_or(HoldId::MAX)
    }

    fn given(&self, is_replicated: bool) -> &Cell<u64> {
        match is_replicated {
            true => &self.given,
            false => &self.own_given,
        }
    }

    pub(super) fn next_number(&self, catalog: &Catalog, is_replicated: bool) -> u64 {
        let next = match is_replicated {
            true => catalog.next_number(),
            false => catalog.next_own_number(),
        };
        next.max(self.given(is_replicated).get())
    }

    /// Computes a change from the newest catalog, writes it with its entry and installs it on every
    /// core, before any other change. `compute` may find that nothing is to be changed.
    pub(super) async fn commit_with(
        &self,
        compute: impl FnOnce(&Catalog) -> Result<Option<Commit>>,
    ) -> Result<Option<Timestamp>> {
        let _turn = self.commits.acquire().await;
        let current = core_catalog().current();
        let Some(mut commit) = compute(&current)? else {
            return Ok(None);
        };
        let is_replicated = commit.change.is_replicated()?;
        let is_replicated = is_replicated.unwrap_or(commit.ns != OWN_COMMANDS);
        commit.change.next_number = self.next_number(&current, is_replicated);
        if !is_replicated {
            return self.commit_own(commit.change).await.map(Some);
        }
        let o2 = commit.o2.take().unwrap_or_else(|| commit.change.to_o2());
        let event = OpEvent {
            kind: commit.kind,
            ns: &commit.ns,
            uuid: commit.uuid,
            o: &commit.o,
            o2: Some(&o2),
            from_migrate: commit.from_migrate,
            wall_ms: pinion_runtime::wall_ms(),
            session: None,
            record: None,
            form: oplog_format(),
        };
        let entry = pinion_runtime::core_local::<Observers>().entry(&event)?;
        let statement = Statement {
            writes: commit.change.writes(),
            entry: Some(entry),
        };
        pinion_runtime::sim::event("ddl");
        let mut results = pinion_storage::storage()
            .execute(vec![statement], true)
            .await;
        assert!(results.len() == 1, "one statement has one result");
        let ts = results.pop().expect("asserted").map_err(from_write_error)?;
        install_change(&commit.change, ts).await;
        Ok(Some(ts))
    }

    /// Computes a change of what is replicated from the newest catalog and installs it on every
    /// core, before any other change. `write` writes it, and what else takes place at its
    /// timestamp.
    pub(super) async fn commit_by<W>(
        &self,
        compute: impl FnOnce(&Catalog) -> Result<CatalogChange>,
        write: impl FnOnce(&CatalogChange) -> W,
    ) -> Result<Timestamp>
    where
        W: Future<Output = Result<Timestamp>>,
    {
        let _turn = self.commits.acquire().await;
        let current = core_catalog().current();
        let mut change = compute(&current)?;
        change.next_number = self.next_number(&current, true);
        pinion_runtime::sim::event("ddl");
        let ts = write(&change).await?;
        install_change(&change, ts).await;
        Ok(ts)
    }

    /// Writes a change of what is not replicated: without an entry, and without a timestamp.
    async fn commit_own(&self, change: CatalogChange) -> Result<Timestamp> {
        let statement = Statement {
            writes: change.writes(),
            entry: None,
        };
        pinion_runtime::sim::event("ddl of what is not replicated");
        let mut results = pinion_storage::storage()
            .execute_unreplicated(vec![statement], true)
            .await;
        let ts = results.pop().expect("one statement has one result");
        let ts = ts.map_err(from_write_error)?;
        install_change(&change, ts).await;
        Ok(ts)
    }

    /// Writes a change that has its timestamp already and installs it on every core, before any
    /// other change. `compute` makes it from the newest catalog.
    pub(super) async fn apply_logged(
        &self,
        ts: Timestamp,
        compute: impl FnOnce(&Catalog) -> Result<CatalogChange>,
    ) -> Result<CatalogChange> {
        let _turn = self.commits.acquire().await;
        let change = compute(&core_catalog().current())?;
        let applied = pinion_storage::storage()
            .apply_at(ts, change.writes())
            .await;
        applied.map_err(|error| {
            Error::internal(format!("cannot apply a change of the catalog: {error}"))
        })?;
        install_change(&change, ts).await;
        Ok(change)
    }

    /// Installs a version of the catalog whose change is none of the rows', before any other
    /// change.
    pub(super) async fn show(&self, change: impl FnOnce(&Catalog) -> Catalog) {
        let _turn = self.commits.acquire().await;
        let next = Arc::new(change(&core_catalog().current()));
        install(next, Timestamp::MIN).await;
    }

    /// Waits for the change, if there is one, that is being written or installed.
    pub(super) async fn settled(&self) {
        let _turn = self.commits.acquire().await;
    }

    /// As [`Coordinator::commit_with`], for a change that is not withheld.
    pub(super) async fn commit(
        &self,
        compute: impl FnOnce(&Catalog) -> Result<Commit>,
    ) -> Result<Timestamp> {
        let ts = self
            .commit_with(|catalog| compute(catalog).map(Some))
            .await?;
        Ok(ts.expect("something was to be changed"))
    }
}

/// Makes the change the current version on every core and releases the trees that it drops. Runs on
/// core 0.
async fn install_change(change: &CatalogChange, ts: Timestamp) {
    let before = core_catalog().current();
    let mut next = change.apply_to(&before, ts);
    next.note_changes(&before, change.puts.iter(), &change.removes, ts);
    let begins = match change.is_replicated() {
        // A snapshot sees it as it is now.
        Ok(Some(false)) => Timestamp::MIN,
        _ => ts,
    };
    install(Arc::new(next), begins).await;
    drop_trees(change.dropped_trees.clone(), ts).await;
}

async fn install(next: Arc<Catalog>, ts: Timestamp) {
    let oldest = pinion_storage::storage().timeline().oldest;
    pinion_runtime::on_all_cores(move |_| {
        let next = next.clone();
        async move { core_catalog().install(next, ts, oldest) }
    })
    .await;
}

/// Shows the node's log up to `through` as a collection of this size that clients read, or changes
/// its size.
///
/// # Errors
/// There is a collection or a view of its name.
pub fn show_oplog(size_bytes: i64, through: Timestamp) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        submit_to(CoreId(0), Queue::Foreground, move || async move {
            let ns = crate::entry::oplog_namespace();
            let current = core_catalog().current();
            let is_other = |found: &Arc<crate::Collection>| !found.is_oplog();
            if current.get(&ns).is_some_and(is_other) || current.view(&ns).is_some() {
                return Err(Error::new(
                    ErrorCode::NAMESPACE_EXISTS,
                    format!("{ns} is a collection of its own"),
                ));
            }
            let coordinator = pinion_runtime::core_local::<Coordinator>();
            coordinator
                .show(|current| current.with_oplog(size_bytes, through))
                .await;
            Ok(())
        })
        .await
    })
}

/// Gives out no number up to those of these trees. Runs on core 0.
pub(crate) fn skip_numbers(trees: &[TreeId]) {
    let coordinator = pinion_runtime::core_local::<Coordinator>();
    for tree in trees {
        let given = coordinator.given(tree.is_replicated());
        given.set(given.get().max(tree.0 + 1));
    }
}

/// Trees that nothing refers to from `after` on go with the next checkpoint.
pub(super) async fn drop_trees(trees: Vec<TreeId>, after: Timestamp) {
    if trees.is_empty() {
        return;
    }
    let trees: Arc<[TreeId]> = trees.into();
    pinion_runtime::on_all_cores(move |_| {
        let trees = trees.clone();
        async move {
            for tree in trees.iter() {
                pinion_storage::storage().drop_tree(*tree, after);
            }
        }
    })
    .await;
}

/// Runs one operation, which defines this, on core 0. While the node is locked it waits here before
/// it starts anything: a caller that is stopped then can say that nothing was changed.
///
/// # Errors
/// The guard refuses the definition; those of the operation.
pub(super) async fn coordinate<F, Fut, R>(
    ctx: &OpContext,
    definition: Definition,
    operation: F,
) -> Result<R>
where
    F: FnOnce(Rc<Coordinator>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<R>> + 'static,
    R: Send + 'static,
{
    coordinate_then(
        ctx,
        definition,
        operation,
        |_, result| async move { Ok(result) },
    )
    .await
}

/// As [`coordinate`], and then continues with the operation's result, on core 0 too. What follows
/// is no part of the operation: the lock of `fsync` does not wait for it.
pub(super) async fn coordinate_then<F, Fut, R, G, GFut, S>(
    ctx: &OpContext,
    definition: Definition,
    mut operation: F,
    then: G,
) -> Result<S>
where
    F: FnOnce(Rc<Coordinator>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<R>> + 'static,
    R: 'static,
    G: Fn(Rc<Coordinator>, R) -> GFut + Clone + Send + 'static,
    GFut: Future<Output = Result<S>> + 'static,
    S: Send + 'static,
{
    admit(ctx, &definition)?;
    loop {
        interruptible(ctx, core_catalog().gates().until_unlocked_for(ctx.op_id)).await?;
        let then = then.clone();
        let attempt = pinion_runtime::submit_to(CoreId(0), Queue::Foreground, move || async move {
            // The lock may have been requested meanwhile: it waits for what starts here.
            let Some(pass) = core_catalog().gates().try_change() else {
                return Err(operation);
            };
            let task = pinion_runtime::spawn(Queue::Foreground, async move {
                let _pass = pass;
                operation(pinion_runtime::core_local::<Coordinator>()).await
            });
            let coordinator = pinion_runtime::core_local::<Coordinator>();
            Ok(match task.await {
                Ok(Ok(result)) => then(coordinator, result).await,
                Ok(Err(error)) => Err(error),
                Err(_) => Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)),
            })
        })
        .await;
        match attempt {
            Ok(result) => return result,
            Err(not_started) => operation = not_started,
        }
    }
}

/// How often databases were locked since the node started.
pub fn database_locks() -> LocalBoxFuture<'static, DatabaseLocks> {
    Box::pin(async move {
        pinion_runtime::submit_to(CoreId(0), Queue::Foreground, || async {
            pinion_runtime::core_local::<Coordinator>().database_locks()
        })
        .await
    })
}

/// The operations that wait on this core until they may change something of the catalog.
pub fn awaited_locks() -> Vec<AwaitedLock> {
    match pinion_runtime::try_core_local::<Coordinator>() {
        Some(coordinator) => coordinator.locks.waiting(),
        None => Vec::new(),
    }
}

/// Runs `operation` while the gates of these namespaces, whose locks the caller holds, are closed
/// on every core. A client's operation, `by`, may be stopped while it waits for operations that
/// stay behind a gate, as a prepared transaction does, but no longer once `operation` has started.
///
/// # Errors
/// Those of the operation; `InterruptedDueToReplStateChange` if the node stops to take writes while
/// an operation is behind a gate; the operation is stopped.
pub(super) async fn behind_gates<T>(
    by: Option<&OpContext>,
    namespaces: &[Namespace],
    mode: GateMode,
    operation: impl Future<Output = Result<T>>,
) -> Result<T> {
    let mut namespaces = namespaces.to_vec();
    // Operations that need several namespaces enter their gates in this order too: so none holds a
    // gate that is drained and waits for one that is closed already.
    namespaces.sort();
    namespaces.dedup();
    let gates: Arc<[GateOf]> = namespaces.iter().cloned().map(GateOf::Namespace).collect();
    let holder = pinion_runtime::core_local::<Coordinator>().holder();
    let closed = close_gates(by, &gates, holder, (GateMode::Open, mode)).await;
    let admitted =
        closed.and_then(|()| by.map_or(Ok(()), |by| admit_behind_gates(by, &namespaces)));
    let result = match admitted {
        Ok(()) => operation.await,
        Err(error) => Err(error),
    };
    set_gates(&gates, holder, GateMode::Open).await;
    result
}

/// Closes gates on every core, one after the other, from what the holder keeps out already, and
/// waits until they are drained, for as long as `by` is neither stopped nor out of time. On an
/// error the caller sets them again.
pub(super) async fn close_gates(
    by: Option<&OpContext>,
    gates: &[GateOf],
    holder: Holder,
    (before, mode): (GateMode, GateMode),
) -> Result<()> {
    // A transaction may stay behind a gate for a minute: readers are kept out only when none does.
    let steps: &[GateMode] = match mode {
        GateMode::Closed => &[GateMode::NoStaying, GateMode::Closed],
        _ => &[mode],
    };
    // None of them admits what the holder keeps out.
    for mode in steps.iter().copied().filter(|step| *step > before) {
        for of in gates {
            let (of, by) = (of.clone(), by.cloned());
            let on_each = pinion_runtime::on_all_cores(move |_| {
                let (of, by) = (of.clone(), by.clone());
                async move { close(by.as_ref(), &of, holder, mode).await }
            });
            on_each.await.into_iter().collect::<Result<()>>()?;
        }
    }
    Ok(())
}

/// Sets on every core what the holder keeps out at its gates.
pub(super) async fn set_gates(gates: &Arc<[GateOf]>, holder: Holder, mode: GateMode) {
    let gates = gates.clone();
    pinion_runtime::on_all_cores(move |_| {
        let gates = gates.clone();
        async move {
            for of in gates.iter() {
                core_catalog().gates().set(of, holder, mode);
            }
        }
    })
    .await;
}

/// Closes a gate of this core and waits until no operation that it keeps out is behind it. On an
/// error the gate has to be set again.
async fn close(by: Option<&OpContext>, of: &GateOf, holder: Holder, mode: GateMode) -> Result<()> {
    let catalog = core_catalog();
    let gates = catalog.gates();
    let drained = match by {
        Some(ctx) => interruptible(ctx, gates.close_for(ctx.op_id, of, holder, mode)).await?,
        None => gates.close(of, holder, mode).await,
    };
    drained.map_err(|why| match why {
        NotDrained::GaveUp => interruption(ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE),
        NotDrained::Opened => interruption(ErrorCode::INTERRUPTED),
    })
}
