//! The builds of indexes that are under way: what they run through, who waits for them, and how
//! they are ended.
//!
//! A build runs in a task of its own on core 0. It holds no lock of its namespace while it reads
//! and sorts; an operation that cannot go on beside it ends it, or waits for it, or is refused, and
//! takes its own lock after that. Only a build that has its lock again and is about to commit is
//! not ended any more.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use pinion_bson::{DocBuilder, RawDocumentBuf};
use pinion_clock::Timestamp;
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, Instant, Queue, spawn, submit_to};
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::coordinator::{Commit, Coordinator, behind_gates, coordinate};
use super::locks::Scope;
use crate::build::{self, BuildPhase, Found, Work};
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::gates::GateMode;
use crate::index::Index;
use crate::interrupt::interruptible;
use crate::limits::{DRAINED_ENTRIES, MAX_DRAIN_PASSES};
use crate::uuid::Uuid;

/// The builds of a node. Lives on core 0 with the coordinator.
#[derive(Default)]
pub(crate) struct Builds {
    running: RefCell<BTreeMap<Uuid, Rc<Build>>>,
    numbered: Cell<i32>,
    counts: Cell<BuildCounts>,
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
    /// Its number among the operations. Those of clients are positive.
    op_id: i32,
    started: Instant,
    /// Why somebody has ended it.
    ended_by: RefCell<Option<Error>>,
    outcome: RefCell<Option<Result<Timestamp>>>,
    ended: Notify,
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
            let ended = self.ended.notified();
            if let Some(outcome) = &*self.outcome.borrow() {
                return outcome.clone();
            }
            ended.await;
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
        }
    }
}

/// The builds under way.
pub async fn index_builds() -> Vec<BuildInfo> {
    let look = || async {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        let running = coordinator.builds.running.borrow();
        running.values().map(|build| build.info()).collect()
    };
    submit_to(CoreId(0), Queue::Foreground, look).await
}

/// How many builds there were.
pub async fn build_counts() -> BuildCounts {
    let look = || async {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        coordinator.builds.counts.get()
    };
    submit_to(CoreId(0), Queue::Foreground, look).await
}

/// Ends the build with this number among the operations; false if there is none.
pub async fn kill_build(op_id: i32) -> bool {
    let kill = move || async move {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        let running = coordinator.builds.running.borrow();
        let build = running.values().find(|build| build.op_id == op_id);
        build
            .inspect(|build| build.end("operation was interrupted"))
            .is_some()
    };
    submit_to(CoreId(0), Queue::Foreground, kill).await
}

/// Waits until no build is under way: they end soon once the node shuts down. Call it on core 0.
pub async fn end_builds() {
    let coordinator = pinion_runtime::core_local::<Coordinator>();
    coordinator.logged_builds.end_all().await;
    loop {
        let next = coordinator.builds.running.borrow().values().next().cloned();
        let Some(build) = next else { return };
        // How it ended is for those who asked for it.
        let _ = build.outcome().await;
    }
}

/// Runs an operation that waits where builds are in its way, and each time begins anew.
pub(super) async fn coordinate_beside<F, Fut, R>(ctx: &OpContext, operation: F) -> Result<R>
where
    F: FnOnce(Rc<Coordinator>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Result<Step<R>>> + 'static,
    R: Send + 'static,
{
    loop {
        match coordinate(ctx, operation.clone()).await? {
            Step::Done(result) => return Ok(result),
            Step::Waits(builds) => await_builds(ctx, builds).await?,
        }
    }
}

/// Waits until these builds have ended, however they do.
pub(super) async fn await_builds(ctx: &OpContext, builds: Vec<Uuid>) -> Result<()> {
    let wait = move || async move {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        for uuid in builds {
            let build = coordinator.builds.running.borrow().get(&uuid).cloned();
            if let Some(build) = build {
                let _ = build.outcome().await;
            }
        }
    };
    interruptible(ctx, submit_to(CoreId(0), Queue::Foreground, wait)).await
}

/// The error of an operation that cannot go on beside a build.
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

    /// Lets a build run whose beginning the catalog has.
    pub(super) fn run(self: &Rc<Self>, work: Work) -> Rc<Build> {
        let op_id = self.builds.numbered.get().checked_sub(1).unwrap_or(-1);
        self.builds.numbered.set(op_id);
        let build = Rc::new(Build {
            work: Arc::new(work),
            op_id,
            started: pinion_runtime::now(),
            ended_by: RefCell::default(),
            outcome: RefCell::default(),
            ended: Notify::new(),
        });
        let uuid = build.work.uuid;
        build.log_start();
        self.builds.running.borrow_mut().insert(uuid, build.clone());
        self.builds.count(|counts| counts.total += 1);
        let (coordinator, running) = (self.clone(), build.clone());
        drop(spawn(Queue::Foreground, async move {
            let outcome = coordinator.build(&running).await;
            running.log_end(&outcome);
            if let Err(error) = &outcome {
                coordinator.builds.count_failure(error);
            }
            coordinator.builds.running.borrow_mut().remove(&uuid);
            *running.outcome.borrow_mut() = Some(outcome);
            running.ended.notify_all();
        }));
        build
    }

    async fn build(&self, build: &Build) -> Result<Timestamp> {
        let work = &build.work;
        let filled = self.fill(work).await;
        // From here on nobody waits for it with a lock of the namespace, nor for its pass.
        let _pass = core_catalog().gates().begin_change().await;
        let _lock = self.lock(Scope::one(&work.collection.ns)).await;
        let completed = match filled {
            Ok(found) => {
                let commit = self.complete(work, found);
                let gates = [work.collection.ns.clone()];
                behind_gates(&gates, GateMode::NoWrites, commit).await
            }
            Err(error) => Err(error),
        };
        let Err(error) = completed else {
            return completed;
        };
        let error = build.ended_by.borrow().clone().unwrap_or(error);
        let error = build::failed(work, error);
        // The next start gives it up.
        if error.code != ErrorCode::INTERRUPTED_AT_SHUTDOWN {
            let gates = [work.collection.ns.clone()];
            let abort = self.abort(work, Some(&error));
            behind_gates(&gates, GateMode::NoWrites, abort).await?;
        }
        Err(error)
    }

    /// All that needs no lock of the namespace. While the node is locked against writes this waits
    /// wherever it would change more than pages that nothing refers to.
    async fn fill(&self, work: &Arc<Work>) -> Result<Found> {
        let mut found = build::fill(work).await?;
        {
            let _pass = core_catalog().gates().begin_change().await;
            build::install(&found).await?;
        }
        for _ in 0..MAX_DRAIN_PASSES {
            let _pass = core_catalog().gates().begin_change().await;
            if build::drain_once(work, &mut found).await? <= DRAINED_ENTRIES {
                break;
            }
        }
        Ok(found)
    }

    /// The end, behind the gates: what is left of the side writes, and the indexes ready.
    async fn complete(&self, work: &Arc<Work>, found: Found) -> Result<Timestamp> {
        work.check()?;
        let found = build::complete(work, found).await?;
        let ns = &work.collection.ns;
        let o = listing("commitIndexBuild", ns, work.uuid, work.indexes.iter()).finish();
        let ready = |catalog: &Catalog| {
            let current = catalog.get(ns).expect("its lock is held");
            let mut changed = Collection::clone(current);
            let mut dropped_trees = Vec::new();
            for index in work.indexes.iter() {
                let known = current.index(index.name()).expect("only its build ends it");
                let mut built = known.built();
                for (_, paths) in found
                    .multikey
                    .iter()
                    .filter(|(tree, _)| *tree == index.tree)
                {
                    built = built.with_multikey(paths);
                }
                dropped_trees.extend(index.building.map(|building| building.side));
                changed = changed.with_replaced(index.name(), built);
            }
            let change = CatalogChange {
                puts: vec![changed],
                dropped_trees,
                ..Default::default()
            };
            Ok(Commit::command(ns, Some(current.uuid), o, change))
        };
        self.commit(ready).await
    }

    /// Takes the indexes of a build out of the catalog, and lets go of their trees.
    async fn abort(&self, work: &Work, cause: Option<&Error>) -> Result<Timestamp> {
        self.abort_build(&work.collection.ns, work.uuid, cause)
            .await
    }

    async fn abort_build(
        &self,
        ns: &Namespace,
        build: Uuid,
        cause: Option<&Error>,
    ) -> Result<Timestamp> {
        let gone = |catalog: &Catalog| {
            let current = catalog.get(ns).expect("its lock is held");
            let is_of_build = |index: &&Arc<Index>| {
                index
                    .building
                    .is_some_and(|building| building.build == build)
            };
            let indexes: Vec<Arc<Index>> = current
                .indexes
                .iter()
                .filter(is_of_build)
                .cloned()
                .collect();
            let names: Vec<String> = indexes.iter().map(|i| i.name().to_owned()).collect();
            let trees: Vec<TreeId> = indexes.iter().flat_map(|index| index.trees()).collect();
            let mut o = listing("abortIndexBuild", ns, build, indexes.iter().map(|i| &**i));
            o.start_document("cause").append("ok", false);
            match cause {
                Some(error) => o
                    .append("code", error.code.0)
                    .append("codeName", &*error.code.name())
                    .append("errmsg", error.message.as_str()),
                None => o
                    .append("code", ErrorCode::INDEX_BUILD_ABORTED.0)
                    .append("codeName", &*ErrorCode::INDEX_BUILD_ABORTED.name())
                    .append("errmsg", "the node was started before the build had ended"),
            };
            o.end();
            let change = CatalogChange {
                puts: vec![current.without_indexes(&names)],
                dropped_trees: trees,
                ..Default::default()
            };
            Ok(Commit::command(ns, Some(current.uuid), o.finish(), change))
        };
        self.commit(gone).await
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

/// Gives up the builds that the catalog has when recovery is complete. Runs on core 0, before
/// anybody else uses it.
pub(crate) async fn give_up_builds() -> Result<()> {
    let coordinator = pinion_runtime::core_local::<Coordinator>();
    let catalog = core_catalog().current();
    for collection in catalog.collections() {
        for build in collection.builds() {
            tracing::info!(
                target: "INDEX", id = 7_400_002u64, namespace = collection.ns.as_str(), buildUUID = %build,
                "An index build that had not ended is given up"
            );
            coordinator.abort_build(&collection.ns, build, None).await?;
        }
    }
    Ok(())
}
