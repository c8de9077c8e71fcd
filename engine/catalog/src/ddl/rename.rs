//! Collections renamed.

use pinion_bson::DocBuilder;
use pinion_clock::Timestamp;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::builds::check_no_build;
use super::coordinator::{Commit, behind_gates, coordinate};
use super::create::check_database_case;
use super::locks::Scope;
use crate::catalog::{Catalog, core_catalog};
use crate::change::CatalogChange;
use crate::gates::GateMode;
use crate::names::check_creatable;

/// Renames a collection within the node.
///
/// # Errors
/// `NamespaceNotFound` without a source, `NamespaceExists` when the target is there and
/// `drop_target` is false.
pub async fn rename_collection(
    ctx: &OpContext,
    from: Namespace,
    to: Namespace,
    drop_target: bool,
) -> Result<Timestamp> {
    coordinate(ctx, move |c| async move {
        let gates = [from.clone(), to.clone()];
        let _lock = c.lock(Scope::Namespaces(gates.to_vec())).await;
        check(&core_catalog().current(), &from, &to, drop_target)?;
        let compute = |catalog: &Catalog| renaming(catalog, &from, &to);
        behind_gates(&gates, GateMode::Closed, c.commit(compute)).await
    })
    .await
}

/// Refuses what cannot be renamed.
fn check(catalog: &Catalog, from: &Namespace, to: &Namespace, drop_target: bool) -> Result<()> {
    check_creatable(to)?;
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
    if catalog.get(to).is_some() && !drop_target {
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

pub(super) fn renaming(catalog: &Catalog, from: &Namespace, to: &Namespace) -> Result<Commit> {
    check_database_case(catalog, to.db())?;
    let source = catalog.get(from).expect("its lock is held");
    let mut change = CatalogChange {
        puts: vec![source.renamed(to.clone())],
        ..Default::default()
    };
    let mut o = DocBuilder::new();
    o.append("renameCollection", from.as_str())
        .append("to", to.as_str())
        .append("stayTemp", false);
    if let Some(target) = catalog.get(to) {
        change.removes.push(target.number);
        change.dropped_trees.extend(target.trees());
        o.append("dropTarget", target.uuid.to_bson());
    }
    Ok(Commit::command(from, Some(source.uuid), o.finish(), change))
}
