//! Indexes that become multikey, before the first document with several keys in them is written.

use pinion_catalog::{Uuid, set_multikey};
use pinion_query::MultikeyPaths;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::open_transactions::changing;

/// Marks in the catalog which indexes have arrays. The caller has left the gate of the namespace,
/// but for a transaction, which stays behind it.
///
/// # Errors
/// `LockTimeout` in a transaction; those of the catalog.
pub(super) async fn mark_multikey(
    ctx: &OpContext,
    ns: &Namespace,
    uuid: Uuid,
    trees: Vec<(TreeId, MultikeyPaths)>,
) -> Result<()> {
    if let Some(running) = crate::open_transactions::of(ctx)
        && running.plan_multikey(uuid, &trees)
    {
        return Ok(());
    }
    let marking = set_multikey(ctx, ns.clone(), uuid, trees);
    Box::pin(changing(ctx, ns, marking)).await
}
