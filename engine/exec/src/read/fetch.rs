//! The documents that entries name, from the partitions where they are.

use std::rc::Rc;

use bytes::Bytes;
use pinion_catalog::{from_read_error, partition_of};
use pinion_runtime::Queue;
use pinion_storage::{Key, Partition, PartitionId, ReadAt, SnapshotPin, storage};
use pinion_wire::{Error, ErrorCode, OpContext, Result};

use super::access::RangeAccess;
use super::branch_walk::WalkHit;
use super::part::PartSpec;
use super::scan::{ScannedDocument, until_decided};

fn name_of(branch: &RangeAccess) -> &str {
    branch.index.as_ref().map_or("_id_", |index| index.name())
}

pub(crate) fn dangling(branch: &RangeAccess) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!(
            "index {} names a document that is not there",
            name_of(branch)
        ),
    )
}

pub(crate) fn damaged(branch: &RangeAccess) -> Error {
    damaged_index(name_of(branch))
}

pub(crate) fn damaged_index(name: &str) -> Error {
    Error::new(
        ErrorCode::DATA_CORRUPTION_DETECTED,
        format!("an entry of index {name} is damaged"),
    )
}

/// Whether what is read changes: a transaction may delete what an entry names that it has read
/// before.
pub(crate) fn may_change(at: ReadAt) -> bool {
    matches!(at, ReadAt::In { .. })
}

/// Fetches the documents of these entries from the partitions where they are, in the order of the
/// entries; none for one that is not there.
pub(crate) async fn fetch(
    ctx: &OpContext,
    spec: &PartSpec,
    entries: &[WalkHit],
    at: ReadAt,
) -> Result<Vec<Option<Bytes>>> {
    let tree = spec.collection.tree();
    let mut by_core: std::collections::BTreeMap<pinion_runtime::CoreId, Vec<(usize, Key)>> =
        std::collections::BTreeMap::new();
    for (place, named) in entries.iter().enumerate() {
        let owner = storage().owner(partition_of(&spec.collection, &named.id));
        by_core
            .entry(owner)
            .or_default()
            .push((place, named.id.clone()));
    }
    let collection = &spec.collection;
    /// Documents with their places among those asked for.
    type Placed = Vec<(usize, Option<Bytes>)>;
    let parts: Vec<Result<Placed>> =
        pinion_runtime::join_all(by_core.into_iter().map(|(owner, wanted)| {
            let (collection, ctx) = (collection.clone(), ctx.clone());
            pinion_runtime::submit_to(owner, Queue::Foreground, move || async move {
                let mut documents = Vec::with_capacity(wanted.len());
                // A read that may take a newer state has pinned it in its own partition alone.
                let mut pins = Vec::new();
                for (place, id) in wanted {
                    let owned = storage()
                        .partition(partition_of(&collection, &id))
                        .expect("submitted to its owner");
                    pins.extend(pin_once(&owned, at, &pins)?);
                    // The caller may be gone while this waits.
                    let read = until_decided(&ctx, owned.get(tree, &id, at)).await?;
                    let read = read.map_err(from_read_error)?;
                    documents.push((place, read.map(|read| read.value)));
                }
                Ok(documents)
            })
        }))
        .await;
    let mut documents: Vec<Option<Bytes>> = vec![None; entries.len()];
    for part in parts {
        for (place, document) in part? {
            documents[place] = document;
        }
    }
    Ok(documents)
}

/// A pin of what is read in a partition, unless there is one among those of others.
fn pin_once(
    partition: &Rc<Partition>,
    at: ReadAt,
    pins: &[(PartitionId, SnapshotPin)],
) -> Result<Option<(PartitionId, SnapshotPin)>> {
    let (ReadAt::At(ts) | ReadAt::DecidedAt(ts) | ReadAt::In { at: ts, .. }) = at else {
        return Ok(None);
    };
    let id = partition.id();
    if pins.iter().any(|(pinned, _)| *pinned == id) {
        return Ok(None);
    }
    let pin = partition.pin(ts).map_err(from_read_error)?;
    Ok(Some((id, pin)))
}

/// The documents that entries name. One that is not there is passed over where what is read
/// changes, and damage elsewhere.
pub(crate) fn found_of(
    spec: &PartSpec,
    entries: impl Iterator<Item = WalkHit>,
    documents: Vec<Option<Bytes>>,
    may_change: bool,
) -> Result<Vec<ScannedDocument>> {
    let found = entries
        .zip(documents)
        .filter_map(|(named, document)| match document {
            Some(document) => Some(Ok(named.found(document))),
            None if may_change => None,
            None => Some(Err(dangling(&spec.access.branches()[named.turn]))),
        });
    found.collect()
}
