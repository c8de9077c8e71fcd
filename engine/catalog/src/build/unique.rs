//! Whether the entries of an index share their fields.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawBson;
use pinion_runtime::Queue;
use pinion_storage::{Direction, Key, KeyRange, PartitionId, ReadAt, storage};
use pinion_wire::{Error, ErrorCode, Result};

use crate::entry::{Clustering, Collection, Placement};
use crate::errors::from_read_error;
use crate::index::Index;
use crate::keys::{document_id, duplicate_entry, prefix_len, stored_document};
use crate::limits::MAX_REPORTED_VIOLATIONS;

/// Whether several entries of a partition have these fields.
pub(super) async fn has_several(
    index: &Index,
    partition: PartitionId,
    fields: &[u8],
) -> Result<bool> {
    let owned = storage().partition(partition).expect("asked its owner");
    let range = KeyRange::prefix(fields);
    let mut cursor = owned.cursor(index.tree, range, Direction::Forward, ReadAt::Newest);
    let mut count = 0;
    while count < 2 && cursor.next().await.map_err(from_read_error)?.is_some() {
        count += 1;
    }
    Ok(count == 2)
}

/// Refuses entries that share their fields: of those that have one of `fields`, in this order, or
/// of all.
pub(super) async fn check(
    collection: &Collection,
    index: &Index,
    partition: PartitionId,
    fields: Option<&[Key]>,
) -> Result<()> {
    match fields {
        None => check_range(collection, index, partition, KeyRange::all()).await,
        Some(fields) => {
            for fields in fields {
                let range = KeyRange::prefix(fields);
                check_range(collection, index, partition, range).await?;
            }
            Ok(())
        }
    }
}

/// Reads entries in order: two neighbours that share their fields are duplicates.
async fn check_range(
    collection: &Collection,
    index: &Index,
    partition: PartitionId,
    range: KeyRange,
) -> Result<()> {
    let owned = storage().partition(partition).expect("asked its owner");
    let mut cursor = owned.cursor(index.tree, range, Direction::Forward, ReadAt::Newest);
    let mut last: Option<(Key, usize, Bytes)> = None;
    while let Some((key, read)) = cursor.next().await.map_err(from_read_error)? {
        let len = prefix_len(index, &key).ok_or_else(|| {
            Error::new(
                ErrorCode::DATA_CORRUPTION_DETECTED,
                format!("an entry of index {} is damaged", index.name()),
            )
        })?;
        if let Some((previous, previous_len, type_bits)) = &last
            && previous[..*previous_len] == key[..len]
        {
            return Err(duplicate_entry(collection, index, previous, type_bits));
        }
        last = Some((key, len, read.value));
        pinion_runtime::yield_if_due().await;
    }
    Ok(())
}

/// The `_id`s of documents that share their fields in an index, by what they share: no more of them
/// than one reply reports. All entries that share their fields are in one partition.
pub(crate) async fn duplicates(
    collection: &Arc<Collection>,
    index: &Arc<Index>,
) -> Result<Vec<Vec<RawBson>>> {
    let partitions = match collection.placement {
        Placement::Hashed | Placement::Scattered => storage().partition_count(),
        Placement::One => 1,
    };
    let mut found: Vec<Vec<RawBson>> = Vec::new();
    for partition in (0..partitions).map(PartitionId) {
        let (collection, index) = (collection.clone(), index.clone());
        let here = pinion_runtime::submit_to(
            storage().owner(partition),
            Queue::Background,
            move || async move { duplicates_in(&collection, &index, partition).await },
        )
        .await?;
        found.extend(here);
        if found.len() >= MAX_REPORTED_VIOLATIONS {
            found.truncate(MAX_REPORTED_VIOLATIONS);
            break;
        }
    }
    Ok(found)
}

async fn duplicates_in(
    collection: &Collection,
    index: &Index,
    partition: PartitionId,
) -> Result<Vec<Vec<RawBson>>> {
    let owned = storage().partition(partition).expect("asked its owner");
    let range = KeyRange::all();
    let mut cursor = owned.cursor(index.tree, range, Direction::Forward, ReadAt::Newest);
    let mut found: Vec<Vec<RawBson>> = Vec::new();
    // The entry before, and whether it is among those that are found.
    let mut last: Option<(Key, usize, Bytes, bool)> = None;
    while let Some((key, read)) = cursor.next().await.map_err(from_read_error)? {
        pinion_runtime::yield_if_due().await;
        let damaged = || {
            let what = format!("an entry of index {} is damaged", index.name());
            Error::new(ErrorCode::DATA_CORRUPTION_DETECTED, what)
        };
        let len = prefix_len(index, &key).ok_or_else(damaged)?;
        let mut is_found = false;
        if let Some((previous, previous_len, type_bits, was_found)) = &last
            && previous[..*previous_len] == key[..len]
        {
            if !was_found {
                if found.len() >= MAX_REPORTED_VIOLATIONS {
                    break;
                }
                found.push(vec![id_of(collection, index, previous, type_bits).await?]);
            }
            let ids = found.last_mut().expect("the entry before is in it");
            if ids.len() < MAX_REPORTED_VIOLATIONS {
                ids.push(id_of(collection, index, &key, &read.value).await?);
            }
            is_found = true;
        }
        last = Some((key, len, read.value, is_found));
    }
    Ok(found)
}

/// The `_id` of the document that an entry names.
async fn id_of(
    collection: &Collection,
    index: &Index,
    key: &Key,
    type_bits: &Bytes,
) -> Result<RawBson> {
    let (components, ordering) = (index.spec.components() as u32, index.spec.ordering);
    let decoded = pinion_keystring::decode_index_entry(key, type_bits, components, ordering);
    let (_, id) = decoded.map_err(|corrupt| {
        Error::new(
            ErrorCode::DATA_CORRUPTION_DETECTED,
            format!("an entry of index {} is damaged: {corrupt}", index.name()),
        )
    })?;
    if collection.clustering == Clustering::Id {
        let id = pinion_bson::elements(&id).next();
        return Ok(id.map_or(RawBson::Null, |(_, id)| id.into()));
    }
    // The entry names the document's record, which is beside it.
    let owned = storage().partition(PartitionId(0));
    let owned = owned.expect("a collection of records is in the partition of its indexes");
    let len = prefix_len(index, key).expect("decoded above");
    let read = owned
        .get(collection.tree(), &key[len..], ReadAt::Newest)
        .await;
    let document = read.map_err(from_read_error)?.ok_or_else(|| {
        Error::new(
            ErrorCode::DATA_CORRUPTION_DETECTED,
            format!("index {} names a document that is not there", index.name()),
        )
    })?;
    Ok(document_id(stored_document(&document.value))?.into())
}
