//! What the task of a build does: it makes the entries of the documents that are there, and ends
//! the build when it is this node's turn to.
//!
//! On a member of a replica set that is the primary's, and the member may become it, or cease to be
//! it, at any moment: what the task does as primary fails then, and it waits for its next turn, or
//! for the entry of another primary.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use pinion_clock::Timestamp;
use pinion_runtime::{Queue, sleep, spawn, timeout};
use pinion_service::interrupt::poll_once;
use pinion_service::limits::{KILL_POLL, LONGEST_KILL_POLL};
use pinion_storage::{TreeId, storage};
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, Result, interruption};

use super::build_set::{BuildSet, Waiting, build_set};
use super::builds::{Build, BuildActivity, Decided, listing};
use super::coordinator::{Commit, Coordinator, behind_gates};
use crate::build::{self, BuildPhase, Filled, Found, Stopped, Work};
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::errors::from_fatal;
use crate::gates::GateMode;
use crate::index::Index;
use crate::limits::{DRAINED_ENTRIES, MAX_DRAIN_PASSES};
use crate::uuid::Uuid;

/// How the task of a build comes to its end.
pub(super) enum End {
    /// It has ended the build.
    Here(Result<Timestamp>),
    /// The log has an end of the build, and the build continues where
    /// that is applied. Whether all entries are made.
    Left(bool),
}

/// What a wait for the set has come to.
enum Turn {
    /// It is for this node to end the build.
    Ours,
    /// It is to be given up.
    Failed(Error),
    /// There is a decision about the build.
    Decided,
}

fn closed() -> End {
    End::Here(Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)))
}

fn is_shutdown(error: &Error) -> bool {
    error.code == ErrorCode::INTERRUPTED_AT_SHUTDOWN
}

/// Whether the files of a build that was resumed cannot be read.
fn is_of_files(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::DATA_CORRUPTION_DETECTED | ErrorCode::FILE_STREAM_FAILED
    )
}

pub(super) fn log_not_resumed(collection: &Collection, build: Uuid, error: &Error) {
    tracing::error!(
        target: "INDEX", id = 4_841_701u64, buildUUID = %build, namespace = collection.ns.as_str(),
        collectionUUID = %collection.uuid, error = error.message.as_str(),
        "Index build: failed to resume, restarting instead"
    );
}

/// Whether it was refused because this node is no primary any more.
fn is_of_role(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::INTERRUPTED_DUE_TO_REPL_STATE_CHANGE
            | ErrorCode::NOT_WRITABLE_PRIMARY
            | ErrorCode::PRIMARY_STEPPED_DOWN
    )
}

/// Whether it was refused for want of memory or disk, of which there may be enough at the next try.
fn is_of_room(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::TEMPORARILY_UNAVAILABLE | ErrorCode::OUT_OF_DISK_SPACE
    )
}

impl Build {
    /// Waits for the set, unless something else comes first; of a standalone it is always the turn.
    async fn turn(
        &self,
        wait: impl FnOnce(Option<&dyn BuildSet>) -> Option<Waiting<()>>,
        check: impl Fn() -> Result<()>,
    ) -> Turn {
        let Some(waiting) = wait(build_set().as_deref()) else {
            return match self.decided() {
                Some(_) => Turn::Decided,
                None => Turn::Ours,
            };
        };
        let mut waiting = pin!(waiting);
        let mut poll = KILL_POLL;
        loop {
            let changed = self.changed();
            if self.decided().is_some() {
                return Turn::Decided;
            }
            if let Err(error) = check() {
                return Turn::Failed(error);
            }
            if poll_once(waiting.as_mut()).await.is_some() {
                return Turn::Ours;
            }
            // Nothing notifies the build when its client is interrupted.
            poll = LONGEST_KILL_POLL.min(poll * 2);
            if let Ok(true) = timeout(poll, first(waiting.as_mut(), changed)).await {
                return Turn::Ours;
            }
        }
    }
}

impl Coordinator {
    pub(super) async fn build(&self, build: &Build) -> End {
        let (work, set) = (&build.work, build_set());
        if let (Some(asked), Some(set)) = (build.take_asked(), &set) {
            set.started(build.name(), asked).await;
        }
        let mut found = match self.fill(work).await {
            Ok(Filled::Complete(found)) => found,
            Ok(Filled::Stopped(at)) => return self.stop(build, at).await,
            Err(error) => return self.give_up(build, error).await,
        };
        loop {
            build.set_activity(BuildActivity::WaitsForSet);
            let until = |set: Option<&dyn BuildSet>| set.map(|set| set.until_commit(build.name()));
            match build.turn(until, || work.check()).await {
                Turn::Ours => {}
                Turn::Failed(error) if is_shutdown(&error) => {
                    return self.stop(build, found.stopped()).await;
                }
                Turn::Failed(error) => return self.give_up(build, error).await,
                Turn::Decided => return self.stop(build, found.stopped()).await,
            }
            match self.try_commit(build, &mut found).await {
                Ok(ts) => {
                    report_ended(work.uuid);
                    return End::Here(Ok(ts));
                }
                // Neither the gates nor a pass are held while it waits: what makes room may need
                // them.
                Err(error)
                    if set.is_some() && is_of_role(&error)
                        || error.code == ErrorCode::TEMPORARILY_UNAVAILABLE =>
                {
                    found.look_at_all(work);
                    sleep(KILL_POLL).await;
                }
                Err(error) if is_shutdown(&error) => {
                    return self.stop(build, found.stopped()).await;
                }
                Err(error) => return self.give_up(build, error).await,
            }
        }
    }

    /// All that needs no lock of the namespace, and that any member does. While the node is locked
    /// against writes this waits wherever it would change more than pages that nothing refers to.
    async fn fill(&self, work: &Arc<Work>) -> Result<Filled> {
        let resumed = work.resumed.as_ref();
        if let Some(state) = resumed.filter(|state| state.phase == BuildPhase::Draining) {
            return Ok(Filled::Complete(build::resume_drain(work, state)));
        }
        let filled = match build::fill_from(work, resumed).await {
            Err(error) if resumed.is_some() && is_of_files(&error) => {
                log_not_resumed(&work.collection, work.uuid, &error);
                let pass = core_catalog().gates().begin_change().await;
                build::forget_entries(work.indexes.iter()).await?;
                drop(pass);
                build::fill_from(work, None).await?
            }
            filled => filled?,
        };
        if let Filled::Complete(found) = &filled {
            let _pass = core_catalog().gates().begin_change().await;
            build::install(work, found).await?;
        }
        Ok(filled)
    }

    /// A build that is stopped leaves what it has done to the next start. Until the node is closed
    /// it may follow another member, whose log ends the build.
    async fn stop(&self, build: &Build, at: Stopped) -> End {
        build.until_decided().await;
        match build.decided() {
            Some(Decided::Shutdown) => {
                build::keep(&build.work, at).await;
                closed()
            }
            Some(Decided::Commit | Decided::Abort) => {
                build::forget_sorted(&build.work).await;
                End::Left(at.is_filled())
            }
            Some(Decided::Reopening) | None => {
                build::forget_sorted(&build.work).await;
                closed()
            }
        }
    }

    /// Brings over what was written meanwhile, and commits.
    async fn try_commit(&self, build: &Build, found: &mut Found) -> Result<Timestamp> {
        let work = &build.work;
        build.set_activity(BuildActivity::Drains);
        build::held(work).await?;
        for _ in 0..MAX_DRAIN_PASSES {
            let _pass = core_catalog().gates().begin_change().await;
            if build::drain_once(work, found).await? <= DRAINED_ENTRIES {
                break;
            }
        }
        // From here on no holder of a lock of the namespace waits for the build, and no task waits
        // for its pass.
        let _pass = core_catalog().gates().begin_change().await;
        let _lock = self.lock_to_end_build(&work.collection.ns).await;
        let gates = [work.collection.ns.clone()];
        build.set_activity(BuildActivity::Commits);
        behind_gates(None, &gates, GateMode::NoWrites, self.complete(work, found)).await
    }

    /// Ends a build without an index: the primary logs it, all others report it to the primary.
    async fn give_up(&self, build: &Build, error: Error) -> End {
        let work = &build.work;
        let error = build.ended_by().unwrap_or(error);
        let error = build::failed(work, error);
        let is_at_end = pinion_runtime::is_shutdown_requested();
        // The next start begins again. Until the node is closed it may follow another.
        if is_shutdown(&error) || is_at_end {
            build.until_decided().await;
        }
        loop {
            if let Some(left) = self.leave(build) {
                return left;
            }
            let until = |set: Option<&dyn BuildSet>| {
                set.map(|set| set.until_abort(build.name(), error.clone()))
            };
            if matches!(build.turn(until, || Ok(())).await, Turn::Decided) {
                return self.leave(build).expect("it is decided");
            }
            let aborted = async {
                let _pass = core_catalog().gates().begin_change().await;
                let _lock = self.lock_to_end_build(&work.collection.ns).await;
                let gates = [work.collection.ns.clone()];
                let abort = self.write_abort(&work.collection.ns, work.uuid, &error);
                behind_gates(None, &gates, GateMode::NoWrites, abort).await
            };
            match aborted.await {
                Ok(ts) => {
                    report_ended(work.uuid);
                    // A client that knows of the end must not find the build again after a crash.
                    let durable = storage().wait_durable(ts).await;
                    return End::Here(Err(durable.map_or_else(from_fatal, |()| error)));
                }
                Err(refused)
                    if build_set().is_some() && is_of_role(&refused) || is_of_room(&refused) =>
                {
                    sleep(KILL_POLL).await;
                }
                Err(refused) => return End::Here(Err(refused)),
            }
        }
    }

    /// How a build that failed ends if there is a decision about it.
    fn leave(&self, build: &Build) -> Option<End> {
        match build.decided()? {
            Decided::Reopening | Decided::Shutdown => Some(closed()),
            Decided::Commit | Decided::Abort => Some(End::Left(false)),
        }
    }

    /// The end, behind the gates: what is left of the side writes, and the indexes ready.
    async fn complete(&self, work: &Arc<Work>, found: &mut Found) -> Result<Timestamp> {
        work.check()?;
        build::complete(work, found).await?;
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

    /// Removes the indexes of a build from the catalog and releases their trees.
    async fn write_abort(&self, ns: &Namespace, build: Uuid, cause: &Error) -> Result<Timestamp> {
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
            o.append("code", cause.code.0)
                .append("codeName", &*cause.code.name())
                .append("errmsg", cause.message.as_str());
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

/// Has the set forget an ended build, without waiting for that.
fn report_ended(uuid: Uuid) {
    if let Some(set) = build_set() {
        drop(spawn(Queue::Foreground, set.ended(uuid)));
    }
}

/// Completes with the first of both; true if that is `one`.
async fn first<A: Future + Unpin>(mut one: A, other: impl Future) -> bool {
    let mut other = pin!(other);
    poll_fn(|cx| {
        if Pin::new(&mut one).poll(cx).is_ready() {
            return Poll::Ready(true);
        }
        other.as_mut().poll(cx).map(|_| false)
    })
    .await
}
