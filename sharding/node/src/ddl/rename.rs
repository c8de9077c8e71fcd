//! What a shard does to rename its part of a collection, or to rename one of its own.

use pinion_bson::Uuid;
use pinion_catalog::{
    DropTarget, core_catalog, drop_collection, drop_collection_unseen, rename_collection,
    rename_collection_unseen,
};
use pinion_sharding_protocol::ddl::RenamePart;
use pinion_wire::idl::Namespace;
use pinion_wire::{OpContext, Result};

use crate::local::wait_majority;
use crate::shard::{forget_collection, refresh_collection};

/// Renames what this shard has of a collection, behind gates that are closed, and takes the tables
/// of both names from the config servers. Change streams show the rename at the primary shard
/// alone.
///
/// # Errors
/// An index is being built; the config servers cannot be reached; those of a write. All of it is
/// done again then.
pub(super) async fn rename_local(
    ctx: &OpContext,
    part: &RenamePart,
    is_primary_shard: bool,
) -> Result<()> {
    let (from, to) = (part.from.clone(), part.to.clone());
    if has(&from, part.uuid) {
        match is_primary_shard {
            true => rename_collection(ctx, from, to, DropTarget::Yes, false).await?,
            false => rename_collection_unseen(ctx, from, to, DropTarget::Yes).await?,
        };
    } else if !has(&to, part.uuid) {
        // What another shard has of the source is not here.
        match is_primary_shard {
            true => drop_collection(ctx, to).await?,
            false => drop_collection_unseen(ctx, to).await?,
        };
    }
    // The new table first: nothing is served by it before the gates open, and a node that ends in
    // between takes the old one for stale.
    refresh_collection(&part.to, |_| false).await?;
    forget_collection(&part.from).await?;
    wait_majority().await
}

/// Whether this node has a collection under a name.
fn has(ns: &Namespace, uuid: Uuid) -> bool {
    let catalog = core_catalog().current();
    let found = catalog.get(ns);
    found.is_some_and(|found| found.uuid.0 == uuid.bytes())
}
