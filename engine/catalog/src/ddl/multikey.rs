//! What is learned of arrays in indexes.

use std::sync::Arc;

use pinion_bson::rawdoc;
use pinion_query::MultikeyPaths;
use pinion_runtime::LocalBoxFuture;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use super::coordinator::{Commit, behind_gates, coordinate};
use super::guard::Definition;
use super::locks::Scope;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::entry::Collection;
use crate::gates::GateMode;
use crate::oplog::OpKind;
use crate::uuid::Uuid;

/// Marks indexes of a collection as multikey, before the first document with several keys in them
/// is written. It needs no lock: what is known of arrays only grows, and each commit starts from
/// the newest catalog. So it does not wait for DDL that is under way. The caller must not hold a
/// pass of the namespace's gate all the same: that DDL may wait for it while it commits.
pub fn set_multikey(
    ctx: &OpContext,
    ns: Namespace,
    uuid: Uuid,
    found: Vec<(TreeId, MultikeyPaths)>,
) -> LocalBoxFuture<'_, Result<()>> {
    Box::pin(async move {
        coordinate(ctx, Definition::OfWrite, move |c| async move {
            let compute = |catalog: &Catalog| Ok(marking(catalog, &ns, uuid, &found));
            c.commit_with(compute).await?;
            Ok(())
        })
        .await
    })
}

/// The change, unless all of it is known.
fn marking(
    catalog: &Catalog,
    ns: &Namespace,
    uuid: Uuid,
    found: &[(TreeId, MultikeyPaths)],
) -> Option<Commit> {
    let collection = catalog.get(ns).filter(|found| found.uuid == uuid)?;
    let known = |tree: TreeId, paths: &MultikeyPaths| {
        collection
            .indexes
            .iter()
            .all(|index| index.tree != tree || index.spec.knows_multikey(paths))
    };
    if found.iter().all(|(tree, paths)| known(*tree, paths)) {
        return None;
    }
    Some(Commit {
        change: CatalogChange {
            puts: vec![collection.with_multikey(found)],
            ..Default::default()
        },
        kind: OpKind::Noop,
        ns: ns.as_str().to_owned(),
        uuid: Some(uuid),
        o: rawdoc! { "msg": "Setting index to multikey", "coll": ns.as_str() },
        o2: None,
        from_migrate: false,
    })
}

/// Finds where the documents of a collection have arrays, for each of its indexes whose knowledge
/// of that is to be changed. It runs on core 0 and passes no gates: there are no writers to the
/// collection meanwhile.
pub type FindArrays = Box<
    dyn FnOnce(
            Arc<Collection>,
        ) -> LocalBoxFuture<'static, Result<Vec<(TreeId, Option<MultikeyPaths>)>>>
        + Send,
>;

/// Sets what is known of arrays in indexes to what the documents have, be that more or less.
/// Writers wait until it is done. Gives the names of the indexes that have changed, and whether
/// each is multikey now.
///
/// # Errors
/// Those of `find`; the operation is stopped.
pub fn adjust_multikey(
    ctx: &OpContext,
    ns: Namespace,
    uuid: Uuid,
    find: FindArrays,
) -> LocalBoxFuture<'_, Result<Vec<(String, bool)>>> {
    Box::pin(async move {
        let by = ctx.clone();
        coordinate(ctx, Definition::OfWrite, move |c| async move {
            let _lock = c.lock_for(&by, Scope::one(&ns)).await?;
            let gates = [ns.clone()];
            let adjusting = async {
                let Some(collection) = core_catalog().get(&ns).filter(|it| it.uuid == uuid) else {
                    return Ok(Vec::new());
                };
                let found = find(collection).await?;
                let mut changed = Vec::new();
                let compute =
                    |catalog: &Catalog| Ok(adjustment(catalog, (&ns, uuid), &found, &mut changed));
                c.commit_with(compute).await?;
                Ok(changed)
            };
            behind_gates(Some(&by), &gates, GateMode::NoWrites, adjusting).await
        })
        .await
    })
}

/// The change, unless all is as it was found.
fn adjustment(
    catalog: &Catalog,
    (ns, uuid): (&Namespace, Uuid),
    found: &[(TreeId, Option<MultikeyPaths>)],
    changed: &mut Vec<(String, bool)>,
) -> Option<Commit> {
    let collection = catalog.get(ns).filter(|found| found.uuid == uuid)?;
    let mut adjusted = Collection::clone(collection);
    for index in &collection.indexes {
        let paths = found.iter().find(|(tree, _)| *tree == index.tree);
        if let Some((_, paths)) = paths
            && index.spec.multikey != *paths
        {
            let index = index.with_arrays(paths.clone());
            changed.push((index.name().to_owned(), paths.is_some()));
            let name = index.name().to_owned();
            adjusted = adjusted.with_replaced(&name, index);
        }
    }
    if changed.is_empty() {
        return None;
    }
    Some(Commit {
        change: CatalogChange {
            puts: vec![adjusted],
            ..Default::default()
        },
        kind: OpKind::Noop,
        ns: ns.as_str().to_owned(),
        uuid: Some(uuid),
        o: rawdoc! { "msg": "Adjusting multikey metadata", "coll": ns.as_str() },
        o2: None,
        from_migrate: false,
    })
}
