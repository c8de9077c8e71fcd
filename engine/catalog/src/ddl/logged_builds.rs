//! Builds of indexes that this process has not begun: those that the log of another member tells of, and those that the
//! catalog has when a member's data directory is opened. They run as those of this node's own do.
//!
//! What is written meanwhile waits in the side writes, as in every build; on a member that follows another they are brought
//! over when the entry of the end is applied, at its timestamp.

use std::rc::Rc;
use std::sync::Arc;

use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::GenericArguments;
use pinion_wire::{ClientInfo, OpContext, Result};

use super::coordinator::Coordinator;
use crate::build::{self, BuildLimits, Work};
use crate::catalog::core_catalog;
use crate::entry::Collection;
use crate::index::Index;
use crate::limits::{BUILD_LEAST_FREE_BYTES, BUILD_MEMORY_BYTES};
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

/// Begins those builds anew that the catalog of a member has and that do not run here. What they have loaded may be of
/// documents that are not there any more, or of a part of them alone, so it goes: nothing is in an index but what its build
/// has read since. Call it on core 0, while nothing is applied.
///
/// # Errors
/// Storage has failed.
pub fn begin_builds_anew() -> LocalBoxFuture<'static, Result<()>> {
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
        build::forget_entries(found.iter().flat_map(|(_, _, indexes)| indexes)).await?;
        for (collection, build, indexes) in found {
            tracing::info!(
                target: "INDEX", id = 7_400_003u64, namespace = collection.ns.as_str(), buildUUID = %build,
                "An index build begins anew"
            );
            coordinator.run_logged(collection, indexes, build);
        }
        Ok(())
    })
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
    build::install(&work, &found).await
}
