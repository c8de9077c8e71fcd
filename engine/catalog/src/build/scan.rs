//! The first part of a build: reads the documents of a partition and sorts their entries.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinion_query::MultikeyPaths;
use pinion_runtime::{Instant, Queue, core_id, fs, now, submit_to};
use pinion_storage::{Direction, KeyRange, PartitionId, ReadAt, TreeId, storage};
use pinion_wire::{Error, ErrorCode, Result};
use rustc_hash::FxHashMap;

use super::chunk::Chunk;
use super::sorter::Sorter;
use super::work::Work;
use crate::entry::Placement;
use crate::errors::from_read_error;
use crate::index::IndexPlacement;
use crate::keys::{entries_of, entry_partition, stored_document};
use crate::limits::{BUILD_STEP_DOCUMENTS, ROOM_INTERVAL};
use crate::uuid::Uuid;

/// The sorters of all builds whose entries belong to partitions of this core: by build, index and
/// partition.
#[derive(Default)]
struct Sorters(RefCell<FxHashMap<(Uuid, usize, PartitionId), Rc<Sorter>>>);

fn sorters() -> Rc<Sorters> {
    pinion_runtime::try_core_local::<Sorters>().unwrap_or_else(|| {
        let sorters = Rc::new(Sorters::default());
        pinion_runtime::set_core_local(sorters.clone());
        sorters
    })
}

/// The sorter of an index's entries in a partition of this core.
fn sorter(work: &Work, index: usize, partition: PartitionId) -> Rc<Sorter> {
    let sorters = sorters();
    let mut sorters = sorters.0.borrow_mut();
    let made = || {
        let name = format!("{}-{index}-{}", work.uuid, partition.0);
        Rc::new(Sorter::new(Work::dir().join(name), work.sorter_bytes()))
    };
    let key = (work.uuid, index, partition);
    sorters.entry(key).or_insert_with(made).clone()
}

/// Takes the sorter out, if anything was sorted.
pub(super) fn take_sorter(work: &Work, index: usize, partition: PartitionId) -> Option<Rc<Sorter>> {
    let key = (work.uuid, index, partition);
    sorters().0.borrow_mut().remove(&key)
}

/// Forgets what is sorted of a build.
pub(super) async fn forget_sorted(work: &Work) {
    let uuid = work.uuid;
    pinion_runtime::on_all_cores(move |_| async move {
        sorters()
            .0
            .borrow_mut()
            .retain(|(build, ..), _| *build != uuid);
    })
    .await;
}

/// What a scan found.
pub(super) struct Scanned {
    pub entries: u64,
    pub multikey: Vec<(TreeId, MultikeyPaths)>,
}

/// The entries of one index that are on their way to a sorter.
struct Outgoing {
    /// By partition, where the entries do not all lie beside their documents.
    chunks: Vec<Chunk>,
    by_key: bool,
}

/// Reads a partition's documents, on its owner. Others may write meanwhile: of a document that
/// changes it does not matter which of its versions is read, since all that differs among them is
/// in the side writes.
pub(super) async fn scan(work: Arc<Work>, partition: PartitionId) -> Result<Scanned> {
    let (owned, hash) = (storage().partition(partition), storage().partition_hash());
    let owned = owned.expect("asked its owner");
    let all = KeyRange::all();
    let collection = &work.collection;
    let mut cursor = owned.cursor(collection.tree(), all, Direction::Forward, ReadAt::Newest);
    let mut out = Scanned {
        entries: 0,
        multikey: Vec::new(),
    };
    let mut outgoing: Vec<Outgoing> = outgoing(&work);
    let most_bytes = work.chunk_bytes();
    let (mut documents, mut watch) = (0, Watch::new());
    while let Some((key, read)) = cursor.next().await.map_err(from_read_error)? {
        let document = stored_document(&read.value);
        let record = collection.record_of(&key);
        for (i, index) in work.indexes.iter().enumerate() {
            let made = entries_of(collection, index, document, record)?;
            if let Some(paths) = made.multikey {
                learn(&mut out.multikey, index.tree, paths);
            }
            out.entries += made.entries.len() as u64;
            for entry in made.entries {
                let (target, slot) = match outgoing[i].by_key {
                    true => {
                        let at = entry_partition(collection, index, &entry, partition, hash);
                        (at, usize::from(at.0))
                    }
                    false => (partition, 0),
                };
                let chunk = &mut outgoing[i].chunks[slot];
                chunk.push(&entry.key, &entry.type_bits);
                if chunk.memory() >= most_bytes {
                    deliver(&work, i, target, std::mem::take(chunk)).await?;
                }
            }
        }
        documents += 1;
        if documents == BUILD_STEP_DOCUMENTS {
            work.progress.add(documents);
            documents = 0;
            watch.look(&work).await?;
        }
        pinion_runtime::yield_if_due().await;
    }
    work.progress.add(documents);
    for (i, outgoing) in outgoing.into_iter().enumerate() {
        for (slot, chunk) in outgoing.chunks.into_iter().enumerate() {
            let target = match outgoing.by_key {
                true => PartitionId(slot as u16),
                false => partition,
            };
            deliver(&work, i, target, chunk).await?;
        }
    }
    pinion_runtime::sim::event("index build scanned");
    Ok(out)
}

fn outgoing(work: &Work) -> Vec<Outgoing> {
    let of_index = |index: &crate::index::Index| {
        let by_key = index.placement == IndexPlacement::ByKey
            && work.collection.placement == Placement::Hashed;
        let chunks = match by_key {
            true => usize::from(work.partitions()),
            false => 1,
        };
        Outgoing {
            chunks: (0..chunks).map(|_| Chunk::default()).collect(),
            by_key,
        }
    };
    work.indexes.iter().map(of_index).collect()
}

fn learn(known: &mut Vec<(TreeId, MultikeyPaths)>, tree: TreeId, paths: MultikeyPaths) {
    match known.iter_mut().find(|(found, _)| *found == tree) {
        Some((_, known)) => {
            known.merge(&paths);
        }
        None => known.push((tree, paths)),
    }
}

/// Brings entries to the owner of their partition.
async fn deliver(
    work: &Arc<Work>,
    index: usize,
    partition: PartitionId,
    mut chunk: Chunk,
) -> Result<()> {
    if chunk.is_empty() {
        return Ok(());
    }
    chunk.sort();
    let owner = storage().owner(partition);
    if owner == core_id() {
        return sorter(work, index, partition).add(chunk).await;
    }
    let work = work.clone();
    submit_to(owner, Queue::Background, move || async move {
        sorter(&work, index, partition).add(chunk).await
    })
    .await
}

/// Looks now and then whether a build should end.
pub(super) struct Watch {
    /// When the room on the file system is looked at again.
    next: Instant,
}

impl Watch {
    pub(super) fn new() -> Watch {
        Watch {
            next: now() + ROOM_INTERVAL,
        }
    }

    pub(super) async fn look(&mut self, work: &Work) -> Result<()> {
        work.check()?;
        let now = now();
        if now < self.next {
            return Ok(());
        }
        self.next = now + ROOM_INTERVAL;
        check_room(work).await
    }
}

/// Ends the build where the file system has too little room.
pub(crate) async fn check_room(work: &Work) -> Result<()> {
    // Where this cannot be asked, as on some network file systems, writing tells.
    let Ok(space) = fs::space(storage().dir()).await else {
        return Ok(());
    };
    if space.free_bytes >= work.limits.least_free_bytes {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::OUT_OF_DISK_SPACE,
        format!(
            "available disk space of {} bytes is less than required minimum of {}",
            space.free_bytes, work.limits.least_free_bytes
        ),
    ))
}
