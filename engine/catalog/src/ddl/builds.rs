//! The builds of indexes that are under way: what they run through, which tasks wait for them, and
//! how they are ended.
//!
//! A build runs in a task of its own on core 0. It holds no lock of its namespace while it reads
//! and sorts; an operation that cannot run beside it ends it, or waits for it, or is refused, and
//! takes its own lock after that. Only a build that has its lock again and is about to commit is
//! not ended any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_runtime::sync::{Notified, Notify};
use pinion_runtime::{CoreId, Instant, LocalBoxFuture, Queue, spawn, submit_to};
use pinion_service::interrupt::interruptible;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::build_run::End;
use super::build_set::BuildName;
use super::coordinator::{Coordinator, coordinate};
use super::guard::Definition;
use crate::build::{BuildPhase, Work};
use crate::catalog::core_catalog;
use crate::entry::Collection;
use crate::index::Index;
use crate::uuid::Uuid;

/// The builds of a node. Lives on core 0 with the coordinator.
#[derive(Default)]
pub(crate) struct Builds {
    running: RefCell<BTreeMap<Uuid, Rc<Build>>>,
    numbered: Cell<i32>,
    counts: Cell<BuildCounts>,
    /// A build has ended.
    left: Notify,
}

/// How many builds there were since the node started.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct BuildCounts {
    pub total: u64,
    /// Ended because the file system had too little room.
    pub killed_by_low_disk: u64,
    /// Failed on documents or pages that are damaged.
    pub failed_on_damage: u64,
}

impl Builds {
    /// How many run.
    pub(super) fn active(&self) -> usize {
        self.running.borrow().len()
    }

    /// Waits until fewer than `most` run.
    pub(super) async fn ended(&self, most: usize) {
        tracing::info!(
            target: "INDEX", id = 4_715_500u64, maxNumActiveUserIndexBuilds = most,
            "Too many index builds running simultaneously, waiting until the number of active index builds is below the threshold"
        );
        loop {
            let left = self.left.notified();
            if self.active() < most {
                return;
            }
            left.await;
        }
    }

    fn count(&self, change: impl FnOnce(&mut BuildCounts)) {
        let mut counts = self.counts.get();
        change(&mut counts);
        self.counts.set(counts);
    }

    fn count_failure(&self, error: &Error) {
        self.count(|counts| match error.code {
            ErrorCode::OUT_OF_DISK_SPACE => counts.killed_by_low_disk += 1,
            ErrorCode::DATA_CORRUPTION_DETECTED => counts.failed_on_damage += 1,
            _ => {}
        });
    }
}

/// A build under way.
pub(super) struct Build {
    pub work: Arc<Work>,
    /// What the client has asked for of the set, until that is kept.
    asked: RefCell<Option<RawDocumentBuf>>,
    /// Its number among the operations. Those of clients are positive.
    op_id: i32,
    started: Instant,
    activity: Cell<BuildActivity>,
    /// Why the build was ended from outside.
    ended_by: RefCell<Option<Error>>,
    decided: Cell<Option<Decided>>,
    /// The task has left the end of the build to the decision about it; whether it had made all
    /// entries.
    left: Cell<Option<bool>>,
    outcome: RefCell<Option<Result<Timestamp>>>,
    changed: Notify,
}

/// What ends a build in the place of its own task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decided {
    /// The applier has come to the entry of the commit: the task leaves when all entries are made.
    Commit,
    /// The applier has come to an entry that ends it without an index.
    Abort,
    /// The data directory is opened again: the build begins again over what is there then.
    Reopening,
    /// The process ends: the next start continues.
    Shutdown,
}

/// What others see of a build.
#[derive(Clone, Debug)]
pub struct BuildInfo {
    pub uuid: Uuid,
    pub ns: Namespace,
    pub op_id: i32,
    pub started: Instant,
    pub phase: BuildPhase,
    /// Documents or entries that are done in this phase, and how many there are.
    pub done: u64,
    pub total: u64,
    /// The specifications of its indexes.
    pub indexes: Vec<RawDocumentBuf>,
    pub activity: BuildActivity,
}

/// What a build does beside its phase.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BuildActivity {
    /// It reads and loads what is there.
    Fills,
    /// It waits for the set.
    WaitsForSet,
    /// It brings over what was written meanwhile, beside writers.
    Drains,
    /// Writers are kept out until it is committed.
    Commits,
}

impl BuildInfo {
    /// What `currentOp` says of it.
    pub fn message(&self) -> &'static str {
        match self.activity {
            BuildActivity::WaitsForSet => {
                "Index Build: waiting for next action before completing final phase"
            }
            _ => self.phase.message(),
        }
    }
}

/// What an operation found in its way.
pub(super) enum Step<T> {
    Done(T),
    /// It tries again once these have ended.
    Waits(Vec<Uuid>),
}

impl Build {
    fn end(&self, reason: &str) {
        let uuid = self.work.uuid;
        let error = Error::new(
            ErrorCode::INDEX_BUILD_ABORTED,
            format!("Index build aborted: {uuid}: {reason}"),
        );
        self.ended_by.borrow_mut().get_or_insert(error);
        self.work.progress.stop();
        self.changed.notify_all();
    }

    fn decide(&self, decided: Decided) {
        // One that is closed stays so.
        let closing = [Decided::Reopening, Decided::Shutdown].map(Some);
        if !closing.contains(&self.decided.get()) {
            self.decided.set(Some(decided));
        }
        match decided {
            Decided::Commit => {}
            Decided::Abort => self.work.progress.stop(),
            Decided::Reopening | Decided::Shutdown => self.work.progress.close(),
        }
        self.changed.notify_all();
    }

    /// Why the build was ended from outside.
    pub(super) fn ended_by(&self) -> Option<Error> {
        self.ended_by.borrow().clone()
    }

    pub(super) fn decided(&self) -> Option<Decided> {
        self.decided.get()
    }

    pub(super) async fn until_decided(&self) {
        loop {
            let changed = self.changed.notified();
            if self.decided.get().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Completes when the build was decided, or ended from outside.
    pub(super) fn changed(&self) -> Notified {
        self.changed.notified()
    }

    pub(super) fn take_asked(&self) -> Option<RawDocumentBuf> {
        self.asked.take()
    }

    pub(super) fn set_activity(&self, activity: BuildActivity) {
        self.activity.set(activity);
    }

    pub(super) fn name(&self) -> BuildName {
        let Work {
            collection,
            indexes,
            uuid,
            ..
        } = &*self.work;
        BuildName {
            uuid: *uuid,
            collection: collection.uuid,
            indexes: indexes.iter().map(|i| i.name().to_owned()).collect(),
        }
    }

    fn log_start(&self) {
        let Work {
            collection,
            indexes,
            ..
        } = &*self.work;
        let names: Vec<&str> = indexes.iter().map(Index::name).collect();
        tracing::info!(
            target: "INDEX", id = 20_438u64, buildUUID = %self.work.uuid, namespace = collection.ns.as_str(),
            collectionUUID = %collection.uuid, indexes = names.join(", "), "Index build: registering"
        );
    }

    fn log_end(&self, outcome: &Result<Timestamp>) {
        let (uuid, ns) = (self.work.uuid, self.work.collection.ns.as_str());
        let millis = self.started.elapsed().as_millis() as u64;
        match outcome {
            Ok(at) => tracing::info!(
                target: "INDEX", id = 20_663u64, buildUUID = %uuid, namespace = ns, commitTimestamp = %at,
                durationMillis = millis, "Index build: completed successfully"
            ),
            Err(error) => tracing::info!(
                target: "INDEX", id = 20_649u64, buildUUID = %uuid, namespace = ns, error = error.message.as_str(),
                durationMillis = millis, "Index build: failed"
            ),
        }
    }

    /// Waits for the end.
    pub(super) async fn outcome(&self) -> Result<Timestamp> {
        loop {
            let changed = self.changed.notified();
            if let Some(outcome) = &*self.outcome.borrow() {
                return outcome.clone();
            }
            changed.await;
        }
    }

    /// Waits until the task has left the end to the decision about it; true if it had made all
    /// entries. False also where it has come to an end of its own.
    async fn until_left(&self) -> bool {
        loop {
            let changed = self.changed.notified();
            if let Some(made) = self.left.get() {
                return made;
            }
            if self.outcome.borrow().is_some() {
                return false;
            }
            changed.await;
        }
    }

    fn info(&self) -> BuildInfo {
        let work = &self.work;
        let (done, total) = work.progress.done_of();
        BuildInfo {
            uuid: work.uuid,
            ns: work.collection.ns.clone(),
            op_id: self.op_id,
            started: self.started,
            phase: work.progress.phase(),
            done,
            total,
            indexes: work.indexes.iter().map(|i| i.listed.clone()).collect(),
            activity: self.activity.get(),
        }
    }
}

/// The builds under way.
pub fn index_builds() -> LocalBoxFuture<'static, Vec<BuildInfo>> {
    Box::pin(async move {
        let look = || async {
            let coordinator = pinion_runtime::core_local::<Coordinator>();
            let running = coordinator.builds.running.borrow();
            running.values().map(|build| build.info()).collect()
        };
        submit_to(CoreId(0), Queue::Foreground, look).await
    })
}

/// How many builds there were.
pub fn build_counts() -> LocalBoxFuture<'static, BuildCounts> {
    Box::pin(async move {
        let look = || async {
            let coordinator = pinion_runtime::core_local::<Coordinator>();
            coordinator.builds.counts.get()
        };
        submit_to(CoreId(0), Queue::Foreground, look).await
    })
}

/// Ends the build with this number among the operations; false if there is none.
pub fn kill_build(op_id: i32) -> LocalBoxFuture<'static, bool> {
    Box::pin(async move {
        end_where(
            move |build| build.op_id == op_id,
            "operation was interrupted".into(),
        )
        .await
    })
}

/// Ends a build that a member cannot make; false if there is none.
pub fn abort_build(uuid: Uuid, why: String) -> LocalBoxFuture<'static, bool> {
    Box::pin(async move { end_where(move |build| build.work.uuid == uuid, why).await })
}

async fn end_where(is_meant: impl Fn(&Build) -> bool + Send + 'static, why: String) -> bool {
    let end = move || async move {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        let running = coordinator.builds.running.borrow();
        let build = running.values().find(|build| is_meant(build));
        build.inspect(|build| build.end(&why)).is_some()
    };
    submit_to(CoreId(0), Queue::Foreground, end).await
}

/// Stops all builds, and waits until none does anything any more: the data directory is closed to
/// be opened again. Call it on core 0.
pub fn end_builds() -> LocalBoxFuture<'static, ()> {
    Box::pin(close_builds(Decided::Reopening))
}

/// Stops all builds, and waits until each has kept what it has done for the next start. Call it on
/// core 0.
pub fn keep_builds() -> LocalBoxFuture<'static, ()> {
    Box::pin(close_builds(Decided::Shutdown))
}

async fn close_builds(decided: Decided) {
    let coordinator = pinion_runtime::core_local::<Coordinator>();
    loop {
        let next = coordinator.builds.running.borrow().values().next().cloned();
        let Some(build) = next else { return };
        build.decide(decided);
        // How it ended is reported to the operations that asked for it.
        let _ = build.outcome().await;
    }
}

/// Runs an operation that waits where builds are in its way, and starts again each time.
pub(super) async fn coordinate_beside<F, Fut, R>(
    ctx: &OpContext,
    definition: Definition,
    operation: F,
) -> Result<R>
where
    F: FnOnce(Rc<Coordinator>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<Step<R>>> + 'static,
    R: Send + 'static,
{
    loop {
        match coordinate(ctx, definition.clone(), operation.clone()).await? {
            Step::Done(result) => return Ok(result),
            Step::Waits(builds) => await_builds(ctx, builds).await?,
        }
    }
}

/// Waits until these builds have ended, however they do.
///
/// # Errors
/// The operation is interrupted, or a build does not run here: over the data of a member it waits
/// until the node is one again.
pub(super) async fn await_builds(ctx: &OpContext, builds: Vec<Uuid>) -> Result<()> {
    let wait = move || async move {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        for uuid in builds {
            let build = coordinator.running(uuid);
            if let Some(build) = build {
                let _ = build.outcome().await;
            } else {
                let catalog = core_catalog().current();
                let mut collections = catalog.collections();
                if let Some(has_it) = collections.find(|found| found.builds().contains(&uuid)) {
                    return check_no_build(has_it);
                }
            }
        }
        Ok(())
    };
    interruptible(ctx, submit_to(CoreId(0), Queue::Foreground, wait)).await?
}

/// The error of an operation that cannot run beside a build.
pub(super) fn check_no_build(collection: &Collection) -> Result<()> {
    if collection.builds().is_empty() {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::BACKGROUND_OPERATION_IN_PROGRESS_FOR_NAMESPACE,
        format!(
            "cannot perform operation: an index build is currently running for collection with UUID: {}",
            collection.uuid
        ),
    ))
}

impl Coordinator {
    /// Ends builds; the caller waits for that without a lock.
    pub(super) fn end_builds(&self, builds: &[Uuid], reason: &str) {
        let running = self.builds.running.borrow();
        let ended = builds.iter().filter_map(|uuid| running.get(uuid));
        ended.for_each(|build| build.end(reason));
    }

    /// Lets a build run whose beginning the catalog has. `asked` is what a client wants of the set.
    pub(super) fn run(
        self: &Rc<Self>,
        work: impl Into<Arc<Work>>,
        asked: Option<RawDocumentBuf>,
    ) -> Rc<Build> {
        let op_id = self.builds.numbered.get().checked_sub(1).unwrap_or(-1);
        self.builds.numbered.set(op_id);
        let build = Rc::new(Build {
            work: work.into(),
            asked: RefCell::new(asked),
            op_id,
            started: pinion_runtime::now(),
            activity: Cell::new(BuildActivity::Fills),
            ended_by: RefCell::default(),
            decided: Cell::new(None),
            left: Cell::new(None),
            outcome: RefCell::default(),
            changed: Notify::new(),
        });
        build.log_start();
        let uuid = build.work.uuid;
        let displaced = (self.builds.running.borrow_mut()).insert(uuid, build.clone());
        assert!(displaced.is_none(), "the build {uuid} runs twice");
        self.builds.count(|counts| counts.total += 1);
        let (coordinator, running) = (self.clone(), build.clone());
        drop(spawn(Queue::Foreground, async move {
            match coordinator.build(&running).await {
                End::Here(outcome) => coordinator.note_end(&running, outcome),
                End::Left(made) => {
                    running.left.set(Some(made));
                    running.changed.notify_all();
                }
            }
        }));
        build
    }

    /// The build with this UUID that runs here.
    pub(super) fn running(&self, uuid: Uuid) -> Option<Rc<Build>> {
        self.builds.running.borrow().get(&uuid).cloned()
    }

    fn note_end(&self, build: &Build, outcome: Result<Timestamp>) {
        build.log_end(&outcome);
        if let Err(error) = &outcome {
            self.builds.count_failure(error);
        }
        self.builds.running.borrow_mut().remove(&build.work.uuid);
        self.builds.left.notify_all();
        build.outcome.replace(Some(outcome));
        build.changed.notify_all();
    }

    /// Has the build end as the log says that it does. Waits until its task does nothing any more;
    /// true if all its entries are made that were there to make.
    pub(super) async fn leave_to_log(&self, uuid: Uuid, commits: bool) -> bool {
        let Some(build) = self.running(uuid) else {
            return false;
        };
        build.decide(match commits {
            true => Decided::Commit,
            false => Decided::Abort,
        });
        build.until_left().await
    }

    /// The entry that ends a build is applied.
    pub(super) fn ended_by_log(&self, uuid: Uuid, outcome: Result<Timestamp>) {
        if let Some(build) = self.running(uuid) {
            self.note_end(&build, outcome);
        }
    }
}

/// What the log says of a build: its command, and its indexes.
pub(super) fn listing<'a>(
    command: &str,
    ns: &Namespace,
    build: Uuid,
    indexes: impl IntoIterator<Item = &'a Index>,
) -> DocBuilder {
    let mut o = DocBuilder::new();
    o.append(command, ns.collection())
        .append("indexBuildUUID", build.to_bson())
        .start_array("indexes");
    for index in indexes {
        o.push(&*index.listed);
    }
    o.end();
    o
}
