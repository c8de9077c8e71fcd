//! Builds indexes over the documents that are there, while no writer is behind the collection's gates.
//!
//! Entries are written outside the log, then checked for uniqueness in key order, then a checkpoint makes a
//! manifest hold them. Only after that does the caller write the entry that makes the indexes ready, so replay
//! never builds an index, and a crash before it leaves trees that nothing refers to.

use std::sync::Arc;

use bytes::Bytes;
use pinion_query::MultikeyPaths;
use pinion_runtime::Queue;
use pinion_storage::{Direction, Key, KeyRange, PartitionId, ReadAt, TreeId, Write, storage};
use pinion_wire::{Error, ErrorCode, Result};

use crate::entry::{Collection, Placement};
use crate::errors::{from_fatal, from_read_error};
use crate::index::Index;
use crate::keys::{duplicate_entry, entries_of, prefix_len, put_entry};
use crate::limits::{BUILD_BATCH_DOCUMENTS, BUILD_BATCH_ENTRIES};
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
            let made = entries_of(index, document, id)?;
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
