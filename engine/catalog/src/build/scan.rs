//! The first part of a build: reads the documents of a partition and sorts their entries.

use std::cell::RefCell;
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;

use pinion_query::MultikeyPaths;
use pinion_runtime::{Instant, Queue, core_id, fs, now, submit_to};
use pinion_storage::{
    Direction, Key, KeyRange, PartitionHash, PartitionId, Read, ReadAt, TreeId, storage,
};
use pinion_wire::{Error, ErrorCode, Result};
use rustc_hash::FxHashMap;

use super::chunk::Chunk;
use super::hold;
use super::sorter::Sorter;
use super::state::{RunState, ScanState};
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

/// What the names of the files begin with that have an index's entries in a partition.
pub(super) fn sorter_name(build: Uuid, index: usize, partition: PartitionId) -> String {
    format!("{build}-{index}-{}", partition.0)
}

/// The sorter of an index's entries in a partition of this core.
fn sorter(work: &Work, index: usize, partition: PartitionId) -> Rc<Sorter> {
    let sorters = sorters();
    let mut sorters = sorters.0.borrow_mut();
    let made = || {
        let name = sorter_name(work.uuid, index, partition);
        Rc::new(Sorter::new(Work::dir().join(name), work.sorter_bytes()))
    };
    let key = (work.uuid, index, partition);
    sorters.entry(key).or_insert_with(made).clone()
}

/// The sorter, if anything was sorted.
pub(super) fn known_sorter(
    work: &Work,
    index: usize,
    partition: PartitionId,
) -> Option<Rc<Sorter>> {
    let key = (work.uuid, index, partition);
    sorters().0.borrow().get(&key).cloned()
}

/// Removes what is sorted of a build.
pub(crate) async fn forget_sorted(work: &Work) {
    let uuid = work.uuid;
    pinion_runtime::on_all_cores(move |_| async move {
        for sorter in take_sorters(uuid) {
            sorter.forget().await;
        }
    })
    .await;
}

/// Forgets what is sorted of a build, whose files stay.
pub(super) async fn let_go(work: &Work) {
    let uuid = work.uuid;
    pinion_runtime::on_all_cores(move |_| async move { drop(take_sorters(uuid)) }).await;
}

fn take_sorters(build: Uuid) -> Vec<Rc<Sorter>> {
    let sorters = sorters();
    let mut sorters = sorters.0.borrow_mut();
    let of_build = sorters.extract_if(|(of, ..), _| *of == build);
    of_build.map(|(_, sorter)| sorter).collect()
}

/// Brings all that is sorted in a partition into files, on its owner; of each index.
pub(super) async fn keep_sorted(
    work: Arc<Work>,
    partition: PartitionId,
) -> Result<Vec<Vec<RunState>>> {
    let mut kept = Vec::with_capacity(work.indexes.len());
    for index in 0..work.indexes.len() {
        kept.push(match known_sorter(&work, index, partition) {
            Some(sorter) => sorter.keep().await?,
            None => Vec::new(),
        });
    }
    Ok(kept)
}

/// Opens the files that were kept of a partition, on its owner.
pub(super) async fn open_sorted(work: Arc<Work>, partition: PartitionId) -> Result<()> {
    let Some(state) = &work.resumed else {
        return Ok(());
    };
    for (i, index) in state.indexes.iter().enumerate() {
        let runs = &index.runs[usize::from(partition.0)];
        if !runs.is_empty() {
            let path = Work::dir().join(sorter_name(work.uuid, i, partition));
            let sorter = Sorter::open(path, work.sorter_bytes(), runs).await?;
            let key = (work.uuid, i, partition);
            sorters().0.borrow_mut().insert(key, Rc::new(sorter));
        }
    }
    Ok(())
}

/// What a scan found.
pub(super) struct Scanned {
    pub state: ScanState,
    pub multikey: Vec<(TreeId, MultikeyPaths)>,
}

/// The entries of one index that are on their way to a sorter.
struct Outgoing {
    /// By partition, where the entries do not all lie beside their documents.
    chunks: Vec<Chunk>,
    by_key: bool,
}

/// Reads a partition's documents, on its owner, from where `from` has come. Others may write
/// meanwhile: of a document that changes it does not matter which of its versions is read, since
/// all that differs among them is in the side writes. Where a shutdown stops it, what was read
/// until then is in the sorters.
pub(super) async fn scan(
    work: Arc<Work>,
    partition: PartitionId,
    from: ScanState,
) -> Result<Scanned> {
    let mut scan = Scan {
        partition,
        hash: storage().partition_hash(),
        outgoing: outgoing(&work),
        out: Scanned {
            state: from,
            multikey: Vec::new(),
        },
    };
    if !scan.out.state.is_complete {
        scan.out.state.is_complete = scan.read_all(&work).await?;
        scan.deliver_rest(&work).await?;
        pinion_runtime::sim::event("index build scanned");
    }
    Ok(scan.out)
}

/// The scan of a partition.
struct Scan {
    partition: PartitionId,
    hash: PartitionHash,
    outgoing: Vec<Outgoing>,
    out: Scanned,
}

impl Scan {
    /// Reads documents until there are no more; false where a shutdown has stopped that.
    async fn read_all(&mut self, work: &Arc<Work>) -> Result<bool> {
        let owned = storage().partition(self.partition);
        let owned = owned.expect("asked its owner");
        let range = KeyRange {
            lower: match &self.out.state.position {
                Some(last) => Bound::Excluded(last.clone()),
                None => Bound::Unbounded,
            },
            upper: Bound::Unbounded,
        };
        let tree = work.collection.tree();
        let mut cursor = owned.cursor(tree, range, Direction::Forward, ReadAt::Newest);
        let (mut documents, mut watch) = (0, Watch::new());
        let mut is_stopped = false;
        while !is_stopped && let Some((key, read)) = cursor.next().await.map_err(from_read_error)? {
            self.read(work, &key, &read).await?;
            self.out.state.position = Some(key);
            self.out.state.documents += 1;
            documents += 1;
            if documents == BUILD_STEP_DOCUMENTS || self.out.state.documents == 1 {
                work.progress.add(documents);
                documents = 0;
                is_stopped = is_at_shutdown(watch.look(work).await)?;
            }
            pinion_runtime::yield_if_due().await;
        }
        work.progress.add(documents);
        Ok(!is_stopped)
    }

    /// Makes the entries of a document.
    async fn read(&mut self, work: &Arc<Work>, key: &Key, read: &Read) -> Result<()> {
        let (document, record) = (stored_document(&read.value), work.collection.record_of(key));
        let most_bytes = work.chunk_bytes();
        for (i, index) in work.indexes.iter().enumerate() {
            let made = entries_of(&work.collection, index, document, record)?;
            if let Some(paths) = made.multikey {
                learn(&mut self.out.multikey, index.tree, paths);
            }
            self.out.state.entries += made.entries.len() as u64;
            for entry in made.entries {
                let (target, slot) = match self.outgoing[i].by_key {
                    true => {
                        let (from, hash) = (self.partition, self.hash);
                        let at = entry_partition(&work.collection, index, &entry, from, hash);
                        (at, usize::from(at.0))
                    }
                    false => (self.partition, 0),
                };
                let chunk = &mut self.outgoing[i].chunks[slot];
                chunk.push(&entry.key, &entry.type_bits);
                if chunk.memory() >= most_bytes {
                    deliver(work, i, target, std::mem::take(chunk)).await?;
                }
            }
        }
        Ok(())
    }

    /// Delivers what is left, of chunks that are not full.
    async fn deliver_rest(&mut self, work: &Arc<Work>) -> Result<()> {
        for (i, outgoing) in std::mem::take(&mut self.outgoing).into_iter().enumerate() {
            for (slot, chunk) in outgoing.chunks.into_iter().enumerate() {
                let target = match outgoing.by_key {
                    true => PartitionId(slot as u16),
                    false => self.partition,
                };
                deliver(work, i, target, chunk).await?;
            }
        }
        Ok(())
    }
}

/// Whether a shutdown stops the build.
///
/// # Errors
/// Something else ends it.
pub(super) fn is_at_shutdown(looked: Result<()>) -> Result<bool> {
    match looked {
        Ok(()) => Ok(false),
        Err(error) if error.code == ErrorCode::INTERRUPTED_AT_SHUTDOWN => Ok(true),
        Err(error) => Err(error),
    }
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
    /// When the room on the file system is examined again.
    next: Instant,
}

impl Watch {
    /// The first look is at the room too: a member whose build another began has not looked before.
    pub(super) fn new() -> Watch {
        Watch { next: now() }
    }

    pub(super) async fn look(&mut self, work: &Work) -> Result<()> {
        hold::held(work).await?;
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
    // Where the file system does not report this, as some network file systems, the write itself
    // fails.
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
