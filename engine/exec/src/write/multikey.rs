//! Indexes that become multikey, before the first document with several keys in them is written.

use pinion_catalog::{Uuid, set_multikey};
use pinion_query::MultikeyPaths;
use pinion_storage::TreeId;
use pinion_wire::idl::Namespace;
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use crate::limits::INNER_GATE_TIMEOUT;
use crate::transactions::is_in;

/// Tells the catalog which indexes have arrays. The caller has left the gate of the namespace, but for a transaction, which
/// stays behind it: a change of the catalog may wait for that, and be waited for here, so this wait has an end.
///
/// # Errors
/// `LockTimeout`; those of the catalog.
pub(super) async fn mark_multikey(
    ctx: &OpContext,
    ns: &Namespace,
    uuid: Uuid,
    trees: Vec<(TreeId, MultikeyPaths)>,
) -> Result<()> {
    let marking = Box::pin(set_multikey(ctx, ns.clone(), uuid, trees));
    if !is_in(ctx) {
        return marking.await;
    }
    match pinion_runtime::timeout(INNER_GATE_TIMEOUT, marking).await {
        Ok(marked) => marked,
        Err(_) => Err(Error::new(
            ErrorCode::LOCK_TIMEOUT,
            format!("a change of {ns} is under way, and has not ended in time"),
        )),
    }
}
