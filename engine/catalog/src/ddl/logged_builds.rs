//! Builds of indexes that this process has not started: those that the log of another member has,
//! and those that the catalog has when a member's data directory is opened. They run as those of
//! this node's own do.
//!
//! What is written meanwhile waits in the side writes, as in every build; on a member that follows
//! another they are brought over when the entry of the end is applied, at its timestamp.

use std::rc::Rc;
use std::sync::Arc;

use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::GenericArguments;
use pinion_wire::{ClientInfo, OpContext, Result};

use super::build_run::log_not_resumed;
use super::coordinator::Coordinator;
use crate::build::{self, Work};
use crate::catalog::core_catalog;
use crate::entry::Collection;
use crate::index::Index;
use crate::uuid::Uuid;

impl Coordinator {
    /// Begins a build whose indexes the catalog has as being built.
    pub(super) fn run_logged(
        self: &Rc<Self>,
        collection: &Arc<Collection>,
        indexes: Vec<Index>,
        build: Uuid,
    ) {
        self.run(work_on(collection, indexes, build), None);
    }
}

/// The indexes of a build that a collection has.
pub(super) fn indexes_of(collection: &Collection, build: Uuid) -> Vec<Index> {
    let is_of_build = |index: &&Arc<Index>| index.building.is_some_and(|b| b.build == build);
    let indexes = collection.indexes.iter().filter(is_of_build);
    indexes.map(|index| Index::clone(index)).collect()
}

/// Begins the builds that the catalog has and that do not run here. One that an orderly end of the
/// process before this one has stopped continues from where it was. Every other begins again: what
/// it has loaded may be of documents that are not there any more, or of a part of them alone, so it
/// goes, and nothing is in an index but what its build has read since. Call it on core 0, while
/// nothing is applied.
///
/// # Errors
/// Storage has failed.
pub fn begin_builds() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let coordinator = pinion_runtime::core_local::<Coordinator>();
        let _pass = core_catalog().gates().begin_change().await;
        let catalog = core_catalog().current();
        let mut found = Vec::new();
        for collection in catalog.collections() {
            for build in collection.builds() {
                if coordinator.running(build).is_none() {
                    found.push((collection, build, indexes_of(collection, build)));
                }
            }
        }
        let mut started = Vec::new();
        let mut again: Vec<Arc<Work>> = Vec::new();
        for (collection, build, indexes) in found {
            match resumed(collection, &indexes, build).await {
                Some(work) => started.push(work),
                None => again.push(Arc::new(work_on(collection, indexes, build))),
            }
        }
        build::forget_entries(again.iter().flat_map(|work| work.indexes.iter())).await?;
        for work in started.into_iter().chain(again) {
            log_begin(&work);
            coordinator.run(work, None);
        }
        Ok(())
    })
}

/// A build that continues from where a process before this one has stopped it.
async fn resumed(
    collection: &Arc<Collection>,
    indexes: &[Index],
    build: Uuid,
) -> Option<Arc<Work>> {
    let opened = async {
        match build::take_kept(build).await? {
            None => Ok(None),
            Some(state) => {
                let work = work_on(collection, indexes.to_vec(), build);
                work.resume(state).await.map(Some)
            }
        }
    };
    match opened.await {
        Ok(work) => work,
        Err(error) => {
            log_not_resumed(collection, build, &error);
            build::remove_sorted(build).await;
            None
        }
    }
}

fn log_begin(work: &Work) {
    let collection = &work.collection;
    let Some(state) = &work.resumed else {
        tracing::info!(
            target: "INDEX", id = 20_660u64, buildUUID = %work.uuid, namespace = collection.ns.as_str(),
            collectionUUID = %collection.uuid, "Index build: restarting"
        );
        return;
    };
    pinion_runtime::sim::event("index build resumed");
    let documents: u64 = state.scans.iter().map(|scan| scan.documents).sum();
    tracing::info!(
        target: "INDEX", id = 4_841_700u64, buildUUID = %work.uuid, collectionUUID = %collection.uuid,
        namespace = collection.ns.as_str(), phase = state.phase.name().0, documents, "Index build: resuming"
    );
}

fn work_on(collection: &Arc<Collection>, indexes: Vec<Index>, build: Uuid) -> Work {
    let limits = build::build_limits();
    let ctx = OpContext::new(
        0,
        Arc::new(ClientInfo::internal()),
        pinion_command::row("createIndexes"),
        collection.ns.db(),
        GenericArguments::default(),
        pinion_runtime::now().as_nanos(),
    );
    Work::new(&ctx, collection.clone(), indexes, build, limits)
}

/// Loads those of these indexes that have no entries though the collection has documents. There are
/// no writers to it meanwhile.
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
    build::install(&work, &found).await
}
