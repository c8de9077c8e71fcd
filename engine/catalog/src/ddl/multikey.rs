//! What is learned of arrays in indexes.

use pinion_bson::rawdoc;
use pinion_query::MultikeyPaths;
use pinion_runtime::LocalBoxFuture;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use super::coordinator::{Commit, coordinate};
use crate::catalog::Catalog;
use crate::change::CatalogChange;
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
        coordinate(ctx, move |c| async move {
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
    })
}
