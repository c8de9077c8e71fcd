//! Builds indexes over the documents that are there, while no writer is behind the collection's gates.
//!
//! Entries are written outside the log, then checked for uniqueness in key order, then a checkpoint makes a
//! manifest hold them. Only after that does the caller write the entry that makes the indexes ready, so replay
//! never builds an index, and a crash before it leaves trees that nothing refers to.

use std::sync::Arc;

use bytes::Bytes;
use pinion_bson::RawBson;
use pinion_query::MultikeyPaths;
use pinion_runtime::Queue;
use pinion_storage::{Direction, Key, KeyRange, PartitionId, ReadAt, TreeId, Write, storage};
use pinion_wire::{Error, ErrorCode, Result};

use crate::entry::{Clustering, Collection, Placement};
use crate::errors::{from_fatal, from_read_error};
use crate::index::Index;
use crate::keys::{
    document_id, duplicate_entry, entries_of, prefix_len, put_entry, stored_document,
};
use crate::limits::{BUILD_BATCH_DOCUMENTS, BUILD_BATCH_ENTRIES, MAX_TOLD_VIOLATIONS};
use crate::uuid::Uuid;

/// What a build found out.
pub(crate) struct Built {
    /// Where documents have arrays, by index.
    pub multikey: Vec<(TreeId, MultikeyPaths)>,
}

/// Builds the indexes; on an error their trees are left for the caller to drop.
pub(crate) async fn build(
    collection: &Arc<Collection>,
    indexes: &[Index],
    build_uuid: Uuid,
) -> Result<Built> {
    let failed = |error: Error| {
        if error.code == ErrorCode::INTERRUPTED_AT_SHUTDOWN {
            return error;
        }
        error.context(format!(
            "Index build failed: {build_uuid}: Collection {} ( {} )",
            collection.ns, collection.uuid
        ))
    };
    let indexes: Arc<[Index]> = indexes.into();
    let partitions = match collection.placement {
        Placement::Hashed => storage().partition_count(),
        Placement::One => 1,
    };
    let mut multikey = Vec::new();
    let mut entries = 0;
    for partition in (0..partitions).map(PartitionId) {
        let (collection, indexes) = (collection.clone(), indexes.clone());
        let scanned = pinion_runtime::submit_to(
            storage().owner(partition),
            Queue::Background,
            move || async move { scan(&collection, &indexes, partition).await },
        )
        .await
        .map_err(failed)?;
        pinion_runtime::sim::event("index build");
        entries += scanned.entries;
        multikey.extend(scanned.multikey);
    }
    if entries == 0 {
        return Ok(Built { multikey });
    }
    for (i, index) in indexes.iter().enumerate() {
        if !index.spec.unique {
            continue;
        }
        for partition in (0..partitions).map(PartitionId) {
            let (collection, indexes) = (collection.clone(), indexes.clone());
            pinion_runtime::submit_to(
                storage().owner(partition),
                Queue::Background,
                move || async move { check_unique(&collection, &indexes[i], partition).await },
            )
            .await
            .map_err(failed)?;
        }
    }
    storage().checkpoint().await.map_err(from_fatal)?;
    Ok(Built { multikey })
}

struct Scanned {
    entries: u64,
    multikey: Vec<(TreeId, MultikeyPaths)>,
}

/// Reads one partition's documents and writes their entries. Runs on the partition's owner.
async fn scan(
    collection: &Collection,
    indexes: &[Index],
    partition: PartitionId,
) -> Result<Scanned> {
    let owned = storage().partition(partition).expect("asked its owner");
    let mut cursor = owned.cursor(
        collection.tree(),
        KeyRange::all(),
        Direction::Forward,
        ReadAt::Newest,
    );
    let mut out = Scanned {
        entries: 0,
        multikey: Vec::new(),
    };
    let hash = storage().partition_hash();
    let mut pending: Vec<Write> = Vec::new();
    let mut documents = 0;
    while let Some((_, read)) = cursor.next().await.map_err(from_read_error)? {
        let document = crate::keys::stored_document(&read.value);
        let id = crate::keys::document_id(document)?;
        for index in indexes {
            let made = entries_of(collection, index, document, id)?;
            if let Some(paths) = made.multikey {
                match out
                    .multikey
                    .iter_mut()
                    .find(|(tree, _)| *tree == index.tree)
                {
                    Some((_, known)) => {
                        known.merge(&paths);
                    }
                    None => out.multikey.push((index.tree, paths)),
                }
            }
            out.entries += made.entries.len() as u64;
            pending.extend(
                made.entries
                    .into_iter()
                    .map(|entry| put_entry(collection, index, entry, partition, hash, false)),
            );
        }
        documents += 1;
        if pending.len() >= BUILD_BATCH_ENTRIES || documents >= BUILD_BATCH_DOCUMENTS {
            write(&mut pending).await?;
            documents = 0;
        }
        pinion_runtime::yield_if_due().await;
    }
    write(&mut pending).await?;
    Ok(out)
}

async fn write(pending: &mut Vec<Write>) -> Result<()> {
    if pending.is_empty() {
        return Ok(());
    }
    storage()
        .apply_unlogged(std::mem::take(pending))
        .await
        .map(|_| ())
        .map_err(crate::errors::from_write_error)
}

/// Reads one partition of a unique index in order: two neighbours that share their fields are duplicates.
async fn check_unique(
    collection: &Collection,
    index: &Index,
    partition: PartitionId,
) -> Result<()> {
    let owned = storage().partition(partition).expect("asked its owner");
    let mut cursor = owned.cursor(
        index.tree,
        KeyRange::all(),
        Direction::Forward,
        ReadAt::Newest,
    );
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
/// than are told in one reply. All entries that share their fields are in one partition.
pub(crate) async fn duplicates(
    collection: &Arc<Collection>,
    index: &Arc<Index>,
) -> Result<Vec<Vec<RawBson>>> {
    let partitions = match collection.placement {
        Placement::Hashed => storage().partition_count(),
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
        if found.len() >= MAX_TOLD_VIOLATIONS {
            found.truncate(MAX_TOLD_VIOLATIONS);
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
                if found.len() >= MAX_TOLD_VIOLATIONS {
                    break;
                }
                found.push(vec![id_of(collection, index, previous, type_bits).await?]);
            }
            let ids = found.last_mut().expect("the entry before is in it");
            if ids.len() < MAX_TOLD_VIOLATIONS {
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
