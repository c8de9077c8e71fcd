//! The last part of a build: brings what was written meanwhile into the index.
//!
//! While an index is built, writers put what they do to it into a tree of its own, the side writes:
//! for each key whether the entry is there, and its TypeBits. Only the last word on a key counts,
//! so it does not matter in which order they come into the index, nor how often; and where a key
//! has none, nothing of it has changed since the build began. Each is brought over by one statement
//! that takes it out of the side writes as it was read: a writer that comes in between wins.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use pinion_clock::Timestamp;
use pinion_storage::{
    Direction, Expect, Key, KeyRange, Op, PartitionId, PlantedFault, Read, ReadAt, Statement,
    TreeId, Write, WriteError, storage,
};
use pinion_wire::{Error, Result};

use super::hold::held;
use super::shared_fields::SharedFields;
use super::unique::has_several;
use super::work::Work;
use crate::entry::Collection;
use crate::errors::{from_read_error, from_write_error};
use crate::index::Index;
use crate::keys::prefix_len;
use crate::limits::{DRAIN_BATCH_ENTRIES, DRAIN_STATEMENT_ENTRIES};

/// The side write of an entry that is there.
const PRESENT: u8 = 1;
/// That of one that is not.
const ABSENT: u8 = 0;

/// The side write of an entry that was put or, without TypeBits, removed.
pub(crate) fn side_value(type_bits: Option<&[u8]>) -> Bytes {
    match type_bits {
        Some(type_bits) => [&[PRESENT], type_bits].concat().into(),
        None => Bytes::from_static(&[ABSENT]),
    }
}

/// What a side write does to the index.
fn op_of(value: &Bytes) -> Op {
    match value.first() {
        Some(&PRESENT) => Op::Put(Bytes::copy_from_slice(&value[1..])),
        _ => Op::Delete,
    }
}

/// What one pass over a partition has done.
#[derive(Default)]
pub(super) struct Drained {
    /// Side writes that were there, also those that it could not bring over: no pass before one
    /// that meets none is the last.
    pub met: u64,
    /// Of each index.
    pub shared: Vec<SharedFields>,
}

/// Brings the side writes of all indexes in a partition over, on its owner, unless they are written
/// again meanwhile, and no checkpoint takes them into the base, where their versions have other
/// tokens.
///
/// # Errors
/// The build ends, or is stopped; there is no memory for changes at present.
pub(super) async fn drain(work: Arc<Work>, partition: PartitionId) -> Result<Drained> {
    let mut drained = Drained::default();
    for index in work.indexes.iter() {
        let mut shared = SharedFields::default();
        if let Some(building) = &index.building {
            let mut from = Bound::Unbounded;
            loop {
                work.check()?;
                let batch = batch(building.side, partition, from).await?;
                let Some((last, _)) = batch.last() else {
                    break;
                };
                from = Bound::Excluded(last.clone());
                drained.met += batch.len() as u64;
                held(&work).await?;
                let brought = bring(index, building.side, partition, &batch).await?;
                work.progress.add(brought.len() as u64);
                if index.spec.enforces_unique() {
                    note_shared(index, partition, &brought, &mut shared).await?;
                }
            }
        }
        drained.shared.push(shared);
    }
    Ok(drained)
}

/// The next side writes of a partition, and which version of each it is.
async fn batch(side: TreeId, partition: PartitionId, from: Bound<Key>) -> Result<Vec<(Key, Read)>> {
    let owned = storage().partition(partition).expect("asked its owner");
    let range = KeyRange {
        lower: from,
        upper: Bound::Unbounded,
    };
    let mut cursor = owned.cursor(side, range, Direction::Forward, ReadAt::Newest);
    let mut batch = Vec::new();
    while batch.len() < DRAIN_BATCH_ENTRIES
        && let Some(next) = cursor.next().await.map_err(from_read_error)?
    {
        batch.push(next);
    }
    Ok(batch)
}

/// Brings a batch over; gives the keys for which that was done.
async fn bring(
    index: &Index,
    side: TreeId,
    partition: PartitionId,
    batch: &[(Key, Read)],
) -> Result<Vec<Key>> {
    let write = |tree, key: &Key, op, expect| Write {
        partition,
        tree,
        key: key.clone(),
        op,
        expect,
    };
    let is_missed = storage().planted_fault() == PlantedFault::LateWritesMissed;
    let statement = |entries: &[(Key, Read)]| {
        let mut writes = Vec::with_capacity(2 * entries.len());
        for (key, read) in entries {
            writes.push(write(side, key, Op::Delete, Expect::Version(read.token)));
            if !is_missed {
                writes.push(write(index.tree, key, op_of(&read.value), Expect::Any));
            }
        }
        Statement {
            writes,
            entry: None,
        }
    };
    let statements = batch.chunks(DRAIN_STATEMENT_ENTRIES).map(statement);
    let outcomes = storage().execute(statements.collect(), false).await;
    let mut brought = Vec::new();
    for (entries, outcome) in batch.chunks(DRAIN_STATEMENT_ENTRIES).zip(outcomes) {
        match outcome {
            Ok(_) => brought.extend(entries.iter().map(|(key, _)| key.clone())),
            // Another version, or another place of this one: the next pass comes to it.
            Err(WriteError::Conflict | WriteError::Missing { .. }) => {}
            Err(error) => return Err(from_write_error(error)),
        }
    }
    pinion_runtime::sim::event("index build drained");
    Ok(brought)
}

/// Notes the fields that entries brought over share with others.
async fn note_shared(
    index: &Index,
    partition: PartitionId,
    brought: &[Key],
    shared: &mut SharedFields,
) -> Result<()> {
    for key in brought {
        let len = prefix_len(index, key);
        let fields = &key[..len.expect("a writer has made the key")];
        if has_several(index, partition, fields).await? {
            shared.note(fields);
        }
    }
    Ok(())
}

/// Brings all side writes of a build over whose end is replayed at `ts`.
pub(crate) async fn replay(ts: Timestamp, before: &Collection, after: &Collection) -> Result<()> {
    for index in &before.indexes {
        let Some(building) = &index.building else {
            continue;
        };
        let is_ready = |other: &&Arc<Index>| other.tree == index.tree && other.building.is_none();
        if after.indexes.iter().find(is_ready).is_none() {
            continue;
        }
        let (side, tree) = (building.side, index.tree);
        let replayed = pinion_runtime::on_all_cores(move |_| replay_here(ts, side, tree)).await;
        replayed.into_iter().collect::<Result<()>>()?;
    }
    Ok(())
}

async fn replay_here(ts: Timestamp, side: TreeId, tree: TreeId) -> Result<()> {
    let owned = (0..storage().partition_count()).map(PartitionId);
    for partition in owned.filter(|partition| storage().partition(*partition).is_some()) {
        let mut from = Bound::Unbounded;
        loop {
            let batch = batch(side, partition, from).await?;
            let Some((last, _)) = batch.last() else {
                break;
            };
            from = Bound::Excluded(last.clone());
            let write = |(key, read): &(Key, Read)| Write {
                partition,
                tree,
                key: key.clone(),
                op: op_of(&read.value),
                expect: Expect::Any,
            };
            let writes = batch.iter().map(write).collect();
            let applied = storage().apply_at(ts, writes).await;
            applied.map_err(|error| {
                Error::internal(format!("cannot replay the end of an index build: {error}"))
            })?;
            pinion_runtime::yield_if_due().await;
        }
    }
    Ok(())
}
