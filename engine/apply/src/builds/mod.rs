//! Builds of indexes on a replica set: which members are waited for before a build is committed,
//! and how the members report to the primary that they are ready, or cannot build.
//!
//! The state of a build is kept in `config.system.indexBuilds`, as in MongoDB, and so on every
//! member: a new primary continues from there. A member votes until the primary has acknowledged
//! that for a majority, so no vote is lost with a primary. Only the waiting tasks are kept in
//! memory.
//!
//! Source: execution document, "Commit Quorum" and "Voting for Abort".

mod document;
mod votes;

use std::rc::Rc;

use pinion_bson::RawDocumentBuf;
use pinion_catalog::{BuildName, BuildSet, BuildWaiting, Uuid, set_build_set};
use pinion_exec::topology::{ReplicaSet, replica_set};
use pinion_runtime::sync::Notify;
use pinion_runtime::{CoreId, Queue, sleep, spawn, submit_to, timeout};
use pinion_wire::{Error, Result};

use crate::limits::{BUILD_LOOK_INTERVAL, BUILD_VOTE_PAUSE};

pub use document::{forget_ended, keep_vote, read, set_quorum};

/// What core 0 knows of the set for the builds of this node.
#[derive(Default)]
pub(crate) struct SetBuilds {
    /// Votes were kept, or a commit quorum was changed.
    changed: Notify,
}

/// Makes the builds of this node those of its set, if it becomes a member of one. Called on core 0.
pub fn start() {
    if pinion_runtime::try_core_local::<SetBuilds>().is_none() {
        pinion_runtime::set_core_local(Rc::new(SetBuilds::default()));
        set_build_set(Rc::new(Set));
    }
}

/// Has builds that wait for votes look again.
pub(crate) async fn look_again() {
    submit_to(CoreId(0), Queue::Foreground, || async {
        pinion_runtime::core_local::<SetBuilds>()
            .changed
            .notify_all();
    })
    .await;
}

/// Whose turn it is.
enum Role {
    /// No other node decides about builds.
    Alone,
    Primary(Rc<dyn ReplicaSet>),
    /// Another member may be primary.
    Other(Rc<dyn ReplicaSet>),
}

fn role() -> Role {
    match replica_set() {
        Some(set) if set.view().writable => Role::Primary(set),
        Some(set) => Role::Other(set),
        None => Role::Alone,
    }
}

/// The seam of the catalog's builds.
struct Set;

impl BuildSet for Set {
    fn started(&self, build: BuildName, asked: RawDocumentBuf) -> BuildWaiting<()> {
        Box::pin(async move {
            if let Role::Primary(_) = role() {
                // Without it the build is one with the default, whichever member is primary.
                warn_of("commit quorum", kept(document::begin(build, asked)).await);
            }
        })
    }

    fn until_commit(&self, build: BuildName) -> BuildWaiting<()> {
        Box::pin(until_commit(build))
    }

    fn until_abort(&self, build: BuildName, why: Error) -> BuildWaiting<()> {
        Box::pin(async move {
            loop {
                match role() {
                    Role::Alone | Role::Primary(_) => return,
                    Role::Other(set) => {
                        warn_of("abort", votes::abort(&*set, &build, &why).await);
                        sleep(BUILD_VOTE_PAUSE).await;
                    }
                }
            }
        })
    }

    fn ended(&self, build: Uuid) -> BuildWaiting<()> {
        Box::pin(async move {
            if let Role::Primary(_) = role() {
                // What is left is removed by the next primary.
                warn_of("end", kept(document::forget(build)).await);
            }
        })
    }
}

async fn until_commit(build: BuildName) {
    let builds = pinion_runtime::core_local::<SetBuilds>();
    // A vote that a majority holds need not be given again.
    let mut has_voted = false;
    loop {
        let changed = builds.changed.notified();
        match role() {
            Role::Alone => return,
            Role::Primary(set) => {
                // If it steps down its own vote may be lost.
                has_voted = false;
                match kept(vote_here(set, build.clone())).await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) => warn_of("own", Err(error)),
                }
            }
            Role::Other(set) if !has_voted => match votes::commit(&*set, &build).await {
                Ok(()) => has_voted = true,
                Err(error) => {
                    warn_of("commit", Err(error));
                    sleep(BUILD_VOTE_PAUSE).await;
                    continue;
                }
            },
            Role::Other(_) => {}
        }
        let _ = timeout(BUILD_LOOK_INTERVAL, changed).await;
    }
}

/// The primary's own vote. True if enough are ready.
async fn vote_here(set: Rc<dyn ReplicaSet>, build: BuildName) -> Result<bool> {
    let before = read(build.uuid).await?;
    if before.quorum.is_disabled() {
        return Ok(true);
    }
    let host = votes::own_host(&set.view());
    let ready = match before.ready.contains(&host) {
        true => before,
        false => {
            keep_vote(&build, &host).await?;
            read(build.uuid).await?
        }
    };
    Ok(set.is_commit_quorum_met(&ready.quorum, &ready.ready))
}

/// Runs a write as a task of its own, which completes even if no caller waits for it any more.
async fn kept<T: 'static>(work: impl Future<Output = Result<T>> + 'static) -> Result<T> {
    let task = spawn(Queue::Foreground, work);
    let stopped = |_| pinion_wire::interruption(pinion_wire::ErrorCode::INTERRUPTED_AT_SHUTDOWN);
    task.await.unwrap_or_else(|ended| Err(stopped(ended)))
}

fn warn_of(what: &'static str, done: Result<()>) {
    if let Err(error) = done {
        tracing::warn!(
            target: "INDEX", id = 7_400_004u64, what, error = error.message.as_str(),
            "What a build of indexes tells its set could not be told"
        );
    }
}
