//! Opening: the catalog out of the base, replay of its changes, and its first version on every
//! core.

use std::sync::Arc;

use pinion_runtime::{CoreId, LocalBoxFuture};
use pinion_storage::{CATALOG_TREE, Direction, KeyRange, PartitionId, ReadAt, storage};
use pinion_wire::{Error, ErrorCode, Result};

use crate::catalog::{Catalog, CoreCatalog, core_catalog};
use crate::change::from_rows;
use crate::ddl::Coordinator;
use crate::entry::BadRow;
use crate::errors::{from_fatal, from_read_error};
use crate::oplog_format;

fn damaged(row: BadRow) -> Error {
    Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, row.0)
}

/// Reads the catalog that the base holds and makes it current on every core. Called once on core 0,
/// after storage has opened its base and before anything is replayed.
///
/// # Errors
/// A row that cannot be understood.
pub fn load() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        let base = read_rows().await?;
        let catalog = Arc::new(base);
        pinion_runtime::on_all_cores(move |core| {
            let catalog = catalog.clone();
            async move {
                pinion_runtime::set_core_local(std::rc::Rc::new(CoreCatalog::new(catalog)));
                oplog_format::begin();
                if core == CoreId(0) {
                    pinion_runtime::set_core_local(std::rc::Rc::new(Coordinator::new()));
                }
            }
        })
        .await;
        Ok(())
    })
}

async fn read_rows() -> Result<Catalog> {
    let owner = storage().owner(PartitionId(0));
    let rows: Result<Vec<(Vec<u8>, bytes::Bytes)>> =
        pinion_runtime::submit_to(owner, pinion_runtime::Queue::Foreground, || async {
            let partition = storage()
                .partition(PartitionId(0))
                .expect("asked its owner");
            let mut cursor = partition.cursor(
                CATALOG_TREE,
                KeyRange::all(),
                Direction::Forward,
                ReadAt::Newest,
            );
            let mut rows = Vec::new();
            while let Some((key, read)) = cursor.next().await.map_err(from_read_error)? {
                rows.push((key.to_vec(), read.value));
            }
            Ok(rows)
        })
        .await;
    let rows = rows?;
    from_rows(
        rows.iter()
            .map(|(key, value)| (key.as_slice(), value.as_ref())),
    )
    .map_err(damaged)
}

/// Drops temporary collections. It writes, so a member of a replica set does so when it becomes the
/// primary.
pub fn drop_temporary() -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move { crate::ddl::drop_temporary().await })
}

/// Removes temporary files, and frees the trees that no collection or index refers to: what an
/// unfinished build or drop left behind. With `keeps_builds` the files stay that builds continue
/// with: the process before this one has ended in order.
pub fn reap(keeps_builds: bool) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(async move {
        crate::build::remove_temporary(keeps_builds).await;
        let catalog = core_catalog().current();
        let mut known: Vec<pinion_storage::TreeId> = catalog.trees().collect();
        known.push(CATALOG_TREE);
        known.sort();
        // The entry that began a build may be lost while a checkpoint has its tree.
        let reaped = storage().reap_unknown_trees(&known).await;
        if reaped.is_empty() {
            return Ok(());
        }
        crate::ddl::skip_numbers(&reaped);
        // Another primary may give the same number to another tree. Its entries must not meet what
        // this one holds, neither now nor when this process dies and replays them.
        let written = storage().checkpoint().await;
        written.map_err(from_fatal)?;
        Ok(())
    })
}
