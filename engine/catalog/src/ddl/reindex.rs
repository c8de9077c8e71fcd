//! Indexes made again, all of a collection's at once.

use std::sync::Arc;

use pinion_bson::{RawDocumentBuf, rawdoc};
use pinion_clock::Timestamp;
use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::builds::check_no_build;
use super::coordinator::{Commit, Coordinator, behind_gates, coordinate, drop_trees};
use super::guard::Definition;
use super::locks::Scope;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::gates::GateMode;
use crate::names::check_not_view;
use crate::oplog_format::check_v44_can_follow;

/// Makes the entries of all indexes again, and returns the specifications of the collection's
/// indexes. The old entries hold until the new ones are complete, so a failure or a crash leaves
/// the indexes as they were.
///
/// # Errors
/// `NamespaceNotFound`; `DuplicateKey` where a unique index does not hold.
pub fn reindex(
    ctx: &OpContext,
    ns: Namespace,
) -> LocalBoxFuture<'_, Result<(Vec<RawDocumentBuf>, Option<Timestamp>)>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::Reindex(ns.clone());
        coordinate(ctx, definition, move |c| async move {
            let _lock = c.lock_for(&by, Scope::one(&ns)).await?;
            check_not_view(&core_catalog().current(), &ns)?;
            let Some(collection) = core_catalog().get(&ns) else {
                return Err(Error::new(
                    ErrorCode::NAMESPACE_NOT_FOUND,
                    "collection does not exist",
                ));
            };
            check_no_build(&collection)?;
            check_v44_can_follow(collection.is_replicated(), "reIndex")?;
            let listed = collection.listed_indexes().collect();
            if collection.indexes.is_empty() {
                return Ok((listed, None));
            }
            let operation = c.rebuild_all(&by, &collection);
            let ts = behind_gates(Some(&by), &[ns], GateMode::Closed, operation).await?;
            Ok((listed, Some(ts)))
        })
        .await
    })
}

impl Coordinator {
    /// Rebuilds every index and puts the new ones in the places of the old ones, while no operation
    /// is behind the collection's gates.
    async fn rebuild_all(
        &self,
        ctx: &OpContext,
        collection: &Arc<Collection>,
    ) -> Result<Timestamp> {
        let mut rebuilt = Vec::with_capacity(collection.indexes.len());
        for index in &collection.indexes {
            match self.rebuild(ctx, collection, index).await {
                Ok(index) => rebuilt.push(index),
                Err(error) => {
                    // Nothing in the catalog names these trees: they can go at once.
                    let now = pinion_storage::storage().last_allotted();
                    drop_trees(rebuilt.iter().map(|index| index.tree).collect(), now).await;
                    return Err(error);
                }
            }
        }
        let ns = &collection.ns;
        let replaced = |catalog: &Catalog| {
            let current = catalog.get(ns).expect("its lock is held");
            let mut changed = Collection::clone(current);
            for index in rebuilt {
                let name = index.name().to_owned();
                changed = changed.with_replaced(&name, index);
            }
            let change = CatalogChange {
                dropped_trees: current.indexes.iter().map(|index| index.tree).collect(),
                puts: vec![changed],
                ..Default::default()
            };
            let o = rawdoc! { "reIndex": ns.collection() };
            Ok(Commit::command(ns, Some(current.uuid), o, change))
        };
        self.commit(replaced).await
    }
}
