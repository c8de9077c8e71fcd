//! Builds of indexes that the log of another member tells of: each begins with the entry of its beginning, runs beside the
//! applier, and is waited for by the entry of its end.
//!
//! What is written meanwhile waits in the side writes, as in a build of this node's own; they are brought over when the entry
//! of the end is applied, at its timestamp.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use pinion_runtime::{JoinHandle, Queue, spawn};
use pinion_wire::idl::GenericArguments;
use pinion_wire::{ClientInfo, ErrorCode, OpContext, Result, interruption};

use crate::build::{self, BuildLimits, Work};
use crate::catalog::core_catalog;
use crate::entry::Collection;
use crate::index::Index;
use crate::limits::{BUILD_LEAST_FREE_BYTES, BUILD_MEMORY_BYTES};
use crate::uuid::Uuid;

/// The builds that have begun and not ended. Lives on core 0 with the coordinator.
#[derive(Default)]
pub(crate) struct LoggedBuilds {
    running: RefCell<BTreeMap<Uuid, LoggedBuild>>,
}

struct LoggedBuild {
    work: Arc<Work>,
    task: JoinHandle<Result<()>>,
}

impl LoggedBuilds {
    /// Begins a build whose indexes the catalog has as being built.
    pub(super) fn start(&self, collection: &Arc<Collection>, indexes: Vec<Index>, build: Uuid) {
        let work = Arc::new(work_on(collection, indexes, build));
        let task = spawn(Queue::Foreground, load(work.clone()));
        let displaced = self
            .running
            .borrow_mut()
            .insert(build, LoggedBuild { work, task });
        assert!(displaced.is_none(), "the build {build} begins twice");
    }

    /// Waits until the entries of all documents that were there at the beginning are in the indexes. False where this process
    /// did not begin the build.
    pub(super) async fn finish(&self, build: Uuid) -> Result<bool> {
        let running = self.running.borrow_mut().remove(&build);
        let Some(running) = running else {
            return Ok(false);
        };
        match running.task.await {
            Ok(loaded) => loaded.map_err(|error| build::failed(&running.work, error))?,
            Err(_) => return Err(interruption(ErrorCode::INTERRUPTED_AT_SHUTDOWN)),
        }
        Ok(true)
    }

    /// Stops a build, and waits until it does nothing any more.
    pub(super) async fn stop(&self, build: Uuid) {
        let running = self.running.borrow_mut().remove(&build);
        if let Some(running) = running {
            running.work.progress.stop();
            // That it was stopped is no news.
            let _ = running.task.await;
        }
    }

    /// Stops all builds: the node is closed.
    pub(super) async fn end_all(&self) {
        loop {
            let next = self.running.borrow().keys().next().copied();
            let Some(build) = next else { return };
            self.stop(build).await;
        }
    }
}

fn work_on(collection: &Arc<Collection>, indexes: Vec<Index>, build: Uuid) -> Work {
    let limits = BuildLimits {
        memory_bytes: BUILD_MEMORY_BYTES,
        least_free_bytes: BUILD_LEAST_FREE_BYTES,
    };
    let ctx = OpContext::new(
        0,
        Arc::new(ClientInfo::internal()),
        "createIndexes",
        collection.ns.db(),
        GenericArguments::default(),
        pinion_runtime::now().as_nanos(),
    );
    Work::new(&ctx, collection.clone(), indexes, build, limits)
}

/// Makes the entries of the documents that are there, and the trees that have them begin.
async fn load(work: Arc<Work>) -> Result<()> {
    let found = build::fill(&work).await?;
    // While the node is locked no manifest is written.
    let _pass = core_catalog().gates().begin_change().await;
    build::install(&found).await
}

/// Loads those of these indexes that have no entries though the collection has documents. Nobody writes to it meanwhile.
pub(super) async fn load_missing(
    collection: &Collection,
    indexes: Vec<Index>,
    build: Uuid,
) -> Result<()> {
    if build::records(collection.tree()).await == 0 {
        return Ok(());
    }
    let mut missing = Vec::new();
    for index in indexes {
        if build::records(index.tree).await == 0 {
            missing.push(index);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let work = Arc::new(work_on(&Arc::new(collection.clone()), missing, build));
    let found = build::fill(&work).await;
    let found = found.map_err(|error| build::failed(&work, error))?;
    build::install(&found).await
}
