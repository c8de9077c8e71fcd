//! Whether the catalog in memory is what its row says, and can be understood.

use std::sync::Arc;

use pinion_catalog::{Collection, Index, check_stored_spec, core_catalog, stored_collection};
use pinion_runtime::sleep;
use pinion_service::interrupt::check;
use pinion_wire::{OpContext, Result};

use super::findings::Notes;
use crate::limits::MAX_METADATA_LOOKS;

/// Compares a collection of the catalog with its row.
pub(super) async fn examine(
    ctx: &OpContext,
    collection: &Collection,
    errors: &mut Notes,
) -> Result<()> {
    let specifications = collection.ready_indexes().filter_map(|index| {
        let error = check_stored_spec(&index.listed).err()?;
        Some(format!(
            "The index specification for index '{}' contains invalid fields. {}",
            index.name(),
            error.message
        ))
    });
    specifications.for_each(|error| errors.add(error));
    // No row says that there is a log.
    if collection.is_oplog() {
        return Ok(());
    }
    let mut difference = None;
    // A change that others make is in the row a little before it is in memory.
    for _ in 0..MAX_METADATA_LOOKS {
        check(ctx)?;
        difference = look(collection).await;
        if difference.is_none() {
            break;
        }
        sleep(pinion_service::limits::KILL_POLL).await;
    }
    if let Some(what) = difference {
        errors.add(what);
    }
    Ok(())
}

/// What distinguishes the newest version of a collection, from its row.
async fn look(collection: &Collection) -> Option<String> {
    let stored = match stored_collection(collection.number).await {
        Ok(Some(stored)) => stored,
        Ok(None) => return Some(format!("{} has no row in the catalog", collection.ns)),
        Err(error) => return Some(error.message),
    };
    let current = core_catalog().get(&collection.ns)?;
    if current.to_row() == stored.to_row() {
        return None;
    }
    let in_row = |index: &&Arc<Index>| {
        let stored = stored.index(index.name());
        stored.is_some_and(|stored| {
            stored.listed == index.listed
                && stored.spec.multikey == index.spec.multikey
                && stored.tree == index.tree
        })
    };
    let differs = |index: &&Arc<Index>| !in_row(index);
    Some(match current.indexes.iter().find(differs) {
        Some(index) => format!(
            "The in-memory metadata of index '{}' does not match that of the catalog's row",
            index.name()
        ),
        None => format!(
            "The in-memory options of {} do not match those of the catalog's row",
            current.ns
        ),
    })
}
