//! Collections renamed.

use pinion_bson::DocBuilder;
use pinion_clock::Timestamp;
use pinion_query::series_of;
use pinion_runtime::LocalBoxFuture;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::builds::check_no_build;
use super::coordinator::{Commit, behind_gates, coordinate};
use super::create::check_database_case;
use super::guard::Definition;
use super::locks::Scope;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::gates::GateMode;
use crate::names::{check_collection_uuid, check_creatable, is_replicated};
use crate::uuid::Uuid;

/// What becomes of a collection that has the new name already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DropTarget {
    /// It stays, and nothing is renamed.
    No,
    Yes,
    /// It goes; there must be one, and it must be this one.
    Only(Uuid),
}

/// Renames a collection within the node.
///
/// # Errors
/// `NamespaceNotFound` without a source, `NamespaceExists` when the target is there and stays,
/// `CollectionUUIDMismatch` when it is another one.
pub fn rename_collection(
    ctx: &OpContext,
    from: Namespace,
    to: Namespace,
    drop_target: DropTarget,
    stays_temporary: bool,
) -> LocalBoxFuture<'_, Result<Timestamp>> {
    rename_shown(ctx, (from, to), drop_target, stays_temporary, true)
}

/// The same of what this shard has of a collection, whose rename change streams show at another
/// shard.
///
/// # Errors
/// Those of [`rename_collection`].
pub fn rename_collection_unseen(
    ctx: &OpContext,
    from: Namespace,
    to: Namespace,
    drop_target: DropTarget,
) -> LocalBoxFuture<'_, Result<Timestamp>> {
    rename_shown(ctx, (from, to), drop_target, false, false)
}

fn rename_shown(
    ctx: &OpContext,
    (from, to): (Namespace, Namespace),
    drop_target: DropTarget,
    stays_temporary: bool,
    is_shown: bool,
) -> LocalBoxFuture<'_, Result<Timestamp>> {
    Box::pin(async move {
        let by = ctx.clone();
        let definition = Definition::Rename {
            from: from.clone(),
            to: to.clone(),
        };
        coordinate(ctx, definition, move |c| async move {
            let gates = [from.clone(), to.clone()];
            let _lock = c.lock_for(&by, Scope::Namespaces(gates.to_vec())).await?;
            check(&core_catalog().current(), &from, &to, drop_target)?;
            let compute = |catalog: &Catalog| {
                Ok(Commit {
                    from_migrate: !is_shown,
                    ..renaming(catalog, &from, &to, stays_temporary)?
                })
            };
            behind_gates(Some(&by), &gates, GateMode::Closed, c.commit(compute)).await
        })
        .await
    })
}

/// Refuses what cannot be renamed.
pub(super) fn check(
    catalog: &Catalog,
    from: &Namespace,
    to: &Namespace,
    drop_target: DropTarget,
) -> Result<()> {
    if [from, to].iter().any(|ns| series_of(ns).is_some()) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Renaming system.buckets collections is not allowed",
        ));
    }
    if is_replicated(from) != is_replicated(to) {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Cannot rename collections between a replicated and an unreplicated database",
        ));
    }
    check_creatable(to)?;
    if let DropTarget::Only(uuid) = drop_target {
        let target = catalog.get(to).map(|found| &**found);
        check_collection_uuid(catalog, to, target, uuid)?;
    }
    if let Some(view) = catalog.view(from) {
        return Err(Error::new(
            ErrorCode::COMMAND_NOT_SUPPORTED_ON_VIEW,
            format!("cannot rename {}: {from}", view.kind().name()),
        ));
    }
    let Some(source) = catalog.get(from) else {
        return Err(Error::new(
            ErrorCode::NAMESPACE_NOT_FOUND,
            format!("Source collection {from} does not exist"),
        ));
    };
    if from == to {
        return Err(Error::new(
            ErrorCode::ILLEGAL_OPERATION,
            "Can't rename a collection to itself",
        ));
    }
    if catalog.view(to).is_some() {
        return Err(Error::new(
            ErrorCode::NAMESPACE_EXISTS,
            format!("a view already exists with that name: {to}"),
        ));
    }
    if catalog.get(to).is_some() && drop_target == DropTarget::No {
        return Err(Error::new(
            ErrorCode::NAMESPACE_EXISTS,
            "target namespace exists",
        ));
    }
    check_no_build(source)?;
    catalog
        .get(to)
        .map_or(Ok(()), |target| check_no_build(target))
}

pub(super) fn renaming(
    catalog: &Catalog,
    from: &Namespace,
    to: &Namespace,
    stays_temporary: bool,
) -> Result<Commit> {
    check_database_case(catalog, to.db())?;
    let source = catalog.get(from).expect("its lock is held");
    let mut change = CatalogChange {
        puts: vec![source.renamed(to.clone(), stays_temporary)],
        ..Default::default()
    };
    let mut o = DocBuilder::new();
    o.append("renameCollection", from.as_str())
        .append("to", to.as_str())
        .append("stayTemp", stays_temporary);
    if let Some(target) = catalog.get(to) {
        change.removes.push(target.number);
        change.dropped_trees.extend(target.trees());
        o.append("dropTarget", target.uuid.to_bson());
    }
    Ok(Commit::command(from, Some(source.uuid), o.finish(), change))
}
